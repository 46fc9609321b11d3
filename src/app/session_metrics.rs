//! Metrics of the session store.

use std::sync::Arc;

use crate::metrics::Metrics;
use crate::session::{Fault, StoreObserver, Turn};

/// Counts the changes of the session store.
#[derive(Debug)]
pub(super) struct SessionMetrics(pub(super) Arc<Metrics>);

impl StoreObserver for SessionMetrics {
    fn turn_committed(&self, turn: &Turn) {
        let outcome = turn.about.fault.map_or("trainable", Fault::name);
        self.0.turns.with_label_values(&[outcome]).inc();
        self.0.session.attachments.with_label_values(&[turn.about.cause.name()]).inc();
    }

    fn turn_dropped(&self) {
        self.0.turns.with_label_values(&["deleted"]).inc();
    }

    fn session_evicted(&self, reason: &'static str) {
        self.0.sessions_evicted.with_label_values(&[reason]).inc();
    }
}
