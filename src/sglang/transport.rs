//! The pool of connections that agents' traffic goes through.
//!
//! tokentap's own few calls go through reqwest. On the traffic its layers (a URL parsed three times, redirects, retries, two boxes a
//! body) cost a third of a small forward, and it does not let the read buffer be bounded, of which every connection holds one; both
//! measured. This is what lies beneath it.

use std::time::Duration;

use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::config::LimitConfig;

/// Enough for a reply of the usual size in a few reads, and little enough to be held for each of many connections.
const READ_BUFFER: usize = 128 * 1024;

/// A pool of HTTP/1.1 connections to one server. Follows no redirect, honours no proxy of the environment, decodes no encoding, and
/// sends again only what met a connection already closed, of which no byte was written.
#[derive(Debug, Clone)]
pub(super) struct Transport {
    pool: Client<HttpConnector, reqwest::Body>,
}

impl Transport {
    pub(super) fn new(limits: &LimitConfig) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(limits.connect_timeout));
        // a dead peer of a silent generation is noticed by the kernel, not by a time limit
        connector.set_keepalive(Some(Duration::from_secs(15)));
        connector.set_keepalive_interval(Some(Duration::from_secs(15)));
        connector.set_keepalive_retries(Some(4));
        let pool = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(limits.pool_idle_timeout)
            .http1_max_buf_size(READ_BUFFER)
            .http1_max_headers(256)
            .build(connector);
        Self { pool }
    }

    pub(super) async fn send(&self, request: http::Request<reqwest::Body>) -> Result<http::Response<Incoming>, Error> {
        self.pool.request(request).await
    }
}
