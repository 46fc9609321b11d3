// SPDX-License-Identifier: Apache-2.0
//! Replies over real connections, compared with hyper's client.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::yield_now;

use super::client::CallBody;
use super::pool::{ConnectionLimits, READ_BUFFER, Transport};

/// What a client sees of a reply.
#[derive(Debug, PartialEq, Default)]
struct ObservedReply {
    /// Status and headers; `None` for an error.
    head: Option<(u16, HeaderMap)>,
    data: Vec<u8>,
    trailers: Option<HeaderMap>,
    is_whole: bool,
}

async fn observe<B>(reply: Result<http::Response<B>, impl std::error::Error>) -> ObservedReply
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    let Ok(reply) = reply else { return ObservedReply::default() };
    let (head, mut body) = reply.into_parts();
    let mut seen = ObservedReply { head: Some((head.status.as_u16(), head.headers)), ..ObservedReply::default() };
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return seen };
        match frame.into_data() {
            Ok(data) => seen.data.extend_from_slice(&data),
            Err(frame) => seen.trailers = frame.into_trailers().ok(),
        }
    }
    ObservedReply { is_whole: true, ..seen }
}

/// Replies to one request with these pieces, and closes the connection.
async fn reply_once(listener: &TcpListener, pieces: &[&[u8]]) {
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        assert_ne!(stream.read_buf(&mut head).await.unwrap(), 0);
    }
    for piece in pieces {
        if stream.write_all(piece).await.is_err() {
            return;
        }
        yield_now().await;
    }
    // the client may close first
    let _ = stream.shutdown().await;
    let _ = stream.read(&mut [0]).await;
}

async fn by_hyper(addr: SocketAddr) -> ObservedReply {
    let stream = TokioIo::new(TcpStream::connect(addr).await.unwrap());
    let mut builder = http1::Builder::new();
    let (mut sender, connection) = builder.max_buf_size(READ_BUFFER).max_headers(100).handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get("/x").header("host", "h").body(Empty::<Bytes>::new()).unwrap();
    let seen = observe(sender.send_request(request).await).await;
    drop(sender);
    connection.abort();
    seen
}

fn transport(addr: SocketAddr) -> Transport {
    let limits = ConnectionLimits { connect_timeout: Duration::from_secs(5), idle_timeout: Duration::from_secs(5) };
    Transport::try_new(&format!("http://{addr}"), None, limits).unwrap()
}

async fn get(transport: &Transport) -> ObservedReply {
    observe(transport.send(&Method::GET, "/x", &HeaderMap::new(), CallBody::empty()).await).await
}

/// What tokentap and hyper see of a reply that arrives in these pieces.
async fn both(pieces: &[&[u8]]) -> (ObservedReply, ObservedReply) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let transport = transport(addr);
    let (own, ()) = tokio::join!(get(&transport), reply_once(&listener, pieces));
    let (whole, hypers) = (pieces.concat(), by_hyper(addr));
    let whole = [&whole[..]];
    let (hypers, ()) = tokio::join!(hypers, reply_once(&listener, &whole));
    (own, hypers)
}

fn replies() -> Vec<String> {
    let with = |lines: &str, body: &str| format!("HTTP/1.1 200 OK\r\n{lines}\r\n{body}");
    let chunked = |body: &str| with("Transfer-Encoding: chunked\r\n", body);
    let many = |count: usize| (0..count).map(|at| format!("x-{at}: b\r\n")).collect::<String>();
    vec![
        with("content-length: 5\r\nserver: a\r\n", "hello"),
        with("content-length: 0\r\n", ""),
        with("content-length: 5, 5\r\nconnection: close\r\n", "hello"),
        with("content-length: 5\r\ncontent-length: 6\r\n", "hello"),
        with("content-length: 30000\r\n", &"y".repeat(30_000)),
        with("connection: Close\r\n", "until the end"),
        with(&many(99), "as many headers as possible"),
        with(&many(101), "too many"),
        chunked("5\r\nhello\r\n6;a=\"b\"\r\n world\r\n0\r\n\r\n"),
        chunked("5 \t\r\nhello\r\n00\r\nA: b\r\nc:d\r\n\r\n"),
        chunked(&format!("{:x}\r\n{}\r\n1\r\nz\r\n0\r\n\r\n", 40_000, "y".repeat(40_000))),
        chunked("ffffffffffffffff1\r\nhello\r\n0\r\n\r\n"),
        chunked("5\r\nhello\r\n5\r\nhelloo\r\n0\r\n\r\n"),
        chunked(&format!("1;{}\r\nz\r\n0\r\n\r\n", "e".repeat(17_000))),
        chunked(&format!("1\r\nz\r\n0\r\nt: {}\r\n\r\n", "e".repeat(17_000))),
        chunked(&format!("1\r\nz\r\n0\r\n{}\r\n", many(100))),
        chunked(&format!("1\r\nz\r\n0\r\n{}\r\n", many(101))),
        with("transfer-encoding: chunked\r\ntransfer-encoding: gzip\r\n", "5\r\nhello\r\n0\r\n\r\n"),
        with("transfer-encoding: gzip, chunked\r\ncontent-length: 3\r\n", "5\r\nhello\r\n0\r\n\r\n"),
        "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok".to_owned(),
        "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "HTTP/1.1 204 No Content\r\ncontent-length: 7\r\n\r\n".to_owned(),
        "HTTP/1.1 304 Not Modified\r\n\r\n".to_owned(),
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 x\r\nlink: a\r\n\r\nHTTP/1.1 404 Gone Fishing\r\n\r\nx".to_owned(),
        "HTTP/1.1 200 \r\na: b\r\n c\r\n\r\n".to_owned(),
        "HTTP/1.1 599 \r\na:\tb \t\r\na: \u{e9}\r\n\r\nx".to_owned(),
    ]
}

#[tokio::test]
async fn replies_are_those_that_hyper_reads() {
    for reply in replies() {
        let (own, hypers) = both(&[reply.as_bytes()]).await;
        assert_eq!(own, hypers, "{reply:.200}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn every_split_of_any_bytes_is_read_as_hyper_reads_the_whole(
        reply in prop::sample::select(replies()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 0..3),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)
    ) {
        let mut bytes = reply.into_bytes();
        for (at, byte, kind) in changes {
            // mostly in the head or in a short body
            let at = at.index(bytes.len().min(200));
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => { bytes.remove(at); }
            }
        }
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).chain([0, bytes.len()]).collect();
        at.sort_unstable();
        let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (own, hypers) = runtime.block_on(both(&pieces));
        prop_assert_eq!(own, hypers);
    }
}

/// A server that counts connections, and replies `bytes` to each request without a body.
async fn counting(bytes: &'static [u8]) -> (SocketAddr, Arc<std::sync::atomic::AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let connections = Arc::<std::sync::atomic::AtomicUsize>::default();
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            tokio::spawn(async move {
                let mut head = Vec::new();
                while stream.read_buf(&mut head).await.is_ok_and(|length| length > 0) {
                    if head.ends_with(b"\r\n\r\n") {
                        head.clear();
                        stream.write_all(bytes).await.unwrap();
                    }
                }
            });
        }
    });
    (addr, connections)
}

#[tokio::test]
async fn connection_is_used_again_unless_more_follows_or_it_closes() {
    let replies: [(&[u8], usize); 5] = [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", 1),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 1),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok!", 3),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", 3),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", 3),
    ];
    for (bytes, expected) in replies {
        let (addr, connections) = counting(bytes).await;
        let transport = transport(addr);
        for _ in 0..3 {
            assert_eq!(get(&transport).await.data, b"ok");
        }
        let connections = connections.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(connections, expected, "{}", String::from_utf8_lossy(bytes));
    }
}

/// The last read takes all the bytes of the socket, which the runtime considers readable all the same.
#[tokio::test]
async fn connection_of_a_reply_that_came_in_pieces_is_used_again() {
    let body = "x".repeat(100_000);
    let reply = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let (addr, connections) = counting(reply.leak().as_bytes()).await;
    let transport = transport(addr);
    for _ in 0..5 {
        let reply = transport.send(&Method::GET, "/x", &HeaderMap::new(), CallBody::empty()).await.unwrap();
        let (mut read, mut bytes) = (reply.into_body(), Vec::with_capacity(body.len()));
        while let Some(some) = std::future::poll_fn(|cx| read.poll_read(cx, &mut bytes)).await {
            some.unwrap();
        }
        assert!(bytes == body.as_bytes());
    }
    assert_eq!(connections.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[tokio::test]
async fn data_that_arrived_together_is_read_together() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let transport = transport(listener.local_addr().unwrap());
    let events: Vec<String> = (0..100).map(|at| format!("data: {at:03}\n\n")).collect();
    let chunks: String = events.iter().map(|event| format!("{:x}\r\n{event}\r\n", event.len())).collect();
    let reply = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunks}0\r\n\r\n");
    let pieces = [reply.as_bytes()];
    let (frames, ()) = tokio::join!(
        async {
            let reply = transport.send(&Method::GET, "/x", &HeaderMap::new(), CallBody::empty()).await.unwrap();
            let mut body = reply.into_body();
            let mut frames = Vec::new();
            while let Some(frame) = body.frame().await {
                frames.push(frame.unwrap().into_data().unwrap());
                assert!(http_body::Body::is_end_stream(&body));
            }
            frames
        },
        reply_once(&listener, &pieces)
    );
    assert_eq!(frames, [events.concat()]);
}

#[tokio::test]
async fn reply_that_begins_early_does_not_end_the_upload() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let transport = transport(listener.local_addr().unwrap());
    let (send, body) = tokio::sync::mpsc::channel::<Bytes>(1);
    let body = http_body_util::StreamBody::new(futures_util::stream::unfold(body, |mut body| async {
        body.recv().await.map(|data| (Ok(http_body::Frame::data(data)), body))
    }));
    let headers = HeaderMap::from_iter([(http::header::TRANSFER_ENCODING, "chunked".parse().unwrap())]);
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut read = Vec::new();
        while !read.ends_with(b"3\r\none\r\n") {
            stream.read_buf(&mut read).await.unwrap();
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n").await.unwrap();
        while !read.ends_with(b"3\r\ntwo\r\n0\r\n\r\n") {
            stream.read_buf(&mut read).await.unwrap();
        }
        stream.write_all(b"ok").await.unwrap();
    };
    let client = async {
        send.send(Bytes::from_static(b"one")).await.unwrap();
        let body = CallBody::Streamed(Box::pin(body) as Pin<Box<_>>);
        let reply = transport.send(&Method::POST, "/x", &headers, body).await.unwrap();
        send.send(Bytes::from_static(b"two")).await.unwrap();
        drop(send);
        reply.into_body().collect().await.unwrap().to_bytes()
    };
    let (body, ()) = tokio::join!(client, server);
    assert_eq!(body, "ok");
}
