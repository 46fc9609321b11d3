// SPDX-License-Identifier: Apache-2.0
//! Methods, paths and queries are forwarded unchanged or rejected, and only the configured upstream receives them.

use crate::support::client::{Connection, get, request};
use crate::support::manual_upstream::{ManualUpstream, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::message;

async fn started(flags: &[&str]) -> (ManualUpstream, Proxy) {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, flags).await;
    (upstream, proxy)
}

#[tokio::test(flavor = "multi_thread")]
async fn methods_paths_and_queries_are_forwarded_unchanged() {
    let (mut upstream, proxy) = started(&[]).await;
    let lines = [
        "GET /health",
        "POST /tokenize?x=1&y=%20%2F&&z",
        "PUT /a%2Fb//c/",
        "DELETE /%7Ba%7D",
        "PATCH /a%2e%2e/b",
        "OPTIONS /v1/models/tiny?",
        "PURGE /~user/(1);v=2,3/@:!$&*+=",
        "REPORT /?%FF%00",
        "GET /...",
    ];
    for line in lines {
        let mut client = Connection::open(proxy.data).await;
        client.send(format!("{line} HTTP/1.1\r\nhost: agent\r\n\r\n").as_bytes()).await;
        let call = upstream.next().await;
        assert_eq!(String::from_utf8_lossy(call.lines()[0]), format!("{line} HTTP/1.1"));
        call.ok().await;
        assert_eq!(client.answer().await.status, 200, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_path_is_rejected_and_named() {
    let (mut upstream, proxy) = started(&[]).await;
    for path in ["/a/../b", "/a/./b", "/..", "/%2e%2e/b", "/a/.%2E", "/{x}", "/a\\b", "/caf\u{e9}", "/a?q='b'"] {
        let answer = get(proxy.data, path).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        let json = answer.json();
        let message = json["error"]["message"].as_str().expect("an error has a message");
        assert!(message.contains(&format!("{path:?}")), "{path} is named in {message}");
    }
    for path in ["/a b", "/a?<b>", "/a#b c", "/\t"] {
        assert_eq!(get(proxy.data, path).await.status, 400, "{path:?} is no HTTP");
    }
    assert!(!upstream.has_more(), "nothing goes upstream");
}

#[tokio::test(flavor = "multi_thread")]
async fn target_without_a_path_is_rejected() {
    let (mut upstream, proxy) = started(&[]).await;
    for line in ["GET metadata.internal:80", "GET metadata.internal", "OPTIONS *"] {
        let mut client = Connection::open(proxy.data).await;
        client.send(format!("{line} HTTP/1.1\r\nhost: agent\r\n\r\n").as_bytes()).await;
        assert_eq!(soon("an answer", client.answer()).await.status, 400, "{line}");
    }
    assert!(!upstream.has_more(), "nothing goes upstream");
}

#[tokio::test(flavor = "multi_thread")]
async fn authority_of_an_absolute_target_is_ignored() {
    let (mut upstream, proxy) = started(&[]).await;
    for (target, path) in [
        ("http://metadata.internal/latest?x=1", "/latest?x=1"),
        ("http://user@metadata.internal:81/", "/"),
        ("http://metadata.internal", "/"),
    ] {
        let mut client = Connection::open(proxy.data).await;
        client.send(format!("GET {target} HTTP/1.1\r\nhost: metadata.internal\r\n\r\n").as_bytes()).await;
        let call = upstream.next().await;
        assert_eq!(call.asked.path, path);
        assert_eq!(call.values("host"), [upstream.addr.to_string()], "the host is the upstream's");
        call.ok().await;
        assert_eq!(client.answer().await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tunnels_and_upgrades_are_not_implemented() {
    let (mut upstream, proxy) = started(&[]).await;
    let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
    assert_eq!(request(proxy.data, "GET", "/v1/realtime", &upgrade, b"").await.status, 501);
    assert_eq!(request(proxy.data, "POST", "/generate", &upgrade, b"{}").await.status, 501);
    let tunnel = request(proxy.data, "CONNECT", "metadata.internal:443", &[], b"").await;
    assert_eq!(tunnel.status, 501);
    assert!(tunnel.json()["error"]["message"].is_string(), "{}", tunnel.text());
    assert!(!upstream.has_more(), "nothing goes upstream");
}

#[tokio::test(flavor = "multi_thread")]
async fn redirect_is_returned_to_the_client() {
    let (mut upstream, proxy) = started(&[]).await;
    let client = tokio::spawn(request(proxy.data, "POST", "/tokenize", &[], b"{}"));
    let target = format!("http://{}/elsewhere", upstream.addr);
    upstream.next().await.reply(&message(307, &[("location", &target)], b"over there")).await;
    let answer = client.await.unwrap();
    assert_eq!((answer.status, answer.header("location")), (307, Some(target.as_str())));
    assert_eq!(answer.text(), "over there");
    assert!(!upstream.has_more(), "the redirect was not followed");
}

#[tokio::test(flavor = "multi_thread")]
async fn generations_that_are_not_captured_are_counted() {
    let (mut upstream, proxy) = started(&["--chat", "passthrough"]).await;
    for (method, path) in [
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/chat/completions?beta=true"),
        ("GET", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/tokenize"),
    ] {
        let client = tokio::spawn(request(proxy.data, method, path, &[], b""));
        upstream.next().await.ok().await;
        assert_eq!(client.await.unwrap().status, 200);
    }
    let count = async |endpoint: &str| {
        let name = format!("tokentap_uncaptured_generations_total{{endpoint=\"{endpoint}\"}}");
        proxy.metric(&name).await
    };
    assert_eq!(count("/v1/chat/completions").await, 2.0, "a GET generates nothing");
    assert_eq!(count("/v1/completions").await, 1.0);
    assert_eq!(count("/tokenize").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn control_port_forwards_only_control_routes() {
    let (mut upstream, proxy) = started(&[]).await;
    for path in ["/pause_generation", "/update_weights_from_disk?x=1", "/flush_cache"] {
        let client = tokio::spawn(request(proxy.control, "POST", path, &[], b"{\"mode\":\"retract\"}"));
        let mut call = upstream.next().await;
        assert_eq!((call.asked.method.as_str(), call.asked.path.as_str()), ("POST", path));
        call.body_until(|body| body == b"{\"mode\":\"retract\"}").await;
        call.ok().await;
        assert_eq!(client.await.unwrap().status, 200);
    }
    for path in ["/generate", "/v1/chat/completions", "/model_info", "/health", "/pause_generation/x"] {
        let answer = request(proxy.control, "POST", path, &[], b"{}").await;
        assert_eq!(answer.status, 404, "{path}");
        let body = answer.json();
        assert!(body["message"].is_string() || body["error"]["message"].is_string(), "{body}");
    }
    assert!(!upstream.has_more(), "nothing else goes upstream");
}
