// SPDX-License-Identifier: Apache-2.0
//! One call of a policy: the new part of its prompt, and the tokens that it sampled.

mod fault;
mod images;
mod reply_change;
mod sampling_sources;
mod turn_key;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Chat, Labels, RequestClass, Span, Tags, Uid};
use crate::columns::{Column, ColumnFault};
use crate::named_enum::named_enum;
pub use fault::Fault;
pub(in crate::session) use images::SessionImages;
pub use images::{PromptImages, TurnImage, UnexpandedPath};
pub use reply_change::{ReplyChange, ReplyChanges};
pub use sampling_sources::{SamplingSource, SamplingSources};
pub use turn_key::TurnKey;

/// Bytes of the headers of a turn's allocations, and of the rounding of their sizes by the allocator.
const ALLOCATIONS: usize = 80;

/// Bytes that indexing a turn by its conversation takes.
const CONVERSATION: usize = 192;

/// The most turns of a session. A larger number in a log comes from damage or another program; restoring it would exhaust the memory.
pub const MOST_TURNS: u32 = 1 << 20;

/// A finished turn. It never changes. Its serialized form is a part of the head of its record, without token columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Its number in its session, from 0, which the API uses as well.
    pub id: u32,
    /// The turn it continues; `None` for a root.
    pub parent: Option<u32>,
    /// The prompt's tokens after those of the parent (loss mask 0). Samples of one prompt share them.
    #[serde(skip)]
    pub prompt: Arc<[u32]>,
    /// The sampled tokens (loss mask 1, if the turn is trained).
    #[serde(skip)]
    pub response: Box<[u32]>,
    /// Logprobs of the sampled tokens under the sampling policy, natural logarithm, NaN for a missing one. Empty if none were requested
    /// from the engine.
    #[serde(skip)]
    pub logprobs: Box<[f32]>,
    /// Entropies in nats, NaN for a missing one. Empty if none were measured.
    #[serde(skip)]
    pub entropy: Box<[f32]>,
    /// Its metadata.
    pub about: TurnMetadata,
}

/// The member of [`TurnMetadata::extras`] of a forwarded turn that says why tokentap did not build its prompt.
pub const FORWARDED_REASON: &str = "forwarded_reason";

/// The metadata of a turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TurnMetadata {
    /// Its globally unique id. A call that commits a draft replaces the id of the draft.
    pub uid: Uid,
    /// The URL of the engine that sampled it; `None` if a router chose the engine.
    pub engine: Option<Arc<str>>,
    /// `meta_info.id`.
    pub rid: Option<Box<str>>,
    /// Its index among the sequences of the request.
    pub index: u32,
    /// How it relates to earlier turns.
    pub cause: Cause,
    /// The latest turn of the conversation that the client changed, if the cause is such a change and the turn is known.
    pub predecessor: Option<u32>,
    /// `finish_reason.type`: `stop`, `length`, `abort`; `None` if none was received.
    pub finish: Option<Box<str>>,
    /// Why it is not trained; `None` if it is.
    pub fault: Option<Fault>,
    /// Turns of the same request that this one replaces, because their replies did not reach the client.
    pub supersedes: Vec<u32>,
    /// The policy of each span of sampled tokens; empty without tokens.
    pub policy: Vec<Span>,
    /// How the entropies were obtained. Most turns of a process share it.
    pub measured: Option<Arc<EntropyMethod>>,
    /// The client's `sampling_params`: the unchanged text of a JSON object. Turns with an equal text share it.
    pub sampling: Option<Arc<str>>,
    /// The served model.
    pub model: Arc<str>,
    /// `lora_path`: the adapter of the model that the request named; `None` without one.
    pub lora_path: Option<Arc<str>>,
    /// The arrival of the request: milliseconds since 1970.
    pub started_ms: u64,
    /// From then to the first token, milliseconds; `None` for a reply that is not a stream.
    pub first_ms: Option<u64>,
    /// From then to the end, milliseconds.
    pub elapsed_ms: u64,
    /// `cached_tokens`, tokens of the prompt that the engine did not compute anew.
    pub cached_tokens: Option<u64>,
    /// The chat data, if it answers a chat request.
    pub chat: Option<Box<Chat>>,
    /// The client and the purpose of the request; `None` without a signal. The samples of a request share them.
    pub labels: Option<Arc<Labels>>,
    /// The tags of its call, which the session gets with the turn; none that the session had before.
    pub tags: Tags,
    /// Requested members of `meta_info` by name that are no token columns, as JSON text: routed experts, hidden states, top-k rows, prompt
    /// logprobs. A payload that could not be read as a column is one of them.
    pub extras: BTreeMap<Box<str>, Box<str>>,
    /// Token columns beyond ids, logprobs and entropies.
    #[serde(skip)]
    pub columns: Vec<Column>,
    /// The columns that the client requested and whose payload could not be read, by name.
    pub missing_columns: BTreeMap<Box<str>, ColumnFault>,
    /// The pictures of the prompt; of a turn those of the new part. `None` without one.
    pub images: Option<Box<PromptImages>>,
}

impl TurnMetadata {
    /// The sources of the sampling parameters that the client of a chat did not set; `None` if they are not known.
    #[must_use]
    pub fn sampling_sources(&self) -> Option<&SamplingSources> {
        self.chat.as_ref()?.sampling_sources.as_ref()
    }

    /// The bytes of a turn with this metadata and this number of tokens, logprobs and entropies.
    fn bytes(&self, arrays: usize) -> u64 {
        let text = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
        let engine = self.engine.as_ref().map_or(0, |engine| engine.len());
        let lora_path = self.lora_path.as_ref().map_or(0, |name| name.len());
        let extras: usize = self.extras.iter().map(|(name, value)| name.len() + value.len() + 64).sum();
        let spans: usize = self.policy.iter().map(Span::bytes).sum();
        let stored = |chat: &Chat| chat.stored.as_ref().map_or(0, |stored| stored.bytes());
        let parameters = |chat: &Chat| chat.reading.parameters.as_ref().map_or(0, |parameters| parameters.len());
        let chat = self.chat.as_ref();
        let chat = chat.map_or(0, |chat| {
            size_of::<Chat>() + text(&chat.reading.format) + parameters(chat) + stored(chat) + CONVERSATION
        });
        let labels = self.labels.as_ref().map_or(0, |labels| labels.bytes());
        let texts = chat
            + labels
            + engine
            + lora_path
            + text(&self.rid)
            + text(&self.finish)
            + self.sampling.as_ref().map_or(0, |text| text.len())
            + self.measured.as_ref().map_or(0, |_| size_of::<EntropyMethod>())
            + self.model.len();
        let missing: usize = self.missing_columns.keys().map(|name| name.len() + 64).sum();
        let columns: usize = self.columns.iter().map(Column::bytes).sum::<usize>() + missing;
        let images = self.images.as_ref().map_or(0, |images| images.bytes());
        let lists = extras + spans + images + self.tags.bytes() + 4 * self.supersedes.len();
        (size_of::<Turn>() + ALLOCATIONS + 4 * arrays + columns + texts + lists) as u64
    }

    /// What the client changed in replies whose sampled tokens the prompt contains.
    #[must_use]
    pub fn reply_changes(&self) -> ReplyChanges {
        self.chat.as_ref().map(|chat| chat.reply_changes).unwrap_or_default()
    }
}

/// A turn that has no place yet.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Draft {
    /// The whole prompt; `None` if its ids are unknown.
    pub prompt: Option<Arc<[u32]>>,
    /// The sampled tokens.
    pub response: Vec<u32>,
    /// Their logprobs, or an empty list.
    pub logprobs: Vec<f32>,
    /// Their entropies, or an empty list.
    pub entropy: Vec<f32>,
    /// The metadata. Its cause is set when the turn is placed.
    pub about: TurnMetadata,
    /// Further turns of the same request that it replaces. Turns of another session are ignored.
    pub supersedes: Vec<Uid>,
    /// The client marked the call as a retry, and this process knows no earlier attempt. If the session has exactly one equal turn that no
    /// later turn continues, this turn supersedes it.
    pub is_retry: bool,
}

impl Draft {
    /// The bytes that it takes, about those of a turn with its whole prompt, and of the pictures of the prompt.
    pub(super) fn bytes(&self) -> u64 {
        let prompt = self.prompt.as_ref().map_or(0, |prompt| prompt.len());
        let images = self.about.images.as_ref().map_or(0, |images| images.stored_bytes());
        self.about.bytes(prompt + self.response.len() + self.logprobs.len() + self.entropy.len()) + images
    }

    pub(super) fn place(self, id: u32, parent: Option<u32>, cause: Cause, prompt: Arc<[u32]>) -> Turn {
        Turn {
            id,
            parent,
            prompt,
            response: self.response.into(),
            logprobs: self.logprobs.into(),
            entropy: self.entropy.into(),
            about: TurnMetadata { cause, ..self.about },
        }
    }
}

/// How the entropies of a turn were obtained; see `entropy_info`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EntropyMethod {
    /// `exact`, `top_k` or `none`.
    pub source: Cow<'static, str>,
    /// The name of the recorded number: the estimator.
    pub estimator: Cow<'static, str>,
    /// The temperature of the distribution that the numbers describe.
    pub temperature: Option<f64>,
    /// k of the widest row if the source is `top_k`; `None` for other sources.
    pub top_k: Option<u32>,
    /// Why entropies or the temperature are missing.
    pub reason: Option<Cow<'static, str>>,
}

named_enum! {
    /// How a turn relates to the earlier turns of its session.
    #[derive(Default, PartialOrd, Ord)]
    pub enum Cause {
        /// The first turn of its session.
        #[default]
        First = "first",
        /// The turn continues a turn that no other turn continued.
        Extends = "extends",
        /// The turn continues one that ended by length, with new tokens in between.
        ExtendsLength = "extends_length",
        /// The turn continues one, usually one that was cut off, without a token in between.
        Resumes = "resumes",
        /// A branch: another sample of a prompt that was sampled before.
        Sample = "sample",
        /// A branch: the same history and another continuation.
        Forks = "forks",
        /// A branch: a root that shares no turn with earlier ones, such as that of a sub-agent.
        NewConversation = "new_conversation",
        /// A branch: the messages of an earlier conversation under another system prompt.
        SystemChanged = "system_changed",
        /// A branch: the messages of an earlier conversation with other tools.
        ToolsChanged = "tools_changed",
        /// A branch: a tool result of the history was emptied or shortened.
        ToolResultCleared = "tool_result_cleared",
        /// A branch: a part of the history was changed, and a response that was sampled after that part is still in the prompt.
        HistoryEdited = "history_edited",
        /// A branch: the prompt has other tokens in place of a sampled response.
        ResponseEdited = "response_edited",
        /// A branch: the client replaced the last token of a sampled response, the stop token.
        StopReplaced = "stop_replaced",
        /// A branch: the prompt ends inside an earlier turn.
        RolledBack = "rolled_back",
        /// A branch: earlier messages were left out or replaced by a summary that was sampled here.
        Compacted = "compacted",
        /// The token ids of the prompt are unknown, so the turn has no place in the forest. Its `fault` shows what to do.
        Unplaced = "unplaced",
    }
}

impl Turn {
    /// Whether its sampled tokens are trained.
    #[must_use]
    pub fn is_trainable(&self) -> bool {
        self.about.fault.is_none() && !self.response.is_empty()
    }

    /// The entropies of its sampled tokens in nats, of which an unknown one is not finite. Empty if they may belong to other tokens.
    #[must_use]
    pub fn known_entropies(&self) -> &[f32] {
        let is_complete = self.entropy.len() == self.response.len();
        let is_quarantined = self.about.fault.is_some_and(Fault::is_quarantine);
        if is_complete && !is_quarantined { &self.entropy } else { &[] }
    }

    /// The purpose of its request, if the client stated it.
    #[must_use]
    pub fn request_class(&self) -> Option<RequestClass> {
        self.about.labels.as_ref()?.request_class
    }

    /// The key of its response, if that is stored.
    #[must_use]
    pub fn stored_key(&self) -> Option<TurnKey> {
        self.about.chat.as_ref()?.stored.as_ref()?;
        Some(TurnKey::of(self.about.rid.as_ref()?, self.about.index as usize))
    }

    /// The turn as a draft that can be placed elsewhere, with this whole prompt and its pictures.
    pub(super) fn into_draft(self, prompt: Option<Arc<[u32]>>, images: Option<Box<PromptImages>>) -> Draft {
        Draft {
            prompt,
            response: self.response.into_vec(),
            logprobs: self.logprobs.into_vec(),
            entropy: self.entropy.into_vec(),
            about: TurnMetadata { images, ..self.about },
            supersedes: Vec::new(),
            is_retry: false,
        }
    }

    /// What the prompt is compared by: its ids, and the digests of its pictures.
    #[must_use]
    pub fn prompt_keys(&self) -> &[u32] {
        self.about.images.as_ref().map_or(&self.prompt, |images| images.keys())
    }

    /// Shares the prompt of another sample of it.
    pub(super) fn share_prompt(&mut self, same: &Self) {
        self.prompt = Arc::clone(&same.prompt);
        if let (Some(images), Some(same)) = (&mut self.about.images, &same.about.images) {
            images.share_keys(same);
        }
    }

    /// The bytes that it takes in a record, with the pictures that the record has.
    pub(super) fn record_bytes(&self) -> u64 {
        self.bytes() + self.about.images.as_ref().map_or(0, |images| images.stored_bytes())
    }

    /// The bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let arrays = self.prompt.len() + self.response.len() + self.logprobs.len() + self.entropy.len();
        self.about.bytes(arrays)
    }
}
