//! The calls of `Entropy.Compute` that go on at a time on one port.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::Status;

use crate::metrics::Metrics;

/// Calls at a time. Not those of `--max-requests`: a trainer's call lasts, and agents must not wait for it.
pub(super) const CALLS: usize = 64;

/// Who has been silent for so long may have to make room for a newcomer.
const SILENT: Duration = Duration::from_secs(30);

/// The places of a port.
#[derive(Debug)]
pub(super) struct CallSlots {
    metrics: Arc<Metrics>,
    // held for a look at all of them, never across an await
    taken: Mutex<Vec<Weak<CallSlot>>>,
}

impl CallSlots {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, taken: Mutex::default() }
    }

    /// A place for a call; where there is none, that of the call that has been silent for longest, which is told so.
    ///
    /// # Errors
    /// The answer, where nobody has been silent for long enough.
    pub(super) fn enter(&self) -> Result<Arc<CallSlot>, Status> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|place| place.strong_count() > 0);
        if taken.len() >= CALLS {
            let silent = taken.iter().enumerate().filter_map(|(at, place)| Some((place.upgrade()?.silent()?, at)));
            let longest = silent.max().filter(|(silent, _)| *silent >= SILENT);
            let Some((_, at)) = longest else {
                self.metrics.shed.with_label_values(&["entropy_calls"]).inc();
                let message = format!("{CALLS} calls of Entropy.Compute are going on, none of them idle; try again");
                return Err(Status::unavailable(message));
            };
            self.metrics.shed.with_label_values(&["entropy_silent"]).inc();
            if let Some(place) = taken.swap_remove(at).upgrade() {
                place.lost.notify_one();
            }
        }
        let place = Arc::new(CallSlot::new());
        taken.push(Arc::downgrade(&place));
        Ok(place)
    }
}

/// The place of a call. Whatever belongs to the call holds it, and with the last of that it is free.
#[derive(Debug)]
pub(super) struct CallSlot {
    // held for a change, never across an await
    state: Mutex<State>,
    lost: Notify,
}

#[derive(Debug)]
struct State {
    /// Slices that came and whose answers have not been taken.
    in_flight: usize,
    /// The caller is waited for, and no part of a message is here.
    waiting: bool,
    /// When anything of this last changed.
    since: Instant,
}

impl CallSlot {
    fn new() -> Self {
        let state = State { in_flight: 0, waiting: false, since: Instant::now() };
        Self { state: Mutex::new(state), lost: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says whether the next message is waited for.
    pub(super) fn waits(&self, waiting: bool) {
        let mut state = self.state();
        if state.waiting != waiting {
            (state.waiting, state.since) = (waiting, Instant::now());
        }
    }

    /// A slice came.
    pub(super) fn came(&self) {
        self.state().in_flight += 1;
    }

    /// So many answers were taken.
    pub(super) fn took(&self, answers: usize) {
        let mut state = self.state();
        if answers > 0 {
            state.in_flight = state.in_flight.saturating_sub(answers);
            state.since = Instant::now();
        }
    }

    /// For how long the caller has had nothing to say and nothing to hear.
    fn silent(&self) -> Option<Duration> {
        let state = self.state();
        (state.waiting && state.in_flight == 0).then(|| state.since.elapsed())
    }

    /// Waits until the place is another's.
    pub(super) async fn lost(&self) {
        self.lost.notified().await;
    }
}
