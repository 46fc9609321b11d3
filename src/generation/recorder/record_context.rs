// SPDX-License-Identifier: Apache-2.0
//! What a recorder knows about the request before the reply begins.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::CapturedOutput;
use super::prompt_images::RequestedImages;
use crate::budget::Share;
use crate::columns::{COLUMNS, ColumnSource, ExpertShape};
use crate::engine::capabilities::Capabilities;
use crate::engine::events::Chunk;
use crate::engine::expansion::EchoedPrompt;
use crate::engine::plan::{ColumnPlan, Plan};
use crate::engine::sglang::request::{GenerateRequest, PerItem, SessionParams};
use crate::generation::request::EngineChat;
use crate::session::{Chat, Fault, Labels, Policy, RequestedAdapter};

/// What a recorder knows about the request before the reply begins.
#[derive(Debug)]
pub struct RecordContext {
    /// The ids of each prompt, where the client sent them or the engine's tokenizer returned them.
    pub prompts: SmallVec<[Option<Arc<[u32]>>; 1]>,
    /// The pictures of each prompt. Empty if the request has no media.
    pub images: Vec<RequestedImages>,
    /// The settings of the processor of the pictures, JSON text, if they are known.
    pub image_settings: Option<Arc<str>>,
    /// Counts the decoded pictures until the turns have them.
    pub image_memory: Option<Share>,
    /// The request that the engine continues: it puts the tokens of that request before each prompt.
    pub session_params: Option<SessionParams>,
    /// The `sampling_params` of each prompt, with the engine's defaults that change logprobs.
    pub sampling: SmallVec<[Option<Arc<str>>; 1]>,
    /// The served model.
    pub model: Arc<str>,
    /// The adapter of each prompt, with its epoch when the request came. Empty without adapters.
    pub adapters: Vec<Option<RequestedAdapter>>,
    /// The URL of the engine, where it is known.
    pub engine: Option<Arc<str>>,
    pub policy: Arc<Policy>,
    /// The policy's epoch when the request came.
    pub epoch: u64,
    /// The conversation that its turns continue, for a chat request.
    pub chat: Option<Box<Chat>>,
    /// The labels of its turns; `None` without a signal.
    pub labels: Option<Arc<Labels>>,
    /// The engine's `output_ids` are the sampled tokens. Those of sglang-jax are not.
    pub ids_are_sampled: bool,
    /// The size of the vocabulary, if it is known.
    pub vocab_size: Option<u32>,
    /// The number of leading tokens that each column of the table leaves out, where the request chooses it and it can be read.
    pub column_starts: SmallVec<[Option<usize>; 2]>,
    /// The routing of the model, if it is known.
    pub experts: Option<ExpertShape>,
    /// The most likeliest tokens of each sampled one that are recorded.
    pub top_k: Option<u32>,
}

impl RecordContext {
    /// Builds the context from a request.
    #[must_use]
    pub fn for_generate(request: &GenerateRequest, upstream: &Capabilities, policy: Arc<Policy>) -> Self {
        let prompts = request.batch().unwrap_or(1);
        let has_media = request.has_media();
        let none = serde_json::Map::new();
        let defaults = upstream.preferred.as_ref().map_or(&none, |preferred| &preferred.changing);
        Self {
            // the ids that were sent are not those of the prompt, if that has media
            prompts: (0..prompts).map(|at| request.prompt_ids(at).filter(|_| !has_media)).collect(),
            images: Vec::new(),
            image_settings: None,
            image_memory: None,
            session_params: request.session_params.clone(),
            sampling: (0..prompts).map(|at| request.recorded_sampling(at, defaults)).collect(),
            model: Arc::clone(&upstream.model),
            adapters: adapters(request, prompts, &policy),
            epoch: policy.epoch(),
            policy,
            chat: None,
            labels: None,
            engine: None,
            ids_are_sampled: upstream.lists_sampled_ids(),
            vocab_size: upstream.vocab_size,
            column_starts: COLUMNS.iter().map(|source| column_start(request, source)).collect(),
            experts: None,
            top_k: None,
        }
    }

    /// The same with the pictures of the request, and the settings of their processor. Without memory for them they are not recorded.
    #[must_use]
    pub fn with_images(
        mut self,
        request: &GenerateRequest,
        memory: Option<Share>,
        settings: impl FnOnce() -> Option<Arc<str>>,
    ) -> Self {
        if request.has_media() {
            self.images = RequestedImages::of_request(request, memory.is_some());
            self.image_settings = settings_of(request, settings());
        }
        self.image_memory = memory;
        self
    }

    /// The same with the token columns of a plan. `top_k` is the setting.
    #[must_use]
    pub fn with_columns(mut self, plan: &Plan, experts: Option<ExpertShape>, top_k: u32) -> Self {
        for (at, start) in self.column_starts.iter_mut().enumerate() {
            if plan.items.iter().any(|item| item.columns[at] == ColumnPlan::Forced) {
                *start = Some(plan.column_start);
            }
        }
        Self { experts, top_k: plan.keeps_top.then_some(top_k), ..self }
    }

    /// Builds the context of a chat that the engine renders.
    #[must_use]
    pub fn for_engine_chat(chat: &EngineChat, upstream: &Capabilities, policy: Arc<Policy>) -> Self {
        Self {
            prompts: SmallVec::new(),
            images: Vec::new(),
            image_settings: None,
            image_memory: None,
            session_params: None,
            sampling: smallvec![Some(Arc::from(&*chat.sampling))],
            model: Arc::clone(&upstream.model),
            adapters: chat.lora_path.iter().map(|name| Some(policy.requested_adapter(Arc::clone(name)))).collect(),
            epoch: policy.epoch(),
            policy,
            chat: None,
            labels: None,
            engine: None,
            ids_are_sampled: true,
            vocab_size: upstream.vocab_size,
            column_starts: SmallVec::new(),
            experts: None,
            top_k: None,
        }
    }

    /// Records the prompt's ids from the first object that echoes them: a stream may break off before its last object.
    pub(super) fn record_echoed_prompt(&mut self, output: &CapturedOutput<'_>) {
        let at = output.index / output.n.max(1);
        let Some(unknown @ None) = self.prompts.get_mut(at) else { return };
        let Some(span) = &output.chunk.prompt_ids else { return };
        let mut ids = Vec::new();
        *unknown = Chunk::ids(output.bytes, span, &mut ids).is_ok().then(|| ids.into());
        if let (Some(prompt), Some(images)) = (unknown, self.images.get_mut(at)) {
            let image_tokens = output.chunk.image_tokens(output.bytes);
            images.place(EchoedPrompt { ids: prompt, image_tokens }, self.image_settings.as_ref());
        }
    }

    /// Why the turns of prompt `at` are not trained because of its pictures.
    pub(super) fn image_fault(&self, at: usize) -> Option<Fault> {
        self.images.get(at)?.fault()
    }
}

/// The most bytes of the options of a request that are recorded.
const LONGEST_OPTIONS: usize = 4096;

/// The settings of the engine's processor, with what the request sets as the member `request`.
fn settings_of(request: &GenerateRequest, of_engine: Option<Arc<str>>) -> Option<Arc<str>> {
    let Some(options) = request.image_options() else { return of_engine };
    // a client may send any value, and each turn of the prompt has it
    let options = if options.len() <= LONGEST_OPTIONS { &options } else { "null" };
    let members = of_engine.as_deref().and_then(|known| known.strip_suffix('}'));
    let members = members.unwrap_or(r#"{"processor":null,"overrides":null,"backend":null"#);
    Some(format!(r#"{members},"request":{options}}}"#).into())
}

/// The number of leading tokens that the request leaves out of a column. `None` if it cannot be read, or if no request chooses it.
fn column_start(request: &GenerateRequest, source: &ColumnSource) -> Option<usize> {
    match request.object.get(&request.bytes, source.alignment.start_member()?) {
        Some(value) => std::str::from_utf8(value).ok()?.parse().ok(),
        None => Some(0),
    }
}

/// The adapter of each prompt of a request. Empty without adapters.
fn adapters(request: &GenerateRequest, prompts: usize, policy: &Policy) -> Vec<Option<RequestedAdapter>> {
    let adapter = |at| request.adapter(at).map(|name| policy.requested_adapter(name));
    match &request.lora_path {
        PerItem::Absent | PerItem::Unreadable => Vec::new(),
        PerItem::One(_) => vec![adapter(0); prompts],
        PerItem::Many(_) => (0..prompts).map(adapter).collect(),
    }
}
