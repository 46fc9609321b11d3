//! What happens in a store, for whoever watches.

use std::sync::{Arc, Weak};

use tokio::sync::{broadcast, watch};

use super::Turn;

/// Turns that a watcher may be behind before it misses some.
const BEHIND: usize = 1024;

/// A turn that has ended, with the name of its session. It is not kept for whoever watches: once its session has gone, so has it.
pub type Ended = (Arc<str>, Weak<Turn>);

/// The news of a store. Nobody has to listen, and nobody who listens holds anything up.
#[derive(Debug)]
pub(super) struct News {
    turns: broadcast::Sender<Ended>,
    /// The number of the last finished path.
    finished: watch::Sender<u64>,
}

impl Default for News {
    fn default() -> Self {
        Self { turns: broadcast::Sender::new(BEHIND), finished: watch::Sender::new(0) }
    }
}

impl News {
    /// A turn has ended.
    pub(super) fn turn(&self, session: &Arc<str>, turn: &Arc<Turn>) {
        if self.turns.receiver_count() > 0 {
            // whoever listened may have gone in between
            let _ = self.turns.send((Arc::clone(session), Arc::downgrade(turn)));
        }
    }

    /// Paths up to this number have finished.
    pub(super) fn finished(&self, number: u64) {
        self.finished.send_if_modified(|last| {
            let later = number > *last;
            *last = number.max(*last);
            later
        });
    }

    pub(super) fn watch_turns(&self) -> broadcast::Receiver<Ended> {
        self.turns.subscribe()
    }

    pub(super) fn watch_finished(&self) -> watch::Receiver<u64> {
        self.finished.subscribe()
    }
}
