// SPDX-License-Identifier: Apache-2.0
//! An upstream that records every byte it receives, and answers the requests that a strict parser accepts.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::strict::{ReceivedRequest, Strict};
use crate::support::manual_upstream::soon;

/// An event on a connection to the upstream.
#[derive(Debug, Clone)]
pub enum JournalEntry {
    Complete(ReceivedRequest),
    /// A connection ended within a request. The bytes are those after the last complete request, or after the head.
    Truncated(Option<ReceivedRequest>, Vec<u8>),
    /// A malformed request, with the bytes after it.
    Malformed(String),
}

impl JournalEntry {
    /// Whether it contains a tag.
    pub fn is_of(&self, tag: &str) -> bool {
        match self {
            Self::Complete(seen) | Self::Truncated(Some(seen), _) => seen.target.contains(tag),
            Self::Truncated(None, bytes) => memchr::memmem::find(bytes, tag.as_bytes()).is_some(),
            Self::Malformed(wrong) => wrong.contains(tag),
        }
    }
}

/// The upstream.
pub struct Recorder {
    pub addr: SocketAddr,
    entries: Arc<Mutex<Vec<JournalEntry>>>,
    open: watch::Sender<usize>,
}

impl Recorder {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (open, _) = watch::channel(0);
        let recorder = Self { addr, entries: Arc::default(), open };
        let (entries, open) = (Arc::clone(&recorder.entries), recorder.open.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                open.send_modify(|open| *open += 1);
                let (entries, open) = (Arc::clone(&entries), open.clone());
                tokio::spawn(async move {
                    record(stream, addr, &entries).await;
                    open.send_modify(|open| *open -= 1);
                });
            }
        });
        recorder
    }

    /// The entries of a case.
    pub fn of(&self, tag: &str) -> Vec<JournalEntry> {
        let entries = self.entries.lock();
        entries.iter().filter(|entry| entry.is_of(tag)).cloned().collect()
    }

    /// All entries, once all connections have been closed.
    pub async fn all(&self) -> Vec<JournalEntry> {
        let mut open = self.open.subscribe();
        soon("the connections to the upstream are closed", open.wait_for(|open| *open == 0)).await.unwrap();
        self.entries.lock().clone()
    }
}

async fn record(mut stream: TcpStream, addr: SocketAddr, entries: &Mutex<Vec<JournalEntry>>) {
    let mut strict = Strict::new(addr.to_string());
    let mut buffer = vec![0; 64 * 1024];
    loop {
        loop {
            match strict.next() {
                Ok(None) => break,
                Ok(Some(seen)) => {
                    let answer: &[u8] = if seen.is_own() {
                        b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
                    } else {
                        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
                    };
                    let head = seen.method == "HEAD";
                    // before the reply, so that the entry exists when the client has the reply
                    entries.lock().push(JournalEntry::Complete(seen));
                    let answer = if head { &answer[..answer.len() - 2] } else { answer };
                    if stream.write_all(answer).await.is_err() {
                        return;
                    }
                }
                Err(wrong) => {
                    let rest = strict.rest().1.escape_ascii().to_string();
                    entries.lock().push(JournalEntry::Malformed(format!("{wrong}, before {rest}")));
                    return;
                }
            }
        }
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(length) => strict.feed(&buffer[..length]),
        }
    }
    let (head, rest) = strict.rest();
    if head.is_some() || !rest.is_empty() {
        entries.lock().push(JournalEntry::Truncated(head.cloned(), rest.to_vec()));
    }
}
