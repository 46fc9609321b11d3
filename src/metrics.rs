// SPDX-License-Identifier: Apache-2.0
//! The table of all metrics, and their typed handles.
//!
//! Labels have few values: endpoints come from a table of routes, models from the probe. No request, session or user is a label.

mod declare;
mod memo;
mod tally;

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::{Encoder, IntCounter, Registry, TextEncoder};

pub use declare::MetricDescription;
use declare::{Declare, metrics};
pub use memo::{EndpointMetrics, Memo, ModelMetrics};
use memo::{EndpointVectors, Endpoints, ModelVectors};
pub use tally::{Tallies, Tally};

/// Entropy in nats. Half of the tokens of a chain of thought are below 0.01; "forking" tokens begin near 0.7; 13 is above ln V of every
/// vocabulary in use.
pub const ENTROPY_BUCKETS: [f64; 16] =
    [0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 4.5, 7.0, 13.0];
/// Probability mass of the reported top-k.
pub const MASS_BUCKETS: [f64; 9] = [0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999];
/// The buckets of SGLang's end-to-end latency in seconds, so that both can be shown in one panel.
const LATENCY_BUCKETS: [f64; 19] =
    [0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0, 2400.0];
/// Time that tokentap spends on a reply in seconds, 10 µs to 100 ms.
const OVERHEAD_BUCKETS: [f64; 13] = [1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1];

/// The time of an append, in seconds.
const APPEND_BUCKETS: [f64; 9] = [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.02, 0.1, 0.5, 2.0];
/// Rows that are measured together: one, those of a slot, or those of a kernel launch.
const ROWS_BUCKETS: [f64; 10] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0];

/// Counters by the values of their label.
pub type CounterMemo = Memo<&'static str, IntCounter>;

metrics! {
    /// All metrics.
    Metrics with d {
        registry: Registry = d.registry.clone(),
        // locked while a counter is raised, so that two scrapes do not add the same count twice
        raise_lock: Mutex<()> = Mutex::default(),
        endpoints: Endpoints = Endpoints::new(EndpointVectors {
            active: active.clone(),
            requests: requests.clone(),
            duration: duration.clone(),
            overhead: overhead.clone(),
            upstream_ttfb: upstream_ttfb.clone(),
        }),
        models: Memo<Arc<str>, Arc<ModelMetrics>> = Memo::default(),
        /// Chats that are served from tokens.
        pub chat: ChatMetrics = ChatMetrics::declare(d),
        /// Session names, and the attachment of turns.
        pub session: SessionMetrics = SessionMetrics::declare(d),
        /// The shared ledger.
        pub ledger: LedgerMetrics = LedgerMetrics::declare(d),
        /// Rows of logits, and the device that measures them.
        pub slices: SliceMetrics = SliceMetrics::declare(d),
        /// TLS on the ports.
        pub tls: TlsMetrics = TlsMetrics::declare(d),
        /// The archive of finished paths.
        pub archive: ArchiveMetrics = ArchiveMetrics::declare(d),
    }

    /// Version, and the instruction set of the CPU; the value is 1.
    build: gauges "build_info" [version, entropy_backend];
    /// Requests answered, on both ports.
    requests: counters "http_requests_total" [endpoint, method, status_code];
    /// Requests being served, without probes and scrapes.
    active: gauges "http_requests_active" [endpoint];
    /// Time from the request's head to the reply's last byte.
    duration: histograms "request_duration_seconds" [endpoint, is_streaming] LATENCY_BUCKETS;
    /// Time that tokentap itself spent on a reply.
    overhead: histograms "overhead_seconds" [endpoint] OVERHEAD_BUCKETS;
    /// Time from sending a request to the upstream's reply headers.
    upstream_ttfb: histograms "upstream_ttfb_seconds" [endpoint] LATENCY_BUCKETS;
    /// Failures of the upstream.
    upstream_errors: counters "upstream_errors_total" [kind = "connect" | "timeout" | "reset" | "5xx"];
    /// 1 while the upstream answers.
    upstream_up: gauge "upstream_up";
    /// Bytes of buffered requests and replies, and of the work on requests.
    bytes_in_flight: gauge "bytes_in_flight";
    /// 1 while requests are not sent because no connection to the upstream can be made.
    breaker_open: gauge "breaker_open";
    /// Spans of generations: taken by the collector, refused by it, or without room in the queue.
    spans: counters "spans_total" [outcome = "sent" | "failed" | "dropped"];
    /// 1 from SIGTERM on.
    draining: gauge "draining";
    /// Entropy of the policy at each sampled token.
    token_entropy: tallies "token_entropy_nats" [model_name, estimator] ENTROPY_BUCKETS;
    /// Mean entropy of each sequence.
    mean_entropy: histograms "request_mean_entropy_nats" [model_name] ENTROPY_BUCKETS;
    /// Mean entropy of the thinking tokens of each recorded turn that has any.
    think_entropy: histograms "think_mean_entropy_nats" [model_name] ENTROPY_BUCKETS;
    /// Probability mass of the reported top-k.
    topk_mass: tallies "topk_mass_ratio" [model_name] MASS_BUCKETS;
    /// Prompt and output tokens in the engine's replies.
    tokens: counters "tokens_observed_total" [model_name, kind];
    /// Invalid logprob rows in the engine's replies.
    anomalies: counters "logprob_anomalies_total" [kind];
    /// Sequences without the requested entropy.
    skipped: counters "entropy_skipped_total" [reason];
    /// Sequences for which the engine did not report the requested exact entropies.
    exact_lost: counters "exact_lost_total" [reason];
    /// Turns without a token column that was requested.
    missing_columns: counters "missing_columns_total" [column, reason];
    /// Requests that were sent again without forced logprobs.
    unforced_retries: counters "unforced_retries_total" [status_code];
    /// Clients that disconnected before their reply was complete.
    disconnects: counter "client_disconnects_total";
    /// Aborts sent after a client disconnected.
    aborts: counter "aborts_sent_total";
    /// Requests refused because they crash known server versions.
    refused: counters "guard_refusals_total" [rule];
    /// Requests refused because a limit was reached.
    shed: counters "shed_total" [reason = "max_requests" | "max_bytes" | "breaker" | "entropy_calls" | "entropy_silent" | "listen_queue"];
    /// Generations that were forwarded without reading their tokens.
    uncaptured: counters "uncaptured_generations_total" [endpoint];
    /// Requests in the entropy store.
    store_entries: gauge "entropy_store_entries";
    /// Bytes in the entropy store.
    store_bytes: gauge "entropy_store_bytes";
    /// Requests evicted from the entropy store.
    store_evictions: counters "entropy_store_evictions_total" [reason = "ttl" | "entries" | "bytes"];
    /// Recorded turns.
    turns: counters "turns_total" [outcome];
    /// Calls that load or unload a LoRA adapter: `load` or `unload`, and `succeeded`, `refused` or `unknown`.
    adapter_calls: counters "adapter_calls_total" [call, outcome];
    /// Generations that wait because a trainer has paused the engine.
    pause_waiting: gauge "pause_waiting";
    /// Generations that waited because a trainer had paused the engine.
    pause_waits: counters "pause_waits_total" [outcome = "continued" | "timeout" | "drained" | "disconnected"];
    /// Generations that a trainer aborted, by what `--on-abort` made of them.
    interrupted: counters "interrupted_generations_total" [outcome = "retry" | "resumed" | "passed"];
    /// Generations that a trainer aborted and that `--on-abort resume` could not continue, by the reason.
    resume_obstacles: counters "resume_obstacles_total" [reason];
    /// Retried calls whose earlier reply did not reach the client.
    retries: counters "retries_total" [outcome];
    /// Sessions evicted from the store.
    sessions_evicted: counters "sessions_evicted_total" [reason = "ttl" | "bytes"];
    /// Records that were not written to the log in time. `ledger`: the shared ledger did not take a turn in time; the local log has it, if there is one.
    log_failures: counters "log_failures_total" [reason = "write" | "queue_full" | "slow" | "ledger" | "memory"];
    /// 1 while records cannot be written to the log.
    log_degraded: gauge "log_degraded";
    /// Bytes of the log on disk.
    log_bytes: gauge "log_bytes";
    /// Records written to the log.
    log_records: counter "log_records_total";
    /// Records that are not in the log.
    log_lost: counter "log_lost_records_total";
    /// 1 while sessions are restored from the log.
    log_restoring: gauge "log_restoring";
    /// Bytes of the log that were read at the start.
    log_restored_bytes: gauge "log_restored_bytes";
    /// Duration of the restoration at the start.
    log_restore_seconds: seconds "log_restore_seconds";
    /// Damaged regions of the log whose records are lost.
    log_damaged: counter "log_damaged_regions_total";
    /// Sessions in the store.
    sessions: gauge "sessions";
    /// Bytes in the store of sessions.
    sessions_bytes: gauge "sessions_bytes";
    /// Panics caught while a reply was being enriched.
    panics: counter "panics_caught_total";
}

metrics! {
    /// Chats that are served from tokens.
    ChatMetrics;

    /// Chats served from tokens, by how their prompts were built.
    prompts: counters "chat_prompts_total" [how = "extended" | "whole" | "spliced" | "retokenised" | "foreign"];
    /// Chats refused because they reached a limit.
    refusals: counters "chat_refusals_total" [limit];
    /// Extended prompts that were compared with a new rendering.
    drift: counters "chat_drift_total" [drift];
    /// Parts of requests that were left out of the prompt: blocks, items and tools that only the API's own servers support.
    skipped_parts: counter "chat_skipped_parts_total";
}

metrics! {
    /// Session names, and the attachment of turns.
    SessionMetrics;

    /// Turns by how they were attached to their sessions.
    attachments: counters "attachments_total" [cause];
    /// Calls without a session, because the field has an invalid session name.
    names_ignored: counters "session_names_ignored_total" [field = "metadata" | "user" | "key"];
}

metrics! {
    /// The shared ledger.
    LedgerMetrics;

    /// Time of an append to the shared ledger, replicas included.
    append_seconds: histograms "ledger_append_seconds" [outcome] APPEND_BUCKETS;
    /// 1 while the shared ledger cannot be used.
    down: gauge "ledger_down";
    /// Turns that the shared ledger confirmed in time.
    confirmed: counter "ledger_turns_confirmed_total";
    /// Turns that the shared ledger did not confirm in time.
    detached: counter "ledger_turns_detached_total";
    /// Turns that were appended after they had been detached.
    joined: counter "ledger_turns_joined_total";
    /// Detached turns that are in the local log only, because the memory was full of detached turns.
    spilled: counter "ledger_turns_spilled_total";
    /// Detached turns that were lost: the memory was full of them and there was no local log, or the log is damaged.
    left_out: counter "ledger_turns_left_out_total";
    /// Bytes of the sessions with changes that the shared ledger lacks.
    detached_bytes: gauge "ledger_detached_bytes";
    /// Appends repeated because another process had appended.
    behind: counter "ledger_behind_total";
    /// Entries that the shared ledger had lost and that were appended again.
    healed: counter "ledger_healed_total";
    /// Frozen versions and rewards that the shared ledger had lost and that could not be appended again.
    unhealed: counter "ledger_unhealed_total";
    /// Pictures of shared sessions. `refused`: beyond `--ledger-image-bytes`. `failed`: operations, which are tried again. `absent`: only the digest was in the ledger.
    images: counters "ledger_images_total" [outcome = "stored" | "refused" | "failed" | "read" | "absent"];
    /// Operations of the shared ledger that failed.
    failures: counter "ledger_failures_total";
    /// Appends sent to the shared ledger.
    grouped: counter "ledger_appends_sent_total";
    /// Bytes of appends sent to the shared ledger.
    bytes: counter "ledger_sent_bytes_total";
}

metrics! {
    /// Rows of logits, and the device that measures them. A `backend` is `cpu/…` or `cuda`.
    SliceMetrics;

    /// Rows measured on other threads than those for I/O.
    rows: counters "slice_rows_total" [backend];
    /// Rows measured together.
    batch: histograms "slice_batch_rows" [backend] ROWS_BUCKETS;
    /// Time that rows waited in the queue.
    wait: histograms "slice_wait_seconds" [backend] OVERHEAD_BUCKETS;
    /// Time of the computation, with copies to and from a device.
    compute: histograms "slice_compute_seconds" [backend] OVERHEAD_BUCKETS;
    /// Rows that the CPU measured instead of the device.
    fallbacks: counters "slice_fallbacks_total" [reason];
    /// Errors of the CUDA driver.
    device_errors: counters "cuda_errors_total" [code];
    /// 1 for each backend in use.
    backend: gauges "entropy_backend" [backend];
    /// Number of rows from which the device is faster, measured at start; 0 without a device, or if the CPU is always faster.
    crossover: gauge "cuda_crossover_rows";
}

metrics! {
    /// TLS on the ports. A `port` is `data` or `control`. A port without TLS has no series.
    TlsMetrics;

    /// Expiry of the certificate, in seconds since 1970.
    expiry: gauges "tls_certificate_expiry_timestamp_seconds" [port];
    /// Reloads of certificate and key after they changed.
    reloads: counters "tls_reloads_total" [port, result];
    /// Failed TLS handshakes.
    failures: counters "tls_handshake_failures_total" [port, reason];
}

metrics! {
    /// The archive of finished paths.
    ArchiveMetrics;

    /// Rows that were archived.
    rows: counter "archive_rows_total";
    /// Bytes of data files and blobs that were archived.
    bytes: counter "archive_bytes_total";
    /// Failed operations of the archive; each is repeated.
    failures: counters "archive_failures_total" [step = "open" | "read" | "encode" | "data" | "manifest"];
    /// Finished paths that were gone before they could be archived; an unknown number of them counts as 1.
    missed: counters "archive_missed_paths_total" [reason = "evicted" | "deleted" | "unlisted" | "unreadable"];
    /// Age of the oldest finished path that is not archived; 0 if all are. Since the start, until the archive was read.
    oldest: seconds "archive_oldest_seconds";
}

impl Metrics {
    /// Creates metrics in a new registry. `backend` is the name of the instruction set of the CPU.
    #[must_use]
    pub fn new(backend: &str) -> Self {
        let metrics = Self::declare(&Declare::default());
        #[cfg(target_os = "linux")]
        {
            let process = prometheus::process_collector::ProcessCollector::for_self();
            metrics.registry.register(Box::new(process)).expect("no metric of this file is named process_*");
        }
        metrics.build.with_label_values(&[env!("CARGO_PKG_VERSION"), backend]).set(1);
        metrics
    }

    /// Raises a counter to a total that is counted elsewhere.
    pub fn raise(&self, counter: &IntCounter, count: u64) {
        let _guard = self.raise_lock.lock();
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
        let declare = Declare::default();
        let _ = Self::declare(&declare);
        let mut described = declare.into_described();
        described.sort_by(|a, b| a.name.cmp(&b.name));
        described
    }

    /// The series of an endpoint.
    #[must_use]
    pub fn endpoint(&self, endpoint: &'static str) -> Arc<EndpointMetrics> {
        self.endpoints.get(endpoint)
    }

    /// The series of a model.
    #[must_use]
    pub fn model(&self, name: &Arc<str>) -> Arc<ModelMetrics> {
        self.models.get(name, || {
            let vectors = ModelVectors {
                tokens: self.tokens.clone(),
                mean_entropy: self.mean_entropy.clone(),
                topk_mass: self.topk_mass.clone(),
                token_entropy: self.token_entropy.clone(),
            };
            Arc::new(ModelMetrics::new(Arc::clone(name), vectors))
        })
    }
}
