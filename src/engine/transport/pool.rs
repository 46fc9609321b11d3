//! The pool of connections to the upstream.
//!
//! It replaces reqwest and the pool of hyper-util. The layers of reqwest (three URL parses, redirects, retries, two boxes per body) were
//! measured to cost a third of forwarding a small request. The pool of hyper-util reuses a connection whose EOF has arrived but was not
//! read yet, and hangs if a request is queued at the moment in which its connection ends.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::uri::Authority;
use http::{HeaderValue, Request, Response, Uri, header};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tower::ServiceExt;

use super::client::CallBody;
use super::eof_check::{EofCheck, UpstreamStream};

/// Large enough for a usual reply in a few reads, and small enough for one buffer per connection.
pub(crate) const READ_BUFFER: usize = 128 * 1024;

/// The most headers of a reply, as many as of a request. For more, hyper would allocate 16 KB a reply.
const MAX_HEADERS: usize = 100;

/// If the upstream closes a connection within this time after a reply, it does not keep connections alive.
const EARLY_CLOSE: Duration = Duration::from_secs(1);

/// How long a connection must be idle before it is reused, if the upstream closes early: its EOF arrives in this time.
const SETTLE: Duration = Duration::from_millis(50);

/// How long [`SETTLE`] applies after the last early close.
const CAUTION: Duration = Duration::from_secs(10);

/// Why no reply head arrived.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// No connection could be made.
    #[error("cannot connect")]
    Connect(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The connection failed, or the reply is not HTTP.
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// A pool of HTTP/1.1 connections to one server. It follows no redirects, uses no proxy from the environment, decodes no encoding, and
/// resends a request only if no byte of it was written. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Transport {
    connector: HttpConnector,
    base: Uri,
    host: HeaderValue,
    pool: Arc<Pool>,
}

/// An open connection. Its EOF may not have been read yet.
#[derive(Debug)]
struct Connection {
    sender: SendRequest<CallBody>,
    eof_check: EofCheck,
    /// Closed when the task that drives the connection ends.
    ended: oneshot::Receiver<Infallible>,
}

/// The URL of a server and the `Host` that names it.
fn server(url: &str) -> Result<(Uri, HeaderValue), String> {
    let base: Uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
    let host = base.authority().and_then(|authority| HeaderValue::try_from(host(authority)).ok());
    let host = host.ok_or_else(|| format!("{url}: names no host"))?;
    Ok((base, host))
}

impl Transport {
    /// A pool of connections to the server at `base`.
    ///
    /// # Errors
    /// Error message if `base` is not a URL of a server.
    pub(super) fn try_new(base: &str, connect_timeout: Duration, idle_timeout: Duration) -> Result<Self, String> {
        let (base, host) = server(base)?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(connect_timeout));
        // TCP keepalive detects a dead peer during a silent generation, which has no time limit
        connector.set_keepalive(Some(Duration::from_secs(15)));
        connector.set_keepalive_interval(Some(Duration::from_secs(15)));
        connector.set_keepalive_retries(Some(4));
        Ok(Self { connector, base, host, pool: Arc::new(Pool::new(idle_timeout)) })
    }

    /// A pool of connections to another server, with the same limits.
    ///
    /// # Errors
    /// Error message if `base` is not a URL of a server.
    pub(super) fn to(&self, base: &str) -> Result<Self, String> {
        let (base, host) = server(base)?;
        let pool = Arc::new(Pool::new(self.pool.idle_timeout));
        Ok(Self { connector: self.connector.clone(), base, host, pool })
    }

    /// Sends a request; the reply's body is read by the caller.
    ///
    /// # Errors
    /// When no reply head arrived.
    pub(super) async fn send(&self, mut request: Request<CallBody>) -> Result<Response<Incoming>, SendError> {
        let target = request.uri_mut();
        *target = target.path_and_query().cloned().map_or_else(Uri::default, Uri::from);
        if !request.headers().contains_key(header::HOST) {
            request.headers_mut().insert(header::HOST, self.host.clone());
        }
        while let Some((since, connection)) = self.pool.take() {
            let mut unsent = match self.exchange(connection, request).await {
                Ok(reply) => return Ok(reply),
                Err(unsent) => unsent,
            };
            // a failed upload is the client's fault, not a closed connection
            if !unsent.error().is_user() {
                self.pool.idle.lock().closed(since);
            }
            // hyper returns the request if the connection ended before any of it was written
            match unsent.take_message() {
                Some(returned) => request = returned,
                None => return Err(unsent.into_error().into()),
            }
        }
        let connection = self.connect().await?;
        self.exchange(connection, request).await.map_err(|error| error.into_error().into())
    }

    async fn connect(&self) -> Result<Connection, SendError> {
        let connected = self.connector.clone().oneshot(self.base.clone()).await;
        let stream = connected.map_err(|error| SendError::Connect(error.into()))?.into_inner();
        let eof_check = EofCheck::default();
        let stream = TokioIo::new(UpstreamStream::new(stream, eof_check.clone()));
        let mut builder = http1::Builder::new();
        let (sender, connection) = builder.max_buf_size(READ_BUFFER).max_headers(MAX_HEADERS).handshake(stream).await?;
        let (running, ended) = oneshot::channel();
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to the upstream");
            }
            drop(running);
        });
        Ok(Connection { sender, eof_check, ended })
    }

    /// Sends a request over a connection, which returns to the pool after the reply was read.
    async fn exchange(
        &self,
        mut connection: Connection,
        request: Request<CallBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<CallBody>>> {
        connection.eof_check.arm();
        let mut answer = std::pin::pin!(connection.sender.try_send_request(request));
        let answered = tokio::select! {
            biased;
            answered = &mut answer => answered,
            _ = &mut connection.ended => {
                // a request that was queued while the connection ended may still be in the queue; dropping the sender drops the queue
                drop(connection);
                return answer.await;
            }
        };
        let reply = answered?;
        if connection.sender.is_ready() {
            self.pool.put(connection);
        } else {
            let pool = Arc::clone(&self.pool);
            tokio::spawn(async move {
                if connection.sender.ready().await.is_ok() {
                    pool.put(connection);
                }
            });
        }
        Ok(reply)
    }
}

/// The `Host` header: without the port if it is 80.
fn host(authority: &Authority) -> String {
    match authority.port_u16() {
        Some(port) if port != 80 => format!("{}:{port}", authority.host()),
        _ => authority.host().to_owned(),
    }
}

/// Idle connections.
#[derive(Debug)]
struct Pool {
    idle_timeout: Duration,
    // locked for one push or pop
    idle: Mutex<IdleConnections>,
}

#[derive(Debug, Default)]
struct IdleConnections {
    /// Connections with the time since when they are idle, longest first.
    connections: VecDeque<(Instant, Connection)>,
    /// Whether a task that closes expired connections is running.
    reaped: bool,
    /// Until when [`SETTLE`] applies, because the upstream closed a connection early.
    cautious_until: Option<Instant>,
}

impl IdleConnections {
    /// Records that a connection, idle since `since`, was found closed.
    fn closed(&mut self, since: Instant) {
        if since.elapsed() < EARLY_CLOSE {
            self.cautious_until = Some(Instant::now() + CAUTION);
        }
    }

    /// How long a connection must be idle before it is reused.
    fn settle(&self) -> Duration {
        let cautious = self.cautious_until.is_some_and(|until| Instant::now() < until);
        if cautious { SETTLE } else { Duration::ZERO }
    }
}

impl Pool {
    fn new(idle_timeout: Duration) -> Self {
        Self { idle_timeout, idle: Mutex::default() }
    }

    /// Takes the most recently used connection, so that surplus ones expire. Returns it with the time since when it is idle.
    fn take(&self) -> Option<(Instant, Connection)> {
        let mut idle = self.idle.lock();
        for at in (0..idle.connections.len()).rev() {
            let (since, connection) = &idle.connections[at];
            let (since, is_open) = (*since, connection.sender.is_ready());
            if !is_open {
                idle.connections.remove(at);
                idle.closed(since);
            } else if since.elapsed() >= self.idle_timeout {
                idle.connections.remove(at);
            } else if since.elapsed() >= idle.settle() {
                return idle.connections.remove(at);
            }
        }
        None
    }

    fn put(self: &Arc<Self>, connection: Connection) {
        let mut idle = self.idle.lock();
        idle.connections.push_back((Instant::now(), connection));
        if !std::mem::replace(&mut idle.reaped, true) {
            tokio::spawn(reap(Arc::downgrade(self)));
        }
    }

    /// Closes ended and expired connections. Returns when to check again; `None` if the pool is empty.
    fn close_expired(&self) -> Option<Instant> {
        let mut idle = self.idle.lock();
        idle.connections
            .retain(|(since, connection)| since.elapsed() < self.idle_timeout && !connection.sender.is_closed());
        let next = idle.connections.front().map(|(since, _)| *since + self.idle_timeout);
        idle.reaped = next.is_some();
        next
    }
}

/// Closes expired connections of a pool until it is empty.
async fn reap(pool: std::sync::Weak<Pool>) {
    loop {
        let Some(next) = pool.upgrade().and_then(|pool| pool.close_expired()) else { return };
        tokio::time::sleep_until(next).await;
    }
}
