// SPDX-License-Identifier: Apache-2.0
//! A canned engine in this process: the replies of the proxy benchmark, streams with a timestamp in each event, and large bodies.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use memchr::memmem;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::canned::{Columns, Sequence, Shape, VARIANTS};
use crate::upstream::{self, Canned, ReplyCache, Server};

/// The origin of the timestamps in events.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The number of running requests.
pub static ANSWERING: AtomicUsize = AtomicUsize::new(0);

/// Microseconds since the start.
pub fn now() -> u64 {
    EPOCH.elapsed().as_micros() as u64
}

/// An event without its text: the parts before and after it.
type Event = (Vec<u8>, Vec<u8>);
type Streams = Arc<Mutex<Vec<((Shape, bool), Arc<Vec<Event>>)>>>;

/// Serves until this process ends.
pub async fn start() -> SocketAddr {
    now();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("a bound port has an address");
    let (cache, streams) = (ReplyCache::default(), Streams::default());
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let (cache, streams) = (Arc::clone(&cache), Arc::clone(&streams));
            // an error means that the proxy disconnected
            tokio::spawn(async move { serve(stream, &cache, &streams).await.ok() });
        }
    });
    addr
}

async fn serve(mut stream: TcpStream, cache: &ReplyCache, streams: &Streams) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(16 * 1024);
    loop {
        let Some(length) = upstream::request_length(&buffer) else {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
            continue;
        };
        let request = &buffer[..length];
        ANSWERING.fetch_add(1, Ordering::Relaxed);
        let answered = answer(&mut stream, request, cache, streams).await;
        ANSWERING.fetch_sub(1, Ordering::Relaxed);
        answered?;
        buffer.drain(..length);
    }
}

async fn answer(stream: &mut TcpStream, request: &[u8], cache: &ReplyCache, streams: &Streams) -> std::io::Result<()> {
    if request.starts_with(b"GET /big") {
        // larger than all buffers between the engine and a client
        const PIECE: &[u8] = &[b'x'; 64 * 1024];
        stream
            .write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", PIECE.len() * 256).as_bytes())
            .await?;
        for _ in 0..256 {
            stream.write_all(PIECE).await?;
        }
        return Ok(());
    }
    let has = |text: &str| memmem::find(request, text.as_bytes()).is_some();
    if let Some(delay) = number(request, "\"delay_ms\":") {
        tokio::time::sleep(Duration::from_millis(delay as u64)).await;
    }
    if has("\"stamped\":true") {
        return stamped(stream, request, streams).await;
    }
    let (canned, pace) = upstream::answer(request, Server::Flat, cache);
    match &*canned {
        Canned::Whole(bytes) => stream.write_all(bytes).await,
        Canned::Events(events) => {
            for event in events {
                if let Some(pace) = pace {
                    tokio::time::sleep(pace).await;
                }
                stream.write_all(event).await?;
            }
            Ok(())
        }
    }
}

/// A stream in which the text of each event is the time at which it is sent.
async fn stamped(stream: &mut TcpStream, request: &[u8], streams: &Streams) -> std::io::Result<()> {
    let number = |name| number(request, name).unwrap_or(0.0);
    let k = memmem::find(request, b"\"return_logprob\":true").map(|_| number("\"top_logprobs_num\":") as usize);
    let variant = number("\"sampling_seed\":") as u64 % VARIANTS;
    let shape =
        Shape { tokens: number("\"max_new_tokens\":") as usize, k, flat: false, columns: Columns::default(), variant };
    let pace = Duration::from_micros(number("\"pace_us\":") as u64);
    let events = split(shape, streams);
    stream
        .write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n",
        )
        .await?;
    let start = tokio::time::Instant::now();
    let mut chunk = Vec::new();
    for (at, (before, after)) in events.iter().enumerate() {
        tokio::time::sleep_until(start + pace * at as u32).await;
        chunk.clear();
        chunk.extend_from_slice(format!("{:x}\r\n", before.len() + 16 + after.len()).as_bytes());
        chunk.extend_from_slice(before);
        chunk.extend_from_slice(format!("{:016}", now()).as_bytes());
        chunk.extend_from_slice(after);
        chunk.extend_from_slice(b"\r\n");
        stream.write_all(&chunk).await?;
    }
    stream.write_all(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n").await
}

fn split(shape: Shape, streams: &Streams) -> Arc<Vec<Event>> {
    let mut streams = streams.lock();
    if let Some((_, events)) = streams.iter().find(|(key, _)| *key == (shape, true)) {
        return Arc::clone(events);
    }
    let mut events = Sequence::new(shape).events(true);
    // the last event is `[DONE]`
    events.pop();
    let parts = events.into_iter().map(|event| {
        let begin = memmem::find(&event, b"\"text\":\"").expect("events begin with their text") + 8;
        let end = begin + memchr::memchr(b'"', &event[begin..]).expect("the text ends");
        (event[..begin].to_vec(), event[end..].to_vec())
    });
    let events = Arc::new(parts.collect());
    streams.push(((shape, true), Arc::clone(&events)));
    events
}

/// The number after `name` in the first or the last kilobytes; between them there are only ids.
fn number(request: &[u8], name: &str) -> Option<f64> {
    let edge = 4096.min(request.len());
    upstream::number(&request[..edge], name).or_else(|| upstream::number(&request[request.len() - edge..], name))
}
