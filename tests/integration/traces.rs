// SPDX-License-Identifier: Apache-2.0
//! Spans of generations, as a collector receives them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use serde_json::{Value, json};
use tokentap::demo::EngineOptions;
use tokentap::serve::connection::Phase;

use crate::chat::Chat;
use crate::support::binary::{Binary, output};
use crate::support::client::{Connection, post, request, written};
use crate::support::demo::{Demo, all_numbers};
use crate::support::manual_upstream::{Call, END, ManualUpstream, STREAM, chunk, event, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::message;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// The value of `--otlp`.
fn url(collector: SocketAddr) -> String {
    format!("http://{collector}")
}

/// Receives a batch and answers it.
async fn receive(collector: &mut ManualUpstream) -> ExportTraceServiceRequest {
    let call = collector.next().await;
    let batch = decode(&call);
    accept(call).await;
    batch
}

fn decode(call: &Call) -> ExportTraceServiceRequest {
    assert_eq!((&*call.asked.method, &*call.asked.path), ("POST", "/v1/traces"));
    assert_eq!(call.asked.header("content-type"), Some("application/x-protobuf"));
    ExportTraceServiceRequest::decode(&*call.asked.body).expect("a request of the OTLP specification")
}

async fn accept(call: Call) {
    call.reply(&message(200, &[("content-type", "application/x-protobuf")], b"")).await;
}

fn spans(batch: ExportTraceServiceRequest) -> Vec<Span> {
    batch.resource_spans.into_iter().flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
}

/// Receives batches until they have a span.
async fn span(collector: &mut ManualUpstream) -> Span {
    let mut spans = spans(receive(collector).await);
    assert_eq!(spans.len(), 1, "{spans:?}");
    spans.remove(0)
}

/// Attributes as JSON.
fn attributes(of: &[KeyValue]) -> BTreeMap<&str, Value> {
    fn json(value: &AnyValue) -> Value {
        match value.value.as_ref().expect("an attribute has a value") {
            Attribute::StringValue(text) => json!(text),
            Attribute::IntValue(number) => json!(number),
            Attribute::DoubleValue(number) => json!(number),
            Attribute::ArrayValue(all) => all.values.iter().map(json).collect(),
            other => panic!("{other:?}"),
        }
    }
    of.iter().map(|pair| (&*pair.key, json(pair.value.as_ref().expect("an attribute has a value")))).collect()
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn span_has_the_facts_of_the_reply() {
    let mut collector = ManualUpstream::start().await;
    let demo = Demo::start(EngineOptions::default(), &["--otlp", &url(collector.addr)]).await;
    let params = json!({"max_new_tokens": 7, "temperature": 0.8, "sampling_seed": 5, "ignore_eos": true});
    let body = json!({"input_ids": [5, 6, 7], "rid": "r1", "session_id": "s1", "sampling_params": params});
    for is_stream in [false, true] {
        let meta = match is_stream {
            false => demo.ask(&body).await["meta_info"].clone(),
            true => demo.stream(&body).await.pop().expect("it has events")["meta_info"].clone(),
        };
        let batch = receive(&mut collector).await;
        let resource = batch.resource_spans[0].resource.clone().expect("the process");
        assert_eq!(attributes(&resource.attributes)["service.name"], "tokentap");
        let span = spans(batch).remove(0);
        let values = all_numbers(&meta["output_token_entropy"]);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let mut found = attributes(&span.attributes);
        let published = found.remove("tokentap.entropy.mean").expect("it is measured").as_f64().expect("a number");
        assert!((published - mean).abs() < 1e-6, "{published} {mean}");
        let model = found.remove("gen_ai.request.model").expect("the served model");
        assert_eq!(span.name, format!("text_completion {}", model.as_str().expect("a name")));
        let expected = json!({
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "sglang",
            "gen_ai.conversation.id": "s1",
            "gen_ai.response.id": "r1",
            "gen_ai.usage.input_tokens": 3,
            "gen_ai.usage.output_tokens": 7,
            "gen_ai.response.finish_reasons": ["length"],
        });
        assert_eq!(json!(found), expected);
        assert_eq!((span.kind(), span.status.map_or(0, |status| status.code)), (SpanKind::Client, 0));
        assert!(span.parent_span_id.is_empty() && span.end_time_unix_nano > span.start_time_unix_nano);
    }
    let sent = || demo.proxy.metric("tokentap_spans_total{outcome=\"sent\"}");
    soon("both are counted", async { while sent().await != 2.0 {} }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_of_a_prompt_share_a_span() {
    let mut collector = ManualUpstream::start().await;
    let demo = Demo::start(EngineOptions::default(), &["--otlp", &url(collector.addr)]).await;
    let params = json!({"max_new_tokens": 5, "n": 3, "sampling_seed": 5, "ignore_eos": true});
    let reply = demo.ask(&json!({"input_ids": [5, 6, 7], "sampling_params": params})).await;
    let values: Vec<f64> = reply
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|sample| all_numbers(&sample["meta_info"]["output_token_entropy"]))
        .collect();
    let span = span(&mut collector).await;
    let found = attributes(&span.attributes);
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    assert!((found["tokentap.entropy.mean"].as_f64().unwrap() - mean).abs() < 1e-6, "over all samples");
    assert_eq!(found["gen_ai.response.id"], reply[0]["meta_info"]["id"], "that of the first sample");
    assert_eq!(found["gen_ai.usage.input_tokens"], 3, "the prompt is counted once");
    assert_eq!(found["gen_ai.usage.output_tokens"], 15);
    assert_eq!(found["gen_ai.response.finish_reasons"], json!(["length", "length", "length"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_is_a_chat_span() {
    let mut collector = ManualUpstream::start().await;
    let chat = Chat::start(&["--otlp", &url(collector.addr)]).await;
    let body = json!({"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "sea"}]});
    let reply = chat.post(&body).await.json();
    let span = span(&mut collector).await;
    let found = attributes(&span.attributes);
    assert_eq!((&found["gen_ai.operation.name"], &found["gen_ai.conversation.id"]), (&json!("chat"), &json!("s")));
    assert_eq!(found["gen_ai.usage.input_tokens"], reply["usage"]["prompt_tokens"]);
    assert_eq!(found["gen_ai.usage.output_tokens"], reply["usage"]["completion_tokens"]);
    assert_eq!(found["gen_ai.response.finish_reasons"], json!([reply["choices"][0]["finish_reason"]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_gets_the_span_as_its_parent() {
    let (mut collector, mut upstream) = (ManualUpstream::start().await, ManualUpstream::start().await);
    let caller = format!("00-{TRACE}-{PARENT}-01");
    let unsampled = format!("00-{TRACE}-{PARENT}-00");
    let ask = |data, caller: &str| {
        let headers = [("traceparent", caller.to_owned()), ("tracestate", "vendor=1".to_owned())];
        tokio::spawn(async move {
            let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
            request(data, "POST", "/generate", &headers, b"{\"text\":\"a\"}").await
        })
    };
    let reply = json!({"text": "b", "meta_info": {"id": "r", "finish_reason": {"type": "stop"}, "prompt_tokens": 1, "completion_tokens": 1}});
    let reply = message(200, &[("content-type", "application/json")], reply.to_string().as_bytes());

    let traced = Proxy::probed(upstream.addr, &["--otlp", &url(collector.addr)]).await;
    let client = ask(traced.data, &caller);
    let call = upstream.next().await;
    let sent: Vec<String> = call.values("traceparent")[0].split('-').map(str::to_owned).collect();
    assert_eq!(call.values("tracestate"), ["vendor=1"]);
    call.reply(&reply).await;
    assert_eq!(client.await.unwrap().status, 200);
    let span = span(&mut collector).await;
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.into(), PARENT.into()));
    assert_eq!(sent, ["00", TRACE, &hex(&span.span_id), "01"]);

    // a trace that is not sampled, and a tokentap without a collector
    let plain = Proxy::probed(upstream.addr, &[]).await;
    for (proxy, caller) in [(&traced, &unsampled), (&plain, &caller)] {
        let client = ask(proxy.data, caller);
        let call = upstream.next().await;
        assert_eq!(call.values("traceparent"), [caller]);
        call.reply(&reply).await;
        assert_eq!(client.await.unwrap().status, 200);
    }
    traced.phase.send_replace(Phase::Draining);
    soon("tokentap ends", traced.task).await.unwrap();
    assert!(!collector.has_more(), "an unsampled generation has no span");
}

/// The `error.type` of a span; `None` if it did not fail.
fn cause(span: &Span) -> Option<String> {
    let cause = attributes(&span.attributes).get("error.type").map(|cause| cause.as_str().expect("a text").to_owned());
    let status = span.status.clone().unwrap_or_default();
    assert_eq!((status.code, status.message), (if cause.is_some() { 2 } else { 0 }, cause.clone().unwrap_or_default()));
    cause
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_generation_has_its_cause() {
    let (mut collector, mut upstream) = (ManualUpstream::start().await, ManualUpstream::start().await);
    let proxy = Proxy::probed(upstream.addr, &["--otlp", &url(collector.addr)]).await;

    let client = tokio::spawn(post(proxy.data, "/generate", b"{\"text\":\"a\",\"top_logprobs_num\":1}"));
    for _ in 0..2 {
        // once more without forced logprobs
        upstream.next().await.reply(&message(500, &[], b"{}")).await;
    }
    assert_eq!(client.await.unwrap().status, 500);
    let refused = span(&mut collector).await;
    assert_eq!(cause(&refused).as_deref(), Some("500"));
    assert!(!attributes(&refused.attributes).contains_key("gen_ai.usage.output_tokens"), "an absent fact stays absent");

    let (client, mut call) = upstream.streaming_to(Connection::open(proxy.data).await, proxy.data).await;
    call.send(&event("running", 0)).await;
    drop(client);
    assert_eq!(cause(&span(&mut collector).await).as_deref(), Some("disconnected"));
    upstream.next().await.ok().await;

    // a stream that breaks off, and one whose engine fails
    let failed = json!({"text": "", "output_ids": [], "index": 0, "meta_info": {
        "id": "failed", "finish_reason": {"type": "abort", "status_code": 503, "message": "busy"}, "prompt_tokens": 3, "completion_tokens": 0,
    }});
    let error = json!({"error": {"message": "no", "code": 507}});
    let ends =
        [None, Some((failed, "503")), Some((error, "507")), Some((json!({"error": {"message": "no"}}), "_OTHER"))];
    for end in ends {
        let mut client = Connection::open(proxy.data).await;
        client.send(&written(proxy.data, "POST", "/generate", &[], b"{\"text\":\"a\",\"stream\":true}")).await;
        let mut call = upstream.next().await;
        call.send(STREAM).await;
        call.send(&event("broken", 0)).await;
        let Some((event, expected)) = end else {
            call.finish().await;
            client.closed().await;
            assert_eq!(cause(&span(&mut collector).await).as_deref(), Some("broken"));
            continue;
        };
        call.send(&chunk(format!("data: {event}\n\ndata: [DONE]\n\n").as_bytes())).await;
        call.reply(END).await;
        assert!(client.answer().await.complete);
        assert_eq!(cause(&span(&mut collector).await).as_deref(), Some(expected));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reply_that_is_not_read_fails_only_if_it_breaks() {
    let (mut collector, mut upstream) = (ManualUpstream::start().await, ManualUpstream::start().await);
    let flags = ["--record", "false", "--entropy", "off", "--otlp", &url(collector.addr)];
    let proxy = Proxy::probed(upstream.addr, &flags).await;
    for is_broken in [false, true] {
        let client = tokio::spawn(post(proxy.data, "/generate", b"{\"text\":\"a\",\"lora_path\":\"ad\"}"));
        let mut call = upstream.next().await;
        if is_broken {
            call.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{}").await;
            call.finish().await;
            assert!(!client.await.unwrap().complete);
        } else {
            call.reply(&message(200, &[("content-type", "application/json")], b"{}")).await;
            assert_eq!(client.await.unwrap().status, 200);
        }
        let span = span(&mut collector).await;
        assert_eq!(cause(&span).as_deref(), is_broken.then_some("broken"));
        let found = attributes(&span.attributes);
        assert_eq!(found["gen_ai.request.model"], "ad");
        assert!(!found.contains_key("gen_ai.conversation.id"), "it has no session: {found:?}");
        assert!(!found.contains_key("gen_ai.usage.output_tokens"), "they are not known: {found:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn error_of_tokentap_is_the_cause() {
    let (mut collector, mut upstream) = (ManualUpstream::start().await, ManualUpstream::start().await);
    let flags = ["--strict", "--image-timeout", "300ms", "--otlp", &url(collector.addr)];
    let proxy = Proxy::probed(upstream.addr, &flags).await;
    let client = tokio::spawn(post(proxy.data, "/generate", b"{\"text\":\"a\",\"rid\":\"strict\"}"));
    upstream.next().await.reply(&message(200, &[("content-type", "application/json")], b"{")).await;
    assert_eq!(client.await.unwrap().status, 502);
    assert_eq!(cause(&span(&mut collector).await).as_deref(), Some("502"));

    let media = json!({"text": "a", "image_data": "data:image/png;base64,iVBORw0KGgo=", "return_entropy": false});
    let body = media.to_string();
    let client = tokio::spawn(async move { post(proxy.data, "/generate", body.as_bytes()).await });
    let call = upstream.next().await;
    assert_eq!(client.await.unwrap().status, 504);
    assert_eq!(cause(&span(&mut collector).await).as_deref(), Some("504"), "not that of a client that left");
    drop(call);
}

#[tokio::test(flavor = "multi_thread")]
async fn generation_that_is_not_sent_has_a_span() {
    let mut collector = ManualUpstream::start().await;
    let flags = ["--pause-wait", "1h", "--otlp", &url(collector.addr)];
    let demo = Demo::start(EngineOptions::default(), &flags).await;
    let refused = post(demo.proxy.data, "/generate", b"{\"input_ids\":[99999999],\"rid\":\"r\"}").await;
    assert_eq!(refused.status, 400);
    assert_eq!(cause(&span(&mut collector).await).as_deref(), Some("400"));

    assert_eq!(post(demo.proxy.control, "/pause_generation", b"{}").await.status, 200);
    let mut client = Connection::open(demo.proxy.data).await;
    client.send(&written(demo.proxy.data, "POST", "/generate", &[], b"{\"text\":\"a\"}")).await;
    let waits = || demo.proxy.metric("tokentap_pause_waiting");
    soon("it waits for the engine", async { while waits().await != 1.0 {} }).await;
    drop(client);
    assert_eq!(cause(&span(&mut collector).await).as_deref(), Some("disconnected"));
}

#[tokio::test(flavor = "multi_thread")]
async fn forwarded_chat_without_ids_has_not_failed() {
    let (mut collector, mut upstream) = (ManualUpstream::start().await, ManualUpstream::start().await);
    let proxy = Proxy::probed(upstream.addr, &["--chat", "passthrough", "--otlp", &url(collector.addr)]).await;
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "a"}]}).to_string();
    let client =
        tokio::spawn(async move { post(proxy.data, "/sessions/s/v1/chat/completions", body.as_bytes()).await });
    let reply = json!({"id": "c1", "object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "b"}, "finish_reason": "stop"}]});
    upstream
        .next()
        .await
        .reply(&message(200, &[("content-type", "application/json")], reply.to_string().as_bytes()))
        .await;
    assert_eq!(client.await.unwrap().status, 200);
    let span = span(&mut collector).await;
    assert_eq!(cause(&span), None);
    let found = attributes(&span.attributes);
    assert_eq!((&found["gen_ai.operation.name"], &found["gen_ai.conversation.id"]), (&json!("chat"), &json!("s")));
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_collector_delays_no_generation() {
    let mut collector = ManualUpstream::start().await;
    let demo = Demo::start(EngineOptions::default(), &["--otlp", &url(collector.addr)]).await;
    let body = json!({"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 1}});
    demo.ask(&body).await;
    let held = collector.next().await;
    for _ in 0..50 {
        demo.ask(&body).await;
    }
    assert_eq!(spans(decode(&held)).len(), 1);
    accept(held).await;
    assert_eq!(spans(receive(&mut collector).await).len(), 50, "those that waited are sent together");
}

#[tokio::test]
async fn collector_that_asks_for_patience_blocks_no_thread() {
    let mut collector = ManualUpstream::start().await;
    let demo = Demo::start(EngineOptions::default(), &["--otlp", &url(collector.addr)]).await;
    let body = json!({"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 1}});
    demo.ask(&body).await;
    // this runtime has one thread: the exporter would block the generations
    collector.next().await.reply(&message(503, &[("retry-after", "5")], b"")).await;
    let began = std::time::Instant::now();
    while demo.proxy.parts.metrics.spans.with_label_values(&["failed"]).get() == 0 && began.elapsed().as_secs() < 2 {
        let asked = std::time::Instant::now();
        demo.ask(&body).await;
        assert!(asked.elapsed().as_secs() < 2, "it waited for {:?}", asked.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_that_a_collector_rejects_have_failed() {
    let mut collector = ManualUpstream::start().await;
    let demo = Demo::start(EngineOptions::default(), &["--otlp", &url(collector.addr)]).await;
    let body = json!({"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 1}});
    demo.ask(&body).await;
    let partial = ExportTracePartialSuccess { rejected_spans: 1, error_message: "no".into() };
    let answer = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
    collector.next().await.reply(&message(200, &[("content-type", "application/x-protobuf")], &answer)).await;
    demo.ask(&body).await;
    receive(&mut collector).await;
    let counted = |outcome| demo.proxy.metric(outcome);
    soon("both are counted", async { while counted("tokentap_spans_total{outcome=\"sent\"}").await != 1.0 {} }).await;
    assert_eq!(counted("tokentap_spans_total{outcome=\"failed\"}").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_spans_are_counted_and_logged_once() {
    let mut collector = ManualUpstream::start().await;
    let upstream = crate::support::upstream::Upstream::start(
        crate::support::upstream::EngineProfile::default(),
        crate::support::engine::answer,
    )
    .await;
    let mut binary = Binary::with_flags(upstream.addr, &["--otlp", &url(collector.addr)]).await;
    let ask = async || assert_eq!(post(binary.data, "/generate", b"{\"text\":\"a\"}").await.status, 200);
    ask().await;
    collector.next().await.reply(&message(400, &[], b"no")).await;
    ask().await;
    collector.next().await.reply(&message(401, &[], b"no")).await;
    ask().await;
    receive(&mut collector).await;
    let warned = binary.logged("the collector of --otlp does not take spans").await;
    assert!(warned["error"].as_str().expect("a cause").contains("400"), "{warned}");
    binary.logged("the collector of --otlp takes spans again").await;
    // what is queued when the process ends is sent
    assert_eq!(post(binary.data, "/generate", b"{\"text\":\"a\"}").await.status, 200);
    binary.terminate();
    assert_eq!(spans(receive(&mut collector).await).len(), 1);
    assert_eq!(soon("it ends", binary.code()).await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn collector_that_is_no_url_is_refused() {
    let refused = output(&["serve", "--otlp", "collector:4318"]).await;
    let line = String::from_utf8_lossy(&refused.stderr).into_owned();
    let expected = "tokentap: --otlp cannot be 'collector:4318' (from the command line): it is http://HOST:PORT or https://HOST:PORT";
    assert!(!refused.status.success() && line.starts_with(expected), "{line}");
}
