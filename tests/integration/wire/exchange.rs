// SPDX-License-Identifier: Apache-2.0
//! Sends bytes and reads all replies up to the end of the connection.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How bytes are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// In one write.
    Whole,
    /// One by one.
    Bytes,
}

/// The replies on a connection in order, with status and body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exchange {
    pub answers: Vec<(u16, Vec<u8>)>,
    /// The bytes after the last complete reply.
    pub rest: Vec<u8>,
    /// The server did not close the connection in time.
    pub hung: bool,
}

/// Sends bytes, closes the sending side if `ends`, and reads all replies.
pub async fn exchange(addr: SocketAddr, bytes: &[u8], ends: bool, pace: Pace, heads: bool) -> Exchange {
    let stream = TcpStream::connect(addr).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut from, mut to) = stream.into_split();
    let sending = async {
        // after an early rejection the connection may be closed
        match pace {
            Pace::Whole => drop(to.write_all(bytes).await),
            Pace::Bytes => {
                for byte in bytes {
                    if to.write_all(&[*byte]).await.is_err() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
        }
        if ends {
            drop(to.shutdown().await);
        }
        to
    };
    let mut read = Vec::new();
    let reading = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            read.extend_from_slice(&buffer[..length]);
        }
    };
    let both = tokio::time::timeout(Duration::from_secs(10), async { tokio::join!(sending, reading) }).await;
    let mut exchange = parsed(&read, heads);
    exchange.hung = both.is_err();
    exchange
}

/// Parses replies. With `heads`, the first one is a reply to HEAD, without a body.
pub fn parsed(mut read: &[u8], heads: bool) -> Exchange {
    let mut answers = Vec::new();
    while let Some((answer, rest)) = answer(read, heads && answers.is_empty()) {
        answers.push(answer);
        read = rest;
    }
    Exchange { answers, rest: read.to_vec(), hung: false }
}

/// A status and a body.
type Answer = (u16, Vec<u8>);

fn answer(read: &[u8], heads: bool) -> Option<(Answer, &[u8])> {
    let end = memchr::memmem::find(read, b"\r\n\r\n")?;
    let head = str::from_utf8(&read[..end]).ok()?;
    let rest = &read[end + 4..];
    let mut lines = head.split("\r\n");
    let status: u16 = lines.next()?.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok()?;
    let headers: Vec<(String, &str)> = lines
        .map(|line| line.split_once(':').map(|(name, value)| (name.to_ascii_lowercase(), value.trim())))
        .collect::<Option<_>>()?;
    let value = |name: &str| headers.iter().find(|(key, _)| key == name).map(|(_, value)| *value);
    if heads || status < 200 || status == 204 || status == 304 {
        return Some(((status, Vec::new()), rest));
    }
    if value("transfer-encoding") == Some("chunked") {
        let (body, rest) = chunked(rest)?;
        return Some(((status, body), rest));
    }
    let length = value("content-length").map_or(Some(rest.len()), |length| length.parse().ok())?;
    let (body, rest) = rest.split_at_checked(length)?;
    Some(((status, body.to_vec()), rest))
}

fn chunked(mut read: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut body = Vec::new();
    loop {
        let end = memchr::memmem::find(read, b"\r\n")?;
        let size = usize::from_str_radix(str::from_utf8(&read[..end]).ok()?, 16).ok()?;
        let (piece, rest) = read[end + 2..].split_at_checked(size)?;
        body.extend_from_slice(piece);
        read = rest.strip_prefix(b"\r\n")?;
        if size == 0 {
            return Some((body, read));
        }
    }
}
