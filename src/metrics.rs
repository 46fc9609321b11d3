//! Every metric, declared once, as typed handles.
//!
//! Labels have few values by construction: endpoints come from a table of routes, models from the probe; no request, session or
//! user is ever a label.

mod buckets;
mod chat;
mod declare;
mod session;
mod slices;
mod tally;
mod tls;

use std::sync::{Arc, Mutex, PoisonError};

pub use buckets::{ENTROPY_BUCKETS, MASS_BUCKETS};
pub use chat::ChatMetrics;
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
    // two scrapes at once must not count twice; held for the length of a sum
    raising: Mutex<()>,
    /// Answers, by `endpoint`, `method`, `status_code`.
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
    /// Bytes of requests and replies that are held whole.
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
    /// Probability covered by the reported top-k, by `model_name`.
    pub topk_mass: Tallies,
    /// Tokens seen, by `model_name`, `kind`: prompt, output.
    pub tokens: IntCounterVec,
    /// Logprob rows that are not as they should be, by `kind`.
    pub anomalies: IntCounterVec,
    /// Sequences without entropy although it was wanted, by `reason`.
    pub skipped: IntCounterVec,
    /// Sequences of which the engine itself was to say exact entropies and did not, by `reason`: missing, misaligned.
    pub exact_lost: IntCounterVec,
    /// Requests asked again as the client wrote them, by `status_code` of the first answer.
    pub unforced_retries: IntCounterVec,
    /// Requests of clients that left before their reply was complete.
    pub disconnects: IntCounter,
    /// Aborts sent for them.
    pub aborts: IntCounter,
    /// Requests refused by the guard, by `rule`.
    pub refused: IntCounterVec,
    /// Requests refused for want of capacity, by `reason`.
    pub shed: IntCounterVec,
    /// Chats served from tokens.
    pub chat: ChatMetrics,
    /// Generations that tokentap forwarded without seeing their tokens, by `endpoint`.
    pub uncaptured: IntCounterVec,
    /// Requests in the entropy store.
    pub store_entries: IntGauge,
    /// Bytes in the entropy store.
    pub store_bytes: IntGauge,
    /// Requests that left the entropy store, by `reason`: ttl, entries, bytes.
    pub store_evictions: IntCounterVec,
    /// Turns recorded, by `outcome`: trainable, or what is wrong with them.
    pub turns: IntCounterVec,
    /// Calls that came again after one whose reply did not reach the client, by `outcome`: joined, replayed, superseded.
    pub retries: IntCounterVec,
    /// Names of sessions, and how turns attach.
    pub session: SessionMetrics,
    /// Sessions that left the store, by `reason`: ttl, bytes.
    pub sessions_evicted: IntCounterVec,
    /// Records that did not reach the log in time, by `reason`: write, slow.
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
    /// How long that took.
    pub log_restore_seconds: Gauge,
    /// Places in the log that were damaged when it was read.
    pub log_damaged: IntCounter,
    /// Sessions in the store.
    pub sessions: IntGauge,
    /// Bytes in the store of sessions.
    pub sessions_bytes: IntGauge,
    /// Panics that were caught while a reply was being enriched.
    pub panics: IntCounter,
    /// Whole rows, and the device that measures them.
    pub slices: SliceMetrics,
    /// TLS on the ports.
    pub tls: TlsMetrics,
}

impl Metrics {
    /// Fresh metrics in a registry of their own; `backend` is the name of the entropy backend that was asked for.
    #[must_use]
    pub fn new(backend: &str) -> Self {
        let registry = Registry::new();
        let d = Declare::new(&registry);
        let build = d.keep(IntGaugeVec::new(
            options("build_info", "Version, and the entropy backend asked for; the value is 1."),
            &["version", "entropy_backend"],
        ));
        build.with_label_values(&[env!("CARGO_PKG_VERSION"), backend]).set(1);
        #[cfg(target_os = "linux")]
        {
            let process = prometheus::process_collector::ProcessCollector::for_self();
            registry.register(Box::new(process)).expect("process_* clashes with nothing here");
        }
        let mut metrics = Self {
            described: Vec::new(),
            raising: Mutex::default(),
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
                "From the request's head to the reply's last byte.",
                &["endpoint", "is_streaming"],
                &LATENCY_BUCKETS,
            ),
            overhead: d.histograms("overhead_seconds", "Own work on a reply.", &["endpoint"], &OVERHEAD_BUCKETS),
            upstream_ttfb: d.histograms(
                "upstream_ttfb_seconds",
                "From sending to the upstream's headers.",
                &["endpoint"],
                &LATENCY_BUCKETS,
            ),
            upstream_errors: d.counters("upstream_errors_total", "Failures of the upstream.", &["kind"]),
            upstream_up: d.gauge("upstream_up", "1 while the upstream answers."),
            bytes_in_flight: d.gauge("bytes_in_flight", "Bytes of requests and replies that are held whole."),
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
                "Mean entropy of the thinking of each recorded turn that has any.",
                &["model_name"],
                &ENTROPY_BUCKETS,
            ),
            topk_mass: d.tallies(
                "topk_mass_ratio",
                "Probability covered by the top-k.",
                &["model_name"],
                &MASS_BUCKETS,
            ),
            tokens: d.counters("tokens_observed_total", "Tokens seen.", &["model_name", "kind"]),
            anomalies: d.counters("logprob_anomalies_total", "Logprob rows not as they should be.", &["kind"]),
            exact_lost: d.counters(
                "exact_lost_total",
                "Sequences of which the engine was to say exact entropies, and did not.",
                &["reason"],
            ),
            skipped: d.counters("entropy_skipped_total", "Sequences without the entropy that was wanted.", &["reason"]),
            unforced_retries: d.counters(
                "unforced_retries_total",
                "Requests asked again as the client wrote them.",
                &["status_code"],
            ),
            disconnects: d.counter("client_disconnects_total", "Clients that left before their reply was complete."),
            aborts: d.counter("aborts_sent_total", "Aborts sent for clients that left."),
            refused: d.counters("guard_refusals_total", "Requests refused because they kill servers.", &["rule"]),
            shed: d.counters("shed_total", "Requests refused for want of capacity.", &["reason"]),
            chat: ChatMetrics::declare(&d),
            uncaptured: d.counters(
                "uncaptured_generations_total",
                "Generations forwarded without seeing their tokens.",
                &["endpoint"],
            ),
            store_entries: d.gauge("entropy_store_entries", "Requests in the entropy store."),
            store_bytes: d.gauge("entropy_store_bytes", "Bytes in the entropy store."),
            store_evictions: d.counters(
                "entropy_store_evictions_total",
                "Requests that left the entropy store.",
                &["reason"],
            ),
            turns: d.counters("turns_total", "Turns recorded.", &["outcome"]),
            retries: d.counters(
                "retries_total",
                "Calls that came again after one whose reply did not reach the client.",
                &["outcome"],
            ),
            session: SessionMetrics::declare(&d),
            sessions_evicted: d.counters("sessions_evicted_total", "Sessions that left the store.", &["reason"]),
            log_failures: d.counters("log_failures_total", "Records that did not reach the log in time.", &["reason"]),
            log_degraded: d.gauge("log_degraded", "1 while records cannot be written to the log."),
            log_bytes: d.gauge("log_bytes", "Bytes of the log on disk."),
            log_records: d.counter("log_records_total", "Records written to the log."),
            log_lost: d.counter("log_lost_records_total", "Records that are not in the log."),
            log_restoring: d.gauge("log_restoring", "1 while sessions are restored from the log."),
            log_restored_bytes: d.gauge("log_restored_bytes", "Bytes of the log that were read at the start."),
            log_restore_seconds: d.seconds("log_restore_seconds", "How long the restoration at the start took."),
            log_damaged: d
                .counter("log_damaged_regions_total", "Places in the log whose records are damaged and lost."),
            sessions: d.gauge("sessions", "Sessions in the store."),
            sessions_bytes: d.gauge("sessions_bytes", "Bytes in the store of sessions."),
            panics: d.counter("panics_caught_total", "Panics caught while a reply was being enriched."),
            slices: SliceMetrics::declare(&d),
            tls: TlsMetrics::declare(&d),
            registry: registry.clone(),
        };
        metrics.described = d.into_described();
        metrics.begin();
        metrics
    }

    /// Begins what alerts take the increase of: of a counter that appears at five nothing has increased.
    fn begin(&self) {
        for (counters, values) in [
            (&self.upstream_errors, &["connect", "timeout", "reset", "5xx"][..]),
            (&self.shed, &["max_requests", "max_bytes", "breaker", "entropy_calls", "entropy_silent", "listen_queue"]),
            (&self.store_evictions, &["ttl", "entries", "bytes"]),
            (&self.sessions_evicted, &["ttl", "bytes"]),
            (&self.log_failures, &["write", "slow"]),
        ] {
            for value in values {
                counters.with_label_values(&[value]);
            }
        }
    }

    /// Raises a counter to what is counted elsewhere.
    pub fn raise(&self, counter: &IntCounter, count: u64) {
        let _alone = self.raising.lock().unwrap_or_else(PoisonError::into_inner);
        counter.inc_by(count.saturating_sub(counter.get()));
    }

    /// The text exposition of everything.
    ///
    /// # Errors
    /// When a metric cannot be printed.
    pub fn render(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::with_capacity(16 * 1024);
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }

    /// All metrics of tokentap, including those without a value yet, by name.
    #[must_use]
    pub fn described() -> Vec<MetricDescription> {
        let mut described = Self::new("none").described;
        described.sort_by(|a, b| a.name.cmp(&b.name));
        described
    }

    /// The histograms of a model and an estimator, to be looked up once instead of at each request.
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
    /// Probability covered by the top-k.
    pub topk_mass: Arc<Tally>,
}
