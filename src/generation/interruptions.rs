//! Interruptions by a trainer, which pauses the engine or aborts its generations through the control port.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::sleep;

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

#[derive(Debug, Clone, Copy, Default)]
struct Calls {
    begun: u64,
    running: u64,
}

/// The interruptions before a generation was sent.
#[derive(Debug, Clone, Copy)]
pub struct InterruptionMark(u64);

/// A call that may abort generations, while it runs.
#[derive(Debug)]
pub struct InterruptingCall(Interruptions);

impl Interruptions {
    /// Begins a call that may abort generations; it ends when the result is dropped.
    #[must_use]
    pub fn begin_call(&self) -> InterruptingCall {
        let mut calls = self.calls.lock();
        calls.begun += 1;
        calls.running += 1;
        InterruptingCall(self.clone())
    }

    /// The interruptions so far.
    #[must_use]
    pub fn mark(&self) -> InterruptionMark {
        let Calls { begun, running } = *self.calls.lock();
        // those that run may abort the generation yet
        InterruptionMark(begun - running)
    }

    /// Whether a call since `mark` may have aborted a generation.
    #[must_use]
    pub fn has_call_since(&self, mark: InterruptionMark) -> bool {
        self.calls.lock().begun > mark.0
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
        self.0.calls.lock().running -= 1;
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
        let interruptions = Interruptions::default();
        let before = interruptions.mark();
        assert!(!interruptions.has_call_since(before));
        let call = interruptions.begin_call();
        let during = interruptions.mark();
        assert!(interruptions.has_call_since(before) && interruptions.has_call_since(during));
        drop(call);
        assert!(
            interruptions.has_call_since(before) && interruptions.has_call_since(during),
            "its abort may come late"
        );
        assert!(!interruptions.has_call_since(interruptions.mark()), "it has ended before");
    }
}
