//! Connections to the upstream that it closes while they are pooled.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::support::client::{Connection, written};
use crate::support::hand::soon;
use crate::support::proxy::Proxy;
use crate::support::upstream::message;

/// Requests of each client, one after the other on one connection.
const REQUESTS: usize = 500;
const CLIENTS: usize = 8;

/// An upstream that closes each connection behind its reply, and does not say so: at once, or after so many turns of its task.
async fn closing_upstream(delay: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let reply = message(200, &[("content-type", "application/json")], b"{}");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let reply = reply.clone();
            tokio::spawn(async move {
                let mut read = Vec::new();
                while !read.ends_with(if read.starts_with(b"GET") { b"\r\n\r\n" } else { b"}" }) {
                    if !matches!(stream.read_buf(&mut read).await, Ok(1..)) {
                        return;
                    }
                }
                drop(stream.write_all(&reply).await);
                for _ in 0..delay {
                    tokio::task::yield_now().await;
                }
            });
        }
    });
    addr
}

/// How many of [`REQUESTS`] times [`CLIENTS`] requests failed.
async fn failures(delay: usize) -> usize {
    let upstream = closing_upstream(delay).await;
    let proxy = Proxy::start(upstream, &[]).await;
    let failed = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for path in ["/generate", "/tokenize"].into_iter().cycle().take(CLIENTS) {
        let (data, failed) = (proxy.data, Arc::clone(&failed));
        clients.spawn(async move {
            let mut client = Connection::open(data).await;
            for _ in 0..REQUESTS {
                client.send(&written(data, "POST", path, &[], b"{\"text\":\"a\"}")).await;
                let status = soon("an answer", client.answer()).await.status;
                failed.fetch_add(usize::from(status != 200), Ordering::Relaxed);
            }
        });
    }
    clients.join_all().await;
    failed.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_the_upstream_has_closed_is_not_reused() {
    for delay in [0, 1] {
        let failed = failures(delay).await;
        assert!(failed <= REQUESTS * CLIENTS / 250, "{failed} requests failed where {delay} turns pass before the end");
    }
}
