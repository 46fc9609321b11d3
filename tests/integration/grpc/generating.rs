// SPDX-License-Identifier: Apache-2.0
//! Compares Generate with POST /generate: the same bytes and the same errors.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokentap::serve::grpc::pb::{GenerateReply, GenerateRequest};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Request, Status};

use super::client::generate;
use crate::support::client::{Answer, events, get, request};
use crate::support::engine::answer;
use crate::support::manual_upstream::{END, ManualUpstream, STREAM, chunk, event, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::{
    EngineProfile, FakeReply, Upstream, UpstreamRequest, json_message, message, torn_stream,
};

/// The answer to a call: its metadata, its objects, and its status.
#[derive(Debug)]
pub(super) struct GenerateResult {
    head: MetadataMap,
    objects: Vec<Vec<u8>>,
    pub(super) end: Result<(), Status>,
}

pub(super) async fn call_generate(
    proxy: &Proxy,
    json: &[u8],
    session: &str,
    metadata: &[(&'static str, &str)],
) -> GenerateResult {
    let mut client = generate(proxy.data).await;
    let mut request = Request::new(GenerateRequest { json: Bytes::copy_from_slice(json), session: session.into() });
    for (name, value) in metadata {
        if name.ends_with("-bin") {
            request.metadata_mut().append_bin(*name, MetadataValue::from_bytes(value.as_bytes()));
        } else {
            request.metadata_mut().append(*name, value.parse().unwrap());
        }
    }
    let mut result = GenerateResult { head: MetadataMap::new(), objects: Vec::new(), end: Ok(()) };
    match client.generate(request).await {
        Err(status) => result.end = Err(status),
        Ok(reply) => {
            let (head, mut replies, _) = reply.into_parts();
            result.head = head;
            loop {
                match soon("a message", replies.message()).await {
                    Ok(Some(GenerateReply { json })) => result.objects.push(json.to_vec()),
                    Ok(None) => break,
                    Err(status) => {
                        result.end = Err(status);
                        break;
                    }
                }
            }
        }
    }
    result
}

async fn post_generate(proxy: &Proxy, json: &[u8], headers: &[(&str, &str)]) -> Answer {
    request(proxy.data, "POST", "/generate", headers, json).await
}

/// A tokentap in front of the scripted engine, and the requests that the engine received.
async fn scripted(flags: &[&str]) -> (Proxy, Arc<Mutex<Vec<UpstreamRequest>>>, Upstream) {
    let asked: Arc<Mutex<Vec<UpstreamRequest>>> = Arc::default();
    let received = Arc::clone(&asked);
    let upstream = Upstream::start(EngineProfile::default(), move |request| {
        if request.path == "/generate" {
            received.lock().push(request.clone());
        }
        answer(request)
    })
    .await;
    let proxy = Proxy::probed(upstream.addr, flags).await;
    (proxy, asked, upstream)
}

/// The number of generations that were counted with this status.
pub(super) async fn request_count(proxy: &Proxy, status: &str) -> f64 {
    let labels = format!("endpoint=\"/generate\",method=\"POST\",status_code=\"{status}\"");
    proxy.metric(&format!("tokentap_http_requests_total{{{labels}}}")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn reply_has_the_bytes_of_http() {
    let (proxy, asked, _upstream) = scripted(&[]).await;
    for body in [
        json!({"text": "a", "rid": "mine", "big": 9_007_199_254_740_993_u64}),
        json!({"text": ["a", "b"], "rid": ["x", "y"]}),
        json!({"text": "a", "rid": "R", "sampling_params": {"n": 3}}),
        json!({"text": "a", "rid": "bounds", "entropy_options": {"bounds": true, "stats": true}}),
    ] {
        let body = body.to_string();
        let http = post_generate(&proxy, body.as_bytes(), &[("x-session-id", "h")]).await;
        assert_eq!(http.status, 200, "{}", http.text());
        let result = call_generate(&proxy, body.as_bytes(), "g", &[]).await;
        assert!(result.end.is_ok(), "{result:?}");
        assert_eq!(result.objects, std::slice::from_ref(&http.body), "{body}");
        assert!(http.text().contains("output_token_entropy"), "the reply has entropies: {}", http.text());
        assert_eq!(result.head.get("x-tokentap-session").unwrap(), "g");
        let asked = std::mem::take(&mut *asked.lock());
        assert_eq!(asked.len(), 2);
        assert_eq!(asked[0].body, asked[1].body, "the engine gets the same request");
        assert_eq!(asked[1].header("content-type"), Some("application/json"));
        let foreign = |name: &str| name.starts_with("grpc-") || name == "te";
        assert!(!asked[1].headers.iter().any(|(name, _)| foreign(name)), "{:?}", asked[1].headers);
    }
    let (of_http, of_grpc) = (get(proxy.control, "/v1/sessions/h").await, get(proxy.control, "/v1/sessions/g").await);
    assert_eq!(of_http.json()["turns"], of_grpc.json()["turns"], "both are recorded");
    let all =
        proxy.metric("tokentap_http_requests_total{endpoint=\"/generate\",method=\"POST\",status_code=\"200\"}").await;
    assert_eq!(all, 8.0, "both are counted as the same route");
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_has_the_events_of_http() {
    let (proxy, _, _upstream) = scripted(&[]).await;
    for body in [
        json!({"text": "a", "rid": "mine", "stream": true}),
        json!({"text": ["a", "b"], "rid": ["x", "y"], "stream": true, "entropy_options": {"bounds": true}}),
    ] {
        let body = body.to_string();
        let http = post_generate(&proxy, body.as_bytes(), &[]).await;
        let result = call_generate(&proxy, body.as_bytes(), "", &[]).await;
        assert!(result.end.is_ok(), "{result:?}");
        assert_eq!(result.objects, events(&http.body), "{body}");
        assert!(result.objects.len() >= 4 && http.text().contains("output_token_entropy"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn session_sources_are_those_of_http_after_the_message() {
    let (proxy, asked, _upstream) = scripted(&[]).await;
    let body = br#"{"text":"a","session_id":"body"}"#;
    let named = async |session: &'static str, metadata: &[(&'static str, &str)]| {
        let result = call_generate(&proxy, body, session, metadata).await;
        result.head.get("x-tokentap-session").unwrap().to_str().unwrap().to_owned()
    };
    assert_eq!(named("", &[]).await, "body");
    assert_eq!(named("", &[("x-session-id", "header"), ("x-session-done", "1")]).await, "header");
    assert_eq!(named("message", &[("x-session-id", "header")]).await, "message");
    let done = async { while get(proxy.control, "/v1/sessions/header").await.json()["done"] != true {} };
    soon("x-session-done takes effect", done).await;
    asked.lock().clear();
    let result =
        call_generate(&proxy, body, "", &[("authorization", "Bearer mine"), ("x-trace", "t"), ("x-raw-bin", "AAAA")])
            .await;
    assert!(result.end.is_ok());
    let asked = std::mem::take(&mut *asked.lock());
    assert_eq!((asked[0].header("authorization"), asked[0].header("x-trace")), (Some("Bearer mine"), Some("t")));
    assert!(asked[0].header("x-raw-bin").is_none(), "binary metadata is not forwarded");
    for session in ["a b", "a/b", "é", &"x".repeat(129)] {
        let status = call_generate(&proxy, body, session, &[]).await.end.expect_err("it is no valid session name");
        assert_eq!(status.code(), Code::InvalidArgument, "{session}");
    }
    let refused = "tokentap_http_requests_total{endpoint=\"/generate\",method=\"POST\",status_code=\"400\"}";
    assert_eq!(proxy.metric(refused).await, 4.0, "as over HTTP");
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_retry_joins_a_running_http_call() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let body = br#"{"text":"a","rid":"same","session_id":"retried"}"#;
    let data = proxy.data;
    let first = tokio::spawn(async move { request(data, "POST", "/generate", &[], body).await });
    let call = upstream.next().await;
    let again = async {
        let retry = call_generate(&proxy, body, "", &[("x-stainless-retry-count", "1")]);
        let joined = "tokentap_retries_total{outcome=\"joined\"}";
        let answered = async {
            soon("the retry is noticed", async { while proxy.metric(joined).await != 1.0 {} }).await;
            call.reply(&message(200, &[("content-type", "application/json")], b"{\"text\":\"once\"}")).await;
        };
        tokio::join!(retry, answered).0
    };
    let result = again.await;
    assert_eq!(result.objects, [first.await.unwrap().body], "both have the one reply");
    assert!(!upstream.has_more(), "the engine was asked once");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_those_of_http() {
    let refusal = json!({"error": {"message": "top_p must be in (0, 1], got 2 \u{e9}."}}).to_string();
    let reply = refusal.clone();
    let upstream = Upstream::start(EngineProfile::default(), move |asked| match asked.json()["text"].as_str() {
        Some("limited") => json_message(429, b"slow down"),
        Some("broken") => FakeReply::Close(vec![]),
        Some("unable") => json_message(503, br#"{"detail":"not now"}"#),
        _ => json_message(400, reply.as_bytes()),
    })
    .await;
    let proxy = Proxy::probed(upstream.addr, &["--max-request-bytes", "64KiB"]).await;
    let deep = format!("{{\"text\":{}1{}}}", "[".repeat(200), "]".repeat(200));
    for (body, code) in [
        (r#"{"text":"a","sampling_params":{"top_p":2}}"#.to_owned(), Code::InvalidArgument),
        ("not json".to_owned(), Code::InvalidArgument),
        (deep, Code::InvalidArgument),
        (r#"{"text":"a","top_logprobs_num":2000}"#.to_owned(), Code::InvalidArgument),
        (r#"{"text":"limited"}"#.to_owned(), Code::ResourceExhausted),
        (r#"{"text":"broken"}"#.to_owned(), Code::Unavailable),
        (r#"{"text":"unable"}"#.to_owned(), Code::Unavailable),
    ] {
        let http = post_generate(&proxy, body.as_bytes(), &[]).await;
        let result = call_generate(&proxy, body.as_bytes(), "", &[]).await;
        let status = result.end.expect_err("it is refused");
        assert_eq!(status.code(), code, "{body}: {status:?}");
        assert_eq!(status.metadata().get("tokentap-http-status").unwrap(), http.status.to_string().as_str());
        let forwarded = status.metadata().get_bin("tokentap-body-bin").unwrap().to_bytes().unwrap();
        assert_eq!(forwarded, http.body, "{body}: the metadata has the body");
        let value: Value = serde_json::from_slice(&http.body).unwrap_or(Value::Null);
        let expected = value["error"]["message"].as_str().or(value["detail"].as_str()).unwrap_or("slow down");
        assert_eq!(status.message(), expected);
    }
    let large = format!("{{\"text\":\"{}\"}}", "x".repeat(70 << 10));
    let status = call_generate(&proxy, large.as_bytes(), "", &[]).await.end.expect_err("it is too large");
    assert_eq!(status.code(), Code::OutOfRange);
    assert_eq!(status.metadata().get("tokentap-http-status").unwrap(), "413");
    assert!(status.message().contains("66560"), "the limit is named: {}", status.message());
    assert_eq!(request_count(&proxy, "413").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_beyond_the_limit_are_shed() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &["--max-requests", "1"]).await;
    let mut client = generate(proxy.data).await;
    let running = tokio::spawn(async move {
        client.generate(GenerateRequest { json: Bytes::from_static(br#"{"text":"a"}"#), session: String::new() }).await
    });
    let call = upstream.next().await;
    let status = call_generate(&proxy, br#"{"text":"b"}"#, "", &[]).await.end.expect_err("one at once");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("--max-requests"), "{}", status.message());
    assert_eq!(post_generate(&proxy, br#"{"text":"b"}"#, &[]).await.status, 503, "the permits are those of HTTP");
    call.reply(&message(200, &[("content-type", "application/json")], b"{}")).await;
    let mut replies = running.await.unwrap().unwrap().into_inner();
    assert_eq!(replies.message().await.unwrap().unwrap().json, "{}");
    assert!(replies.message().await.unwrap().is_none());
    let result = async { call_generate(&proxy, b"not json", "", &[]).await };
    let again = tokio::spawn(async move { upstream.next().await.reply(&message(400, &[], b"no")).await });
    assert_eq!(result.await.end.unwrap_err().code(), Code::InvalidArgument, "the permit is free again");
    again.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_stream_ends_with_unavailable_after_its_objects() {
    let upstream = Upstream::start(EngineProfile::default(), move |asked| match asked.json()["text"].as_str() {
        Some("torn") => torn_stream(&[b"data: {\"text\":\"1\",\"meta_info\":{}}\n\n"]),
        Some("short") => crate::support::upstream::stream(&[b"data: {\"text\":\"1\",\"meta_info\":{}}\n\n"]),
        _ => crate::support::upstream::stream(&[
            b": a comment\n\ndata: {\"error\":{\"message\":\"midway\"}}\n\n",
            b"data: [DONE]\n\n",
        ]),
    })
    .await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    for text in ["torn", "short"] {
        let body = json!({"text": text, "stream": true, "return_entropy": false}).to_string();
        let result = call_generate(&proxy, body.as_bytes(), "", &[]).await;
        assert_eq!(result.objects.len(), 1, "{text}: complete objects are delivered");
        assert_eq!(result.end.expect_err("the stream broke").code(), Code::Unavailable, "{text}");
    }
    let result = call_generate(&proxy, br#"{"text":"error","stream":true}"#, "", &[]).await;
    assert!(result.end.is_ok(), "the engine's own errors are objects, as over HTTP");
    assert_eq!(result.objects, [b"{\"error\":{\"message\":\"midway\"}}"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn too_large_reply_is_resource_exhausted() {
    let upstream = Upstream::start(EngineProfile::default(), |_| json_message(200, &vec![b' '; 100_000])).await;
    let proxy = Proxy::probed(upstream.addr, &["limit:max-reply-bytes", "64KiB"]).await;
    let status = call_generate(&proxy, br#"{"text":"a"}"#, "", &[]).await.end.expect_err("it is too large");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("--max-bytes-in-flight"), "{}", status.message());
    assert_eq!(request_count(&proxy, "413").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_delivered_one_by_one() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let mut client = generate(proxy.data).await;
    let json = Bytes::from_static(br#"{"text":"a","rid":"paced","stream":true}"#);
    let asking = tokio::spawn(async move { client.generate(GenerateRequest { json, session: String::new() }).await });
    let mut call = upstream.next().await;
    call.send(STREAM).await;
    let mut replies = asking.await.unwrap().unwrap().into_inner();
    for _ in 0..3 {
        call.send(&event("paced", 0)).await;
        assert!(soon("an event", replies.message()).await.unwrap().is_some());
    }
    call.send(&chunk(b"data: [DONE]\n\n")).await;
    call.reply(END).await;
    assert!(soon("the end", replies.message()).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_that_strict_mode_ends_has_the_error_as_its_last_object() {
    let mut upstream = ManualUpstream::streaming("incremental").await;
    let proxy = Proxy::probed(upstream.addr, &["--strict"]).await;
    let answers = async {
        let mut call = upstream.next().await;
        // an end without a row of logprobs
        let meta = json!({"id": "r", "finish_reason": {"type": "stop"}, "prompt_tokens": 3, "completion_tokens": 1});
        let event = json!({"text": "a", "output_ids": [7], "meta_info": meta});
        let events = format!("data: {event}\n\ndata: [DONE]\n\n");
        call.send(&[STREAM, &chunk(events.as_bytes()), END].concat()).await;
        call
    };
    let body = br#"{"text":"a","stream":true,"sampling_params":{"max_new_tokens":4}}"#;
    let (result, _call) = tokio::join!(call_generate(&proxy, body, "", &[]), answers);
    assert!(result.end.is_ok(), "as a stream over HTTP ends: {result:?}");
    let last = String::from_utf8_lossy(result.objects.last().unwrap()).into_owned();
    assert!(last.contains("--strict"), "{last}");
}
