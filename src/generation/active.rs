// SPDX-License-Identifier: Apache-2.0
//! A generation that a client waits for. It is aborted when the client disconnects.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use tokio::time::Instant;

use super::context::GenerationContext;
use super::interruptions::{Interruption, InterruptionMark};
use super::resumption::Resumption;
use super::settings::AbortPolicy;
use crate::engine::engines::{ANSWER_TIMEOUT, AbortOutcome};
use crate::engine::reason::Reason;
use crate::error::Error;
use crate::generation::capture::{Capture, UnreadableReply};
use crate::generation::event::EventAccess;
use crate::generation::recorder::Recorder;
use crate::long_work::{BodyLength, in_place};
use crate::session::Fault;
use crate::session::ledger::Ack;
use crate::traces::Failure;

/// A capture whose client may disconnect. Dropping it before its end aborts its known ids.
#[derive(Debug)]
pub struct ActiveGeneration {
    // on the heap: futures that hold it are copied
    capture: Box<Capture>,
    /// The client's API key, which authorizes the abort.
    key: Option<HeaderValue>,
    sent: bool,
    /// The interruptions before it was sent; `None` if they do not matter.
    interruptions: Option<InterruptionMark>,
    /// How it is continued after an abort; `None` if it is not.
    resumption: Option<Box<Resumption>>,
    /// The reply up to an abort, while its rest is awaited: its tokens are recorded if the client disconnects.
    aborted_reply: Option<Bytes>,
}

impl ActiveGeneration {
    /// A generation whose request has not been sent yet.
    #[must_use]
    pub fn new(capture: Capture, key: Option<HeaderValue>) -> Self {
        let context = capture.context();
        let matters = context.settings.on_abort != AbortPolicy::Pass;
        let interruptions = matters.then(|| context.interruptions.mark());
        Self { capture: Box::new(capture), key, sent: false, interruptions, resumption: None, aborted_reply: None }
    }

    #[must_use]
    pub fn capture(&self) -> &Capture {
        &self.capture
    }

    /// The capture, to change its plan.
    pub fn capture_mut(&mut self) -> &mut Capture {
        &mut self.capture
    }

    /// Records that the request is about to be sent: from now on the engine may run it.
    pub fn mark_sent(&mut self) {
        self.sent = true;
    }

    /// Records that the engine has ended it.
    pub fn mark_ended(&mut self) {
        self.sent = false;
    }

    /// Whether the engine has ended it, or was never asked.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        !self.sent
    }

    /// What a trainer may have aborted it with; `None` if an abort is the client's own or the engine's.
    #[must_use]
    pub fn interrupted_by(&self) -> Option<Interruption> {
        let by = self.interruptions.and_then(|mark| self.context().interruptions.since(mark));
        by.filter(|_| !self.capture.is_aborted_by_client())
    }

    /// Sets how it is continued after an abort.
    pub(super) fn set_resumption(&mut self, resumption: Resumption) {
        self.resumption = Some(Box::new(resumption));
    }

    /// How it is continued after an abort.
    pub(super) fn resumption(&mut self) -> &mut Option<Box<Resumption>> {
        &mut self.resumption
    }

    /// Sets the reply so far, while its rest is awaited.
    pub(super) fn set_aborted_reply(&mut self, reply: Option<Bytes>) {
        self.aborted_reply = reply;
    }

    /// Records that its rest is about to be requested with the id `rid`. The tokens from here on are sampled by the current policy.
    pub(super) fn begin_continuation(&mut self, rid: &Arc<str>) {
        self.interruptions = Some(self.context().interruptions.mark());
        self.capture.continue_as(rid);
        self.capture.mark_epoch(0);
        self.sent = true;
    }

    /// The error for the client, if `--on-abort retry` replaces the reply: a trainer aborted the generation, not the client.
    #[must_use]
    pub fn interruption(&self) -> Option<Error> {
        let context = self.context();
        let retries = context.settings.on_abort == AbortPolicy::Retry;
        if !retries || !self.capture.observed().is_aborted || self.interrupted_by().is_none() {
            return None;
        }
        context.metrics.interrupted.with_label_values(&["retry"]).inc();
        Some(Error::Unavailable { message: "the trainer aborted the generation; try again".to_owned() })
    }

    /// Runs a step of the capture. Returns `None` on an error or a panic, so that neither can lose the client's reply.
    pub fn guarded<T>(&mut self, step: impl FnOnce(&mut Capture) -> Result<T, UnreadableReply>) -> Option<T> {
        self.capture.begin_step(Instant::now());
        let stepped = match catch_unwind(AssertUnwindSafe(|| step(&mut self.capture))) {
            Ok(Ok(stepped)) => Some(stepped),
            Ok(Err(error)) => {
                tracing::warn!(%error, "a reply could not be parsed and is forwarded unchanged");
                None
            }
            Err(_) => {
                self.context().metrics.panics.inc();
                tracing::error!("measuring a reply panicked; the reply is forwarded unchanged");
                None
            }
        };
        if stepped.is_none() {
            self.capture.skip(Reason::Unreadable);
        }
        self.capture.end_step();
        stepped
    }

    /// Waits, with a timeout, until the log or the shared ledger has acknowledged the turns so far. Resolves to true if the reply may be sent.
    pub async fn wait_until_durable(&mut self) -> bool {
        let acks = self.capture.recorder().map(Recorder::take_acks).unwrap_or_default();
        // most turns wait for nothing
        acks.iter().all(Ack::is_done) || Box::pin(self.context().log_wait.wait(acks)).await
    }

    /// The same as a future, for a polled stream; `None` if no turn is pending.
    pub fn durability_wait(&mut self) -> Option<DurabilityWait> {
        let acks = self.capture.recorder().map(Recorder::take_acks).unwrap_or_default();
        if acks.iter().all(Ack::is_done) {
            return None;
        }
        let wait = Arc::clone(&self.context().log_wait);
        Some(Box::pin(async move { wait.wait(acks).await }))
    }

    #[must_use]
    pub fn context(&self) -> &GenerationContext {
        self.capture.context()
    }
}

/// Resolves to true if the reply may be sent: the log or the shared ledger has acknowledged the turns, or `--strict ledger` is off.
pub(crate) type DurabilityWait = Pin<Box<dyn Future<Output = bool> + Send>>;

impl Drop for ActiveGeneration {
    fn drop(&mut self) {
        if let Some(reply) = self.aborted_reply.take() {
            let decoded = in_place(BodyLength::Reply(reply.len()), || {
                self.guarded(|capture| capture.decode_whole(&reply, EventAccess::Bytes))
            });
            if decoded.is_none() {
                self.capture.incomplete();
            }
        }
        self.capture.cut(if self.sent { Fault::Disconnected } else { Fault::Broken });
        if self.sent && !self.capture.is_complete() {
            self.capture.fail_span(Failure::Disconnected);
        }
        self.capture.end_span();
        if !self.sent {
            return;
        }
        self.context().metrics.disconnects.inc();
        // the ids stay reserved until the aborts are answered: they must not hit a client that retries at once
        let flight = self.capture.take_in_flight();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (context, key) = (Arc::clone(self.capture.context()), self.key.take());
        context.aborting.send_modify(|count| *count += 1);
        runtime.spawn(async move {
            let mut aborts = tokio::task::JoinSet::new();
            for rid in flight.ids() {
                if !flight.may_abort(&rid) {
                    continue;
                }
                if aborts.len() >= ABORTS_AT_ONCE {
                    aborts.join_next().await;
                }
                let (context, key) = (Arc::clone(&context), key.clone());
                aborts.spawn(async move { abort(&context, &rid, key).await });
            }
            // concurrent, so that an unresponsive engine delays the aborts of a request by one timeout, not by one per id
            aborts.join_all().await;
            // release the ids before waking the requests that wait for them
            drop(flight);
            context.aborting.send_modify(|count| *count -= 1);
        });
    }
}

/// Concurrent aborts of one request.
const ABORTS_AT_ONCE: usize = 64;

pub(super) const ABORT_TIMEOUT: Duration = ANSWER_TIMEOUT;

async fn abort(context: &GenerationContext, rid: &str, key: Option<HeaderValue>) {
    let outcomes = context.engines.abort(rid, key).await;
    if outcomes.iter().any(AbortOutcome::is_accepted) {
        context.metrics.aborts.inc();
    }
    if outcomes.iter().all(AbortOutcome::is_unsupported) {
        if !context.abort_unsupported.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                upstream = context.engines.upstream().upstream(),
                "the upstream has no /abort_request: a generation ends only when its connection closes; name the engines with --engine"
            );
        }
        return;
    }
    // "not in flight" is not a failure: the request has just ended
    let failed = outcomes.iter().filter(|outcome| !outcome.is_absent);
    for problem in failed.filter_map(AbortOutcome::problem) {
        tracing::warn!(rid, %problem, "an engine did not accept an abort");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::engine::capabilities::Capabilities;
    use crate::engine::engines::Engines;
    use crate::engine::plan::{EntropyRequest, Plan, PlanLimits};
    use crate::engine::transport::client::{Client, ClientSettings};
    use crate::generation::entropy_store::{EntropyStore, EntropyStoreLimits};
    use crate::generation::settings::{
        AbortPolicy, ColumnSettings, EntropyMode, EntropySettings, GenerationSettings, SessionLimits,
    };
    use crate::metrics::Metrics;

    fn context() -> GenerationContext {
        let limits =
            PlanLimits { max_top_logprobs: 20, cumulative_stream_tokens: 512, reply_bytes: 1, max_reply_bytes: 1 };
        let settings = GenerationSettings {
            entropy: EntropySettings { mode: EntropyMode::On, top_logprobs: 20, limits },
            columns: ColumnSettings::default(),
            is_strict: false,
            is_guarded: true,
            records: false,
            session: SessionLimits { turns: 1, branches: 1 },
            session_idle: Duration::ZERO,
            ledger_timeout: None,
            is_ledger_strict: false,
            pause_wait: Duration::ZERO,
            image_timeout: Duration::ZERO,
            on_abort: AbortPolicy::Pass,
        };
        let client = ClientSettings {
            api_key: None,
            admin_key: None,
            connect_timeout: Duration::ZERO,
            pool_idle_timeout: Duration::ZERO,
            breaker_failures: 0,
            ca: None,
        };
        let engines = Engines::try_new(Client::try_new("http://127.0.0.1:1", client).unwrap(), &[]).unwrap();
        let store = EntropyStore::new(EntropyStoreLimits { ttl: Duration::ZERO, entries: 0, bytes: 0 });
        GenerationContext::new(settings, engines, store, Arc::new(Metrics::new("cpu")), Budget::new(0))
    }

    #[tokio::test]
    async fn panic_of_a_step_is_caught_and_counted() {
        let (context, upstream) = (Arc::new(context()), Capabilities::unknown(None));
        let plan = Plan::for_engine_chat(upstream.traits().product, Bytes::new(), 1, None);
        let plan = Plan { entropy_request: EntropyRequest { wanted: true, ..EntropyRequest::NONE }, ..plan };
        let flight = context.flights.start(std::iter::empty());
        let capture = Capture::new(plan, flight, None, Arc::clone(&context), &upstream, Instant::now());
        let mut active = ActiveGeneration::new(capture, None);
        for panics in 1..=2 {
            let stepped: Option<()> = active.guarded(|_| panic!("a bug in a step (this test causes it)"));
            assert_eq!(stepped, None, "the step has no result");
            assert_eq!(context.metrics.panics.get(), panics);
            assert_eq!(context.metrics.skipped.with_label_values(&[Reason::Unreadable.name()]).get(), panics);
        }
        assert_eq!(active.guarded(|_| Ok(7)), Some(7), "later steps are not affected");
    }
}
