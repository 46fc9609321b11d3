//! Changes of a store, for watchers.

use std::sync::{Arc, Weak};

use tokio::sync::{broadcast, watch};

use super::Turn;

/// Turns that a watcher may be behind before it misses some.
const BEHIND: usize = 1024;

/// A turn that has ended, with the name of its session. It is not kept for watchers: it is dropped with its session.
pub type Ended = (Arc<str>, Weak<Turn>);

/// The changes of a store. Receivers are optional, and a slow receiver delays nothing.
#[derive(Debug)]
pub(super) struct ChangeFeed {
    turns: broadcast::Sender<Ended>,
    /// The number of the last finished path.
    finished: watch::Sender<u64>,
}

impl Default for ChangeFeed {
    fn default() -> Self {
        Self { turns: broadcast::Sender::new(BEHIND), finished: watch::Sender::new(0) }
    }
}

impl ChangeFeed {
    /// A turn has ended.
    pub(super) fn turn(&self, session: &Arc<str>, turn: &Arc<Turn>) {
        if self.turns.receiver_count() > 0 {
            // all receivers may have gone since
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
