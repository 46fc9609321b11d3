// SPDX-License-Identifier: Apache-2.0
//! Limits the number of concurrent calls of `Entropy.Compute` on one port.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::Status;

use crate::metrics::Metrics;

/// The maximum number of calls. They do not count against `--max-requests`, because a trainer's call is long and agents must not wait.
pub(super) const MAX_CALLS: usize = 64;

/// A call that is idle for this time may lose its slot to a new call.
const MIN_IDLE: Duration = Duration::from_secs(30);

/// The call slots of a port.
#[derive(Debug)]
pub(super) struct CallSlots {
    metrics: Arc<Metrics>,
    // held while all slots are scanned, never across an await
    taken: Mutex<Vec<Weak<CallSlot>>>,
}

impl CallSlots {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, taken: Mutex::default() }
    }

    /// Acquires a slot. If none is free, revokes the slot of the call that has been idle for longest.
    ///
    /// # Errors
    /// UNAVAILABLE, if all are taken and no call has been idle for long enough.
    pub(super) fn acquire(&self) -> Result<Arc<CallSlot>, Status> {
        let mut taken = self.taken.lock();
        taken.retain(|slot| slot.strong_count() > 0);
        if taken.len() >= MAX_CALLS {
            let idle = taken.iter().enumerate().filter_map(|(at, slot)| Some((slot.upgrade()?.idle_time()?, at)));
            let longest = idle.max().filter(|(idle, _)| *idle >= MIN_IDLE);
            let Some((_, at)) = longest else {
                self.metrics.shed.with_label_values(&["entropy_calls"]).inc();
                let message = format!("{MAX_CALLS} calls of Entropy.Compute are running, and none is idle; try again");
                return Err(Status::unavailable(message));
            };
            self.metrics.shed.with_label_values(&["entropy_silent"]).inc();
            if let Some(slot) = taken.swap_remove(at).upgrade() {
                slot.revoked.notify_one();
            }
        }
        let slot = Arc::new(CallSlot::new());
        taken.push(Arc::downgrade(&slot));
        Ok(slot)
    }
}

/// The slot of a call. The parts of the call share it, and it is free when the last one drops it.
#[derive(Debug)]
pub(super) struct CallSlot {
    // held for an update, never across an await
    state: Mutex<SlotState>,
    revoked: Notify,
}

#[derive(Debug)]
struct SlotState {
    /// Slices that were received and whose replies the client has not read.
    in_flight: usize,
    /// The server waits for the next message and has received no part of it.
    waiting: bool,
    /// When the state last changed.
    since: Instant,
}

impl CallSlot {
    fn new() -> Self {
        let state = SlotState { in_flight: 0, waiting: false, since: Instant::now() };
        Self { state: Mutex::new(state), revoked: Notify::new() }
    }

    /// Sets whether the server waits for the next message.
    pub(super) fn set_waiting(&self, waiting: bool) {
        let mut state = self.state.lock();
        if state.waiting != waiting {
            (state.waiting, state.since) = (waiting, Instant::now());
        }
    }

    /// Records that a slice was received.
    pub(super) fn record_slice(&self) {
        self.state.lock().in_flight += 1;
    }

    /// Records how many replies the client has read.
    pub(super) fn record_read(&self, replies: usize) {
        let mut state = self.state.lock();
        if replies > 0 {
            state.in_flight = state.in_flight.saturating_sub(replies);
            state.since = Instant::now();
        }
    }

    /// How long the call has been idle: it sends nothing, and all its replies are read.
    fn idle_time(&self) -> Option<Duration> {
        let state = self.state.lock();
        (state.waiting && state.in_flight == 0).then(|| state.since.elapsed())
    }

    /// Waits until another call takes the slot.
    pub(super) async fn revoked(&self) {
        self.revoked.notified().await;
    }
}
