// SPDX-License-Identifier: Apache-2.0
//! Sends the changes of a store to watchers.

use std::sync::{Arc, Weak};

use tokio::sync::{broadcast, watch};

use crate::session::Turn;

/// Turns that are buffered for a slow watcher. A watcher that is further behind misses turns.
const BUFFERED_TURNS: usize = 1024;

/// A finished turn and the name of its session. The reference is weak, so a watcher does not keep the turns of a removed session.
pub type CommittedTurn = (Arc<str>, Weak<Turn>);

/// The senders of a store's changes. They work without a receiver, and a slow receiver delays nothing.
#[derive(Debug)]
pub(in crate::session) struct ChangeFeed {
    turns: broadcast::Sender<CommittedTurn>,
    /// The number of the last finished path.
    finished: watch::Sender<u64>,
}

impl Default for ChangeFeed {
    fn default() -> Self {
        Self { turns: broadcast::Sender::new(BUFFERED_TURNS), finished: watch::Sender::new(0) }
    }
}

impl ChangeFeed {
    /// Sends a finished turn.
    pub(in crate::session) fn send_turn(&self, session: &Arc<str>, turn: &Arc<Turn>) {
        if self.turns.receiver_count() > 0 {
            // fails if all receivers were dropped since
            let _ = self.turns.send((Arc::clone(session), Arc::downgrade(turn)));
        }
    }

    /// Announces that the paths up to this number have finished.
    pub(in crate::session) fn send_finished(&self, number: u64) {
        self.finished.send_if_modified(|last| {
            let later = number > *last;
            *last = number.max(*last);
            later
        });
    }

    pub(in crate::session) fn watch_turns(&self) -> broadcast::Receiver<CommittedTurn> {
        self.turns.subscribe()
    }

    pub(in crate::session) fn watch_finished(&self) -> watch::Receiver<u64> {
        self.finished.subscribe()
    }
}
