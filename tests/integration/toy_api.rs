// SPDX-License-Identifier: Apache-2.0
//! A toy API in one file and one line of the route table: sessions, retries, recording, aborts and errors work as for every API.

mod api;

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::json;

use crate::support::client::{Connection, get, post, request, written};
use crate::support::engine::answer;
use crate::support::manual_upstream::{ManualUpstream, STREAM, chunk, event, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, Upstream, message};
use api::ToyApi;

async fn toy(upstream: SocketAddr) -> Proxy {
    Proxy::with_api(upstream, &[], "/toy", Arc::new(ToyApi)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn toy_request_is_generated_encoded_recorded_and_counted() {
    let upstream = Upstream::start(EngineProfile::default(), answer).await;
    let proxy = toy(upstream.addr).await;
    let call = json!({"say": "a", "tokens": 4, "session_id": "s"}).to_string();
    let reply = post(proxy.data, "/toy", call.as_bytes()).await;
    assert_eq!(
        (reply.status, reply.json()),
        (200, json!({"session": null, "ids": [[10, 10, 10, 10]]})),
        "{}",
        reply.text()
    );
    assert_eq!(reply.header("x-tokentap-session"), Some("s"));
    let reply = post(proxy.data, "/sessions/s/toy", call.as_bytes()).await;
    assert_eq!(reply.json()["session"], "s", "it exists from the first request: {}", reply.text());
    let stream = json!({"say": "a", "tokens": 4, "stream": true, "session_id": "s"}).to_string();
    let reply = post(proxy.data, "/toy", stream.as_bytes()).await;
    assert_eq!(reply.text(), "toy [10]\ntoy [10]\ntoy [10]\ntoy [10]\ntoy end\n");
    let session = get(proxy.control, "/v1/sessions/s").await.json();
    assert_eq!(session["turns"], 3, "{session}");
    let counted = "tokentap_http_requests_total{endpoint=\"/toy\",method=\"POST\",status_code=\"200\"}";
    soon("three requests are counted", async { while proxy.metric(counted).await != 3.0 {} }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn toy_errors_have_the_shape_of_the_api() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = toy(upstream.addr).await;
    let invalid = post(proxy.data, "/toy", b"{\"say\": 1}").await;
    assert_eq!(invalid.status, 400);
    assert!(invalid.json()["toy_error"].as_str().unwrap().contains("invalid type"), "{}", invalid.text());
    let no_name =
        request(proxy.data, "POST", "/toy", &[("x-session-id", "a b")], b"{\"say\":\"a\",\"tokens\":1}").await;
    assert_eq!((no_name.status, no_name.json()["toy_error"].is_string()), (400, true), "{}", no_name.text());
    let asking = tokio::spawn(post_owned(proxy.data, json!({"say": "a", "tokens": 4}).to_string()));
    for _ in 0..2 {
        // first with forced logprobs, then as the client wrote it
        upstream.next().await.reply(&message(400, &[], b"no such model")).await;
    }
    let refused = asking.await.unwrap();
    assert_eq!((refused.0, &*refused.1), (400, "{\"toy_error\":\"no such model\"}"));
}

async fn post_owned(addr: SocketAddr, body: String) -> (u16, String) {
    let reply = post(addr, "/toy", body.as_bytes()).await;
    (reply.status, reply.text())
}

#[tokio::test(flavor = "multi_thread")]
async fn toy_retry_joins_the_running_call_and_disconnect_aborts_it() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = toy(upstream.addr).await;
    let body = json!({"say": "a", "tokens": 4, "stream": true, "session_id": "s"}).to_string();
    let send = async |headers: &[(&str, &str)]| {
        let mut client = Connection::open(proxy.data).await;
        client.send(&written(proxy.data, "POST", "/toy", headers, body.as_bytes())).await;
        client
    };
    let mut first = send(&[]).await;
    let mut call = upstream.next().await;
    call.send(STREAM).await;
    call.send(&event("r", 0)).await;
    assert!(first.read_until(|read| memchr::memmem::find(read, b"toy []").is_some()).await);
    let mut retry = send(&[("x-stainless-retry-count", "1")]).await;
    assert!(retry.read_until(|read| memchr::memmem::find(read, b"toy []").is_some()).await, "it reads the same stream");
    assert!(!upstream.has_more(), "one request to the engine");
    drop((first, retry));
    let abort = upstream.next().await;
    assert_eq!(abort.asked.path, "/abort_request", "all readers have disconnected");
    call.closed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn toy_stream_that_fails_ends_with_an_error_of_the_api() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = toy(upstream.addr).await;
    let body = json!({"say": "a", "tokens": 1, "stream": true}).to_string();
    let mut client = Connection::open(proxy.data).await;
    client.send(&written(proxy.data, "POST", "/toy", &[], body.as_bytes())).await;
    let mut call = upstream.next().await;
    call.send(STREAM).await;
    call.send(&event("r", 0)).await;
    call.send(&chunk(b"data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n")).await;
    let error = b"toy {\"toy_error\":\"out of memory\"}";
    assert!(
        client.read_until(|read| memchr::memmem::find(read, error).is_some()).await,
        "the error has the API's format"
    );
}
