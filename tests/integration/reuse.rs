// SPDX-License-Identifier: Apache-2.0
//! Connections to the upstream that it closes while they are pooled.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::support::client::{Connection, written};
use crate::support::manual_upstream::soon;
use crate::support::proxy::Proxy;
use crate::support::upstream::message;

/// The number of requests of each client, in sequence on one connection.
const REQUESTS: usize = 500;
const CLIENTS: usize = 8;

/// The number of executions of each request, by path and name.
type Runs = HashMap<(String, String), usize>;

/// An upstream that closes each connection after its reply without announcing it: at once, or after `delay` yields of its task. It counts
/// a request when it has read it completely, which is when an engine would run it.
async fn closing_upstream(delay: usize) -> (SocketAddr, Arc<Mutex<Runs>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let reply = message(200, &[("content-type", "application/json")], b"{}");
    let ran = Arc::<Mutex<Runs>>::default();
    let counts = Arc::clone(&ran);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (reply, counts) = (reply.clone(), Arc::clone(&counts));
            tokio::spawn(async move {
                let mut read = Vec::new();
                while !read.ends_with(if read.starts_with(b"GET") { b"\r\n\r\n" } else { b"}" }) {
                    if !matches!(stream.read_buf(&mut read).await, Ok(1..)) {
                        return;
                    }
                }
                let text = String::from_utf8_lossy(&read).into_owned();
                if let (Some((_, name)), Some(path)) = (text.split_once("run-"), text.split(' ').nth(1)) {
                    // the ids of a prompt are requested concurrently with its generation
                    let request = (path.to_owned(), name.split('"').next().unwrap().to_owned());
                    *counts.lock().entry(request).or_default() += 1;
                }
                drop(stream.write_all(&reply).await);
                for _ in 0..delay {
                    tokio::task::yield_now().await;
                }
            });
        }
    });
    (addr, ran)
}

/// The number of failures in [`REQUESTS`] times [`CLIENTS`] requests.
async fn failures(delay: usize) -> usize {
    let (upstream, ran) = closing_upstream(delay).await;
    let proxy = Proxy::start(upstream, &[]).await;
    let failed = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for (number, path) in ["/generate", "/tokenize"].into_iter().cycle().take(CLIENTS).enumerate() {
        let (data, failed) = (proxy.data, Arc::clone(&failed));
        clients.spawn(async move {
            let mut client = Connection::open(data).await;
            for request in 0..REQUESTS {
                let body = format!("{{\"text\":\"run-{number}-{request}\"}}");
                client.send(&written(data, "POST", path, &[], body.as_bytes())).await;
                let status = soon("an answer", client.answer()).await.status;
                failed.fetch_add(usize::from(status != 200), Ordering::Relaxed);
            }
        });
    }
    clients.join_all().await;
    let (ran, failed) = (ran.lock(), failed.load(Ordering::Relaxed));
    let twice: Vec<_> = ran.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{} requests ran more than once", twice.len());
    let names: HashSet<&String> = ran.keys().map(|(_, name)| name).collect();
    assert!(names.len() + failed >= REQUESTS * CLIENTS, "{} requests ran", names.len());
    failed
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_upstream_connection_is_not_reused() {
    for delay in [0, 1] {
        let failed = failures(delay).await;
        assert!(failed <= REQUESTS * CLIENTS / 250, "{failed} requests failed where {delay} turns pass before the end");
    }
}
