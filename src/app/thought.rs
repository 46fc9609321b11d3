//! Counts how the policy thinks: off the path of replies, turn by turn as they are recorded.

use std::sync::Arc;

use tokio::sync::broadcast::error::RecvError;

use super::Parts;
use crate::rl::{HIGH_ENTROPY, Think};

/// Observes the mean entropy of the thinking of each turn that has any, until the store is gone. When a
/// thousand turns arrive at once, those that it cannot keep up with are skipped: the mean over many turns does not change, and no
/// sender waits.
pub(super) async fn watch(parts: Arc<Parts>) {
    let mut turns = parts.sessions.watch_turns();
    loop {
        let turn = match turns.recv().await {
            Ok((_, turn)) => turn.upgrade(),
            Err(RecvError::Lagged(_)) => None,
            Err(RecvError::Closed) => return,
        };
        let Some(turn) = turn else { continue };
        if let Some(mean) = Think::of_turn(&turn, parts.trainers.think_tokens(), HIGH_ENTROPY).mean {
            parts.metrics.think_entropy.with_label_values(&[&*turn.about.model]).observe(mean);
        }
    }
}
