// SPDX-License-Identifier: Apache-2.0
//! Malformed replies of an upstream: the client gets an error or a closed connection, and never a reply to another request.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::exchange::{Pace, exchange};
use crate::support::proxy::Proxy;

/// The reply to the first of two requests on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    /// A status and a body; an error has tokentap's body.
    Whole(u16, &'static str),
    /// The start of a reply, then the end of the connection.
    Cut,
}
use First::{Cut, Whole};

const BAD: First = Whole(502, "");
const HELLO: First = Whole(200, "hello");

struct Reply {
    name: &'static str,
    bytes: Vec<u8>,
    /// The upstream closes the connection after it.
    closes: bool,
    /// For a streamed and for a buffered reply.
    first: [First; 2],
}

fn reply(name: &'static str, bytes: impl Into<Vec<u8>>, first: First) -> Reply {
    Reply { name, bytes: bytes.into(), closes: false, first: [first; 2] }
}

impl Reply {
    fn closing(self) -> Self {
        Self { closes: true, ..self }
    }

    /// A streamed reply is truncated.
    fn or_cut(self) -> Self {
        Self { first: [Cut, self.first[1]], ..self }
    }
}

/// A reply with these header lines.
fn with(lines: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\n{lines}\r\n{body}")
}

fn table() -> Vec<Reply> {
    let mut table = framing();
    table.extend(heads());
    table.extend(leftovers());
    table
}

fn framing() -> Vec<Reply> {
    let chunked = |body: &str| with("Transfer-Encoding: chunked\r\n", body);
    vec![
        reply("a length", with("Content-Length: 5\r\n", "hello"), HELLO),
        reply("chunked", chunked("5\r\nhello\r\n0\r\n\r\n"), HELLO),
        reply(
            "a length and chunked",
            with("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"),
            HELLO,
        ),
        reply("equal lengths", with("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"), HELLO),
        reply("different lengths", with("Content-Length: 5\r\nContent-Length: 3\r\n", "hello"), BAD),
        reply("a length that is not a number", with("Content-Length: x\r\n", "hello"), BAD),
        reply("a length below zero", with("Content-Length: -5\r\n", "hello"), BAD),
        reply("a length with a plus sign", with("Content-Length: +5\r\n", "hello"), BAD),
        reply("a length that is too large", with("Content-Length: 99999999999999999999\r\n", "hello"), BAD),
        reply("a body shorter than its length", with("Content-Length: 9\r\n", "hello"), BAD).closing().or_cut(),
        reply("no length", with("", "hello"), HELLO).closing(),
        reply("identity", with("Transfer-Encoding: identity\r\n", "hello"), HELLO).closing(),
        reply("HTTP/1.0", "HTTP/1.0 200 OK\r\n\r\nhello", HELLO).closing(),
        reply("a chunk size that is not a number", chunked("x\r\nhello\r\n0\r\n\r\n"), BAD).or_cut(),
        reply("a chunk size that is too large", chunked("fffffffffffffffff\r\nhello\r\n0\r\n\r\n"), BAD).or_cut(),
        reply("a chunk longer than its size", chunked("3\r\nhello\r\n0\r\n\r\n"), BAD).or_cut(),
        reply("a chunk with a bare LF", chunked("5\nhello\r\n0\r\n\r\n"), BAD).or_cut(),
        reply("no last chunk", chunked("5\r\nhello\r\n"), BAD).closing().or_cut(),
        reply("trailers", chunked("5\r\nhello\r\n0\r\nContent-Length: 9\r\nX-A: b\r\n\r\n"), HELLO),
        reply("an extension", chunked("5;a=b\r\nhello\r\n0\r\n\r\n"), HELLO),
    ]
}

fn heads() -> Vec<Reply> {
    let many: String = (0..400).map(|at| format!("X-{at}: b\r\n")).collect();
    let ok = with("Content-Length: 5\r\n", "hello");
    let line = |lines: &str| with(&format!("Content-Length: 5\r\n{lines}"), "hello");
    vec![
        reply("HTTP/0.9", "hello", BAD).closing(),
        reply("nothing", "", BAD).closing(),
        reply("half a head", "HTTP/1.1 200 OK\r\nContent-Le", BAD).closing(),
        reply("HTTP/2.0", "HTTP/2.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", BAD),
        reply("a status of two digits", "HTTP/1.1 20 OK\r\nContent-Length: 5\r\n\r\nhello", BAD),
        reply("a status of letters", "HTTP/1.1 abc OK\r\nContent-Length: 5\r\n\r\nhello", BAD),
        reply("a status of zeros", "HTTP/1.1 000 OK\r\nContent-Length: 5\r\n\r\nhello", BAD),
        reply("no reason", "HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello", HELLO),
        reply("a space before a colon", line("X-A : b\r\n"), BAD),
        reply("an obs-fold", line("X-A: b\r\n c\r\n"), BAD),
        reply("a bare CR within a value", line("X-A: b\rX-B: c\r\n"), BAD),
        reply("NUL within a value", line("X-A: b\0c\r\n"), BAD),
        reply("a space within a name", line("X A: b\r\n"), BAD),
        reply("no colon", line("X-A\r\n"), BAD),
        reply("400 headers", line(&many), BAD),
        reply("a header of 300 KB", line(&format!("X-A: {}\r\n", "b".repeat(300_000))), BAD),
        reply("one 100", format!("HTTP/1.1 100 Continue\r\n\r\n{ok}"), HELLO),
        reply("one 103", format!("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n{ok}"), HELLO),
        reply("two thousand 100", format!("{}{ok}", "HTTP/1.1 100 Continue\r\n\r\n".repeat(2000)), HELLO),
        reply(
            "an unrequested 101",
            format!("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n{ok}"),
            BAD,
        ),
        reply("hop-by-hop headers", line("Connection: X-A, keep-alive\r\nX-A: b\r\nKeep-Alive: timeout=1\r\n"), HELLO),
        reply("close", line("Connection: close\r\n"), HELLO),
    ]
}

/// A second, unrequested reply after the first.
fn leftovers() -> Vec<Reply> {
    let injected = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\ninjected";
    let head = |first: &str| format!("{first}{injected}");
    vec![
        reply("a reply after a length", head(&with("Content-Length: 5\r\n", "hello")), HELLO),
        reply("a reply after chunks", head(&with("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n")), HELLO),
        reply("a reply after an empty body", head(&with("Content-Length: 0\r\n", "")), Whole(200, "")),
        reply(
            "a reply as the body of 204",
            head("HTTP/1.1 204 No Content\r\nContent-Length: 46\r\n\r\n"),
            Whole(204, ""),
        ),
        reply(
            "chunks after 204",
            head("HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
            Whole(204, ""),
        ),
        reply(
            "a reply as the body of 304",
            head("HTTP/1.1 304 Not Modified\r\nContent-Length: 46\r\n\r\n"),
            Whole(304, ""),
        ),
        reply("rubbish after a length", with("Content-Length: 5\r\n", "hello\0\0\0"), HELLO),
    ]
}

/// An upstream that answers `?bad=` with a reply of the table, and other requests with a valid one.
async fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let table = Arc::new(table());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, Arc::clone(&table)));
        }
    });
    addr
}

async fn serve(mut stream: TcpStream, table: Arc<Vec<Reply>>) {
    let mut read = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        while let Some(end) = memchr::memmem::find(&read, b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&read[..end]).to_lowercase();
            let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
            let whole = end + 4 + length.unwrap_or(0_usize);
            if read.len() < whole {
                break;
            }
            read.drain(..whole);
            let number = head.split("?bad=").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<usize>().ok());
            let (bytes, closes): (&[u8], bool) = match number {
                Some(number) => (&table[number].bytes, table[number].closes),
                None if head.contains("accept: */*") => (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", false),
                None => (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecond", false),
            };
            if stream.write_all(bytes).await.is_err() || closes {
                return;
            }
        }
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(length) => read.extend_from_slice(&buffer[..length]),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_reply_is_an_error_for_its_client_only() {
    let proxy = Proxy::start(upstream().await, &[]).await;
    let mut wrong = Vec::new();
    for (number, reply) in table().iter().enumerate() {
        let plain = format!("GET /p?bad={number} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let body = r#"{"input_ids":[1]}"#;
        let length = body.len();
        let read = format!(
            "POST /generate?bad={number} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        for (request, expected) in [plain, read].iter().zip(reply.first) {
            let second = "GET /second HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            let bytes = [request.as_bytes(), second.as_bytes()].concat();
            let got = exchange(proxy.data, &bytes, false, Pace::Whole, false).await;
            let following = (200, b"second".to_vec());
            let holds = match (expected, &got.answers[..]) {
                (Cut, []) => memchr::memmem::find(&got.rest, b"second").is_none(),
                (Whole(status, body), [first, second]) => {
                    let same = first.0 == status && (status == 502 || first.1 == body.as_bytes());
                    same && *second == following && got.rest.is_empty()
                }
                _ => false,
            };
            if !holds || got.hung {
                let request = request.lines().next().unwrap();
                wrong.push(format!("{:?} of {request}: expected {expected:?}, got {got:?}", reply.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
