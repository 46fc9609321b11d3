//! A generation that a client waits for, and its abort when the client leaves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::HeaderValue;
use tokio::time::Instant;

use crate::engine::engines::{AbortOutcome, PATIENCE};
use crate::generation::capture::{Capture, Unreadable};
use crate::generation::generator::Generator;
use crate::generation::reason::Reason;
use crate::generation::record::Recorder;
use crate::session::Fault;
use crate::session::ledger::Ack;

/// A capture whose client may leave. Dropped before its end, it aborts the ids it has seen.
#[derive(Debug)]
pub struct ActiveGeneration {
    generator: Arc<Generator>,
    capture: Capture,
    /// The client's key, which signs the abort.
    key: Option<HeaderValue>,
    asked: bool,
}

impl ActiveGeneration {
    /// A generation that has not been asked for yet.
    #[must_use]
    pub fn new(generator: Arc<Generator>, capture: Capture, key: Option<HeaderValue>) -> Self {
        Self { generator, capture, key, asked: false }
    }

    /// The capture.
    #[must_use]
    pub fn capture(&self) -> &Capture {
        &self.capture
    }

    /// The capture, to change its plan.
    pub fn capture_mut(&mut self) -> &mut Capture {
        &mut self.capture
    }

    /// From now on the engine may be working on it.
    pub fn ask(&mut self) {
        self.asked = true;
    }

    /// The engine is done with it.
    pub fn end(&mut self) {
        self.asked = false;
    }

    /// Whether the engine is done with it.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        !self.asked
    }

    /// Runs a step of the capture where neither an error nor a panic can cost the client its reply; `None` where it failed.
    pub fn guarded<T>(&mut self, step: impl FnOnce(&mut Capture) -> Result<T, Unreadable>) -> Option<T> {
        let started = Instant::now();
        let stepped = match catch_unwind(AssertUnwindSafe(|| step(&mut self.capture))) {
            Ok(Ok(stepped)) => Some(stepped),
            Ok(Err(error)) => {
                tracing::warn!(%error, "a reply could not be read and passes unchanged");
                None
            }
            Err(_) => {
                self.generator.metrics.panics.inc();
                tracing::error!("a reply could not be enriched and passes unchanged");
                None
            }
        };
        if stepped.is_none() {
            self.generator.metrics.skipped.with_label_values(&[Reason::Unreadable.name()]).inc();
        }
        self.capture.spent(started.elapsed());
        stepped
    }

    /// Waits until the turns so far are on disk, where they are to be; not for long, and whatever comes of it.
    pub async fn recorded(&mut self) {
        let acks = self.capture.recorder().map(Recorder::take_acks).unwrap_or_default();
        self.generator.log_wait.wait(acks).await;
    }

    /// The same for a stream, which is polled; `None` where there is nothing to wait for.
    pub fn recording(&mut self) -> Option<Recording> {
        let acks = self.capture.recorder().map(Recorder::take_acks).unwrap_or_default();
        if acks.iter().all(Ack::is_done) {
            return None;
        }
        let wait = Arc::clone(&self.generator.log_wait);
        Some(Box::pin(async move { wait.wait(acks).await }))
    }

    /// What runs it.
    #[must_use]
    pub fn generator(&self) -> &Arc<Generator> {
        &self.generator
    }
}

/// Ends when turns are on disk.
pub type Recording = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Drop for ActiveGeneration {
    fn drop(&mut self) {
        self.capture.cut(if self.asked { Fault::Disconnected } else { Fault::Broken });
        if !self.asked {
            return;
        }
        self.generator.metrics.disconnects.inc();
        // until the aborts are through the ids stay taken: a client that tries again at once must not be hit by them
        let flight = self.capture.take_flight();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (generator, key) = (Arc::clone(&self.generator), self.key.take());
        generator.aborting.send_modify(|count| *count += 1);
        runtime.spawn(async move {
            let mut aborts = tokio::task::JoinSet::new();
            for rid in flight.ids() {
                if !flight.may_abort(&rid) {
                    continue;
                }
                if aborts.len() >= ABORTS_AT_ONCE {
                    aborts.join_next().await;
                }
                let (generator, key) = (Arc::clone(&generator), key.clone());
                aborts.spawn(async move { abort(&generator, &rid, key).await });
            }
            // an engine that does not answer delays the aborts of one request by one time limit, not by one for each id
            aborts.join_all().await;
            // the ids are free before those that wait for them look
            drop(flight);
            generator.aborting.send_modify(|count| *count -= 1);
        });
    }
}

/// Aborts of one request that are on their way together.
const ABORTS_AT_ONCE: usize = 64;

/// How long an abort may take.
pub(super) const ABORT: Duration = PATIENCE;

async fn abort(generator: &Generator, rid: &str, key: Option<HeaderValue>) {
    let outcomes = generator.engines.abort(rid, key).await;
    if outcomes.iter().any(AbortOutcome::is_accepted) {
        generator.metrics.aborts.inc();
    }
    if outcomes.iter().all(AbortOutcome::is_unsupported) {
        if !generator.abort_unsupported.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                upstream = generator.client.upstream(),
                "the upstream has no /abort_request: closing the connection is all that ends a generation; name its engines with --engine"
            );
        }
        return;
    }
    // a request that has just ended does not run anywhere
    let failed = outcomes.iter().filter(|outcome| !outcome.is_absent);
    for problem in failed.filter_map(AbortOutcome::problem) {
        tracing::warn!(rid, %problem, "an engine did not take an abort");
    }
}
