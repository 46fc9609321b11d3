// SPDX-License-Identifier: Apache-2.0
//! Unusual request heads: each complete request is answered, independent of its line ends.

use crate::support::client::{Connection, get};
use crate::support::manual_upstream::{ManualUpstream, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, Upstream, json_message};

/// Waits until a connection that opens now exceeds the header timeout.
async fn header_timeout_passes(proxy: &Proxy) {
    Connection::open(proxy.data).await.closed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn header_timeout_does_not_cut_a_complete_request() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, &["limit:client-header-timeout", "200ms"]).await;
    for head in [
        "GET /health HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET /health HTTP/1.1\nhost: a\n\n",
        "GET /health HTTP/1.1\r\nhost: a\r\n\n",
        "GET /health HTTP/1.1\nhost: a\n\r\n",
        "GET /health HTTP/1.0\n\n",
        "\n\r\nGET /health HTTP/1.1\nhost: a\n\n",
    ] {
        let mut client = Connection::open(proxy.data).await;
        client.send(head.as_bytes()).await;
        let call = upstream.next().await;
        header_timeout_passes(&proxy).await;
        call.ok().await;
        assert_eq!(soon("an answer", client.answer()).await.status, 200, "{head:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_lines_before_a_request_do_not_end_the_header_timeout() {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, &["limit:client-header-timeout", "200ms"]).await;
    for lines in ["\r\n\r\n", "\n\n", "\r\n\r\nGET /health HTTP/1.1\r\nhost: a\r\n", "\n\nG"] {
        let mut client = Connection::open(proxy.data).await;
        client.send(lines.as_bytes()).await;
        client.closed().await;
    }
}

/// Complete or invalid heads, and the status of the answer.
fn odd_heads() -> Vec<(String, u16)> {
    let with = |line: &str| format!("GET /health HTTP/1.1\r\nhost: a\r\n{line}\r\n\r\n");
    let many = |count: usize| (0..count).map(|at| format!("x-{at}: b\r\n")).collect::<String>();
    let mut heads: Vec<(String, u16)> = [
        ("GET /health HTTP/1.1\r\nhost: a\r\n\r\n", 200),
        ("GET /health HTTP/1.1\nhost: a\n\n", 200),
        ("GET /health HTTP/1.1\r\nhost: a\r\n\n", 200),
        ("GET /health HTTP/1.1\nhost: a\r\n\n", 200),
        ("GET /health HTTP/1.0\r\n\r\n", 200),
        ("GET /health HTTP/1.0\n\n", 200),
        ("\n\n\r\nGET /health HTTP/1.1\nhost: a\n\n", 200),
        ("GET http://b/health HTTP/1.1\r\nhost: a\r\n\r\n", 200),
        ("GET /health HTTP/1.1\r\nhost:\r\n\r\n", 200),
        ("get /health HTTP/1.1\r\nhost: a\r\n\r\n", 200),
        ("M-SEARCH /health HTTP/1.1\r\nhost: a\r\n\r\n", 200),
        ("OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\n", 501),
        ("GET /health HTTP/1.1\r\n\r\n", 400),
        ("GET /health HTTP/1.1\n\n", 400),
        ("GET /health HTTP/1.2\r\nhost: a\r\n\r\n", 400),
        ("GET /health HTTP/3\r\n\r\n", 400),
        ("GET /health\r\n\r\n", 400),
        ("GET /health\n", 400),
        ("GET\r\n\r\n", 400),
        ("GET\n\n", 400),
        (" GET /health HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET  /health HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET /he alth HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET /health HTTP/1.1\rhost: a\r\r", 400),
        ("GET /health HTTP/1.1\r\r\nhost: a\r\n\r\n", 400),
        ("GET /health HTTP/1.1\r\nhost: a\r\r\n\r\n", 400),
        ("GET /health HTTP/1.1\r\nhost : a\r\n\r\n", 400),
        ("GET /health HTTP/1.1\r\nhost: a\r\n b\r\n\r\n", 400),
        ("PRI * HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", 400),
        ("PRI * HTTP/2.0\n\nSM\n\n", 400),
        ("\0\0\0\0", 400),
        ("\u{16}\u{3}\u{1}\u{2}", 400),
    ]
    .map(|(head, status)| (head.to_owned(), status))
    .into();
    heads.push((with("content-length: x"), 400));
    heads.push((with("content-length: 1\r\ncontent-length: 2"), 400));
    heads.push((with("transfer-encoding: gzip"), 400));
    heads.push((with(&format!("x: {}", "y".repeat(70_000))), 431));
    heads.push((with(many(200).trim_end()), 431));
    heads.push((format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "y".repeat(70_000)), 431));
    heads
}

#[tokio::test(flavor = "multi_thread")]
async fn every_head_gets_its_status() {
    let upstream = Upstream::start(EngineProfile::default(), |_| json_message(200, b"{}")).await;
    let proxy = Proxy::start(upstream.addr, &["limit:client-header-timeout", "2s"]).await;
    let mut wrong = Vec::new();
    for (head, status) in odd_heads() {
        let mut client = Connection::open(proxy.data).await;
        client.send(head.as_bytes()).await;
        let answer = soon("an answer", client.answer()).await;
        if answer.status != status {
            let beginning: String = head.chars().take(80).collect();
            wrong.push(format!("{beginning:?}: {} instead of {status}", answer.status));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(get(proxy.control, "/livez").await.status, 200);
}
