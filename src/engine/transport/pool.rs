// SPDX-License-Identifier: Apache-2.0
//! The pool of connections to the upstream.
//!
//! The task that serves the client writes the request and reads the reply. docs/decisions/engine.md states why hyper's client is not used.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderValue, Method, Response, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use parking_lot::Mutex;
use tokio::time::Instant;
use tower::ServiceExt;

use super::client::CallBody;
use super::connection::Connection;
use super::exchange::{Outgoing, SendError, exchange};
use super::reply_body::ReplyBody;
use super::tls::Tls;

/// Large enough for a usual reply in a few reads, and small enough for one buffer per connection.
pub(crate) const READ_BUFFER: usize = 128 * 1024;

/// If the upstream closes a connection within this time after a reply, it does not keep connections alive.
const EARLY_CLOSE: Duration = Duration::from_secs(1);

/// How long a connection must be idle before it is reused, if the upstream closes early: its EOF arrives in this time.
const SETTLE: Duration = Duration::from_millis(50);

/// How long [`SETTLE`] applies after the last early close.
const CAUTION: Duration = Duration::from_secs(10);

/// A pool of HTTP/1.1 connections to one server. It follows no redirects, uses no proxy from the environment, decodes no encoding, and
/// resends a request only if no byte of it was written. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Transport {
    connector: HttpConnector,
    /// For servers with `https://`; `None` without trusted CAs.
    tls: Option<Tls>,
    origin: Arc<Origin>,
    pool: Arc<Pool>,
}

/// The server of a pool, as its requests name it.
#[derive(Debug)]
pub(super) struct Origin {
    base: Uri,
    /// The `Host` of a request that has none.
    pub(super) host: HeaderValue,
    /// What precedes the target of every request: nothing, or a path without a slash at its end.
    pub(super) base_path: String,
}

impl Origin {
    /// # Errors
    /// Error message if `url` is not a URL of a server.
    fn parse(url: &str) -> Result<Self, String> {
        let base: Uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
        let scheme = base.scheme_str();
        let host = base.authority().and_then(|authority| HeaderValue::try_from(host(authority, scheme)).ok());
        let host = host.ok_or_else(|| format!("{url}: names no host"))?;
        let base_path = base.path().trim_end_matches('/').to_owned();
        Ok(Self { base, host, base_path })
    }

    fn has_tls(&self) -> bool {
        self.base.scheme() == Some(&Scheme::HTTPS)
    }
}

/// The limits of the connections to a server.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionLimits {
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How long an idle connection is kept.
    pub idle_timeout: Duration,
}

impl Transport {
    /// A pool of connections to the server at `base`. Servers with `https://` need `tls`.
    ///
    /// # Errors
    /// Error message if `base` is not a URL of a server, or needs `tls`.
    pub(super) fn try_new(base: &str, tls: Option<Tls>, limits: ConnectionLimits) -> Result<Self, String> {
        let mut connector = HttpConnector::new();
        // https:// is connected in the same way; the handshake follows
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(limits.connect_timeout));
        // TCP keepalive detects a dead peer during a silent generation, which has no time limit
        connector.set_keepalive(Some(Duration::from_secs(15)));
        connector.set_keepalive_interval(Some(Duration::from_secs(15)));
        connector.set_keepalive_retries(Some(4));
        let pool = Arc::new(Pool::new(limits.idle_timeout));
        Self { connector, tls, origin: Arc::new(Origin::parse(base)?), pool }.checked()
    }

    /// A pool of connections to another server, with the same limits and CAs.
    ///
    /// # Errors
    /// Error message if `base` is not a URL of a server, or needs CAs that are not set.
    pub(super) fn to(&self, base: &str) -> Result<Self, String> {
        let pool = Arc::new(Pool::new(self.pool.idle_timeout));
        Self { origin: Arc::new(Origin::parse(base)?), pool, ..self.clone() }.checked()
    }

    fn checked(self) -> Result<Self, String> {
        if self.origin.has_tls() && self.tls.is_none() {
            return Err(format!("{} needs the CA of its certificate: --upstream-ca FILE", self.origin.base));
        }
        Ok(self)
    }

    /// The path below which the server has its routes.
    pub(super) fn base_path(&self) -> &str {
        &self.origin.base_path
    }

    /// Sends a request; the reply's body is read by the caller.
    ///
    /// # Errors
    /// When no reply head arrived.
    pub(super) async fn send(
        &self,
        method: &Method,
        target: &str,
        headers: &HeaderMap,
        body: CallBody,
    ) -> Result<Response<ReplyBody>, SendError> {
        let mut outgoing = Outgoing::new(method, target, headers, &self.origin, body);
        while let Some((since, connection)) = self.pool.take() {
            match exchange(&self.pool, connection, method, &mut outgoing).await {
                Ok(reply) => return Ok(reply),
                // a failed upload is the client's fault, not a closed connection
                Err(error @ SendError::Upload(_)) => return Err(error),
                Err(error) => {
                    self.pool.idle.lock().closed(since);
                    if outgoing.has_begun {
                        return Err(error);
                    }
                }
            }
        }
        let connection = self.connect().await?;
        exchange(&self.pool, connection, method, &mut outgoing).await
    }

    async fn connect(&self) -> Result<Box<Connection>, SendError> {
        let base = &self.origin.base;
        let connected = Box::pin(self.connector.clone().oneshot(base.clone())).await;
        let stream = connected.map_err(|error| SendError::Connect(error.into()))?.into_inner();
        let Some(tls) = self.tls.as_ref().filter(|_| self.origin.has_tls()) else {
            return Ok(Box::new(Connection::plain(stream)));
        };
        let secured = Box::pin(tls.connect(base.host().unwrap_or_default(), stream)).await;
        secured.map(|stream| Box::new(Connection::secured(stream))).map_err(|error| SendError::Connect(error.into()))
    }
}

/// The `Host` header: without the port if it is that of the scheme.
fn host(authority: &Authority, scheme: Option<&str>) -> String {
    let usual = if scheme == Some("https") { 443 } else { 80 };
    match authority.port_u16() {
        Some(port) if port != usual => format!("{}:{port}", authority.host()),
        _ => authority.host().to_owned(),
    }
}

/// Idle connections.
#[derive(Debug)]
pub(super) struct Pool {
    idle_timeout: Duration,
    // locked for one push or pop
    idle: Mutex<IdleConnections>,
}

#[derive(Debug, Default)]
struct IdleConnections {
    /// Connections with the time since when they are idle, longest first.
    connections: VecDeque<(Instant, Box<Connection>)>,
    /// Whether a task watches the idle connections.
    is_watched: bool,
    /// Wakes that task.
    watcher: Option<Waker>,
    /// Until when [`SETTLE`] applies, because the upstream closed a connection early.
    cautious_until: Option<Instant>,
}

impl IdleConnections {
    /// Records that a connection, idle since `since`, was found closed.
    fn closed(&mut self, since: Instant) {
        let now = Instant::now();
        if now - since < EARLY_CLOSE {
            self.cautious_until = Some(now + CAUTION);
        }
    }

    /// How long a connection must be idle before it is reused.
    fn settle(&self, now: Instant) -> Duration {
        let cautious = self.cautious_until.is_some_and(|until| now < until);
        if cautious { SETTLE } else { Duration::ZERO }
    }
}

impl Pool {
    fn new(idle_timeout: Duration) -> Self {
        Self { idle_timeout, idle: Mutex::default() }
    }

    /// Takes the most recently used connection, so that surplus ones expire. Returns it with the time since when it is idle.
    fn take(&self) -> Option<(Instant, Box<Connection>)> {
        let mut idle = self.idle.lock();
        if idle.connections.is_empty() {
            return None;
        }
        let now = Instant::now();
        for at in (0..idle.connections.len()).rev() {
            let (since, connection) = &mut idle.connections[at];
            let (since, is_quiet) = (*since, connection.is_quiet());
            if !is_quiet {
                idle.connections.remove(at);
                idle.closed(since);
            } else if now - since >= self.idle_timeout {
                idle.connections.remove(at);
            } else if now - since >= idle.settle(now) {
                return idle.connections.remove(at);
            }
        }
        None
    }

    /// Adds a connection that waits for a request.
    pub(super) fn put(self: &Arc<Self>, mut connection: Box<Connection>) {
        connection.shrink();
        let mut idle = self.idle.lock();
        if let Some(watcher) = &idle.watcher
            && connection.poll_disturbed(&mut Context::from_waker(watcher)).is_ready()
        {
            let now = Instant::now();
            idle.closed(now);
            return;
        }
        idle.connections.push_back((Instant::now(), connection));
        if !std::mem::replace(&mut idle.is_watched, true) {
            tokio::spawn(watch(Arc::downgrade(self)));
        }
    }

    /// Closes ended and expired connections, and registers the task for the end of the others. Returns when to check again; `None` if the
    /// pool is empty.
    fn poll_idle(&self, cx: &mut Context<'_>) -> Option<Instant> {
        let mut idle = self.idle.lock();
        let now = Instant::now();
        let mut ended = Vec::new();
        idle.connections.retain_mut(|(since, connection)| {
            let is_ended = connection.poll_disturbed(cx).is_ready();
            ended.extend(is_ended.then_some(*since));
            !is_ended && now - *since < self.idle_timeout
        });
        ended.into_iter().for_each(|since| idle.closed(since));
        let next = idle.connections.front().map(|(since, _)| *since + self.idle_timeout);
        idle.is_watched = next.is_some();
        idle.watcher = next.is_some().then(|| cx.waker().clone());
        next
    }
}

/// Closes idle connections of a pool that end or expire, until it is empty.
async fn watch(pool: Weak<Pool>) {
    let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
    poll_fn(|cx| {
        loop {
            let Some(next) = pool.upgrade().and_then(|pool| pool.poll_idle(cx)) else { return Poll::Ready(()) };
            timer.as_mut().reset(next);
            ready!(timer.as_mut().poll(cx));
        }
    })
    .await;
}
