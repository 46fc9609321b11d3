//! The calls of trainers that change weights or pause generation.

use super::routes::Route;

/// How a call changes the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WeightChange {
    /// It begins an update of several calls.
    Begin,
    /// It is part of such an update.
    Part,
    /// It ends such an update.
    End,
    /// It is an update.
    Whole,
}

impl Route {
    /// How a call of this route changes the weights; `None` if it leaves the policy as it is.
    #[must_use]
    pub(crate) fn weight_change(self) -> Option<WeightChange> {
        match self.endpoint {
            "/begin_weight_update" => Some(WeightChange::Begin),
            "/end_weight_update" => Some(WeightChange::End),
            // SGLang 0.5.23 loads tensors only within an update; the other calls need none
            "/update_weights_from_tensor" | "/update_weights_from_distributed" | "/update_weight_version" => {
                Some(WeightChange::Part)
            }
            _ => self.changes_policy().then_some(WeightChange::Whole),
        }
    }

    /// Whether a call of this route pauses generation.
    #[must_use]
    pub(crate) fn pauses_generation(self) -> bool {
        self.endpoint == "/pause_generation"
    }

    /// Whether a call of this route continues generation.
    #[must_use]
    pub(crate) fn continues_generation(self) -> bool {
        self.endpoint == "/continue_generation"
    }
}

/// Whether a 400 means that the weights changed nevertheless: 0.5.23 answers so if only the cache could not be flushed, because requests
/// are paused.
pub(crate) fn has_changed_weights(refusal: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct ErrorReply {
        message: String,
    }
    let reply = serde_json::from_slice::<ErrorReply>(refusal);
    reply.is_ok_and(|reply| reply.message.to_ascii_lowercase().contains("flush"))
}
