// SPDX-License-Identifier: Apache-2.0
//! Clients that do not read, and clients that receive a reply while they still send.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::oversize::reply;
use crate::support::client::{get, post, written};
use crate::support::manual_upstream::{ManualUpstream, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::message;

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

/// A connection with a small receive buffer.
async fn narrow(addr: std::net::SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(addr).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_reply_is_dropped_after_the_timeout() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &["limit:client-read-timeout", "200ms"]).await;
    let mut client = narrow(proxy.data).await;
    client.write_all(&written(proxy.data, "POST", "/generate", &[], b"{\"text\":\"a\"}")).await.unwrap();
    let large = reply(16 << 20);
    upstream.next().await.reply(&message(200, &JSON, &large)).await;
    let held = || proxy.parts.budget.taken();
    soon("the reply is buffered", async {
        while held() == 0 {
            tokio::task::yield_now().await
        }
    })
    .await;
    soon("the reply is dropped", async {
        while held() != 0 {
            tokio::task::yield_now().await
        }
    })
    .await;
    let mut rest = Vec::new();
    let ended = soon("the connection ends", client.read_to_end(&mut rest)).await;
    assert!(ended.is_err() || rest.len() < large.len(), "the reply is incomplete");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_reader_receives_the_complete_reply() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &["limit:client-read-timeout", "2s"]).await;
    let mut client = narrow(proxy.data).await;
    client
        .write_all(&written(proxy.data, "POST", "/generate", &[("connection", "close")], b"{\"text\":\"a\"}"))
        .await
        .unwrap();
    let large = reply(8 << 20);
    upstream.next().await.reply(&message(200, &JSON, &large)).await;
    let (mut taken, mut scratch) = (0, vec![0; 16 * 1024]);
    loop {
        match soon("more of the reply", client.read(&mut scratch)).await.unwrap() {
            0 => break,
            count => taken += count,
        }
    }
    assert!(taken > large.len(), "{taken}");
}

/// Writes the complete request before reading, as blocking libraries do.
async fn written_first(addr: std::net::SocketAddr, path: &str, size: usize) -> String {
    let mut client = TcpStream::connect(addr).await.unwrap();
    let request = written(addr, "POST", path, &[], &vec![b' '; size]);
    client.write_all(&request).await.expect("the connection stays open");
    let mut answer = Vec::new();
    soon("an answer", client.read_to_end(&mut answer)).await.expect("no reset discards it");
    String::from_utf8(answer).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn early_answer_reaches_a_client_that_still_sends() {
    let unused_port = TcpSocket::new_v4().unwrap();
    unused_port.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let flags = ["limit:breaker-failures", "2", "--max-request-bytes", "1MiB"];
    let proxy = Proxy::start(unused_port.local_addr().unwrap(), &flags).await;
    for _ in 0..2 {
        assert_eq!(get(proxy.data, "/health").await.status, 502);
    }
    for size in [200_000, 4_000_000, 20_000_000] {
        let answer = written_first(proxy.data, "/v1/chat/completions", size).await;
        assert!(answer.starts_with("HTTP/1.1 50"), "{size}: {answer}");
        let answer = written_first(proxy.data, "/flush_cache", size).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{size}: {answer}");
    }
    let answer = written_first(proxy.data, "/generate", 4_000_000).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    // other clients are served
    assert_eq!(post(proxy.control, "/v1/policy", b"{}").await.status, 400);
}
