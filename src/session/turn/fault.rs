//! Why the tokens of a turn are not trained.

use serde::{Deserialize, Serialize};

/// Why a turn is not trained, except where an export trains a turn that was cut off and resumed. Its tokens are kept as context for turns
/// that continue it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The engine aborted the generation. A later call may continue the turn.
    Aborted,
    /// The client disconnected before the end of the reply. The tokens until then are recorded. A later call may continue the turn.
    Disconnected,
    /// The connection to the engine broke before the end of the reply. A later call may continue the turn.
    Broken,
    /// The token ids of the prompt are unknown. Send `input_ids`, or use an engine that echoes prompt ids.
    /// With `session_params`, continue a turn of the same session and name its `rid`.
    PromptUnknown,
    /// The number of recorded prompt tokens differs from the engine's count. Report it, with the version of the engine.
    PromptMismatch,
    /// The number of recorded response tokens differs from the engine's count. Report it, with the version of the engine.
    CompletionMismatch,
    /// `output_ids` and the ids of the logprobs differ. Report it, with the version of the engine.
    IdsMismatch,
    /// The listed ids may not be the sampled ones: the engine is not known to be SGLang and sent no logprobs, or the
    /// events of its stream contradict each other. Request logprobs, or start sglang-jax with `--skip-tokenizer-init`.
    IdsUnverified,
    /// A sampled id is outside the vocabulary of the engine. Report it, with the version of the engine; or correct `--vocab-size`.
    IdsOutside,
    /// The number of logprobs differs from the number of tokens. Report it, with the version of the engine.
    LogprobsMismatch,
    /// The number of entropies differs from the number of tokens. Report it, with the version of the engine.
    EntropiesMismatch,
    /// The reply could not be parsed to its end. Report it, with the version of the engine.
    Unreadable,
    /// The turn is missing in the log from which its session was restored: the log was damaged, degraded or over its limit.
    /// See the persistence guide.
    Lost,
    /// The engine's own chat endpoint rendered and sampled the turn. The engine reported its ids, without logprobs and entropies.
    /// Make the tokenizer readable, so that tokentap serves the chat.
    Forwarded,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Aborted,
        Self::Disconnected,
        Self::Broken,
        Self::PromptUnknown,
        Self::PromptMismatch,
        Self::CompletionMismatch,
        Self::IdsMismatch,
        Self::IdsUnverified,
        Self::IdsOutside,
        Self::LogprobsMismatch,
        Self::EntropiesMismatch,
        Self::Unreadable,
        Self::Lost,
        Self::Forwarded,
    ];

    /// Whether the recorded tokens of such a turn are the sampled tokens, up to the end of the reply or to where it was cut off. The tokens
    /// of a `forwarded` turn are those that the engine reported.
    pub(in crate::session) fn has_sampled_tokens(self) -> bool {
        self.is_cut_off() || self == Self::Forwarded
    }

    /// Whether the reply was cut off: the recorded tokens are those that were sampled until then.
    pub(in crate::session) fn is_cut_off(self) -> bool {
        matches!(self, Self::Aborted | Self::Disconnected | Self::Broken)
    }

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
            Self::IdsOutside => "ids_outside",
            Self::LogprobsMismatch => "logprobs_mismatch",
            Self::EntropiesMismatch => "entropies_mismatch",
            Self::Unreadable => "unreadable",
            Self::Lost => "lost",
            Self::Forwarded => "forwarded",
        }
    }

    /// Whether the recorded turn is inconsistent. The other faults mean that the turn was cut off, or
    /// that the engine rendered it.
    #[must_use]
    pub fn is_quarantine(self) -> bool {
        !self.has_sampled_tokens()
    }
}
