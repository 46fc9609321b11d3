//! Why the tokens of a turn are not trained.

use serde::{Deserialize, Serialize};

/// Why a turn is not trained. Its tokens are kept, as context for turns that continue it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The engine aborted it.
    Aborted,
    /// The client disconnected before the end. The tokens until then are kept.
    Disconnected,
    /// The connection to the engine broke before the end.
    Broken,
    /// The ids of the prompt are not known.
    PromptUnknown,
    /// The prompt does not have as many tokens as the engine counted.
    PromptMismatch,
    /// The response does not have as many tokens as the engine counted.
    CompletionMismatch,
    /// `output_ids` and the ids of the logprobs differ.
    IdsMismatch,
    /// The listed ids may not be the sampled ones: the engine is not known to be SGLang and sent no logprobs, or the
    /// events of its stream contradict each other.
    IdsUnverified,
    /// The number of logprobs is not the number of tokens.
    LogprobsMismatch,
    /// The number of entropies is not the number of tokens.
    EntropiesMismatch,
    /// The reply could not be read to its end.
    Unreadable,
    /// It is not in the log from which its session was restored.
    Lost,
    /// The engine's own chat endpoint rendered and sampled it. The engine reported its ids, without logprobs and entropies.
    Forwarded,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Aborted,
        Self::Disconnected,
        Self::Broken,
        Self::PromptUnknown,
        Self::PromptMismatch,
        Self::CompletionMismatch,
        Self::IdsMismatch,
        Self::IdsUnverified,
        Self::LogprobsMismatch,
        Self::EntropiesMismatch,
        Self::Unreadable,
        Self::Lost,
        Self::Forwarded,
    ];

    /// The name in exports, logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Aborted => "aborted",
            Self::Disconnected => "disconnected",
            Self::Broken => "broken",
            Self::PromptUnknown => "prompt_unknown",
            Self::PromptMismatch => "prompt_mismatch",
            Self::CompletionMismatch => "completion_mismatch",
            Self::IdsMismatch => "ids_mismatch",
            Self::IdsUnverified => "ids_unverified",
            Self::LogprobsMismatch => "logprobs_mismatch",
            Self::EntropiesMismatch => "entropies_mismatch",
            Self::Unreadable => "unreadable",
            Self::Lost => "lost",
            Self::Forwarded => "forwarded",
        }
    }

    /// Whether the recorded turn is inconsistent. The other faults mean that it was cut off, or
    /// that the engine rendered it.
    #[must_use]
    pub fn is_quarantine(self) -> bool {
        !matches!(self, Self::Aborted | Self::Disconnected | Self::Broken | Self::Forwarded)
    }
}
