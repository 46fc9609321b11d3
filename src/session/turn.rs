//! One call of a policy: what was new in its prompt, and what it sampled.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Chat, Fault, Span, Uid};

/// Bytes by which a session finds a turn of a chat.
const CONVERSATION: usize = 192;

/// Bytes by which a session finds a turn by its tokens.
const PLACE: usize = 256;

/// Turns that a session has at most: a number beyond in a log is a damaged or foreign one, and would fill the memory with missing turns.
pub const MOST_TURNS: u32 = 1 << 20;

/// A finished turn. It never changes.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Its place in the order of its session, from 0: its name in the API.
    pub id: u32,
    /// The turn it continues; `None` for a root.
    pub parent: Option<u32>,
    /// The prompt's tokens behind those of the parent (loss mask 0). Samples of one prompt share them.
    pub prompt: Arc<[u32]>,
    /// The sampled tokens (loss mask 1, if the turn is trained).
    pub response: Box<[u32]>,
    /// Logprobs of the sampled tokens under the sampling policy, natural logarithm, NaN where one is missing; empty where the engine was
    /// not asked for any.
    pub logprobs: Box<[f32]>,
    /// Entropies in nats, NaN where one is missing; empty where none were measured.
    pub entropy: Box<[f32]>,
    /// Everything else.
    pub about: About,
}

/// What is known of a turn besides its tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// Its id, which no other turn has in any process; `None` in records of versions before ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// The URL of the engine that sampled it; `None` where a router chose the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<Box<str>>,
    /// `meta_info.id`.
    pub rid: Option<Box<str>>,
    /// Which of the sequences of its request.
    pub index: u32,
    /// How it found its place.
    pub cause: Cause,
    /// `finish_reason.type`: `stop`, `length`, `abort`; `None` where none came.
    pub finish: Option<Box<str>>,
    /// Why it is not trained; `None` where it is.
    pub fault: Option<Fault>,
    /// Turns with the same request whose reply did not reach the client: this one replaces them.
    pub supersedes: Vec<u32>,
    /// The policy of each span of tokens; empty if it has no tokens.
    pub policy: Vec<Span>,
    /// How the entropies were obtained.
    pub measured: Option<Measured>,
    /// `sampling_params` as the client wrote them: the text of a JSON object.
    pub sampling: Option<Box<str>>,
    /// The served model.
    pub model: Box<str>,
    /// When the request came: milliseconds since 1970.
    pub started_ms: u64,
    /// From then to the first token, milliseconds; `None` for a reply that came whole.
    pub first_ms: Option<u64>,
    /// From then to the end, milliseconds.
    pub elapsed_ms: u64,
    /// `cached_tokens`, tokens of the prompt that the engine did not compute anew.
    pub cached_tokens: Option<u64>,
    /// What it was asked, where it is a turn of a chat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat: Option<Box<Chat>>,
    /// Members of `meta_info` that the client asked for, as JSON text by their names: routed experts, top-k rows, prompt logprobs.
    pub extras: BTreeMap<Box<str>, Box<str>>,
}

/// A turn that has no place yet.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Draft {
    /// The whole prompt; `None` where its ids are not known.
    pub prompt: Option<Arc<[u32]>>,
    /// The sampled tokens.
    pub response: Vec<u32>,
    /// Their logprobs, or none at all.
    pub logprobs: Vec<f32>,
    /// Their entropies, or none at all.
    pub entropy: Vec<f32>,
    /// Everything else but its cause.
    pub about: About,
}

impl Draft {
    pub(super) fn place(self, id: u32, parent: Option<u32>, cause: Cause, prompt: Arc<[u32]>) -> Turn {
        Turn {
            id,
            parent,
            prompt,
            response: self.response.into(),
            logprobs: self.logprobs.into(),
            entropy: self.entropy.into(),
            about: About { uid: Some(Uid::unique()), cause, ..self.about },
        }
    }
}

/// How the entropies of a turn were obtained; see `entropy_info`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// `exact`, `top_k` or `none`.
    pub source: Cow<'static, str>,
    /// Which number is recorded.
    pub estimator: Cow<'static, str>,
    /// Of the distribution that the numbers describe.
    pub temperature: Option<f64>,
    /// Why entropies or the temperature are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'static, str>>,
}

/// How a turn found its place in its session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The first turn of its session.
    #[default]
    First,
    /// It continues a turn that no other turn continued.
    Extends,
    /// It continues a turn that ended by length, with new tokens in between.
    ExtendsLength,
    /// It continues a turn, usually one that was cut off, with no token in between.
    Resumes,
    /// A branch: another sample of a prompt that was sampled before.
    Sample,
    /// A branch: the same history and another continuation.
    Forks,
    /// A branch: a root that shares no turn with earlier ones, such as that of a sub-agent.
    #[serde(alias = "unrelated")]
    NewConversation,
    /// A branch: the messages of an earlier conversation under another system prompt.
    SystemChanged,
    /// A branch: the messages of an earlier conversation with other tools.
    ToolsChanged,
    /// A branch: a tool result of the history was emptied or shortened.
    ToolResultCleared,
    /// A branch: a part of the history was changed, and a response that was sampled after it is still in the prompt.
    #[serde(alias = "prompt_edited")]
    HistoryEdited,
    /// A branch: other tokens are in the place of a sampled response.
    ResponseEdited,
    /// A branch: a sampled response whose last token, the stop token, the client replaced.
    StopReplaced,
    /// A branch: the prompt ends inside an earlier turn.
    RolledBack,
    /// A branch: earlier messages were left out or replaced by a summary that was sampled here.
    Compacted,
    /// The ids of its prompt are not known, so it has no place in the forest.
    Unplaced,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::First,
        Self::Extends,
        Self::ExtendsLength,
        Self::Resumes,
        Self::Sample,
        Self::Forks,
        Self::NewConversation,
        Self::SystemChanged,
        Self::ToolsChanged,
        Self::ToolResultCleared,
        Self::HistoryEdited,
        Self::ResponseEdited,
        Self::StopReplaced,
        Self::RolledBack,
        Self::Compacted,
        Self::Unplaced,
    ];

    /// The name in exports and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Extends => "extends",
            Self::ExtendsLength => "extends_length",
            Self::Resumes => "resumes",
            Self::Sample => "sample",
            Self::Forks => "forks",
            Self::NewConversation => "new_conversation",
            Self::SystemChanged => "system_changed",
            Self::ToolsChanged => "tools_changed",
            Self::ToolResultCleared => "tool_result_cleared",
            Self::HistoryEdited => "history_edited",
            Self::ResponseEdited => "response_edited",
            Self::StopReplaced => "stop_replaced",
            Self::RolledBack => "rolled_back",
            Self::Compacted => "compacted",
            Self::Unplaced => "unplaced",
        }
    }
}

impl Turn {
    /// Whether its sampled tokens are trained.
    #[must_use]
    pub fn is_trainable(&self) -> bool {
        self.about.fault.is_none() && !self.response.is_empty()
    }

    /// Bytes it holds.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let about = &self.about;
        let text = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
        let extras: usize = about.extras.iter().map(|(name, value)| name.len() + value.len() + 64).sum();
        let spans: usize =
            about.policy.iter().map(|span| size_of::<Span>() + text(&span.weight_version) + text(&span.version)).sum();
        let arrays = 4 * (self.prompt.len() + self.response.len() + self.logprobs.len() + self.entropy.len());
        let chat = about.chat.as_ref().map_or(0, |chat| size_of::<Chat>() + text(&chat.reading.format) + CONVERSATION);
        let texts = chat
            + text(&about.engine)
            + text(&about.rid)
            + text(&about.finish)
            + text(&about.sampling)
            + about.model.len();
        (size_of::<Self>() + PLACE + arrays + texts + extras + spans + 4 * about.supersedes.len()) as u64
    }
}
