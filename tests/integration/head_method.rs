// SPDX-License-Identifier: Apache-2.0
//! HEAD on every route of both ports: the head of GET, no body, and a reusable connection. Also the `allow` header of a 405.

use std::net::SocketAddr;

use serde_json::json;
use tokentap::demo::EngineOptions;

use crate::support::client::{Connection, request};
use crate::support::demo::Demo;

/// Pipelines two requests; returns the lines of the first answer's head, and the bytes after it.
async fn pipeline(addr: SocketAddr, first: &str, second: &str) -> (Vec<String>, String) {
    let mut client = Connection::open(addr).await;
    let head = |line: &str, more: &str| format!("{line} HTTP/1.1\r\nhost: localhost\r\n{more}\r\n");
    client.send((head(first, "") + &head(second, "connection: close\r\n")).as_bytes()).await;
    client.closed().await;
    let text = String::from_utf8_lossy(client.seen()).into_owned();
    let (head, rest) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{first}: {text:?}"));
    (head.lines().map(str::to_ascii_lowercase).collect(), rest.to_owned())
}

/// The parts of a head that must be equal for HEAD and GET.
fn comparable_head(lines: &[String]) -> (String, Vec<&String>) {
    let is_kept =
        |line: &&String| ["content-type:", "content-length:", "allow:"].iter().any(|name| line.starts_with(name));
    let mut kept: Vec<&String> = lines.iter().filter(is_kept).collect();
    kept.sort();
    (lines[0].clone(), kept)
}

/// Routes that answer GET themselves, and routes that refuse it.
const CONTROL: [&str; 23] = [
    "/",
    "/page/main.js",
    "/livez",
    "/readyz",
    "/v1/sessions",
    "/v1/sessions/s",
    "/v1/sessions/unknown",
    "/v1/sessions/s/trajectories",
    "/v1/sessions/s/paths/0",
    "/v1/sessions/s/paths/0?from=0&limit=2",
    "/v1/sessions/s/freeze",
    "/v1/sessions/s/reward",
    "/v1/trajectories",
    "/v1/samples",
    "/v1/advantages",
    "/v1/entropy",
    "/v1/policy",
    "/v1/requests",
    "/v1/requests/r/entropy",
    "/v1/requests/unknown/entropy",
    "/v1/unknown",
    "/pause_generation",
    "/unknown",
];

const DATA: [&str; 9] = [
    "/generate",
    "/sessions/s/generate",
    "/sessions/run:7/generate",
    "/v1/chat/completions",
    "/tokenize",
    "/flush_cache",
    "/update_weights_from_disk",
    "/abort_request",
    "/unknown",
];

#[tokio::test(flavor = "multi_thread")]
async fn head_returns_the_head_of_get_without_a_body() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let body = json!({"input_ids": [1, 2, 3], "rid": "r", "sampling_params": {"max_new_tokens": 4}});
    assert_eq!(demo.post("/sessions/s/generate", &body).await.status, 200);
    let control = CONTROL.iter().map(|path| (demo.proxy.control, *path, "GET /livez"));
    let data = DATA.iter().map(|path| (demo.proxy.data, *path, "GET /health"));
    for (addr, path, next) in control.chain(data) {
        let (head, rest) = pipeline(addr, &format!("HEAD {path}"), next).await;
        let (get, _) = pipeline(addr, &format!("GET {path}"), next).await;
        assert_eq!(comparable_head(&head), comparable_head(&get), "{path}");
        assert!(rest.starts_with("HTTP/1.1 200"), "HEAD {path} has no body: {rest:?} follows its head");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn method_not_allowed_lists_the_allowed_methods() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    for (method, path, allowed) in [
        ("POST", "/", "GET, HEAD"),
        ("POST", "/v1/sessions", "GET, HEAD"),
        ("POST", "/v1/sessions/s", "GET, HEAD, DELETE"),
        ("DELETE", "/v1/sessions/s/trajectories", "GET, HEAD"),
        ("GET", "/v1/sessions/s/freeze", "POST"),
        ("GET", "/v1/samples", "POST"),
        ("PUT", "/v1/policy", "GET, HEAD, POST"),
        ("POST", "/v1/requests", "GET, HEAD"),
        ("POST", "/v1/requests/r/entropy", "GET, HEAD"),
        ("POST", "/livez", "GET, HEAD"),
        ("TRACE", "/readyz", "GET, HEAD"),
        ("DELETE", "/metrics/", "GET, HEAD"),
    ] {
        let answer = request(demo.proxy.control, method, path, &[], b"").await;
        assert_eq!((answer.status, answer.header("allow")), (405, Some(allowed)), "{method} {path}");
    }
}
