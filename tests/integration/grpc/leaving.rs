// SPDX-License-Identifier: Apache-2.0
//! Callers that leave, or stop reading.

use bytes::Bytes;
use serde_json::json;
use tokentap::serve::connection::Phase;
use tokentap::serve::grpc::pb::watch_request::{Entropies, Finished, Turns, What};
use tokentap::serve::grpc::pb::{GenerateReply, GenerateRequest, WatchRequest};
use tonic::Streaming;
use tonic::transport::Endpoint;

use super::client::{Generate, generate, trajectories};
use crate::support::client::get;
use crate::support::manual_upstream::{Call, END, ManualUpstream, STREAM, chunk, event, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::message;

/// Starts a stream and reads its first event.
async fn start_stream(upstream: &mut ManualUpstream, proxy: &Proxy, rid: &str) -> (Streaming<GenerateReply>, Call) {
    let mut client = generate(proxy.data).await;
    let json = json!({"text": "a", "rid": rid, "stream": true}).to_string();
    let asking = tokio::spawn(async move {
        client.generate(GenerateRequest { json: Bytes::from(json), session: String::new() }).await
    });
    let mut call = upstream.next().await;
    call.send(STREAM).await;
    call.send(&event(rid, 0)).await;
    let mut replies = asking.await.unwrap().unwrap().into_inner();
    assert!(soon("an event", replies.message()).await.unwrap().is_some());
    (replies, call)
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_call_is_aborted_in_the_engine() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let (replies, call) = start_stream(&mut upstream, &proxy, "midway").await;
    drop(replies);
    call.closed().await;
    let abort = upstream.next().await;
    assert_eq!(abort.aborted(), "midway");
    abort.ok().await;

    // also a call whose reply has not begun
    let mut client = generate(proxy.data).await;
    let json = Bytes::from_static(br#"{"text":"a","rid":"early"}"#);
    let asking = tokio::spawn(async move { client.generate(GenerateRequest { json, session: String::new() }).await });
    let call = upstream.next().await;
    asking.abort();
    call.closed().await;
    let abort = upstream.next().await;
    assert_eq!(abort.aborted(), "early");
    abort.ok().await;
    soon("both are counted", async { while proxy.metric("tokentap_aborts_sent_total").await != 2.0 {} }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_caller_applies_backpressure_and_can_resume() {
    const LIMIT: usize = 48 << 20;
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &["--record", "false"]).await;
    let (mut replies, mut call) = start_stream(&mut upstream, &proxy, "slow").await;
    let meta = json!({"id": "slow", "finish_reason": null});
    let large = json!({"text": "a".repeat(64 << 10), "output_ids": [], "meta_info": meta, "index": 0}).to_string();
    let piece = chunk(format!("data: {large}\n\n").as_bytes());
    let (mut written, mut idle) = (0, 0);
    // the stream counts as blocked if it did not move during a hundred other requests
    while idle < 100 {
        match call.try_send(&piece[written % piece.len()..]) {
            Some(0) => {
                idle += 1;
                assert_eq!(get(proxy.control, "/livez").await.status, 200);
            }
            Some(length) => (idle, written) = (0, written + length),
            None => panic!("the connection lives as long as the caller"),
        }
        assert!(written < LIMIT, "{written} bytes were taken from the engine for a caller that reads none");
    }
    let rest = piece[written % piece.len()..].to_vec();
    let sent = written / piece.len() + 1;
    let engine = tokio::spawn(async move {
        call.send(&rest).await;
        call.send(&chunk(b"data: [DONE]\n\n")).await;
        call.reply(END).await;
    });
    let mut read = 0;
    while let Some(reply) = soon("the rest", replies.message()).await.unwrap() {
        assert!(reply.json.len() >= large.len(), "an event is whole");
        read += 1;
    }
    assert_eq!(read, sent, "all events arrived");
    engine.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_watch_connections_do_not_affect_others_or_the_drain() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let (mut replies, mut call) = start_stream(&mut upstream, &proxy, "watched").await;
    let of = |what| WatchRequest { what: Some(what) };
    let rid = "watched".to_owned();
    for what in [
        What::Turns(Turns::default()),
        What::Finished(Finished::default()),
        What::Entropies(Entropies { rid, index: None, since: 0 }),
    ] {
        for _ in 0..10 {
            let mut client = trajectories(proxy.control).await;
            let watching = client.watch(of(what.clone())).await.unwrap();
            // together with its own connection
            drop((watching, client));
        }
    }
    call.send(&event("watched", 0)).await;
    assert!(soon("the stream continues", replies.message()).await.unwrap().is_some());
    call.send(&chunk(b"data: [DONE]\n\n")).await;
    call.reply(END).await;
    assert!(soon("the end", replies.message()).await.unwrap().is_none());
    drop(replies);
    proxy.phase.send_replace(Phase::Draining);
    assert_eq!(soon("tokentap ends", proxy.task).await.unwrap(), 0, "nothing was left to cut");
}

/// A call of the session `s`; `again` marks it as a retry.
fn ask(json: &'static str, again: bool) -> tonic::Request<GenerateRequest> {
    let json = Bytes::from_static(json.as_bytes());
    let mut request = tonic::Request::new(GenerateRequest { json, session: "s".to_owned() });
    if again {
        request.metadata_mut().insert("x-stainless-retry-count", "1".parse().unwrap());
    }
    request
}

/// The engine's object for one token with this text.
fn one_token(text: &str) -> String {
    let meta = json!({"id": "engine", "finish_reason": {"type": "stop", "matched": 7}, "prompt_tokens": 3,
        "completion_tokens": 1, "output_token_logprobs": [[-0.5, 4, null]]});
    json!({"text": text, "output_ids": [4], "meta_info": meta}).to_string()
}

const WHOLE: &str = r#"{"input_ids":[1,2,3]}"#;
const STREAMED: &str = r#"{"input_ids":[1,2,3],"stream":true}"#;
const ACTIVE: &str = "tokentap_http_requests_active{endpoint=\"/generate\"}";
const SUPERSEDED: &str = "tokentap_retries_total{outcome=\"superseded\"}";
const REPLAYED: &str = "tokentap_retries_total{outcome=\"replayed\"}";

#[tokio::test(flavor = "multi_thread")]
async fn unsent_small_reply_is_replayed_on_retry() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    // its connection has a window of 0 and receives only heads
    let blocked = Endpoint::from_shared(format!("http://{}", proxy.data)).unwrap().initial_stream_window_size(0);
    let mut blocked = Generate::new(blocked.connect().await.unwrap());
    let asking = tokio::spawn(async move { blocked.generate(ask(WHOLE, false)).await });
    let reply = one_token("x");
    let engine =
        async |call: Call| call.reply(&message(200, &[("content-type", "application/json")], reply.as_bytes())).await;
    engine(upstream.next().await).await;
    drop(soon("the reply begins", asking).await.unwrap().unwrap());
    soon("the call has ended", async { while proxy.metric(ACTIVE).await != 0.0 {} }).await;
    let mut client = generate(proxy.data).await;
    let mut again = soon("the retry", client.generate(ask(WHOLE, true))).await.unwrap().into_inner();
    assert!(soon("its reply", again.message()).await.unwrap().is_some());
    assert!(soon("the end", again.message()).await.unwrap().is_none());
    assert_eq!(proxy.metric(REPLAYED).await, 1.0);
    assert!(!upstream.has_more(), "the engine was asked once");
    // the reply is delivered now: the same call is another sample
    let another = tokio::spawn(async move { client.generate(ask(WHOLE, true)).await });
    engine(upstream.next().await).await;
    soon("another", another).await.unwrap().unwrap();
    assert_eq!(proxy.metric(SUPERSEDED).await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_last_event_is_undelivered() {
    // small events, which do not fit the window at all, and large ones, whose beginning fits
    for (text, window) in [("x".to_owned(), 0), ("x".repeat(4 << 20), 64 << 10)] {
        let mut upstream = ManualUpstream::start().await;
        let proxy = Proxy::probed(upstream.addr, &[]).await;
        let slow = Endpoint::from_shared(format!("http://{}", proxy.data)).unwrap().initial_stream_window_size(window);
        let mut slow = Generate::new(slow.connect().await.unwrap());
        let asking = tokio::spawn(async move { slow.generate(ask(STREAMED, false)).await });
        let event = chunk(format!("data: {}\n\n", one_token(&text)).as_bytes());
        let events = [event, chunk(b"data: [DONE]\n\n"), END.to_vec()].concat();
        let engine = async |mut call: Call| {
            call.send(STREAM).await;
            call.reply(&events).await;
        };
        let first = upstream.next().await;
        let (unread, ()) = tokio::join!(soon("the reply begins", asking), engine(first));
        let unread = unread.unwrap().unwrap();
        // tokentap has the event: its turn is recorded
        soon("its turn", async { while get(proxy.control, "/v1/sessions/s").await.json()["turns"] != 1 {} }).await;
        drop(unread);
        soon("the call has ended", async { while proxy.metric(ACTIVE).await != 0.0 {} }).await;
        // its end is undelivered, so a retry generates again, and the first attempt does not block it
        let client = Generate::new(super::client::channel(proxy.data).await).max_decoding_message_size(64 << 20);
        for (nth, superseded) in [(2, 1.0), (3, 1.0)] {
            let mut client = client.clone();
            let asking = tokio::spawn(async move { client.generate(ask(STREAMED, true)).await });
            let mut call = upstream.next().await;
            // the previous call may be aborted, since its caller left before the end mark
            while call.asked.path == "/abort_request" {
                call.ok().await;
                call = upstream.next().await;
            }
            let read = async {
                let mut again = soon("the retry", asking).await.unwrap().unwrap().into_inner();
                assert!(soon("its event", again.message()).await.unwrap().is_some());
                assert!(soon("the end", again.message()).await.unwrap().is_none());
            };
            tokio::join!(read, engine(call));
            soon("it has ended", async { while proxy.metric(ACTIVE).await != 0.0 {} }).await;
            // a repeated call after a delivered reply is another sample
            assert_eq!(proxy.metric(SUPERSEDED).await, superseded, "call {nth}, window {window}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_large_reply_is_replayed_on_retry() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let narrow = Endpoint::from_shared(format!("http://{}", proxy.data)).unwrap().initial_stream_window_size(64 << 10);
    let mut client = Generate::new(narrow.connect().await.unwrap()).max_decoding_message_size(64 << 20);
    let mut first = client.clone();
    let asking = tokio::spawn(async move { first.generate(ask(WHOLE, false)).await });
    let large = one_token(&"x".repeat(4 << 20));
    upstream.next().await.reply(&message(200, &[("content-type", "application/json")], large.as_bytes())).await;
    let unread = soon("the reply begins", asking).await.unwrap().unwrap();
    drop(unread);
    soon("the call has ended", async { while proxy.metric(ACTIVE).await != 0.0 {} }).await;
    let mut again = soon("the retry", client.generate(ask(WHOLE, true))).await.unwrap().into_inner();
    let reply = soon("its reply", again.message()).await.unwrap().unwrap();
    assert!(reply.json.len() > large.len(), "with its entropies");
    assert!(soon("the end", again.message()).await.unwrap().is_none());
    assert_eq!(proxy.metric(REPLAYED).await, 1.0);
    // the reply is delivered now: the same call is another sample
    let another = tokio::spawn(async move { client.generate(ask(WHOLE, true)).await });
    upstream.next().await.reply(&message(200, &[("content-type", "application/json")], large.as_bytes())).await;
    soon("another", another).await.unwrap().unwrap();
}
