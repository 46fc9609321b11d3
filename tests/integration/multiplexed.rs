// SPDX-License-Identifier: Apache-2.0
//! HTTP/2 clients that hold resources: idle connections and unread replies.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::client::{post, request};
use crate::support::manual_upstream::{ManualUpstream, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::message;

type Sender = http2::SendRequest<Full<Bytes>>;

/// A connection with a stream window of `window` bytes, which answers pings. The task ends with the connection.
async fn connect(addr: SocketAddr, window: u32) -> (Sender, JoinHandle<()>) {
    let stream = TokioIo::new(TcpStream::connect(addr).await.unwrap());
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).initial_stream_window_size(window);
    let (sender, connection) = builder.handshake(stream).await.unwrap();
    (sender, tokio::spawn(async move { drop(connection.await) }))
}

fn ask(addr: SocketAddr, method: &str, path: &str, token: &str) -> http::Request<Full<Bytes>> {
    let asked = http::Request::builder().method(method).uri(format!("http://{addr}{path}"));
    asked.header("authorization", format!("Bearer {token}")).body(Full::from("{\"text\":\"a\"}")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_http2_connection_is_closed_and_a_busy_one_is_not() {
    const IDLE: Duration = Duration::from_millis(300);
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &["limit:client-idle-timeout", "300ms"]).await;
    let (mut busy, _connection) = connect(proxy.data, 65_535).await;
    let asking = tokio::spawn(busy.send_request(ask(proxy.data, "POST", "/generate", "any")));
    let call = upstream.next().await;
    for port in [proxy.data, proxy.control] {
        let opened = Instant::now();
        let (_silent, ended) = connect(port, 65_535).await;
        soon("an unused connection closes", ended).await.unwrap();
        assert!(opened.elapsed() >= IDLE);
    }
    let (mut used, ended) = connect(proxy.control, 65_535).await;
    let answer = used.send_request(ask(proxy.control, "GET", "/livez", "any")).await.unwrap();
    assert_eq!(answer.status(), 200);
    drop(answer);
    soon("an idle connection closes after its request", ended).await.unwrap();
    call.ok().await;
    assert_eq!(asking.await.unwrap().unwrap().status(), 200, "whose request runs for longer is answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_reader_keeps_its_http2_connection() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &["limit:client-idle-timeout", "300ms"]).await;
    let (mut slow, _connection) = connect(proxy.data, 1000).await;
    let asking = tokio::spawn(slow.send_request(ask(proxy.data, "GET", "/health", "any")));
    let body = vec![b'x'; 100_000];
    upstream.next().await.reply(&message(200, &[("content-type", "text/plain")], &body)).await;
    let answer = soon("a head", asking).await.unwrap().unwrap();
    // longer than the idle timeout, on the same clock
    let (_silent, ended) = connect(proxy.data, 1000).await;
    soon("an idle connection closes", ended).await.unwrap();
    let again = tokio::spawn(slow.send_request(ask(proxy.data, "GET", "/health", "any")));
    soon("a request on the busy connection", upstream.next()).await.ok().await;
    assert_eq!(soon("a head", again).await.unwrap().unwrap().status(), 200);
    assert_eq!(soon("the complete body", answer.into_body().collect()).await.unwrap().to_bytes(), body);
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_errors_hold_no_request_slot() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &["--max-requests", "1", "--agent-token", "agents"]).await;
    let (mut unread, _connection) = connect(proxy.data, 0).await;
    let mut answers = Vec::new();
    // requests without a token, and requests for forbidden routes
    for (path, token, status) in [("/generate", "none", 401), ("/health", "none", 401), ("/flush_cache", "agents", 403)]
    {
        for _ in 0..3 {
            let answer = soon("a head", unread.send_request(ask(proxy.data, "POST", path, token))).await.unwrap();
            assert_eq!(answer.status(), status, "{path}");
            answers.push(answer);
        }
    }
    let token = [("authorization", "Bearer agents")];
    let asking =
        tokio::spawn(async move { request(proxy.data, "POST", "/generate", &token, b"{\"text\":\"a\"}").await });
    let call = upstream.next().await;
    // with the only request slot taken, a client without a token gets the same reply as before
    assert_eq!(request(proxy.data, "POST", "/generate", &token, b"{\"text\":\"a\"}").await.status, 503);
    assert_eq!(post(proxy.data, "/generate", b"{\"text\":\"a\"}").await.status, 401);
    call.ok().await;
    assert_eq!(asking.await.unwrap().status, 200);
}
