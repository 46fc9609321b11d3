//! Records a chat that the engine's own endpoint serves. The token ids that the engine reports become turns.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::time::Instant;

use crate::api::openai_chat::passthrough::PassthroughRequest;
use crate::api::openai_chat::sglext::EngineIds;
use crate::chat::remembered::Remembered;
use crate::serve::data::forward::UncapturedGeneration;
use crate::serve::proxy_state::ProxyState;
use crate::session::ledger::Ack;
use crate::session::{About, Call, Draft, Fault, Reported, now_ms};

/// Records one reply. If it cannot, the generation counts as uncaptured.
#[derive(Debug)]
pub(super) struct PassthroughRecorder {
    pub(super) state: Arc<ProxyState>,
    pub(super) request: PassthroughRequest,
    remembered: Option<Remembered>,
    // declared before `call`, so that dropping it marks the session as incomplete before the call ends
    uncaptured: UncapturedGeneration,
    call: Call,
    model: Box<str>,
    /// The URL of the engine, where it is known.
    engine: Option<Box<str>>,
    epoch: u64,
    started: Instant,
    started_ms: u64,
    first_ms: Option<u64>,
}

impl PassthroughRecorder {
    /// Creates a recorder before the request is sent.
    pub(super) fn new(
        state: &Arc<ProxyState>,
        (request, remembered): (PassthroughRequest, Option<Remembered>),
        call: Call,
        uncaptured: UncapturedGeneration,
    ) -> Self {
        let model: Box<str> = (*state.upstream.borrow().model).into();
        Self {
            request,
            remembered,
            call,
            uncaptured,
            engine: state.engines.single().filter(|_| !model.is_empty()).map(Into::into),
            model,
            epoch: state.generator.policy.epoch(),
            started: Instant::now(),
            started_ms: now_ms(),
            first_ms: None,
            state: Arc::clone(state),
        }
    }

    /// Does not record a reply, such as an error or a compressed one.
    pub(super) fn skip(self, status: http::StatusCode) {
        self.uncaptured.answered(status);
    }

    /// Records the time of the first bytes of a stream.
    pub(super) fn record_first_bytes(&mut self) {
        self.first_ms.get_or_insert(elapsed(self.started));
    }

    /// Records a turn for each choice if the engine reported the ids of all choices. The acks resolve when the turns are on disk. A panic
    /// loses the turns, never the reply.
    pub(super) fn record(self, engine_ids: EngineIds) -> Vec<Ack> {
        let state = Arc::clone(&self.state);
        let recorded = catch_unwind(AssertUnwindSafe(|| self.commit(engine_ids)));
        recorded.unwrap_or_else(|_| {
            state.metrics.panics.inc();
            Vec::new()
        })
    }

    fn commit(mut self, engine_ids: EngineIds) -> Vec<Ack> {
        let EngineIds { rid, prompt: Some(prompt), responses: Some(responses), mut finishes, label, mut spans } =
            engine_ids
        else {
            return Vec::new();
        };
        if let Some(label) = spans.last().map(|(label, ..)| label).or(label.as_ref()) {
            self.state.generator.policy.observe(self.epoch, label);
        }
        let prompt: Arc<[u32]> = prompt.into();
        let chat = self.remembered.take().map(|remembered| Box::new(remembered.behind(&prompt)));
        let elapsed_ms = elapsed(self.started);
        let mut acks = Vec::with_capacity(responses.len());
        for (index, response) in responses.into_iter().enumerate() {
            // the spans belong to the first choice
            let reported = Reported { label: label.clone(), spans: std::mem::take(&mut spans) };
            let tokens = u32::try_from(response.len()).unwrap_or(u32::MAX);
            let about = About {
                engine: self.engine.clone(),
                rid: rid.clone(),
                index: u32::try_from(index).unwrap_or(u32::MAX),
                finish: finishes.remove(&index),
                fault: Some(Fault::Forwarded),
                policy: self.state.generator.policy.spans(self.epoch, tokens, &reported, &[]),
                sampling: Some(self.request.sampling.clone()),
                model: self.model.clone(),
                started_ms: self.started_ms,
                first_ms: self.first_ms,
                elapsed_ms,
                chat: chat.clone(),
                ..About::default()
            };
            let draft = Draft { prompt: Some(Arc::clone(&prompt)), response, about, ..Draft::default() };
            acks.push(self.call.commit(draft).1);
        }
        self.uncaptured.captured();
        acks
    }
}

fn elapsed(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
