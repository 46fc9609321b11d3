// SPDX-License-Identifier: Apache-2.0
//! An upstream that the test controls byte by byte: it answers the probe itself, and passes every other request with its connection to
//! the test.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::client::{Connection, written};
use super::upstream::{EngineProfile, FakeReply, UpstreamRequest, message};

/// Awaits an event that must happen soon. The timeout only ends a failing test.
pub async fn soon<F: Future>(what: &str, event: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), event).await.unwrap_or_else(|_| panic!("never happened: {what}"))
}

/// The head of an event stream.
pub const STREAM: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

/// The end of a chunked body.
pub const END: &[u8] = b"0\r\n\r\n";

/// A piece of a chunked body.
pub fn chunk(piece: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()
}

/// An event of a stream, without tokens: only its id and index matter.
pub fn event(rid: &str, index: usize) -> Vec<u8> {
    let meta = serde_json::json!({"id": rid, "finish_reason": null, "prompt_tokens": 3, "completion_tokens": 0});
    let event = serde_json::json!({"text": "", "output_ids": [], "meta_info": meta, "index": index});
    chunk(format!("data: {event}\n\n").as_bytes())
}

/// An upstream whose replies the test writes.
pub struct ManualUpstream {
    pub addr: SocketAddr,
    calls: mpsc::UnboundedReceiver<Call>,
    profile: Arc<Mutex<EngineProfile>>,
}

/// A request that the test answers. The connection closes on drop.
pub struct Call {
    pub asked: UpstreamRequest,
    /// The head, unchanged.
    pub head: Vec<u8>,
    stream: TcpStream,
    read: Vec<u8>,
    handler: ConnectionHandler,
}

#[derive(Clone)]
struct ConnectionHandler {
    profile: Arc<Mutex<EngineProfile>>,
    calls: mpsc::UnboundedSender<Call>,
}

impl ManualUpstream {
    pub async fn start() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    /// Starts an upstream with this streaming mode.
    pub async fn streaming(streaming: &'static str) -> Self {
        let profile = EngineProfile { flat: false, streaming, ..EngineProfile::default() };
        Self::of(TcpListener::bind("127.0.0.1:0").await.unwrap(), profile)
    }

    /// Starts an upstream on an open listener, with nested logprobs, as older engines have them.
    pub fn on(listener: TcpListener) -> Self {
        Self::of(listener, EngineProfile { flat: false, ..EngineProfile::default() })
    }

    fn of(listener: TcpListener, profile: EngineProfile) -> Self {
        let addr = listener.local_addr().unwrap();
        let (sender, calls) = mpsc::unbounded_channel();
        let profile = Arc::new(Mutex::new(profile));
        let handler = ConnectionHandler { profile: Arc::clone(&profile), calls: sender };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(handler.clone().serve(stream, Vec::new()));
            }
        });
        Self { addr, calls, profile }
    }

    /// Simulates another engine at the same address.
    pub fn replace(&self, profile: EngineProfile) {
        *self.profile.lock() = profile;
    }

    /// Waits for the next request.
    pub async fn next(&mut self) -> Call {
        soon("a request reaches the upstream", self.calls.recv()).await.expect("the upstream lives as long as the test")
    }

    /// Starts a generation of `client` with the id `running`; the client has received one event of its stream.
    pub async fn streaming_to(&mut self, mut client: Connection, data: SocketAddr) -> (Connection, Call) {
        let body = b"{\"text\":\"a\",\"rid\":\"running\",\"stream\":true}";
        client.send(&written(data, "POST", "/generate", &[], body)).await;
        let mut call = self.next().await;
        call.send(STREAM).await;
        call.send(&event("running", 0)).await;
        assert!(client.read_until(|read| read.ends_with(b"\n\n\r\n")).await);
        (client, call)
    }

    /// Whether an unread request has arrived.
    pub fn has_more(&mut self) -> bool {
        self.calls.try_recv().is_ok()
    }
}

impl ConnectionHandler {
    async fn serve(self, mut stream: TcpStream, mut read: Vec<u8>) {
        loop {
            let end = loop {
                if let Some(end) = memchr::memmem::find(&read, b"\r\n\r\n") {
                    break end + 4;
                }
                if !more(&mut stream, &mut read).await {
                    return;
                }
            };
            let head: Vec<u8> = read.drain(..end).collect();
            let mut asked = parsed(&head);
            // bodies that are never streamed are read before the test gets the call
            let own = asked.path == "/tokenize" && asked.is_own();
            if own || ["/generate", "/abort_request", "/v1/traces"].contains(&asked.path.as_str()) {
                let length = asked.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
                while read.len() < length {
                    if !more(&mut stream, &mut read).await {
                        return;
                    }
                }
                asked.body = read.drain(..length).collect();
            }
            let answer = self.profile.lock().answer(&asked);
            if let Some(FakeReply::KeepAlive(reply)) = answer {
                if stream.write_all(&reply.concat()).await.is_err() {
                    return;
                }
                continue;
            }
            let call = Call { asked, head, stream, read, handler: self.clone() };
            // fails if the test has ended
            let _ = self.calls.send(call);
            return;
        }
    }
}

fn parsed(head: &[u8]) -> UpstreamRequest {
    let head = String::from_utf8_lossy(head);
    let mut lines = head.trim_end().split("\r\n");
    let mut first = lines.next().unwrap().split(' ').map(str::to_owned);
    let headers = lines.filter_map(|line| line.split_once(": "));
    UpstreamRequest {
        method: first.next().unwrap(),
        path: first.next().unwrap(),
        headers: headers.map(|(key, value)| (key.to_lowercase(), value.to_owned())).collect(),
        body: Vec::new(),
    }
}

async fn more(stream: &mut TcpStream, read: &mut Vec<u8>) -> bool {
    let mut buffer = vec![0; 64 * 1024];
    match stream.read(&mut buffer).await {
        Ok(0) | Err(_) => false,
        Ok(length) => {
            read.extend_from_slice(&buffer[..length]);
            true
        }
    }
}

impl Call {
    /// The first line and each header line, as bytes.
    pub fn lines(&self) -> Vec<&[u8]> {
        self.head.trim_ascii_end().split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end).collect()
    }

    /// The values of a header in order.
    pub fn values(&self, name: &str) -> Vec<&str> {
        self.asked.headers.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str()).collect()
    }

    pub fn json(&self) -> Value {
        self.asked.json()
    }

    /// The rid of an abort.
    pub fn aborted(&self) -> String {
        assert_eq!((self.asked.method.as_str(), self.asked.path.as_str()), ("POST", "/abort_request"));
        let body = self.json();
        assert_eq!(body.as_object().unwrap().len(), 1, "an abort has only an id: {body}");
        body["rid"].as_str().unwrap().to_owned()
    }

    /// Reads the framed body until `found` returns true.
    pub async fn body_until(&mut self, found: impl Fn(&[u8]) -> bool) -> &[u8] {
        soon("the body", async {
            while !found(&self.read) {
                assert!(more(&mut self.stream, &mut self.read).await, "the body ended: {:?}", self.read);
            }
        })
        .await;
        &self.read
    }

    /// Sends bytes of the reply.
    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Sends without waiting; returns the number of bytes sent, or `None` if the connection is closed.
    pub fn try_send(&mut self, bytes: &[u8]) -> Option<usize> {
        match self.stream.try_write(bytes) {
            Ok(written) => Some(written),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Some(0),
            Err(_) => None,
        }
    }

    /// Sends the rest of the reply and waits for the next request on the connection.
    pub async fn reply(mut self, bytes: &[u8]) {
        self.send(bytes).await;
        let Self { stream, handler, .. } = self;
        tokio::spawn(handler.serve(stream, Vec::new()));
    }

    /// Answers with an empty object.
    pub async fn ok(self) {
        self.reply(&message(200, &[("content-type", "application/json")], b"{}")).await;
    }

    /// Closes this side of the connection.
    pub async fn finish(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// Resets the connection: unread bytes may be lost.
    pub fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    /// Sends bytes of the reply one by one.
    pub async fn send_byte_by_byte(&mut self, bytes: &[u8]) {
        self.stream.set_nodelay(true).unwrap();
        for byte in bytes {
            self.send(std::slice::from_ref(byte)).await;
        }
    }

    /// Waits until tokentap has closed the connection.
    pub async fn closed(mut self) {
        soon("the connection is closed", async { while more(&mut self.stream, &mut self.read).await {} }).await;
    }
}
