// SPDX-License-Identifier: Apache-2.0
//! Interruptions by a trainer, which pauses the engine or aborts its generations through the control port.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::engine::sglang::abort;
use crate::engine::sglang::routes::Route;
use crate::error::Error;
use crate::metrics::Metrics;
use crate::session::Policy;

/// The calls of a trainer that may abort running generations.
#[derive(Debug, Clone, Default)]
pub struct Interruptions {
    // locked for a few instructions, never across an await
    calls: Arc<Mutex<Calls>>,
    /// tokentap ends, and nothing waits any more.
    draining: watch::Sender<bool>,
}

/// Calls by kind: those that only abort, and all others.
#[derive(Debug, Clone, Copy, Default)]
struct Calls {
    aborts: CallCount,
    pauses: CallCount,
}

#[derive(Debug, Clone, Copy, Default)]
struct CallCount {
    begun: u64,
    running: u64,
}

impl CallCount {
    /// The calls that have ended: those that run may abort a generation yet.
    fn ended(self) -> u64 {
        self.begun - self.running
    }
}

impl Calls {
    fn of(&mut self, kind: Interruption) -> &mut CallCount {
        match kind {
            Interruption::Abort => &mut self.aborts,
            Interruption::Pause => &mut self.pauses,
        }
    }
}

/// How a trainer may abort a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interruption {
    /// A call that only aborts.
    Abort,
    /// A call that pauses the engine or changes its weights, which aborts generations by the way.
    Pause,
}

impl Interruption {
    /// How a call of this route may abort generations; `None` if it does not.
    #[must_use]
    pub(crate) fn of(route: Route) -> Option<Self> {
        if route.pauses_generation() || route.weight_change().is_some() {
            return Some(Self::Pause);
        }
        (route.endpoint == abort::PATH).then_some(Self::Abort)
    }
}

/// The interruptions before a generation was sent.
#[derive(Debug, Clone, Copy)]
pub struct InterruptionMark {
    aborts: u64,
    pauses: u64,
}

/// A call that may abort generations, while it runs.
#[derive(Debug)]
pub struct InterruptingCall(Interruptions, Interruption);

impl Interruptions {
    /// Begins a call that may abort generations; it ends when the result is dropped.
    #[must_use]
    pub fn begin_call(&self, kind: Interruption) -> InterruptingCall {
        let mut calls = self.calls.lock();
        let count = calls.of(kind);
        count.begun += 1;
        count.running += 1;
        InterruptingCall(self.clone(), kind)
    }

    /// The interruptions so far.
    #[must_use]
    pub fn mark(&self) -> InterruptionMark {
        let Calls { aborts, pauses } = *self.calls.lock();
        InterruptionMark { aborts: aborts.ended(), pauses: pauses.ended() }
    }

    /// What may have aborted a generation since `mark`: a pause, if both may have.
    #[must_use]
    pub fn since(&self, mark: InterruptionMark) -> Option<Interruption> {
        let Calls { aborts, pauses } = *self.calls.lock();
        if pauses.begun > mark.pauses {
            return Some(Interruption::Pause);
        }
        (aborts.begun > mark.aborts).then_some(Interruption::Abort)
    }

    /// Ends the waits of generations: tokentap ends.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Waits while a trainer has paused the engine, for at most `limit`.
    ///
    /// # Errors
    /// A 503 after that time, or if tokentap ends.
    pub(super) async fn wait_while_paused(
        &self,
        policy: &Policy,
        limit: Duration,
        metrics: &Metrics,
    ) -> Result<(), Error> {
        let wait = PauseWait::begin(metrics);
        let mut draining = self.draining.subscribe();
        let (outcome, message) = tokio::select! {
            biased;
            () = policy.wait_continued() => {
                wait.end("continued");
                return Ok(());
            }
            _ = draining.wait_for(|draining| *draining) => ("drained", "tokentap is shutting down; try again".to_owned()),
            () = sleep(limit) => {
                let limit = limit.as_secs_f64();
                let message = format!("a trainer has paused the engine for longer than --pause-wait {limit}s; try again");
                ("timeout", message)
            }
        };
        wait.end(outcome);
        Err(Error::Unavailable { message })
    }
}

impl Drop for InterruptingCall {
    fn drop(&mut self) {
        self.0.calls.lock().of(self.1).running -= 1;
    }
}

/// Counts a wait. It is dropped if the client disconnects.
struct PauseWait<'a> {
    metrics: &'a Metrics,
    outcome: &'static str,
}

impl<'a> PauseWait<'a> {
    fn begin(metrics: &'a Metrics) -> Self {
        metrics.pause_waiting.inc();
        Self { metrics, outcome: "disconnected" }
    }

    fn end(mut self, outcome: &'static str) {
        self.outcome = outcome;
    }
}

impl Drop for PauseWait<'_> {
    fn drop(&mut self) {
        self.metrics.pause_waiting.dec();
        self.metrics.pause_waits.with_label_values(&[self.outcome]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_that_runs_or_begins_later_may_have_aborted_a_generation() {
        for kind in [Interruption::Abort, Interruption::Pause] {
            let interruptions = Interruptions::default();
            let before = interruptions.mark();
            assert_eq!(interruptions.since(before), None);
            let call = interruptions.begin_call(kind);
            let during = interruptions.mark();
            assert_eq!([before, during].map(|mark| interruptions.since(mark)), [Some(kind); 2]);
            drop(call);
            assert_eq!(interruptions.since(during), Some(kind), "its abort may come late");
            assert_eq!(interruptions.since(interruptions.mark()), None, "it has ended before");
        }
        let interruptions = Interruptions::default();
        let before = interruptions.mark();
        let _calls = [Interruption::Pause, Interruption::Abort].map(|kind| interruptions.begin_call(kind));
        assert_eq!(interruptions.since(before), Some(Interruption::Pause), "either may have");
    }
}
