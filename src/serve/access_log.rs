// SPDX-License-Identifier: Apache-2.0
//! The access log: one line and the metrics of each request, written when the reply ends.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};

use http::{Extensions, Method, StatusCode};
use tokio::time::Instant;

use crate::engine::reason::Reason;
use crate::engine::sglang::routes;
use crate::generation::ReplyStats;
use crate::generation::request::RidSlot;
use crate::metrics::{EndpointMetrics, Metrics};

/// The status of a request whose client disconnected before the reply. HTTP does not define it, but proxies log it.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// The log line and the metrics of a request. Clones share one record, which is written when the last clone is dropped. The body of the
/// reply holds a clone.
#[derive(Debug, Clone)]
pub(crate) struct AccessRecord(Arc<SharedRecord>);

#[derive(Debug)]
struct SharedRecord {
    metrics: Arc<EndpointMetrics>,
    /// True once the drain time has passed and the server closes the remaining connections.
    cutting: Arc<AtomicBool>,
    method: &'static str,
    /// It is sent every few seconds, by a monitoring system or the page: it is logged at debug level and not counted as active.
    is_probe: bool,
    started: Instant,
    /// 0 until the reply begins.
    status: AtomicU16,
    is_streaming: AtomicBool,
    cut: OnceLock<Cut>,
    rid: RidSlot,
    observed: OnceLock<ReplyStats>,
}

/// Why a reply ends before its last byte.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cut {
    /// The client closed the connection or reset the stream.
    Client,
    /// The upstream failed, or tokentap ended its drain.
    Error,
}

impl Cut {
    fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Error => "error",
        }
    }
}

impl AccessRecord {
    /// Creates the record of a request and starts its clock.
    pub(crate) fn start(
        metrics: &Arc<Metrics>,
        cutting: &Arc<AtomicBool>,
        endpoint: &'static str,
        is_probe: bool,
        method: &Method,
    ) -> Self {
        let metrics = metrics.endpoint(endpoint);
        if !is_probe {
            metrics.active().inc();
        }
        Self(Arc::new(SharedRecord {
            metrics,
            cutting: Arc::clone(cutting),
            method: routes::method_label(method),
            is_probe,
            started: Instant::now(),
            status: AtomicU16::new(0),
            is_streaming: AtomicBool::new(false),
            cut: OnceLock::new(),
            rid: RidSlot::default(),
            observed: OnceLock::new(),
        }))
    }

    /// Returns the record from the extensions of a gRPC call.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        extensions.get().cloned().expect("the gRPC services add the record of every call")
    }

    /// Sets the status of the reply. An error status that was set before stays.
    pub(crate) fn set_status(&self, status: StatusCode) {
        let replaced = |old: u16| (old < 300).then_some(status.as_u16());
        // fails if an error status is already set
        let _ = self.0.status.fetch_update(Ordering::Relaxed, Ordering::Relaxed, replaced);
    }

    /// Records that the reply is a stream.
    pub(crate) fn set_streaming(&self) {
        self.0.is_streaming.store(true, Ordering::Relaxed);
    }

    /// Records that the reply ends before its last byte. The first cause stays.
    pub(crate) fn set_cut(&self, cut: Cut) {
        // fails if a cause is already set
        let _ = self.0.cut.set(cut);
    }

    /// The request id, set as soon as it is known.
    pub(crate) fn rid(&self) -> &RidSlot {
        &self.0.rid
    }

    /// Records the token counts and the entropy of the reply.
    pub(crate) fn observe(&self, observed: Option<ReplyStats>) {
        if let Some(observed) = observed {
            // cannot fail: a request has one reply
            let _ = self.0.observed.set(observed);
        }
    }
}

impl SharedRecord {
    fn status(&self) -> u16 {
        match self.status.load(Ordering::Relaxed) {
            0 if std::thread::panicking() => 500,
            0 if self.cutting.load(Ordering::Relaxed) => 503,
            0 => CLIENT_CLOSED_REQUEST,
            status => status,
        }
    }
}

impl Drop for SharedRecord {
    fn drop(&mut self) {
        let (metrics, endpoint, method) = (&self.metrics, self.metrics.name(), self.method);
        let (elapsed, status) = (self.started.elapsed(), self.status());
        let is_streaming = self.is_streaming.load(Ordering::Relaxed);
        let ms = elapsed.as_millis() as u64;
        metrics.requests(method, status).inc();
        metrics.duration(is_streaming).observe(elapsed.as_secs_f64());
        if self.is_probe {
            tracing::debug!(endpoint, method, status, ms, "request");
            return;
        }
        metrics.active().dec();
        let observed = self.observed.get().copied();
        if let Some(observed) = observed {
            metrics.overhead().observe(observed.overhead.as_secs_f64());
        }
        let observed = observed.unwrap_or_default();
        tracing::info!(
            endpoint,
            method,
            status,
            rid = self.rid.get().as_deref(),
            stream = is_streaming,
            cut = self.cut.get().filter(|_| method != Method::HEAD.as_str()).map(|cut| cut.name()),
            prompt_tokens = observed.prompt_tokens,
            tokens = observed.tokens,
            mean_entropy = observed.mean,
            missing = observed.missing.map(Reason::name),
            overhead_us = observed.overhead.as_micros() as u64,
            ms,
            "request"
        );
    }
}
