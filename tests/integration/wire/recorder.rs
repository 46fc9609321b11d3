//! An upstream that keeps every byte that it is sent, and answers what it reads strictly.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::strict::{ReceivedRequest, Strict};
use crate::support::hand::soon;

/// What has reached the upstream.
#[derive(Debug, Clone)]
pub enum JournalEntry {
    Whole(ReceivedRequest),
    /// A connection ended within a request; the bytes are those behind the last whole request or its head.
    Cut(Option<ReceivedRequest>, Vec<u8>),
    /// Not well formed; with the bytes behind it.
    Wrong(String),
}

impl JournalEntry {
    /// Whether it contains a tag.
    pub fn is_of(&self, tag: &str) -> bool {
        match self {
            Self::Whole(seen) | Self::Cut(Some(seen), _) => seen.target.contains(tag),
            Self::Cut(None, bytes) => memchr::memmem::find(bytes, tag.as_bytes()).is_some(),
            Self::Wrong(wrong) => wrong.contains(tag),
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

    /// What was received in a case.
    pub fn of(&self, tag: &str) -> Vec<JournalEntry> {
        let entries = self.entries.lock().unwrap();
        entries.iter().filter(|entry| entry.is_of(tag)).cloned().collect()
    }

    /// Everything, once all connections have been closed.
    pub async fn all(&self) -> Vec<JournalEntry> {
        let mut open = self.open.subscribe();
        soon("the connections to the upstream are closed", open.wait_for(|open| *open == 0)).await.unwrap();
        self.entries.lock().unwrap().clone()
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
                    // before the answer, so that a client with the answer finds it here
                    entries.lock().unwrap().push(JournalEntry::Whole(seen));
                    let answer = if head { &answer[..answer.len() - 2] } else { answer };
                    if stream.write_all(answer).await.is_err() {
                        return;
                    }
                }
                Err(wrong) => {
                    let rest = strict.rest().1.escape_ascii().to_string();
                    entries.lock().unwrap().push(JournalEntry::Wrong(format!("{wrong}, before {rest}")));
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
        entries.lock().unwrap().push(JournalEntry::Cut(head.cloned(), rest.to_vec()));
    }
}
