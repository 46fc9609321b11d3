// SPDX-License-Identifier: Apache-2.0
//! A minimal HTTP/1.1 client, so that tests see the exact bytes and share no library with the product.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// A reply with its decoded body.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Whether the body ended as HTTP requires.
    pub complete: bool,
    /// The number of chunks with data. A server writes each at once.
    pub chunks: usize,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.text()))
    }

    /// The JSON of each event of a stream, without `[DONE]`.
    pub fn events(&self) -> Vec<serde_json::Value> {
        events(&self.body).iter().map(|event| serde_json::from_slice(event).unwrap()).collect()
    }
}

/// The data of each event of a stream, without `[DONE]`.
pub fn events(body: &[u8]) -> Vec<Vec<u8>> {
    let text = String::from_utf8_lossy(body);
    text.split("\n\n")
        .filter_map(|event| event.strip_prefix("data: "))
        .filter(|data| *data != "[DONE]")
        .map(|data| data.as_bytes().to_vec())
        .collect()
}

/// The transport of a connection.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection that closes on drop.
pub struct Connection {
    stream: Box<dyn Stream>,
    read: Vec<u8>,
    /// How the connection ended: closed by the peer, or an error.
    pub ended: Option<std::io::Result<()>>,
}

impl Connection {
    pub async fn open(addr: SocketAddr) -> Self {
        Self::over(TcpStream::connect(addr).await.unwrap())
    }

    /// Opens a connection that is reset on drop.
    pub async fn abrupt(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).await.unwrap();
        stream.set_zero_linger().unwrap();
        Self::over(stream)
    }

    pub fn over(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        Self { stream: Box::new(stream), read: Vec::new(), ended: None }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// As [`Self::send`], to a peer that may have closed the connection; returns whether the write succeeded.
    pub async fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// Closes the sending side.
    pub async fn finish(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// The received bytes that are not part of a parsed reply.
    pub fn seen(&self) -> &[u8] {
        &self.read
    }

    /// Waits until the peer has closed the connection.
    pub async fn closed(&mut self) {
        super::manual_upstream::soon("the connection is closed", self.read_until(|_| false)).await;
    }

    /// Reads until `found` returns true for the received bytes; returns false if the connection ended first.
    pub async fn read_until(&mut self, found: impl Fn(&[u8]) -> bool) -> bool {
        while !found(&self.read) {
            let mut buffer = vec![0; 64 * 1024];
            match self.stream.read(&mut buffer).await {
                Ok(0) => {
                    self.ended = Some(Ok(()));
                    return false;
                }
                Err(error) => {
                    self.ended = Some(Err(error));
                    return false;
                }
                Ok(length) => self.read.extend_from_slice(&buffer[..length]),
            }
        }
        true
    }

    /// Reads one complete reply.
    pub async fn answer(&mut self) -> Answer {
        self.read_until(|read| memchr::memmem::find(read, b"\r\n\r\n").is_some()).await;
        let Some(end) = memchr::memmem::find(&self.read, b"\r\n\r\n") else { return Answer::default() };
        let head = String::from_utf8(self.read.drain(..end + 4).collect()).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> = lines
            .map(|line| {
                line.split_once(": ").map(|(key, value)| (key.to_owned(), value.to_owned())).unwrap_or_default()
            })
            .collect();
        let mut answer = Answer { status, headers, ..Answer::default() };
        if status == 100 {
            return Box::pin(self.answer()).await;
        }
        if answer.header("transfer-encoding") == Some("chunked") {
            self.chunked(&mut answer).await;
        } else if let Some(length) = answer.header("content-length").and_then(|length| length.parse().ok()) {
            answer.complete = self.read_until(|read| read.len() >= length).await;
            answer.body = self.read.drain(..length.min(self.read.len())).collect();
        } else {
            self.read_until(|_| false).await;
            answer.body = std::mem::take(&mut self.read);
            answer.complete = true;
        }
        answer
    }

    async fn chunked(&mut self, answer: &mut Answer) {
        loop {
            if !self.read_until(|read| memchr::memmem::find(read, b"\r\n").is_some()).await {
                return;
            }
            let end = memchr::memmem::find(&self.read, b"\r\n").unwrap();
            let line = String::from_utf8(self.read.drain(..end + 2).collect()).unwrap();
            let size = usize::from_str_radix(line.trim(), 16).unwrap();
            if !self.read_until(|read| read.len() >= size + 2).await {
                answer.body.append(&mut self.read);
                return;
            }
            answer.body.extend(self.read.drain(..size + 2).take(size));
            answer.chunks += usize::from(size > 0);
            if size == 0 {
                answer.complete = true;
                return;
            }
        }
    }
}

/// One request with a JSON body on a new connection.
pub async fn post(addr: SocketAddr, path: &str, body: &[u8]) -> Answer {
    request(addr, "POST", path, &[], body).await
}

/// One GET on a new connection.
pub async fn get(addr: SocketAddr, path: &str) -> Answer {
    request(addr, "GET", path, &[], b"").await
}

/// One request on a new connection.
pub async fn request(addr: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut connection = Connection::open(addr).await;
    connection.send(&written(addr, method, path, headers, body)).await;
    if method == "HEAD" {
        connection.read_until(|read| memchr::memmem::find(read, b"\r\n\r\n").is_some()).await;
        let head = String::from_utf8_lossy(&connection.read).into_owned();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        return Answer { status, ..Answer::default() };
    }
    connection.answer().await
}

/// As [`request`], to a peer that may disconnect: `None` if the reply is incomplete.
pub async fn try_request(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Option<Answer> {
    let stream = TcpStream::connect(addr).await.ok()?;
    let mut connection = Connection::over(stream);
    connection.stream.write_all(&written(addr, method, path, headers, body)).await.ok()?;
    Some(connection.answer().await).filter(|answer| answer.complete)
}

/// The bytes of a request.
pub fn written(addr: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    if !headers.iter().any(|(key, _)| key.eq_ignore_ascii_case("host")) {
        head += &format!("host: {addr}\r\n");
    }
    if !body.is_empty() && !headers.iter().any(|(key, _)| key.eq_ignore_ascii_case("content-type")) {
        head += "content-type: application/json\r\n";
    }
    if !body.is_empty() {
        head += &format!("content-length: {}\r\n", body.len());
    }
    for (key, value) in headers {
        head += &format!("{key}: {value}\r\n");
    }
    [head.as_bytes(), b"\r\n", body].concat()
}
