//! The accept loop: HTTP/1.1 and HTTP/2 on one port, plain or by TLS, limits, graceful drain.

mod activity;
mod head_timeout;
mod last_reply;
mod listen_queue;
mod listener;
mod outgoing;
#[cfg(not(feature = "tls"))]
#[path = "connection/tls_disabled.rs"]
mod tls;
#[cfg(feature = "tls")]
mod tls;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tower::Service;

use activity::Streams;
use head_timeout::HeadTimeout;
use last_reply::Replies;
pub use listen_queue::listen;
pub use listener::{ListenDrops, Listener};
use outgoing::Outgoing;
pub use tls::Tls;

/// What a stream may hold of a body that is not being read.
const STREAM_WINDOW: u32 = 1 << 20;

/// The same of all streams of a connection: so many of them may be full before one that is read has to wait for them.
const CONNECTION_WINDOW: u32 = 128 * STREAM_WINDOW;

/// How connections are treated.
#[derive(Debug, Clone)]
pub struct ServerLimits {
    /// A client's first headers must be complete within this time, TLS included.
    pub header_timeout: Duration,
    /// Later headers, on a connection that is kept, within this: it is also how long such a connection may be idle, over HTTP/2 too.
    pub idle_timeout: Duration,
    /// Of what waits for a client some must be taken within this.
    pub read_timeout: Duration,
    /// Connections at once; more wait to be accepted.
    pub connections: usize,
    /// How long running requests may take to end once the server stops.
    pub drain: Duration,
    /// Set before connections are cut whose requests have not ended by then.
    pub cutting: Arc<AtomicBool>,
}

/// What a server is told: go on, drain, or end at once. Moves only forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Serve.
    Serving,
    /// Accept nothing new; let what runs come to its end.
    Draining,
    /// End now.
    Ending,
}

/// How long a connection that was told to end for want of requests may take over it.
const FAREWELL: Duration = Duration::from_secs(10);

/// What a connection is served with.
struct Talk<S> {
    builder: Arc<auto::Builder<TokioExecutor>>,
    service: S,
    phase: watch::Receiver<Phase>,
    /// Of the first head.
    deadline: Instant,
    /// How long it may have no request.
    idle: Duration,
    /// How long nothing may be taken of what waits for the client.
    patience: Duration,
    /// How long the server drains.
    drain: Duration,
    /// Connections that were cut.
    cut: Arc<AtomicUsize>,
}

/// Counts a connection as cut when it is dropped before the connection has ended, unless all replies have been given to the system.
struct CutOnDrop {
    count: Arc<AtomicUsize>,
    has_ended: bool,
    replies: Replies,
    streams: Streams,
}

impl Drop for CutOnDrop {
    fn drop(&mut self) {
        let is_whole = self.replies.are_complete() && self.streams.are_none();
        if !self.has_ended && !is_whole {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<S, B> Talk<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = std::convert::Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = bytes::Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// Talks HTTP until the connection ends.
    async fn over(mut self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let streams = Streams::new();
        let replies = Replies::default();
        let outgoing = Outgoing::new(stream, self.patience, replies.clone());
        let stream = HeadTimeout::new(outgoing, self.deadline, streams.clone());
        let service = streams.clone().counted(replies.clone(), self.service);
        let mut connection = pin!(self.builder.serve_connection(TokioIo::new(stream), service));
        // dropped before the connection, with which its requests end
        let mut cut =
            CutOnDrop { count: self.cut, has_ended: false, replies: replies.clone(), streams: streams.clone() };
        let drains = async {
            drop(self.phase.wait_for(|phase| *phase >= Phase::Draining).await);
            replies.may_be_last(self.drain).await;
        };
        let ended = tokio::select! {
            biased;
            ended = &mut connection => Some(ended),
            () = drains => None,
            () = streams.are_over(self.idle) => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection => ended,
                    // it answers pings, and does not go
                    () = streams.are_over(self.idle + FAREWELL) => {
                        cut.has_ended = true;
                        return;
                    }
                }
            }
        };
        cut.has_ended = true;
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        }
    }
}

/// Serves `service` behind `door` until `phase` says otherwise. Returns when the last connection has ended, the drain time is over,
/// or the phase is [`Phase::Ending`]; the result says how many connections were cut. One that only waits for another request is not counted.
pub async fn serve<S, B>(
    door: impl Into<Listener>,
    service: S,
    limits: ServerLimits,
    mut phase: watch::Receiver<Phase>,
) -> usize
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = std::convert::Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = bytes::Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let door = door.into();
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // without a timer hyper never times anything out, and slow headers hold a connection for good
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle_timeout)
        .max_headers(100)
        .max_buf_size(64 * 1024);
    // streams may last: a peer that is gone without a word is asked for one
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(30))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(1024)
        .max_header_list_size(64 * 1024);
    let builder = Arc::new(builder);
    let permits = Arc::new(Semaphore::new(limits.connections));
    let cut = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = phase.wait_for(|phase| *phase >= Phase::Draining) => break,
            accepted = door.accept(&permits) => accepted,
            Some(_) = tasks.join_next(), if !tasks.is_empty() => continue,
        };
        let Some((stream, permit)) = accepted else { continue };
        let deadline = Instant::now() + limits.header_timeout;
        let talk = Talk {
            builder: Arc::clone(&builder),
            service: service.clone(),
            phase: phase.clone(),
            deadline,
            idle: limits.idle_timeout,
            patience: limits.read_timeout,
            drain: limits.drain,
            cut: Arc::clone(&cut),
        };
        let tls = door.tls.clone();
        let mut phase = phase.clone();
        tasks.spawn(async move {
            match tls {
                None => talk.over(stream).await,
                // on the task of the connection: nobody else waits for a handshake
                Some(tls) => {
                    let stream = tokio::select! {
                        stream = tls.accept(stream, deadline) => stream,
                        _ = phase.wait_for(|phase| *phase >= Phase::Draining) => None,
                    };
                    if let Some(stream) = stream {
                        talk.over(stream).await;
                    }
                }
            }
            drop(permit);
        });
    }
    drop(door);
    // each connection has seen for itself that this is draining
    let drained = async { while tasks.join_next().await.is_some() {} };
    tokio::select! {
        () = drained => {}
        () = tokio::time::sleep(limits.drain) => {}
        _ = phase.wait_for(|phase| *phase >= Phase::Ending) => {}
    }
    limits.cutting.store(true, Ordering::Relaxed);
    // those that have been closed before were not cut by the end of the drain
    cut.store(0, Ordering::Relaxed);
    // not only told to end, but ended: what they held has been let go of when this returns
    tasks.shutdown().await;
    cut.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Full;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    /// How long a connection without a request is kept.
    const IDLE: Duration = Duration::from_millis(100);

    /// Sends a request and reads the head of its answer; empty where the connection has ended.
    async fn ask(client: &mut DuplexStream) -> String {
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.ok();
        let mut read = Vec::new();
        while !read.ends_with(b"\r\n\r\n") && client.read_buf(&mut read).await.is_ok_and(|length| length > 0) {}
        String::from_utf8(read).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn request_that_a_kept_connection_brings_as_draining_begins_is_answered_as_its_last() {
        let answer = |_| async { Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::new()))) };
        for (pause, answered) in [(IDLE / 2, true), (IDLE * 2, false)] {
            let (phase, watched) = watch::channel(Phase::Serving);
            let (mut client, stream) = tokio::io::duplex(4096);
            let limit = Duration::from_secs(60);
            let talk = Talk {
                builder: Arc::new(auto::Builder::new(TokioExecutor::new())),
                service: tower::service_fn(answer),
                phase: watched,
                deadline: Instant::now() + limit,
                idle: limit,
                patience: limit,
                drain: limit,
                cut: Arc::default(),
            };
            let served = tokio::spawn(talk.over(stream));
            assert!(ask(&mut client).await.starts_with("HTTP/1.1 200"));
            phase.send_replace(Phase::Draining);
            tokio::time::sleep(pause).await;
            let last = ask(&mut client).await;
            assert_eq!(last.contains("connection: close"), answered, "after {pause:?}: {last:?}");
            served.await.unwrap();
        }
    }
}
