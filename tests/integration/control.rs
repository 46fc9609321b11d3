// SPDX-License-Identifier: Apache-2.0
//! The control port: probes, metrics, access control, and live entropy.

use serde_json::{Value, json};
use tokio::net::TcpSocket;

use crate::support::client::{Connection, get, post, request, written};
use crate::support::manual_upstream::{END, ManualUpstream, STREAM, chunk, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::message;

#[tokio::test(flavor = "multi_thread")]
async fn readiness_follows_the_upstream_and_liveness_does_not() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let proxy = Proxy::start(socket.local_addr().unwrap(), &[]).await;
    assert_eq!(get(proxy.control, "/livez").await.status, 200);
    let waiting = get(proxy.control, "/readyz").await;
    assert_eq!(waiting.status, 503);
    assert!(waiting.text().contains(&socket.local_addr().unwrap().to_string()), "{}", waiting.text());
    assert_eq!(proxy.metric("tokentap_upstream_up").await, 0.0);
    let _hand = ManualUpstream::on(socket.listen(16).unwrap());
    let mut ready = proxy.parts.ready.clone();
    soon("the upstream is found", ready.wait_for(|ready| *ready)).await.unwrap();
    assert_eq!(get(proxy.control, "/readyz").await.status, 200);
    assert_eq!(get(proxy.control, "/livez").await.status, 200);
    assert_eq!(proxy.metric("tokentap_upstream_up").await, 1.0);
    assert_eq!(request(proxy.control, "HEAD", "/readyz", &[], b"").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_path_accepts_a_trailing_slash_and_a_query() {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, &[]).await;
    for path in ["/metrics", "/metrics/", "/metrics?name[]=x"] {
        let answer = get(proxy.control, path).await;
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"), "{path}");
        assert!(answer.text().contains("\ntokentap_build_info{"), "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn query_parameter_of_another_route_returns_400() {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, &[]).await;
    for (method, target, message) in [
        (
            "GET",
            "/v1/sessions?since=1",
            "unknown query member \"since\"; the members are after, limit, order, search, sort, where and same_prompt",
        ),
        ("GET", "/v1/sessions/s?limit=1", "unknown query member \"limit\"; the only member is version"),
        ("DELETE", "/v1/sessions/s?version=1", "unknown query member \"version\"; this request has no query"),
    ] {
        let answer = request(proxy.control, method, target, &[], b"").await;
        assert_eq!((answer.status, &answer.json()["error"]["message"]), (400, &json!(message)), "{method} {target}");
    }
    // a client may write the first page so
    assert_eq!(get(proxy.control, "/v1/sessions?after=&search=").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn control_and_metrics_tokens_are_separate() {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, &["--control-token", "control", "--metrics-token", "metrics"]).await;
    let status = async |method: &str, path: &str, key: &str| {
        let headers = [("authorization", key)];
        let headers = if key.is_empty() { &[][..] } else { &headers[..] };
        request(proxy.control, method, path, headers, b"").await.status
    };
    for path in ["/livez", "/readyz"] {
        assert_ne!(status("GET", path, "").await, 401, "{path} is open");
    }
    let entropy = "/v1/requests/x/entropy";
    for wrong in ["", "Bearer ", "Bearer metric", "Bearer metricss", "metrics", "Basic metrics", "Bearer control"] {
        assert_eq!(status("GET", "/metrics", wrong).await, 401, "{wrong:?}");
    }
    for wrong in ["", "Bearer ", "Bearer contro", "Bearer controll", "control", "Bearer metrics"] {
        assert_eq!(status("GET", entropy, wrong).await, 401, "{wrong:?}");
        assert_eq!(status("POST", "/pause_generation", wrong).await, 401, "{wrong:?}");
        assert_eq!(status("GET", "/no-such-route", wrong).await, 401, "{wrong:?}");
    }
    assert_eq!(status("GET", "/metrics", "Bearer metrics").await, 200);
    assert_eq!(status("GET", entropy, "Bearer control").await, 404, "authorised, but not found");
}

#[tokio::test(flavor = "multi_thread")]
async fn control_token_none_leaves_the_port_open() {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, &["--control-token", "none"]).await;
    assert_eq!(get(proxy.control, "/v1/sessions").await.status, 200);
    let proxy = Proxy::start(upstream.addr, &["--control-token", "nones"]).await;
    assert_eq!(get(proxy.control, "/v1/sessions").await.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn control_token_is_not_forwarded_to_the_engine() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, &["--control-token", "control", "--upstream-admin-key", "admin"]).await;
    let client = tokio::spawn(async move {
        request(proxy.control, "POST", "/pause_generation", &[("authorization", "Bearer control")], b"{}").await
    });
    let call = upstream.next().await;
    assert_eq!(call.values("authorization"), ["Bearer admin"], "the admin key replaces the control token");
    call.ok().await;
    assert_eq!(client.await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_hosts_and_origins_return_403() {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, &["--control-host", "trainer.internal,other"]).await;
    let path = "/v1/requests/x/entropy";
    let status =
        async |name: &str, value: &str| request(proxy.control, "GET", path, &[(name, value)], b"").await.status;
    for own in [
        "localhost",
        "LOCALHOST:30002",
        "127.0.0.1",
        "127.0.0.1:1",
        "[::1]:30002",
        "[::1]",
        "trainer.internal",
        "Other:80",
    ] {
        assert_eq!(status("host", own).await, 404, "{own} is accepted");
    }
    for foreign in ["evil.example", "localhost.evil.example", "evil.example:30002", "10.0.0.1", "[fe80::1]", ""] {
        assert_eq!(status("host", foreign).await, 403, "{foreign:?}");
    }
    for invalid in ["[::1].evil.com:1", "[::1]evil.com", "[127.0.0.1].evil.com"] {
        assert_eq!(status("host", invalid).await, 400, "{invalid}");
    }
    let own = format!("http://{}", proxy.control);
    assert_eq!(status("origin", &own).await, 404, "{own} is accepted");
    for foreign in [
        "http://localhost:3000",
        "http://127.0.0.1",
        "http://evil.example",
        "https://localhost.evil.example",
        "null",
        "",
        "http://evil.example:80",
    ] {
        assert_eq!(status("origin", foreign).await, 403, "{foreign:?}");
    }
    // a browser sends no Origin for an image of a page
    for (site, expected) in [("same-origin", 404), ("none", 404), ("same-site", 403), ("cross-site", 403), ("", 403)] {
        assert_eq!(status("sec-fetch-site", site).await, expected, "{site:?}");
    }
    let link = request(proxy.control, "GET", "/", &[("sec-fetch-site", "cross-site")], b"").await;
    assert_eq!(link.status, 200, "a link to the page");
    let control = [("origin", "http://evil.example")];
    let pause = request(proxy.control, "POST", "/pause_generation", &control, b"{}").await;
    assert_eq!(pause.status, 403, "a page cannot pause the engine");
}

fn item(rid: &str, index: usize, finish: &Value) -> String {
    let meta = json!({
        "id": rid, "finish_reason": finish, "prompt_tokens": 3, "completion_tokens": 2,
        "output_token_logprobs": [[-0.5, 5, null], [-0.25, 6, null]],
        "output_top_logprobs": [[[-0.5, 5, null], [-1.5, 7, null]], [[-0.25, 6, null], [-2.5, 7, null]]],
    });
    json!({"text": "ab", "output_ids": [5, 6], "meta_info": meta, "index": index}).to_string()
}

async fn entropy(proxy: &Proxy, rest: &str) -> (u16, Value) {
    let answer = get(proxy.control, &format!("/v1/requests/{rest}")).await;
    (answer.status, answer.json())
}

#[tokio::test(flavor = "multi_thread")]
async fn entropies_can_be_read_during_and_after_generation() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let rid = "a b/\u{e9}%?";
    let path = "a%20b%2f%C3%A9%25%3F/entropy";
    assert_eq!(entropy(&proxy, path).await.0, 404, "the request is not known yet");
    let mut client = Connection::open(proxy.data).await;
    let body = json!({"text": "a", "rid": rid, "stream": true, "sampling_params": {"max_new_tokens": 8}}).to_string();
    client.send(&written(proxy.data, "POST", "/generate", &[], body.as_bytes())).await;
    let mut call = upstream.next().await;
    let (status, begun) = entropy(&proxy, path).await;
    assert_eq!((status, &begun["entropy"], &begun["finished"]), (200, &json!([]), &json!(false)), "{begun}");
    call.send(STREAM).await;
    call.send(&chunk(format!("data: {}\n\n", item(rid, 0, &Value::Null)).as_bytes())).await;
    assert!(client.read_until(|read| read.ends_with(b"\n\n\r\n")).await);
    let (_, running) = entropy(&proxy, path).await;
    let list = running["entropy"].as_array().unwrap().clone();
    assert_eq!((list.len(), &running["next"], &running["rid"]), (2, &json!(2), &json!(rid)), "{running}");
    assert_eq!((&running["finished"], &running["finish_reason"]), (&json!(false), &Value::Null));
    assert!(list.iter().all(|nats| nats.as_f64().is_some_and(|nats| nats > 0.0)), "{running}");
    let (_, tail) = entropy(&proxy, &format!("{path}?since=1")).await;
    assert_eq!((&tail["entropy"], &tail["next"]), (&json!([list[1]]), &json!(2)), "{tail}");
    let (status, beyond) = entropy(&proxy, &format!("{path}?since=2")).await;
    assert_eq!((status, &beyond["entropy"], &beyond["next"]), (200, &json!([]), &json!(2)), "{beyond}");
    let (status, beyond) = entropy(&proxy, &format!("{path}?since=18446744073709551615")).await;
    assert_eq!((status, &beyond["entropy"]), (200, &json!([])), "{beyond}");
    let stop = json!({"type": "stop", "matched": 6});
    call.send(&chunk(format!("data: {}\n\n", item(rid, 0, &stop)).as_bytes())).await;
    call.reply(&[&chunk(b"data: [DONE]\n\n")[..], END].concat()).await;
    assert!(client.answer().await.complete);
    let (_, ended) = entropy(&proxy, path).await;
    assert_eq!((&ended["finished"], &ended["finish_reason"]), (&json!(true), &json!("stop")), "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_sequence_of_a_batch_has_separate_entropies() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let client = tokio::spawn(post(proxy.data, "/generate", br#"{"text":["a","b"],"rid":"R"}"#));
    let call = upstream.next().await;
    let length = json!({"type": "length", "length": 2});
    let body = format!("[{},{}]", item("R_0", 0, &length), item("R_1", 1, &length));
    call.reply(&message(200, &[("content-type", "application/json")], body.as_bytes())).await;
    assert_eq!(client.await.unwrap().status, 200);
    for (rest, index) in [("R/entropy", 0), ("R_0/entropy", 0), ("R_1/entropy", 1), ("R/entropy?index=1", 1)] {
        let (status, found) = entropy(&proxy, rest).await;
        assert_eq!((status, &found["index"], &found["next"]), (200, &json!(index), &json!(2)), "{rest}: {found}");
    }
    assert_eq!(entropy(&proxy, "R/entropy?index=2").await.0, 404, "there is no third");
    assert_eq!(entropy(&proxy, "R_2/entropy").await.0, 404);
    for query in ["since=x", "since=-1", "since=", "index=1.5", "since", "limit=3", "since=1&index=b"] {
        let (status, refused) = entropy(&proxy, &format!("R/entropy?{query}")).await;
        assert_eq!(status, 400, "{query}: {refused}");
        assert!(refused["error"]["message"].is_string(), "{refused}");
    }
    assert_eq!(post(proxy.control, "/v1/requests/R/entropy", b"{}").await.status, 405);
    let agent = tokio::spawn(get(proxy.data, "/v1/requests/R/entropy"));
    upstream.next().await.reply(&message(404, &[], b"")).await;
    assert_eq!(agent.await.unwrap().status, 404, "the data port forwards this path like any other");
}
