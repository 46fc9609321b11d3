// SPDX-License-Identifier: Apache-2.0
//! Limits of count and time for clients and upstreams.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::binary::Binary;
use crate::support::client::{Connection, get, post, request};
use crate::support::engine;
use crate::support::manual_upstream::{END, ManualUpstream, STREAM, event, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, Upstream, message};

/// Long enough for a busy machine, short enough to wait for.
const LIMIT: Duration = Duration::from_millis(200);

async fn start(flags: &[&str]) -> (ManualUpstream, Proxy) {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, flags).await;
    (upstream, proxy)
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_headers_end_the_connection() {
    let (mut upstream, proxy) = start(&["limit:client-header-timeout", "200ms"]).await;
    for beginning in [
        "",
        "P",
        "PRI * HTTP/2.0\r\n\r\nSM",
        "G",
        "POST /health HTTP/1.1\r\n",
        "GET /health HTTP/1.1\r\nhost: agent\r\n",
    ] {
        let opened = Instant::now();
        let mut client = Connection::open(proxy.data).await;
        client.send(beginning.as_bytes()).await;
        client.closed().await;
        assert!(opened.elapsed() >= LIMIT, "{beginning:?} is not closed early");
    }
    assert!(!upstream.has_more(), "nothing goes upstream");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connection_is_closed() {
    let (mut upstream, proxy) = start(&["limit:client-idle-timeout", "200ms"]).await;
    let mut client = Connection::open(proxy.data).await;
    client.send(b"GET /health HTTP/1.1\r\nhost: agent\r\n\r\n").await;
    upstream.next().await.ok().await;
    assert_eq!(client.answer().await.status, 200);
    client.closed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_body_returns_408() {
    let (mut upstream, proxy) = start(&["limit:client-body-timeout", "200ms"]).await;
    for path in ["/generate", "/tokenize"] {
        for head in ["content-length: 10\r\n\r\nhalf", "transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n"] {
            let mut client = Connection::open(proxy.data).await;
            client.send(format!("POST {path} HTTP/1.1\r\nhost: agent\r\n{head}").as_bytes()).await;
            let answer = soon("an answer", client.answer()).await;
            assert_eq!(answer.status, 408, "{path}: {}", answer.text());
            assert!(answer.text().contains("too slowly"), "{}", answer.text());
            client.closed().await;
            if path == "/tokenize" {
                upstream.next().await.closed().await;
            }
        }
    }
    assert!(!upstream.has_more(), "a generation is sent when its body is complete");
    for kind in ["reset", "timeout"] {
        let name = format!("tokentap_upstream_errors_total{{kind=\"{kind}\"}}");
        assert_eq!(proxy.metric(&name).await, 0.0, "{kind}: the upstream did not fail");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trickled_body_returns_408() {
    let (mut upstream, proxy) = start(&["limit:client-body-timeout", "500ms"]).await;
    let mut client = Connection::open(proxy.data).await;
    client.send(b"POST /generate HTTP/1.1\r\nhost: agent\r\ncontent-length: 100000\r\n\r\n").await;
    let mut drops = tokio::time::interval(LIMIT / 4);
    let answered = async {
        loop {
            tokio::select! {
                _ = client.read_until(|read| !read.is_empty()) => return client.answer().await,
                _ = drops.tick() => client.send(b"x").await,
            }
        }
    };
    let answer = soon("an answer, although it never pauses for as long", answered).await;
    assert_eq!(answer.status, 408, "{}", answer.text());
    assert!(!upstream.has_more(), "nothing goes upstream");
}

#[tokio::test(flavor = "multi_thread")]
async fn body_above_the_limit_returns_413() {
    let (mut upstream, proxy) = start(&["--max-request-bytes", "100"]).await;
    let large = [b'a'; 101];
    let answer = post(proxy.data, "/generate", &large).await;
    assert_eq!(answer.status, 413);
    assert!(answer.text().contains("--max-request-bytes"), "{}", answer.text());
    let mut client = Connection::open(proxy.data).await;
    client.send(b"POST /generate HTTP/1.1\r\nhost: agent\r\ntransfer-encoding: chunked\r\n\r\n65\r\n").await;
    client.send(&large).await;
    assert_eq!(soon("an answer", client.answer()).await.status, 413, "without a length, too");
    assert!(!upstream.has_more(), "nothing goes upstream");
    let client = tokio::spawn(async move { post(proxy.data, "/generate", &large[..100]).await });
    assert_eq!(
        upstream.next().await.asked.body.len(),
        100,
        "the limit itself is allowed, and invalid JSON is forwarded"
    );
    drop(client);
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_or_too_large_headers_return_431() {
    let (mut upstream, proxy) = start(&[]).await;
    let names: Vec<String> = (0..150).map(|at| format!("x-{at}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    assert_eq!(request(proxy.data, "GET", "/health", &many, b"").await.status, 431);
    let long = "a".repeat(70_000);
    assert_eq!(request(proxy.data, "GET", "/health", &[("x-long", &long)], b"").await.status, 431);
    assert!(!upstream.has_more(), "nothing goes upstream");
}

#[tokio::test(flavor = "multi_thread")]
async fn permit_is_held_until_the_last_byte_of_the_reply() {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &["--max-requests", "1"]).await;
    let mut upstream = upstream;
    for path in ["/generate", "/v1/chat/completions"] {
        let mut client = Connection::open(proxy.data).await;
        let body = "{\"text\":\"a\",\"stream\":true}";
        let head = format!("POST {path} HTTP/1.1\r\nhost: agent\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        client.send(head.as_bytes()).await;
        let mut call = upstream.next().await;
        let refused = get(proxy.data, "/health").await;
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "before the head: {path}");
        assert!(refused.json()["error"]["message"].as_str().unwrap().contains("--max-requests"), "{}", refused.text());
        call.send(STREAM).await;
        call.send(&event("r", 0)).await;
        assert!(client.read_until(|read| read.ends_with(b"}\n\n\r\n")).await);
        assert_eq!(get(proxy.data, "/health").await.status, 503, "in the middle of the body: {path}");
        if path == "/generate" {
            call.reply(END).await;
            assert!(client.answer().await.complete);
        } else {
            drop(client);
            call.closed().await;
        }
        // the body and its permit are dropped before the request becomes inactive
        let active = format!("tokentap_http_requests_active{{endpoint=\"{path}\"}}");
        soon("the permit is released", async { while proxy.metric(&active).await > 0.0 {} }).await;
        let next = tokio::spawn(get(proxy.data, "/health"));
        upstream.next().await.ok().await;
        assert_eq!(next.await.unwrap().status, 200, "{path}");
    }
    assert_eq!(proxy.metric("tokentap_shed_total{reason=\"max_requests\"}").await, 4.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_above_the_limit_waits() {
    let (mut upstream, proxy) = start(&["--max-connections", "1"]).await;
    let first = Connection::open(proxy.data).await;
    let mut second = Connection::open(proxy.data).await;
    second.send(b"GET /health HTTP/1.1\r\nhost: agent\r\n\r\n").await;
    assert_eq!(get(proxy.control, "/livez").await.status, 200, "the control port has a separate limit");
    assert!(!upstream.has_more(), "the first connection has the only slot");
    drop(first);
    upstream.next().await.ok().await;
    assert_eq!(second.answer().await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_upstream_times_out_only_without_a_generation() {
    let (mut upstream, proxy) = start(&["--upstream-timeout", "200ms"]).await;
    let mut patient = Vec::new();
    for (port, path) in [
        (proxy.data, "/generate"),
        (proxy.data, "/v1/chat/completions"),
        (proxy.control, "/pause_generation"),
        (proxy.control, "/update_weights_from_disk"),
    ] {
        let client = tokio::spawn(post(port, path, b"{}"));
        patient.push((path, client, upstream.next().await));
    }
    let client = tokio::spawn(get(proxy.data, "/health"));
    let silent = upstream.next().await;
    let answer = client.await.unwrap();
    assert_eq!(answer.status, 504);
    assert!(answer.json()["error"]["message"].is_string(), "{}", answer.text());
    silent.closed().await;
    assert_eq!(proxy.metric("tokentap_upstream_errors_total{kind=\"timeout\"}").await, 1.0);
    for (path, client, call) in patient {
        assert!(!client.is_finished(), "{path} has waited longer than that");
        call.ok().await;
        assert_eq!(client.await.unwrap().status, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_body_is_cut_only_without_a_generation() {
    let (mut upstream, proxy) = start(&["--upstream-timeout", "200ms"]).await;
    let mut calls = Vec::new();
    for path in ["/health", "/v1/chat/completions", "/generate"] {
        let client = tokio::spawn(post(proxy.data, path, b"{\"text\":\"a\",\"stream\":true}"));
        let mut call = upstream.next().await;
        call.send(STREAM).await;
        call.send(&event("r", 0)).await;
        calls.push((client, call));
    }
    let (client, call) = calls.remove(0);
    let cut = soon("the body is cut", client).await.unwrap();
    assert_eq!((cut.status, cut.complete), (200, false));
    assert_eq!(proxy.metric("tokentap_upstream_errors_total{kind=\"timeout\"}").await, 1.0);
    call.closed().await;
    for (client, call) in calls {
        assert!(!client.is_finished(), "it has paused longer than that");
        call.reply(END).await;
        assert!(client.await.unwrap().complete);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_timeout_of_zero_is_no_limit() {
    let zero = ["--upstream-timeout", "0"];
    let (mut upstream, proxy) = start(&zero).await;
    let client = tokio::spawn(get(proxy.data, "/health"));
    upstream.next().await.reply(&message(200, &[], b"ok")).await;
    assert_eq!(client.await.unwrap().text(), "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_leave_files_for_probes_under_a_low_ulimit() {
    let upstream = ManualUpstream::start().await;
    let binary = Binary::within(upstream.addr, &[], "-n 100").await;
    let warned =
        |line: &serde_json::Value| line["message"].as_str().is_some_and(|message| message.contains("ulimit -n"));
    assert!(binary.skipped_lines.iter().any(warned), "{:?}", binary.skipped_lines);
    let mut idle = Vec::new();
    // more than the limit of files, and within the backlog of a system with a short queue
    for _ in 0..120 {
        idle.push(Connection::open(binary.data).await);
    }
    for probe in 0..3 {
        let answer = soon("probes are answered", get(binary.control, "/livez")).await;
        assert_eq!(answer.status, 200, "{probe}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn soft_limit_of_open_files_is_raised() {
    let upstream = ManualUpstream::start().await;
    let binary = Binary::within(upstream.addr, &[], "-Sn 100").await;
    let mut open = Vec::new();
    for _ in 0..200 {
        let mut client = Connection::open(binary.control).await;
        client.send(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        assert_eq!(soon("an answer", client.answer()).await.status, 200);
        open.push(client);
    }
}

/// A session at its limit of turns or branches rejects further calls; other sessions do not.
#[tokio::test(flavor = "multi_thread")]
async fn full_session_returns_403() {
    for (limit, what, allowed, continued) in [("2", "turns", 2, true), ("17", "branches", 16, false)] {
        let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
        let proxy = Proxy::start(upstream.addr, &["limit:max-session-turns", limit]).await;
        let call = async |session: &str, ids: Value| {
            let body = json!({"input_ids": ids, "sampling_params": {"max_new_tokens": 4}}).to_string();
            request(proxy.data, "POST", "/generate", &[("x-session-id", session)], body.as_bytes()).await
        };
        assert_eq!(call("full", json!([1, 2])).await.status, 200);
        let session = proxy.parts.sessions.session("full").unwrap();
        for at in 1..allowed {
            let ids = if continued { session.tokens(0) } else { vec![9, at] };
            assert_eq!(call("full", json!(ids)).await.status, 200);
        }
        let refused = call("full", json!([7])).await;
        assert_eq!(refused.status, 403, "{}", refused.text());
        let text = refused.text();
        assert!(text.contains(&format!("{allowed} {what}")), "{text}");
        assert_eq!(session.summary().turns, allowed as usize, "nothing was sampled for it");
        assert_eq!(call("other", json!([7])).await.status, 200);
    }
}
