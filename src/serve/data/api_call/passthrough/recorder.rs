//! Records a chat that the engine's own endpoint serves. The token ids that the engine reports become turns.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::api::openai_chat::passthrough::PassthroughRequest;
use crate::api::openai_chat::sglext::EngineIds;
use crate::chat::forwarded::ForwardedChat;
use crate::generation::recorder::{ForwardedSequence, RecordContext, Recorder};
use crate::serve::data::forward::UncapturedGeneration;
use crate::serve::proxy_state::ProxyState;
use crate::session::ledger::Ack;
use crate::session::{Call, Labels, ReportedVersions};

/// Records one reply. If it cannot, the generation counts as uncaptured.
#[derive(Debug)]
pub(in crate::serve::data::api_call) struct PassthroughRecorder {
    pub(super) state: Arc<ProxyState>,
    pub(super) request: PassthroughRequest,
    forwarded_chat: Option<ForwardedChat>,
    // declared before `recorder`, so that dropping it marks the session as incomplete before the call ends
    uncaptured: UncapturedGeneration,
    recorder: Recorder,
    first_ms: Option<u64>,
}

impl PassthroughRecorder {
    /// Creates a recorder before the request is sent.
    pub(in crate::serve::data::api_call) fn new(
        state: &Arc<ProxyState>,
        (request, forwarded_chat, labels): (PassthroughRequest, Option<ForwardedChat>, Option<Arc<Labels>>),
        call: Call,
        uncaptured: UncapturedGeneration,
    ) -> Self {
        let upstream = Arc::clone(&state.upstream.borrow());
        let policy = Arc::clone(&state.generator.policy);
        let context = RecordContext {
            prompts: Vec::new(),
            session_params: None,
            sampling: vec![Some(request.sampling.clone())],
            engine: state.engines.single(),
            model: Arc::clone(&upstream.model),
            lora_paths: vec![request.lora_path.clone()],
            epoch: policy.epoch(),
            policy,
            chat: None,
            labels,
            ids_are_sampled: true,
            vocab_size: upstream.vocab_size,
        };
        let recorder = Recorder::new(call, context);
        Self { state: Arc::clone(state), request, forwarded_chat, uncaptured, recorder, first_ms: None }
    }

    /// Does not record a reply, such as an error or a compressed one.
    pub(in crate::serve::data::api_call) fn skip(self, status: http::StatusCode) {
        self.uncaptured.answered(status);
    }

    /// Records the time of the first bytes of a stream.
    pub(in crate::serve::data::api_call) fn record_first_bytes(&mut self) {
        self.first_ms.get_or_insert_with(|| self.recorder.elapsed_ms());
    }

    /// Records a turn for each choice if the engine reported the ids of all choices. The acks resolve when the turns are on disk. A panic
    /// loses the turns, never the reply.
    pub(in crate::serve::data::api_call) fn record(self, engine_ids: EngineIds) -> Vec<Ack> {
        let state = Arc::clone(&self.state);
        let recorded = catch_unwind(AssertUnwindSafe(|| self.commit(engine_ids)));
        recorded.unwrap_or_else(|_| {
            state.metrics.panics.inc();
            Vec::new()
        })
    }

    fn commit(mut self, engine_ids: EngineIds) -> Vec<Ack> {
        let EngineIds {
            rid,
            prompt: Some(prompt),
            responses: Some(responses),
            mut finishes,
            cached_tokens,
            label,
            mut spans,
        } = engine_ids
        else {
            return Vec::new();
        };
        let prompt: Arc<[u32]> = prompt.into();
        let chat = self.forwarded_chat.take().map(|forwarded_chat| Box::new(forwarded_chat.after_prompt(&prompt)));
        self.recorder.set_chat(chat);
        for (index, ids) in responses.into_iter().enumerate() {
            let sequence = ForwardedSequence {
                index,
                prompt: Arc::clone(&prompt),
                ids,
                rid: rid.clone(),
                finish: finishes.remove(&index),
                // the prompt is counted once
                cached_tokens: cached_tokens.filter(|_| index == 0),
                // the spans belong to the first choice
                reported: ReportedVersions { label: label.clone(), spans: std::mem::take(&mut spans) },
            };
            self.recorder.record_forwarded(sequence, self.first_ms);
        }
        self.uncaptured.captured();
        self.recorder.take_acks()
    }
}
