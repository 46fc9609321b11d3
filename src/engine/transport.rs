//! The pool of connections to the upstream.
//!
//! Neither reqwest nor the pool of hyper-util: the layers of the first (a URL parsed three times, redirects, retries, two boxes a body)
//! cost a third of a small forward, measured; and the second reuses a connection whose end has arrived but was not yet read, and waits
//! forever for a request that was queued at the moment in which its connection ended.

mod stream;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::uri::Authority;
use http::{HeaderValue, Request, Response, Uri, header};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tower::ServiceExt;

use crate::config::LimitConfig;
use stream::{EofCheck, UpstreamStream};

/// Enough for a reply of the usual size in a few reads, and little enough to be held for each of many connections.
const READ_BUFFER: usize = 128 * 1024;

/// A connection that the upstream closes within this time of a reply was not meant to be kept.
const EARLY_CLOSE: Duration = Duration::from_secs(1);

/// How long a connection must have been idle before it is reused, where the upstream closes early: its end arrives meanwhile.
const SETTLE: Duration = Duration::from_millis(50);

/// For how long after the last early close that holds.
const CAUTION: Duration = Duration::from_secs(10);

type Body = reqwest::Body;

/// Why no head of a reply came.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// No connection could be made.
    #[error("cannot connect")]
    Connect(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The connection failed, or what came is not HTTP.
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// A pool of HTTP/1.1 connections to one server. Follows no redirect, honours no proxy of the environment, decodes no encoding, and
/// sends a request again only where not one byte of it was written. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Transport {
    connector: HttpConnector,
    base: Uri,
    host: HeaderValue,
    pool: Arc<Pool>,
}

/// A connection that is open, as far as is known.
#[derive(Debug)]
struct Connection {
    sender: SendRequest<Body>,
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
    /// A line for the user when `base` is no URL of a server.
    pub(super) fn try_new(base: &str, limits: &LimitConfig) -> Result<Self, String> {
        let (base, host) = server(base)?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(limits.connect_timeout));
        // a dead peer of a silent generation is noticed by the kernel, not by a time limit
        connector.set_keepalive(Some(Duration::from_secs(15)));
        connector.set_keepalive_interval(Some(Duration::from_secs(15)));
        connector.set_keepalive_retries(Some(4));
        Ok(Self { connector, base, host, pool: Arc::new(Pool::new(limits.pool_idle_timeout)) })
    }

    /// A pool of connections to another server, with the same limits.
    ///
    /// # Errors
    /// A line for the user when `base` is no URL of a server.
    pub(super) fn to(&self, base: &str) -> Result<Self, String> {
        let (base, host) = server(base)?;
        let pool = Arc::new(Pool::new(self.pool.idle_timeout));
        Ok(Self { connector: self.connector.clone(), base, host, pool })
    }

    /// Sends a request; the reply's body is read by the caller.
    ///
    /// # Errors
    /// When no head of a reply came.
    pub(super) async fn send(&self, mut request: Request<Body>) -> Result<Response<Incoming>, SendError> {
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
            // the upload is the client's to break off
            if !unsent.error().is_user() {
                self.pool.closed(since);
            }
            // returned where the connection ended before anything of the request was written
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
        let (sender, connection) = builder.max_buf_size(READ_BUFFER).max_headers(256).handshake(stream).await?;
        let (running, ended) = oneshot::channel();
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to the upstream");
            }
            drop(running);
        });
        Ok(Connection { sender, eof_check, ended })
    }

    /// Sends a request over a connection, which goes back to the pool once the reply was read.
    async fn exchange(
        &self,
        mut connection: Connection,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        connection.eof_check.arm();
        let mut answer = std::pin::pin!(connection.sender.try_send_request(request));
        let answered = tokio::select! {
            biased;
            answered = &mut answer => answered,
            _ = &mut connection.ended => {
                // a request that was queued while the connection ended may still be in the queue, which lives as long as its sender
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

/// A `Host` header: without the port where that is HTTP's own.
fn host(authority: &Authority) -> String {
    match authority.port_u16() {
        Some(port) if port != 80 => format!("{}:{port}", authority.host()),
        _ => authority.host().to_owned(),
    }
}

/// Connections that are not in use.
#[derive(Debug)]
struct Pool {
    idle_timeout: Duration,
    // locked for one push or pop
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    /// The longest idle first.
    connections: VecDeque<(Instant, Connection)>,
    /// Whether a task runs that closes those which were idle for too long.
    reaped: bool,
    /// Until when a connection is not reused before [`SETTLE`], because the upstream closed one early.
    cautious_until: Option<Instant>,
}

impl Idle {
    /// A connection was found closed that is idle since then.
    fn closed(&mut self, since: Instant) {
        if since.elapsed() < EARLY_CLOSE {
            self.cautious_until = Some(Instant::now() + CAUTION);
        }
    }

    /// How long a connection must have been idle to be reused.
    fn settle(&self) -> Duration {
        let cautious = self.cautious_until.is_some_and(|until| Instant::now() < until);
        if cautious { SETTLE } else { Duration::ZERO }
    }
}

impl Pool {
    fn new(idle_timeout: Duration) -> Self {
        Self { idle_timeout, idle: Mutex::default() }
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection that was used last, so that those which are not needed become idle for long enough to be closed; and since when
    /// it is idle.
    fn take(&self) -> Option<(Instant, Connection)> {
        let mut idle = self.idle();
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

    fn closed(&self, since: Instant) {
        self.idle().closed(since);
    }

    fn put(self: &Arc<Self>, connection: Connection) {
        let mut idle = self.idle();
        idle.connections.push_back((Instant::now(), connection));
        if !std::mem::replace(&mut idle.reaped, true) {
            tokio::spawn(reap(Arc::downgrade(self)));
        }
    }

    /// Closes what has ended or was idle for too long; when to look again, where anything is left.
    fn close_expired(&self) -> Option<Instant> {
        let mut idle = self.idle();
        idle.connections
            .retain(|(since, connection)| since.elapsed() < self.idle_timeout && !connection.sender.is_closed());
        let next = idle.connections.front().map(|(since, _)| *since + self.idle_timeout);
        idle.reaped = next.is_some();
        next
    }
}

/// Closes connections of a pool until it has none.
async fn reap(pool: std::sync::Weak<Pool>) {
    loop {
        let Some(next) = pool.upgrade().and_then(|pool| pool.close_expired()) else { return };
        tokio::time::sleep_until(next).await;
    }
}
