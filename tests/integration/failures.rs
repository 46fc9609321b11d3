// SPDX-License-Identifier: Apache-2.0
//! Errors that a client gets when the upstream is unreachable, disconnects, or closes an idle connection; no request is sent twice.

use std::net::SocketAddr;

use tokio::net::TcpSocket;

use crate::support::binary::Binary;
use crate::support::client::{Answer, Connection, get, post, request};
use crate::support::manual_upstream::{END, ManualUpstream, STREAM, chunk, event, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, FakeReply, Upstream, message};

fn error_message(answer: &Answer) -> String {
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let json = answer.json();
    // the format of the native API, or that of OpenAI's APIs
    json["error"]["message"]
        .as_str()
        .or_else(|| json["message"].as_str())
        .unwrap_or_else(|| panic!("no message in {json}"))
        .to_owned()
}

const GENERATE: &[u8] = b"{\"text\":\"a\"}";

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_upstream_is_named_in_a_502() {
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let upstream: SocketAddr = closed.local_addr().unwrap();
    let proxy = Proxy::start(upstream, &[]).await;
    for path in ["/health", "/v1/chat/completions", "/generate"] {
        let answer = post(proxy.data, path, GENERATE).await;
        assert_eq!(answer.status, 502, "{path}");
        assert!(error_message(&answer).contains(&upstream.to_string()), "{}", error_message(&answer));
    }
    assert!(proxy.metric("tokentap_upstream_errors_total{kind=\"connect\"}").await >= 3.0);
    assert_eq!(proxy.metric("tokentap_aborts_sent_total").await, 0.0, "a request that never began is not aborted");
}

#[tokio::test(flavor = "multi_thread")]
async fn request_that_reached_the_upstream_is_not_sent_twice() {
    for path in ["/generate", "/v1/chat/completions", "/update_weights_from_disk"] {
        let mut upstream = ManualUpstream::start().await;
        let proxy = Proxy::probed(upstream.addr, &["--allow-control"]).await;
        // on a fresh connection, and on one that has been used before
        for _ in 0..2 {
            let client = tokio::spawn(async move { post(proxy.data, path, GENERATE).await });
            let mut call = upstream.next().await;
            if path != "/generate" {
                call.body_until(|body| body == GENERATE).await;
            }
            drop(call);
            let answer = client.await.unwrap();
            assert_eq!(answer.status, 502, "{path}");
            assert!(error_message(&answer).contains("connection"), "{}", error_message(&answer));
            assert!(!upstream.has_more(), "{path} was sent once");
            let client = tokio::spawn(get(proxy.data, "/health"));
            upstream.next().await.ok().await;
            assert_eq!(client.await.unwrap().status, 200, "the next request is not affected");
        }
        assert_eq!(proxy.metric("tokentap_upstream_errors_total{kind=\"reset\"}").await, 2.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_that_closes_after_each_answer_is_reconnected() {
    let close = message(200, &[("connection", "close")], b"ok");
    let upstream = Upstream::start(EngineProfile::default(), move |_| FakeReply::Close(vec![close.clone()])).await;
    let proxy = Proxy::start(upstream.addr, &[]).await;
    let mut client = Connection::open(proxy.data).await;
    for at in 0..100 {
        client.send(b"POST /tokenize HTTP/1.1\r\nhost: agent\r\ncontent-length: 2\r\n\r\n{}").await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.text().as_str()), (200, "ok"), "request {at}");
        assert_eq!(
            answer.header("connection"),
            None,
            "the upstream's header does not apply to the client's connection"
        );
    }
    assert_eq!(upstream.asked().len(), 100, "each was sent once");
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_idle_connection_is_replaced() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, &["limit:pool-idle-timeout", "1h"]).await;
    let mut client = Connection::open(proxy.data).await;
    for path in ["/tokenize", "/v1/chat/completions", "/generate"] {
        for _ in 0..5 {
            client
                .send(format!("POST {path} HTTP/1.1\r\nhost: agent\r\ncontent-length: 2\r\n\r\n{{}}").as_bytes())
                .await;
            let mut call = upstream.next().await;
            // without `connection: close`, as SGLang's server does
            call.send(&message(200, &[], b"ok")).await;
            let answer = client.answer().await;
            assert_eq!((answer.status, answer.text().as_str()), (200, "ok"), "{path}");
            call.finish().await;
            call.closed().await;
        }
    }
    assert!(!upstream.has_more(), "each was sent once");
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_body_is_incomplete_for_the_client() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, &[]).await;
    for head in ["content-length: 10", "transfer-encoding: chunked"] {
        let client = tokio::spawn(get(proxy.data, "/health"));
        let mut call = upstream.next().await;
        let piece = if head.starts_with('c') { "half" } else { "4\r\nhalf\r\n" };
        call.send(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{piece}").as_bytes()).await;
        drop(call);
        let answer = soon("the reply ends early", client).await.unwrap();
        assert_eq!(answer.status, 200, "{head}");
        assert!(!answer.complete, "{head}: {}", answer.text());
    }
    assert_eq!(
        proxy.metric("tokentap_upstream_errors_total{kind=\"reset\"}").await,
        2.0,
        "it counts as a failure of the upstream"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_stream_is_incomplete_and_not_aborted() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let client = tokio::spawn(post(proxy.data, "/generate", b"{\"text\":\"a\",\"stream\":true}"));
    let mut call = upstream.next().await;
    call.send(STREAM).await;
    call.send(&event("torn", 0)).await;
    drop(call);
    let answer = soon("the stream ends early", client).await.unwrap();
    assert_eq!((answer.status, answer.complete), (200, false));
    assert!(answer.text().contains("torn"), "the events before the cut are delivered");
    assert_eq!(proxy.metric("tokentap_client_disconnects_total").await, 0.0, "the client did not leave");
    assert_eq!(proxy.metric("tokentap_upstream_errors_total{kind=\"reset\"}").await, 1.0, "but the upstream");
}

#[tokio::test(flavor = "multi_thread")]
async fn non_http_reply_returns_502() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, &[]).await;
    let client = tokio::spawn(get(proxy.data, "/health"));
    upstream.next().await.reply(b"220 mail.example ESMTP\r\n\r\n").await;
    let answer = client.await.unwrap();
    assert_eq!(answer.status, 502);
    assert!(!error_message(&answer).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_upload_closes_the_upstream_connection() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, &[]).await;
    let mut client = Connection::open(proxy.data).await;
    client.send(b"POST /tokenize HTTP/1.1\r\nhost: agent\r\ncontent-length: 10\r\n\r\nhalf").await;
    let mut call = upstream.next().await;
    call.body_until(|body| body == b"half").await;
    drop(client);
    call.closed().await;
    assert_eq!(proxy.metric("tokentap_upstream_errors_total{kind=\"reset\"}").await, 0.0, "the upstream did not fail");
}

#[tokio::test(flavor = "multi_thread")]
async fn client_key_is_forwarded_and_tokentaps_key_is_not_added() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, &["--upstream-api-key", "own", "--upstream-admin-key", "admin"]).await;
    for path in ["/health", "/generate"] {
        let key = [("authorization", "Bearer  odd  key")];
        let client = tokio::spawn(async move { request(proxy.data, "POST", path, &key, GENERATE).await });
        let call = upstream.next().await;
        assert_eq!(call.values("authorization"), ["Bearer  odd  key"]);
        call.ok().await;
        assert_eq!(client.await.unwrap().status, 200);
        let client = tokio::spawn(post(proxy.data, path, GENERATE));
        let call = upstream.next().await;
        assert!(call.values("authorization").is_empty(), "{path}: no key is added");
        call.ok().await;
        assert_eq!(client.await.unwrap().status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_variables_of_the_environment_are_ignored() {
    let mut upstream = ManualUpstream::start().await;
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let elsewhere = format!("http://{}", closed.local_addr().unwrap());
    let names = ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"];
    let mut environment: Vec<(&str, &str)> = names.iter().map(|name| (*name, elsewhere.as_str())).collect();
    environment.extend([("NO_PROXY", ""), ("no_proxy", "")]);
    let binary = Binary::serve(upstream.addr, &environment).await;
    let client = tokio::spawn(get(binary.data, "/health"));
    upstream.next().await.ok().await;
    assert_eq!(client.await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn generation_waits_for_the_first_answer_of_the_engine() {
    let profile = EngineProfile { answers_probe: false, ..EngineProfile::default() };
    let mut upstream = ManualUpstream::start().await;
    upstream.replace(profile);
    let proxy = Proxy::start(upstream.addr, &[]).await;
    let probe = upstream.next().await;
    let body = br#"{"input_ids":[1,2,3],"stream":true,"return_entropy":false}"#;
    let client = tokio::spawn(post(proxy.data, "/sessions/s/generate", body));
    soon("the request is admitted", async {
        while proxy.metric("tokentap_http_requests_active{endpoint=\"/generate\"}").await < 1.0 {}
    })
    .await;
    assert!(!upstream.has_more(), "the engine gets nothing before it has answered the probe");
    for path in ["/livez", "/readyz"] {
        let expected = if path == "/livez" { 200 } else { 503 };
        assert_eq!(get(proxy.control, path).await.status, expected, "{path}");
    }
    upstream.replace(EngineProfile { streaming: "incremental", ..EngineProfile::default() });
    probe.reply(&message(404, &[], b"")).await;
    let mut call = upstream.next().await;
    call.send(STREAM).await;
    for event in ["[5]", "[6]"] {
        let finish = if event == "[6]" { r#"{"type":"length"}"# } else { "null" };
        let event = format!(
            r#"data: {{"output_ids":{event},"meta_info":{{"id":"r","finish_reason":{finish},"prompt_tokens":3}}}}"#
        );
        call.send(&chunk(format!("{event}\n\n").as_bytes())).await;
    }
    call.reply(END).await;
    assert!(client.await.unwrap().complete);
    let session = get(proxy.control, "/v1/sessions/s").await.json();
    assert_eq!(session["list"][0]["fault"], serde_json::Value::Null, "{session}");
}
