// SPDX-License-Identifier: Apache-2.0
//! `/openapi.json`: the operations are called with their examples, and each reply is validated against the schema of its status.
//!
//! An object is validated as if it allowed no other members than those that its schema lists, so a member without a description fails.

pub mod document;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde_json::{Value, json};
use tokentap::app::App;
use tokentap::serve::connection::Phase;
use tokio::sync::watch;

use crate::support::binary::Printing;
use crate::support::client::{Answer, Connection, get, post, request, written};
use crate::support::manual_upstream::ManualUpstream;
use crate::support::proxy::{self, Proxy};
use document::{Document, Operation};

/// A `tokentap demo` with the document that it serves.
struct Demo {
    data: SocketAddr,
    control: SocketAddr,
    document: Document,
    _process: Printing,
}

impl Demo {
    async fn start() -> Self {
        let mut process =
            Printing::start(&["demo", "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--log", "off"]);
        let data = address(&process.line("curl -s http://").await);
        let control = address(&process.line("The page: http://").await);
        let document = Document::parse(&get(control, "/openapi.json").await.text());
        Self { data, control, document, _process: process }
    }

    /// Sends a request to the port of its operation, and validates the reply.
    async fn send(&self, (method, target): (&str, &str), headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let operation = self.document.operation(method, target.split('?').next().unwrap());
        let port = if operation.is_of_data_port { self.data } else { self.control };
        let answer = request(port, method, target, headers, body).await;
        self.document.check(operation, &answer);
        answer
    }

    async fn post(&self, target: &str, body: &Value) -> Answer {
        self.send(("POST", target), &[("x-session-id", "s")], body.to_string().as_bytes()).await
    }

    /// Sends the example request of an operation. `id` is that of a stored response of the session `run-3`.
    async fn send_example(&self, operation: &Operation, id: &str) -> Answer {
        let (mut target, mut query, mut headers) = (operation.path.clone(), Vec::new(), Vec::new());
        for parameter in self.document.parameters(operation) {
            let name = parameter["name"].as_str().unwrap().to_owned();
            let value = match &parameter["example"] {
                Value::Null => None,
                Value::String(text) => Some(text.clone()),
                other => Some(other.to_string()),
            };
            match (parameter["in"].as_str().unwrap(), value) {
                ("path", value) => target = target.replace(&format!("{{{name}}}"), value.as_deref().unwrap_or(id)),
                ("query", Some(value)) => query.push(format!("{name}={value}")),
                ("header", Some(_)) if target.starts_with("/v1/responses/") => headers.push((name, "run-3".to_owned())),
                ("header", Some(value)) => headers.push((name, value)),
                _ => {}
            }
        }
        let target = if query.is_empty() { target } else { format!("{target}?{}", query.join("&")) };
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        let body = &operation.value["requestBody"]["content"]["application/json"]["example"];
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.send((&operation.method, &target), &headers, &body).await
    }
}

/// The address in a line that `tokentap demo` prints.
fn address(line: &str) -> SocketAddr {
    let rest = line.split_once("http://").unwrap().1;
    rest.split('/').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn example_requests_have_the_described_replies() {
    let demo = Demo::start().await;
    let mut id = String::new();
    let is_last = |operation: &&Operation| operation.method == "DELETE";
    let first = demo.document.operations.iter().filter(|operation| !is_last(operation));
    for operation in first.chain(demo.document.operations.iter().filter(is_last)) {
        let answer = demo.send_example(operation, &id).await;
        // the request of the example has ended, and the engine reads no pictures
        let is_missing = ["/abort_request", "/v1/sessions/{id}/images/{sha256}"].contains(&&*operation.path);
        let expected = if is_missing { 404 } else { 200 };
        assert_eq!(answer.status, expected, "{} {}: {}", operation.method, operation.path, answer.text());
        if operation.path == "/v1/responses" {
            answer.json()["id"].as_str().unwrap().clone_into(&mut id);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_replies_are_described() {
    let demo = Demo::start().await;
    let few = json!({"max_new_tokens": 3});
    let agent =
        [("x-session-id", "s"), ("user-agent", "claude-cli/2.1.330"), ("x-app", "cli"), ("x-session-done", "1")];
    for (path, body) in [
        (
            "/generate",
            json!({"text": ["a", "b"], "sampling_params": {"max_new_tokens": 2, "n": 2},
            "entropy_options": {"bounds": true, "stats": true, "top_k": 3}}),
        ),
        ("/generate", json!({"text": "a", "return_entropy": false, "sampling_params": few})),
        ("/generate", json!({"text": "a", "stream": true, "entropy_options": {"stats": true}, "sampling_params": few})),
        ("/generate", json!({"text": "a", "entropy_options": {"estimator": "sampled"}, "sampling_params": few})),
        (
            "/v1/chat/completions",
            json!({"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4,
            "return_token_ids": true, "return_meta_info": true, "return_entropy": true}),
        ),
    ] {
        let answer = demo.send(("POST", path), &agent, body.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    for target in [
        "/v1/sessions?order=newest&search=s&limit=1",
        "/v1/sessions?after=0",
        "/v1/sessions/s",
        "/v1/sessions/s?version=1",
        "/v1/sessions/s/trajectories?classes=all",
        "/v1/sessions/s/paths/0",
        "/v1/sessions/s/paths/0?from=0",
        "/v1/trajectories",
        "/v1/trajectories?classes=compaction",
        "/v1/requests?session=s&limit=3",
    ] {
        assert_eq!(demo.send(("GET", target), &[], b"").await.status, 200, "{target}");
    }
    for (path, body) in [
        ("/v1/entropy", json!({"top_logprobs": [[-0.1, -3]], "logprobs": [null], "vocab_size": 8})),
        ("/v1/entropy", json!({"logits": [[1, 2], [-1e31, -1e31]], "token_ids": [0, 1]})),
        ("/v1/sessions/s/reward", json!({"reward": {"score": 1}})),
        ("/v1/samples", json!({"sessions": ["s"], "format": "verl", "max_response_length": 4, "pad_token_id": 1})),
        ("/v1/samples", json!({"sessions": ["s"], "format": "jsonl", "text": true, "classes": ["all"]})),
        ("/v1/samples", json!({"sessions": ["s"], "format": "arrow", "include_branches": false, "version": 1})),
        ("/v1/samples", json!({"sessions": ["s"], "format": "parquet", "exclude": ["column_missing"]})),
        ("/v1/samples", json!({"sessions": ["s"], "format": "miles", "entropies": true})),
        ("/v1/samples", json!({"sessions": ["s"], "format": "rllm", "train_resumed": true})),
        ("/v1/samples", json!({"sessions": ["s"], "format": "strands", "advantages": {"entropy_over": "response"}})),
        (
            "/v1/advantages",
            json!({"groups": [{"id": 7, "samples": [{"session": "s", "reward": 1}]}], "estimator": "egpo",
            "think_start": 5, "think_end": 6, "high_entropy_threshold": 0.5, "lambda": 0.2, "alpha": 1, "normalize_std": false,
            "entropy_over": "response"}),
        ),
        ("/v1/policy", json!({"version": 7})),
    ] {
        let answer = demo.post(path, &body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    // the lines of a session that no longer exists
    assert_eq!(demo.send(("POST", "/v1/sessions/s/freeze"), &[], b"").await.status, 200);
    assert_eq!(demo.send(("DELETE", "/v1/sessions/s"), &[], b"").await.status, 200);
    let gone = demo.send(("GET", "/v1/trajectories"), &[], b"").await.text();
    assert!(gone.contains("\"gone\":\"deleted\""), "{gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn running_sequences_are_described() {
    let demo = Demo::start().await;
    let body =
        json!({"text": "the lamp", "stream": true, "sampling_params": {"max_new_tokens": 100_000, "ignore_eos": true}});
    let mut stream = Connection::open(demo.data).await;
    stream.send(&written(demo.data, "POST", "/sessions/s/generate", &[], body.to_string().as_bytes())).await;
    assert!(stream.read_until(|read| memchr::memmem::find(read, b"output_token_entropy").is_some()).await);
    // it runs as long as its client does not read the rest
    let listed = demo.send(("GET", "/v1/requests?recent=4"), &[], b"").await.json();
    assert!(!listed["requests"][0]["entropy"].as_array().unwrap().is_empty(), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_described() {
    let demo = Demo::start().await;
    assert_eq!(
        demo.post("/generate", &json!({"text": "a", "sampling_params": {"max_new_tokens": 2}})).await.status,
        200
    );
    let groups = |groups: Value| json!({"groups": groups});
    let sample = json!({"session": "s", "reward": 1});
    for (method, target, body, status, code) in [
        ("GET", "/v1/sessions?limit=x", json!(null), 400, "bad_request"),
        ("GET", "/v1/sessions?version=1", json!(null), 400, "bad_request"),
        ("DELETE", "/v1/sessions/s?version=1", json!(null), 400, "bad_request"),
        ("GET", "/v1/sessions/none", json!(null), 404, "no_such_session"),
        ("GET", "/v1/sessions/s?version=9", json!(null), 404, "no_such_version"),
        ("GET", "/v1/sessions/s/paths/9", json!(null), 404, "no_such_leaf"),
        ("GET", "/v1/sessions/s/paths/x", json!(null), 400, "bad_request"),
        ("GET", "/v1/sessions/s/images/x", json!(null), 400, "bad_request"),
        ("GET", &format!("/v1/sessions/s/images/{}", "0".repeat(64)), json!(null), 404, "no_such_image"),
        ("GET", "/v1/sessions/none/trajectories", json!(null), 404, "no_such_session"),
        ("GET", "/v1/trajectories?since=other-1", json!(null), 410, "other_store"),
        ("GET", "/v1/requests/none/entropy", json!(null), 404, "not_found"),
        ("POST", "/v1/sessions/none/freeze", json!(null), 404, "no_such_session"),
        ("POST", "/v1/sessions/s/reward", json!({"reward": "x"}), 400, "bad_request"),
        ("POST", "/v1/sessions/s/reward", json!({"reward": 1, "leaf": 9}), 404, "no_such_leaf"),
        ("POST", "/v1/sessions/s/reward", json!({"reward": {"x": "x".repeat(70_000)}}), 413, "reward_too_large"),
        ("POST", "/v1/samples", json!({"sessions": ["s"], "format": "none"}), 400, "bad_request"),
        ("POST", "/v1/samples", json!({"sessions": ["none"], "format": "jsonl"}), 404, "no_such_session"),
        ("POST", "/v1/samples", json!({"sessions": ["s"], "format": "jsonl", "advantages": {}}), 400, "missing_reward"),
        (
            "POST",
            "/v1/samples",
            json!({"sessions": ["s"], "format": "jsonl", "advantages": {"alpha": 0}}),
            400,
            "invalid_parameter",
        ),
        ("POST", "/v1/advantages", json!({}), 400, "bad_request"),
        ("POST", "/v1/advantages", json!({"groups": [], "alpha": 0}), 400, "invalid_parameter"),
        ("POST", "/v1/advantages", groups(json!([{"id": 1, "samples": []}])), 400, "empty_group"),
        (
            "POST",
            "/v1/advantages",
            groups(json!([{"id": 1, "samples": [{"session": "s", "reward": 1e39}]}])),
            400,
            "invalid_reward",
        ),
        ("POST", "/v1/advantages", groups(json!([{"id": 1, "samples": [{"session": "s"}]}])), 400, "missing_reward"),
        (
            "POST",
            "/v1/advantages",
            groups(json!([{"id": 1, "samples": [sample]}, {"id": 1, "samples": [sample]}])),
            400,
            "duplicate_group",
        ),
        ("POST", "/v1/advantages", groups(json!([{"id": 1, "samples": [sample, sample]}])), 400, "bad_request"),
        (
            "POST",
            "/v1/advantages",
            groups(json!([{"id": 1, "samples": [{"session": "s", "leaf": 9, "reward": 1}]}])),
            404,
            "not_found",
        ),
        ("GET", "/v1/sessions/s/trajectories?scores=none", json!(null), 400, "missing_scores"),
        (
            "POST",
            "/v1/advantages",
            groups(json!([{"id": 1, "samples": [{"session": "none", "reward": 1}]}])),
            404,
            "no_such_session",
        ),
        ("POST", "/v1/policy", json!({"version": ""}), 400, "bad_request"),
        ("POST", "/v1/entropy", json!({"shm": {"name": "x"}}), 403, "no_shm_dir"),
        ("POST", "/v1/entropy", json!({"logits": [vec![0; 70_000]]}), 413, "too_large"),
        ("POST", "/v1/entropy", json!({"logits": [[0], [0, 1]]}), 400, "bad_request"),
    ] {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let answer = demo.send((method, target), &[], &body).await;
        let about = format!("{method} {target}: {}", answer.text());
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (status, &json!(code)), "{about}");
    }
    let invalid = demo.send(("GET", "/v1/policy"), &[("host", "a b")], b"").await;
    assert_eq!((invalid.status, &invalid.json()["error"]["code"]), (400, &json!("bad_request")));
    let text = demo.send(("POST", "/v1/entropy"), &[("content-type", "text/plain")], b"x").await;
    assert_eq!((text.status, &text.json()["error"]["code"]), (415, &json!("content_type")));
    let frozen = demo.send(("POST", "/v1/sessions/s/freeze"), &[], b"").await;
    assert_eq!(frozen.status, 200);
    let late = demo.post("/v1/sessions/s/reward", &json!({"reward": 1})).await;
    assert_eq!((late.status, &late.json()["error"]["code"]), (409, &json!("frozen")));
    for (path, body, status) in [
        ("/generate", json!({"text": "a", "entropy_options": {"top_k": 0}}), 400),
        // refused by the engine
        ("/generate", json!({"text": 5}), 400),
        ("/generate", json!([1]), 400),
        ("/v1/responses", json!({"model": "demo", "input": "a", "previous_response_id": "resp_0"}), 404),
        ("/v1/responses/input_tokens", json!({"model": "demo", "input": "a", "previous_response_id": "resp_0"}), 404),
        ("/v1/chat/completions", json!({"model": "demo"}), 400),
        ("/v1/completions", json!({"model": "demo", "prompt": 7.5}), 400),
        ("/v1/responses", json!({"model": "demo"}), 400),
        ("/v1/messages", json!({"model": "demo", "max_tokens": 1}), 400),
        ("/abort_request", json!({"abort_all": true}), 403),
    ] {
        let answer = demo.post(path, &body).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
    }
    let missing = demo.send(("GET", "/v1/responses/resp_00000000000000000000"), &[("x-session-id", "s")], b"").await;
    assert_eq!(missing.status, 404, "{}", missing.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_requests_are_described() {
    let upstream = ManualUpstream::start().await;
    let proxy =
        Proxy::start(upstream.addr, &["--control-token", "c", "--metrics-token", "m", "--agent-token", "a"]).await;
    let (bearer, strange) = (("authorization", "Bearer c"), ("host", "elsewhere"));
    let document = Document::parse(&get(proxy.control, "/openapi.json").await.text());
    for operation in &document.operations {
        let port = if operation.is_of_data_port { proxy.data } else { proxy.control };
        let target = operation.path.replace("{file}", "main.js").replace(['{', '}'], "");
        let path = &*operation.path;
        let is_open = matches!(path, "/livez" | "/readyz");
        let is_page = path == "/openapi.json" || path == "/" || path.starts_with("/page/");
        let without_token = request(port, &operation.method, &target, &[], b"").await;
        assert_eq!(without_token.status == 401, !is_open && !is_page, "{} {path}", operation.method);
        document.check(operation, &without_token);
        if !operation.is_of_data_port && !is_open && path != "/metrics" {
            let from_elsewhere = request(port, &operation.method, &target, &[bearer, strange], b"").await;
            assert_eq!(from_elsewhere.status, 403, "{} {path}", operation.method);
            document.check(operation, &from_elsewhere);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn document_is_served_as_a_file() {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, &["--control-token", "c"]).await;
    let answer = get(proxy.control, "/openapi.json").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    assert_eq!(answer.json()["info"]["version"], env!("CARGO_PKG_VERSION"));
    let tag = answer.header("etag").unwrap();
    let cached = [("if-none-match", tag), ("connection", "close")];
    assert_eq!(request(proxy.control, "GET", "/openapi.json", &cached, b"").await.status, 304);
    assert_eq!(request(proxy.control, "HEAD", "/openapi.json", &[], b"").await.status, 200);
    let refused = post(proxy.control, "/openapi.json", b"{}").await;
    assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, HEAD")));
    let metrics = get(proxy.control, "/metrics").await.text();
    assert!(metrics.contains("endpoint=\"/openapi.json\""), "requests are counted under their path");
}

#[tokio::test(flavor = "multi_thread")]
async fn document_of_the_data_port_is_the_engines() {
    let demo = Demo::start().await;
    // the demo engine has none
    assert_eq!(get(demo.data, "/openapi.json").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_are_valid() {
    let count = Demo::start().await.document.check_examples();
    assert!(count > 100, "{count} examples were found");
}

#[tokio::test(flavor = "multi_thread")]
async fn apis_of_the_data_port_are_described() {
    let upstream = ManualUpstream::start().await;
    let (_phase, watched) = watch::channel(Phase::Serving);
    let app = App::bind(proxy::config(upstream.addr, &[]), watched).await.unwrap();
    let served: BTreeSet<&str> = app.api_paths().chain(["/generate", "/abort_request"]).collect();
    let demo = Demo::start().await;
    let described = demo.document.operations.iter().filter(|operation| operation.is_of_data_port);
    assert_eq!(described.map(|operation| &*operation.path).collect::<BTreeSet<&str>>(), served);
}
