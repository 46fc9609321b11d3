// SPDX-License-Identifier: Apache-2.0
//! The accept loop: HTTP/1.1 and HTTP/2 on one port, plain or over TLS, with connection limits and graceful drain.

mod activity;
mod head_timeout;
mod last_reply;
mod listener;
mod outgoing;
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
pub use listener::{ListenDrops, Listener, listen};
use outgoing::OutgoingStream;
pub use tls::Tls;

/// Bytes of an unread body that a stream may buffer.
const STREAM_WINDOW: u32 = 1 << 20;

/// Bytes of unread bodies that a connection may buffer. 128 streams may be full before they block a stream that is being read.
const CONNECTION_WINDOW: u32 = 128 * STREAM_WINDOW;

/// The limits of connections.
#[derive(Debug, Clone)]
pub struct ServerLimits {
    /// The time for a client's first headers, TLS handshake included.
    pub header_timeout: Duration,
    /// The time for later headers on a kept connection. It is also the idle timeout of a connection, over HTTP/2 too.
    pub idle_timeout: Duration,
    /// The time in which a client must read some of the data that waits for it.
    pub read_timeout: Duration,
    /// The maximum number of connections; more wait to be accepted.
    pub connections: usize,
    /// The time for running requests to end once the server stops.
    pub drain: Duration,
    /// Set to true before the server closes the connections whose requests have not ended in that time.
    pub cutting: Arc<AtomicBool>,
}

/// The phase of a server. It only moves forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Serve.
    Serving,
    /// Accept no new connections; wait until running requests end.
    Draining,
    /// Stop now.
    Ending,
}

/// The time for an idle connection to close after GOAWAY.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves one connection.
struct ConnectionServer<S> {
    builder: Arc<auto::Builder<TokioExecutor>>,
    service: S,
    phase: watch::Receiver<Phase>,
    /// The deadline of the first head.
    deadline: Instant,
    /// The time that the connection may have no request.
    idle: Duration,
    /// The time in which the client must read some of the data that waits for it.
    read_timeout: Duration,
    /// The drain time of the server.
    drain: Duration,
    /// The number of connections that were cut.
    cut: Arc<AtomicUsize>,
}

/// Counts a connection as cut if it is dropped before the connection ends, unless the kernel has accepted all replies.
struct CutOnDrop {
    count: Arc<AtomicUsize>,
    has_ended: bool,
    replies: Replies,
    streams: Streams,
}

impl Drop for CutOnDrop {
    fn drop(&mut self) {
        let is_complete = self.replies.are_complete() && self.streams.is_idle();
        if !self.has_ended && !is_complete {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<S, B> ConnectionServer<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = std::convert::Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = bytes::Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// Serves HTTP over `stream` until the connection ends.
    async fn serve(mut self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let streams = Streams::new();
        let replies = Replies::default();
        let outgoing = OutgoingStream::new(stream, self.read_timeout, replies.clone());
        let stream = HeadTimeout::new(outgoing, self.deadline, streams.clone());
        let service = streams.clone().track(replies.clone(), self.service);
        let mut connection = pin!(self.builder.serve_connection(TokioIo::new(stream), service));
        // dropped before the connection, because dropping the connection ends its requests
        let mut cut =
            CutOnDrop { count: self.cut, has_ended: false, replies: replies.clone(), streams: streams.clone() };
        let drains = async {
            drop(self.phase.wait_for(|phase| *phase >= Phase::Draining).await);
            replies.wait_for_last(self.drain).await;
        };
        let ended = tokio::select! {
            biased;
            ended = &mut connection => Some(ended),
            () = drains => None,
            () = streams.wait_idle(self.idle) => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection => ended,
                    // the client answers pings and does not close
                    () = streams.wait_idle(self.idle + CLOSE_TIMEOUT) => {
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

/// Serves `service` on `listener` until `phase` changes. Returns when the last connection has ended, the drain time has passed,
/// or the phase is [`Phase::Ending`]. Returns the number of connections that were cut. An idle connection does not count as cut.
pub async fn serve<S, B>(
    listener: impl Into<Listener>,
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
    let listener = listener.into();
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // without a timer hyper has no timeouts, and slow headers hold a connection forever
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle_timeout)
        .max_headers(100)
        .max_buf_size(64 * 1024);
    // streams may be long: pings detect a peer that is gone
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
            accepted = listener.accept(&permits) => accepted,
            Some(_) = tasks.join_next(), if !tasks.is_empty() => continue,
        };
        let Some((stream, permit)) = accepted else { continue };
        let deadline = Instant::now() + limits.header_timeout;
        let server = ConnectionServer {
            builder: Arc::clone(&builder),
            service: service.clone(),
            phase: phase.clone(),
            deadline,
            idle: limits.idle_timeout,
            read_timeout: limits.read_timeout,
            drain: limits.drain,
            cut: Arc::clone(&cut),
        };
        let tls = listener.tls.clone();
        let mut phase = phase.clone();
        tasks.spawn(async move {
            match tls {
                None => server.serve(stream).await,
                // on the task of the connection, so that a handshake delays no other connection
                Some(tls) => {
                    let stream = tokio::select! {
                        stream = tls.accept(stream, deadline) => stream,
                        _ = phase.wait_for(|phase| *phase >= Phase::Draining) => None,
                    };
                    if let Some(stream) = stream {
                        server.serve(stream).await;
                    }
                }
            }
            drop(permit);
        });
    }
    drop(listener);
    // each connection watches the phase itself
    let drained = async { while tasks.join_next().await.is_some() {} };
    tokio::select! {
        () = drained => {}
        () = tokio::time::sleep(limits.drain) => {}
        _ = phase.wait_for(|phase| *phase >= Phase::Ending) => {}
    }
    limits.cutting.store(true, Ordering::Relaxed);
    // connections that closed before were not cut by the end of the drain
    cut.store(0, Ordering::Relaxed);
    // waits for the tasks, so that their resources are free when this returns
    tasks.shutdown().await;
    cut.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Full;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    /// How long a draining connection stays open without a request.
    const IDLE: Duration = Duration::from_millis(100);

    /// Sends a request and returns the head of the reply, or an empty text if the connection has ended.
    async fn send(client: &mut DuplexStream) -> String {
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.ok();
        let mut read = Vec::new();
        while !read.ends_with(b"\r\n\r\n") && client.read_buf(&mut read).await.is_ok_and(|length| length > 0) {}
        String::from_utf8(read).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn request_on_an_idle_connection_at_the_start_of_the_drain_gets_connection_close() {
        let reply = |_| async { Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::new()))) };
        for (pause, answered) in [(IDLE / 2, true), (IDLE * 2, false)] {
            let (phase, watched) = watch::channel(Phase::Serving);
            let (mut client, stream) = tokio::io::duplex(4096);
            let limit = Duration::from_secs(60);
            let server = ConnectionServer {
                builder: Arc::new(auto::Builder::new(TokioExecutor::new())),
                service: tower::service_fn(reply),
                phase: watched,
                deadline: Instant::now() + limit,
                idle: limit,
                read_timeout: limit,
                drain: limit,
                cut: Arc::default(),
            };
            let served = tokio::spawn(server.serve(stream));
            assert!(send(&mut client).await.starts_with("HTTP/1.1 200"));
            phase.send_replace(Phase::Draining);
            tokio::time::sleep(pause).await;
            let last = send(&mut client).await;
            assert_eq!(last.contains("connection: close"), answered, "after {pause:?}: {last:?}");
            served.await.unwrap();
        }
    }
}
