// SPDX-License-Identifier: Apache-2.0
//! A minimal encoder and parser of HTTP/2 frames.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::manual_upstream::soon;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// A frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header block of literals without indexing and without Huffman coding.
pub fn block(lines: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in lines {
        block.push(0);
        for text in [name, value] {
            integer(&mut block, text.len());
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// An integer with a prefix of seven bits (RFC 7541, 5.1).
fn integer(out: &mut Vec<u8>, mut value: usize) {
    if value < 127 {
        out.push(u8::try_from(value).unwrap());
        return;
    }
    out.push(127);
    value -= 127;
    while value >= 128 {
        out.push(u8::try_from(value % 128).unwrap() | 128);
        value /= 128;
    }
    out.push(u8::try_from(value).unwrap());
}

/// The outcome of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamOutcome {
    Status(u16),
    /// The stream was reset, or its connection closed.
    Refused,
}

/// Opens a connection, sends frames, and returns the outcome of a stream.
pub async fn stream_outcome(addr: SocketAddr, frames: &[u8], stream: u32) -> StreamOutcome {
    let opening = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(SETTINGS, 0, 0, &[])[..], frames].concat();
    let (mut from, mut to) = TcpStream::connect(addr).await.unwrap().into_split();
    // after an early rejection the connection may be closed
    let sending = tokio::spawn(async move {
        drop(to.write_all(&opening).await);
        to
    });
    let stream_outcome = soon("the outcome of the stream", async {
        let mut read = Vec::new();
        let mut buffer = vec![0; 16 * 1024];
        loop {
            while let Some((kind, on, payload)) = taken(&mut read) {
                match kind {
                    HEADERS if on == stream => return StreamOutcome::Status(status(&payload)),
                    RST_STREAM if on == stream => return StreamOutcome::Refused,
                    GOAWAY => return StreamOutcome::Refused,
                    _ => {}
                }
            }
            match from.read(&mut buffer).await {
                Ok(0) | Err(_) => return StreamOutcome::Refused,
                Ok(length) => read.extend_from_slice(&buffer[..length]),
            }
        }
    })
    .await;
    sending.abort();
    stream_outcome
}

fn taken(read: &mut Vec<u8>) -> Option<(u8, u32, Vec<u8>)> {
    let head: [u8; 9] = read.get(..9)?.try_into().ok()?;
    let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
    let payload = read.get(9..9 + length)?.to_vec();
    read.drain(..9 + length);
    Some((head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
}

/// The status at the start of a header block: an index of the static table, or Huffman-coded digits.
fn status(block: &[u8]) -> u16 {
    // a table size update may precede it
    let block = block.iter().position(|byte| byte & 0xe0 != 0x20).map_or(block, |at| &block[at..]);
    match block {
        [first @ 0x88..=0x8e, ..] => [200, 204, 206, 304, 400, 404, 500][usize::from(first - 0x88)],
        [0x48 | 0x08 | 0x18, length, rest @ ..] if length & 0x80 != 0 => {
            let bits =
                rest.iter().take(usize::from(length & 0x7f)).fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
            let mut left = 8 * u32::from(length & 0x7f);
            let mut status = 0;
            for _ in 0..3 {
                let five = bits >> (left - 5) & 31;
                let (digit, width) = if five < 3 { (five, 5) } else { ((bits >> (left - 6) & 63) - 22, 6) };
                status = status * 10 + u16::try_from(digit).unwrap();
                left -= width;
            }
            status
        }
        _ => panic!("no status in {block:?}"),
    }
}
