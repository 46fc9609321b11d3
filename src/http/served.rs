//! One request being served: its permit, its clock and, at its end, its metrics and its log line.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{Method, StatusCode};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::generation::Observed;
use crate::generation::flight::Unnamed;
use crate::generation::request::RequestId;
use crate::http::Parts;
use crate::sglang::routes::{self, Route};

/// The status of a request whose client left before the reply: not one of HTTP, but the one that proxies log.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Lives in the reply's body and speaks when that is dropped.
#[derive(Debug)]
pub struct Served {
    parts: Arc<Parts>,
    route: Route,
    method: &'static str,
    started: Instant,
    /// The status of the reply, once there is one.
    pub status: Option<StatusCode>,
    /// The reply is a stream.
    pub streaming: bool,
    /// The request's id, where it is known.
    pub rid: Option<RequestId>,
    /// A generation whose ids are not known here.
    pub unnamed: Option<Unnamed>,
    /// What was seen of the reply.
    pub observed: Option<Observed>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Served {
    /// Starts the clock.
    #[must_use]
    pub fn new(parts: Arc<Parts>, route: Route, method: &Method, permit: Option<OwnedSemaphorePermit>) -> Box<Self> {
        parts.metrics.active.with_label_values(&[route.endpoint]).inc();
        Box::new(Self {
            parts,
            route,
            method: routes::method_label(method),
            started: Instant::now(),
            status: None,
            streaming: false,
            rid: None,
            unnamed: None,
            observed: None,
            permit,
        })
    }

    /// The engine has nothing to do with it any more: while its client does not take the answer, it keeps nobody else out.
    pub fn leave(&mut self) {
        self.permit = None;
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let metrics = &self.parts.metrics;
        let elapsed = self.started.elapsed();
        let endpoint = self.route.endpoint;
        metrics.active.with_label_values(&[endpoint]).dec();
        let unanswered = || {
            if std::thread::panicking() {
                500
            } else if self.parts.cutting.load(Ordering::Relaxed) {
                503
            } else {
                CLIENT_CLOSED_REQUEST
            }
        };
        let status = self.status.map_or_else(unanswered, |status| status.as_u16());
        metrics.requests.with_label_values(&[endpoint, self.method, itoa::Buffer::new().format(status)]).inc();
        let rid = self.rid.as_ref().and_then(|rid| rid.get());
        let streaming = if self.streaming { "true" } else { "false" };
        metrics.duration.with_label_values(&[endpoint, streaming]).observe(elapsed.as_secs_f64());
        let observed = self.observed.unwrap_or_default();
        if self.observed.is_some() {
            metrics.overhead.with_label_values(&[endpoint]).observe(observed.overhead.as_secs_f64());
        }
        tracing::info!(
            endpoint,
            method = self.method,
            status,
            rid,
            stream = self.streaming,
            prompt_tokens = observed.prompt_tokens,
            tokens = observed.tokens,
            mean_entropy = observed.mean,
            missing = observed.missing.map(crate::generation::reason::Reason::name),
            overhead_us = observed.overhead.as_micros() as u64,
            ms = elapsed.as_millis() as u64,
            "request"
        );
    }
}
