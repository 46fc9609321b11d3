//! Why the tokens of a turn are not trained.

use serde::{Deserialize, Serialize};

/// What keeps a turn out of training. Its tokens are kept, and are context for turns that continue it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The engine ended it before the policy did.
    Aborted,
    /// The client left before the end; what had come until then is kept.
    Disconnected,
    /// The upstream connection ended before the turn did.
    Broken,
    /// The ids of the prompt are not known.
    PromptUnknown,
    /// The prompt has another number of tokens than the engine counted.
    PromptMismatch,
    /// The response has another number of tokens than the engine counted.
    CompletionMismatch,
    /// `output_ids` and the ids of the logprobs are not the same.
    IdsMismatch,
    /// Nothing shows that the ids which the engine lists are the sampled ones: it is not known to be SGLang and sent no logprobs, or the
    /// events of its stream contradict each other.
    IdsUnverified,
    /// Not one logprob a token.
    LogprobsMismatch,
    /// Not one entropy a token.
    EntropiesMismatch,
    /// The reply could not be read to its end.
    Unreadable,
    /// It is not in the log from which its session was restored.
    Lost,
    /// The engine's own chat endpoint rendered and sampled it: its ids are the engine's word, and there are neither logprobs nor entropies.
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

    /// Whether something is wrong with what was recorded; the others were cut short, or
    /// were not made here.
    #[must_use]
    pub fn is_quarantine(self) -> bool {
        !matches!(self, Self::Aborted | Self::Disconnected | Self::Broken | Self::Forwarded)
    }
}
