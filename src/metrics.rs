//! Every metric, declared once, as typed handles.
//!
//! Labels have few values: endpoints come from a table of routes, models from the probe. No request, session or user is a label.

mod archive;
mod buckets;
mod chat;
mod declare;
mod ledger;
mod session;
mod slices;
mod tally;
mod tls;

use std::sync::{Arc, Mutex, PoisonError};

pub use archive::ArchiveMetrics;
pub use buckets::{ENTROPY_BUCKETS, MASS_BUCKETS};
pub use chat::ChatMetrics;
pub use ledger::LedgerMetrics;
pub use session::SessionMetrics;
pub use slices::SliceMetrics;
pub use tally::{Tallies, Tally};
pub use tls::TlsMetrics;

use prometheus::{
    Encoder, Gauge, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry, TextEncoder,
};

use buckets::{LATENCY_BUCKETS, OVERHEAD_BUCKETS};
pub use declare::MetricDescription;
use declare::{Declare, options};

/// Handles of every metric.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    described: Vec<MetricDescription>,
    // locked while a counter is raised, so that two scrapes do not add the same count twice
    raise_lock: Mutex<()>,
    /// Requests that were answered, by `endpoint`, `method`, `status_code`.
    pub requests: IntCounterVec,
    /// Requests being served, by `endpoint`.
    pub active: IntGaugeVec,
    /// From the request's head to the reply's last byte, by `endpoint`, `is_streaming`.
    pub duration: HistogramVec,
    /// Time spent in tokentap's own work on a reply, by `endpoint`.
    pub overhead: HistogramVec,
    /// From sending a request to the upstream's headers, by `endpoint`.
    pub upstream_ttfb: HistogramVec,
    /// Failures of the upstream, by `kind`: connect, timeout, reset, `5xx`.
    pub upstream_errors: IntCounterVec,
    /// 1 while the upstream answers.
    pub upstream_up: IntGauge,
    /// Bytes of buffered requests and replies.
    pub bytes_in_flight: IntGauge,
    /// 1 while requests are not sent because no connection to the upstream can be made.
    pub breaker_open: IntGauge,
    /// 1 from SIGTERM on.
    pub draining: IntGauge,
    /// Entropies of single tokens, by `model_name`, `estimator`.
    pub token_entropy: Tallies,
    /// Mean entropies of sequences, by `model_name`.
    pub mean_entropy: HistogramVec,
    /// Mean entropies of the thinking of turns, by `model_name`.
    pub think_entropy: HistogramVec,
    /// Probability mass of the reported top-k, by `model_name`.
    pub topk_mass: Tallies,
    /// Tokens seen, by `model_name`, `kind`: prompt, output.
    pub tokens: IntCounterVec,
    /// Invalid logprob rows, by `kind`.
    pub anomalies: IntCounterVec,
    /// Sequences without the requested entropy, by `reason`.
    pub skipped: IntCounterVec,
    /// Sequences for which the engine did not report the requested exact entropies, by `reason`: missing, misaligned.
    pub exact_lost: IntCounterVec,
    /// Requests that were sent again without forced logprobs, by `status_code` of the first reply.
    pub unforced_retries: IntCounterVec,
    /// Clients that disconnected before their reply was complete.
    pub disconnects: IntCounter,
    /// Aborts sent for them.
    pub aborts: IntCounter,
    /// Requests refused by the guard, by `rule`.
    pub refused: IntCounterVec,
    /// Requests refused because a limit was reached, by `reason`.
    pub shed: IntCounterVec,
    /// Chats served from tokens.
    pub chat: ChatMetrics,
    /// Generations that were forwarded without reading their tokens, by `endpoint`.
    pub uncaptured: IntCounterVec,
    /// Requests in the entropy store.
    pub store_entries: IntGauge,
    /// Bytes in the entropy store.
    pub store_bytes: IntGauge,
    /// Requests evicted from the entropy store, by `reason`: ttl, entries, bytes.
    pub store_evictions: IntCounterVec,
    /// Recorded turns, by `outcome`: trainable, or their fault.
    pub turns: IntCounterVec,
    /// Retried calls whose earlier reply did not reach the client, by `outcome`: joined, replayed, superseded.
    pub retries: IntCounterVec,
    /// Session names, and the attachment of turns.
    pub session: SessionMetrics,
    /// The shared ledger.
    pub ledger: LedgerMetrics,
    /// Sessions evicted from the store, by `reason`: ttl, bytes.
    pub sessions_evicted: IntCounterVec,
    /// Records that were not written to the log in time, by `reason`: write, queue_full, slow, ledger, memory.
    pub log_failures: IntCounterVec,
    /// 1 while records cannot be written to the log.
    pub log_degraded: IntGauge,
    /// Bytes of the log on disk.
    pub log_bytes: IntGauge,
    /// Records written to the log.
    pub log_records: IntCounter,
    /// Records that are not in the log: it could not be written, or its queue was full.
    pub log_lost: IntCounter,
    /// 1 while sessions are restored from the log.
    pub log_restoring: IntGauge,
    /// Bytes of the log that were read at the start.
    pub log_restored_bytes: IntGauge,
    /// The duration of that restoration.
    pub log_restore_seconds: Gauge,
    /// Damaged regions that were found when the log was read.
    pub log_damaged: IntCounter,
    /// Sessions in the store.
    pub sessions: IntGauge,
    /// Bytes in the store of sessions.
    pub sessions_bytes: IntGauge,
    /// Panics that were caught while a reply was being enriched.
    pub panics: IntCounter,
    /// Rows of logits, and the device that measures them.
    pub slices: SliceMetrics,
    /// TLS on the ports.
    pub tls: TlsMetrics,
    /// The archive of finished paths.
    pub archive: ArchiveMetrics,
}

impl Metrics {
    /// Creates metrics in a new registry. `backend` is the name of the configured entropy backend.
    #[must_use]
    pub fn new(backend: &str) -> Self {
        let registry = Registry::new();
        let d = Declare::new(&registry);
        let build = d.keep(IntGaugeVec::new(
            options("build_info", "Version and configured entropy backend; the value is 1."),
            &["version", "entropy_backend"],
        ));
        build.with_label_values(&[env!("CARGO_PKG_VERSION"), backend]).set(1);
        #[cfg(target_os = "linux")]
        {
            let process = prometheus::process_collector::ProcessCollector::for_self();
            registry.register(Box::new(process)).expect("no metric of this file is named process_*");
        }
        let mut metrics = Self {
            described: Vec::new(),
            raise_lock: Mutex::default(),
            requests: d.counters(
                "http_requests_total",
                "Requests answered, on both ports.",
                &["endpoint", "method", "status_code"],
            ),
            active: d.keep(IntGaugeVec::new(
                options("http_requests_active", "Requests being served, without probes and scrapes."),
                &["endpoint"],
            )),
            duration: d.histograms(
                "request_duration_seconds",
                "Time from the request's head to the reply's last byte.",
                &["endpoint", "is_streaming"],
                &LATENCY_BUCKETS,
            ),
            overhead: d.histograms(
                "overhead_seconds",
                "Time that tokentap itself spent on a reply.",
                &["endpoint"],
                &OVERHEAD_BUCKETS,
            ),
            upstream_ttfb: d.histograms(
                "upstream_ttfb_seconds",
                "Time from sending a request to the upstream's reply headers.",
                &["endpoint"],
                &LATENCY_BUCKETS,
            ),
            upstream_errors: d.counters("upstream_errors_total", "Failures of the upstream.", &["kind"]),
            upstream_up: d.gauge("upstream_up", "1 while the upstream answers."),
            bytes_in_flight: d
                .gauge("bytes_in_flight", "Bytes of buffered requests and replies, and of the work on requests."),
            breaker_open: d.gauge(
                "breaker_open",
                "1 while requests are not sent because no connection to the upstream can be made.",
            ),
            draining: d.gauge("draining", "1 from SIGTERM on."),
            token_entropy: d.tallies(
                "token_entropy_nats",
                "Entropy of the policy at each sampled token.",
                &["model_name", "estimator"],
                &ENTROPY_BUCKETS,
            ),
            mean_entropy: d.histograms(
                "request_mean_entropy_nats",
                "Mean entropy of each sequence.",
                &["model_name"],
                &ENTROPY_BUCKETS,
            ),
            think_entropy: d.histograms(
                "think_mean_entropy_nats",
                "Mean entropy of the thinking tokens of each recorded turn that has any.",
                &["model_name"],
                &ENTROPY_BUCKETS,
            ),
            topk_mass: d.tallies(
                "topk_mass_ratio",
                "Probability mass of the reported top-k.",
                &["model_name"],
                &MASS_BUCKETS,
            ),
            tokens: d.counters(
                "tokens_observed_total",
                "Prompt and output tokens in the engine's replies.",
                &["model_name", "kind"],
            ),
            anomalies: d.counters(
                "logprob_anomalies_total",
                "Invalid logprob rows in the engine's replies.",
                &["kind"],
            ),
            exact_lost: d.counters(
                "exact_lost_total",
                "Sequences for which the engine did not report the requested exact entropies.",
                &["reason"],
            ),
            skipped: d.counters("entropy_skipped_total", "Sequences without the requested entropy.", &["reason"]),
            unforced_retries: d.counters(
                "unforced_retries_total",
                "Requests that were sent again without forced logprobs.",
                &["status_code"],
            ),
            disconnects: d
                .counter("client_disconnects_total", "Clients that disconnected before their reply was complete."),
            aborts: d.counter("aborts_sent_total", "Aborts sent after a client disconnected."),
            refused: d.counters(
                "guard_refusals_total",
                "Requests refused because they crash known server versions.",
                &["rule"],
            ),
            shed: d.counters("shed_total", "Requests refused because a limit was reached.", &["reason"]),
            chat: ChatMetrics::declare(&d),
            uncaptured: d.counters(
                "uncaptured_generations_total",
                "Generations that were forwarded without reading their tokens.",
                &["endpoint"],
            ),
            store_entries: d.gauge("entropy_store_entries", "Requests in the entropy store."),
            store_bytes: d.gauge("entropy_store_bytes", "Bytes in the entropy store."),
            store_evictions: d.counters(
                "entropy_store_evictions_total",
                "Requests evicted from the entropy store.",
                &["reason"],
            ),
            turns: d.counters("turns_total", "Recorded turns.", &["outcome"]),
            retries: d.counters(
                "retries_total",
                "Retried calls whose earlier reply did not reach the client.",
                &["outcome"],
            ),
            session: SessionMetrics::declare(&d),
            ledger: LedgerMetrics::declare(&d),
            sessions_evicted: d.counters("sessions_evicted_total", "Sessions evicted from the store.", &["reason"]),
            log_failures: d.counters(
                "log_failures_total",
                "Records that were not written to the log in time.",
                &["reason"],
            ),
            log_degraded: d.gauge("log_degraded", "1 while records cannot be written to the log."),
            log_bytes: d.gauge("log_bytes", "Bytes of the log on disk."),
            log_records: d.counter("log_records_total", "Records written to the log."),
            log_lost: d.counter("log_lost_records_total", "Records that are not in the log."),
            log_restoring: d.gauge("log_restoring", "1 while sessions are restored from the log."),
            log_restored_bytes: d.gauge("log_restored_bytes", "Bytes of the log that were read at the start."),
            log_restore_seconds: d.seconds("log_restore_seconds", "Duration of the restoration at the start."),
            log_damaged: d.counter("log_damaged_regions_total", "Damaged regions of the log whose records are lost."),
            sessions: d.gauge("sessions", "Sessions in the store."),
            sessions_bytes: d.gauge("sessions_bytes", "Bytes in the store of sessions."),
            panics: d.counter("panics_caught_total", "Panics caught while a reply was being enriched."),
            slices: SliceMetrics::declare(&d),
            tls: TlsMetrics::declare(&d),
            archive: ArchiveMetrics::declare(&d),
            registry: registry.clone(),
        };
        metrics.described = d.into_described();
        metrics.begin();
        metrics
    }

    /// Creates the series that alerts use with the value 0: `increase` sees no increase in a series whose first value is not 0.
    fn begin(&self) {
        for (counters, values) in [
            (&self.upstream_errors, &["connect", "timeout", "reset", "5xx"][..]),
            (&self.shed, &["max_requests", "max_bytes", "breaker", "entropy_calls", "entropy_silent", "listen_queue"]),
            (&self.store_evictions, &["ttl", "entries", "bytes"]),
            (&self.sessions_evicted, &["ttl", "bytes"]),
            (&self.log_failures, &["write", "queue_full", "slow", "ledger", "memory"]),
        ] {
            for value in values {
                counters.with_label_values(&[value]);
            }
        }
    }

    /// Raises a counter to a total that is counted elsewhere.
    pub fn raise(&self, counter: &IntCounter, count: u64) {
        let _guard = self.raise_lock.lock().unwrap_or_else(PoisonError::into_inner);
        counter.inc_by(count.saturating_sub(counter.get()));
    }

    /// All metrics in the text format of Prometheus.
    ///
    /// # Errors
    /// When a metric cannot be printed.
    pub fn render(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::with_capacity(16 * 1024);
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }

    /// The descriptions of all metrics, including those without a value, sorted by name.
    #[must_use]
    pub fn described() -> Vec<MetricDescription> {
        let mut described = Self::new("none").described;
        described.sort_by(|a, b| a.name.cmp(&b.name));
        described
    }

    /// Returns the histograms of a model and an estimator. The caller keeps them, to save the lookup at each request.
    #[must_use]
    pub fn model(&self, name: &str, estimator: &str) -> ModelMetrics {
        ModelMetrics {
            token_entropy: self.token_entropy.with(&[name, estimator]),
            topk_mass: self.topk_mass.with(&[name]),
        }
    }
}

/// Histograms of one model's tokens.
#[derive(Debug, Clone)]
pub struct ModelMetrics {
    /// Entropies, in nats.
    pub token_entropy: Arc<Tally>,
    /// Probability mass of the reported top-k.
    pub topk_mass: Arc<Tally>,
}
