//! The metric of the thinking's entropy, which a task computes from recorded turns.

use std::sync::Arc;

use tokio::sync::broadcast::error::RecvError;

use crate::rl::{HIGH_ENTROPY, ThinkStats};
use crate::serve::proxy::Proxy;

/// Observes the mean entropy of the thinking in each recorded turn, until the store is dropped. If a thousand turns arrive at once, the
/// task skips those that it cannot keep up with: no sender waits for it, and the mean over many turns does not change.
pub(super) async fn watch(parts: Arc<Proxy>) {
    let mut turns = parts.sessions.watch_turns();
    loop {
        let turn = match turns.recv().await {
            Ok((_, turn)) => turn.upgrade(),
            Err(RecvError::Lagged(_)) => None,
            Err(RecvError::Closed) => return,
        };
        let (Some(turn), Some(tokens)) = (turn, parts.think_tokens()) else { continue };
        if !turn.response.contains(&tokens.start) && !turn.prompt.contains(&tokens.start) {
            continue; // no thinking
        }
        if let Some(mean) = ThinkStats::of_turn(&turn, Some(tokens), HIGH_ENTROPY).mean {
            parts.metrics.think_entropy.with_label_values(&[&*turn.about.model]).observe(mean);
        }
    }
}
