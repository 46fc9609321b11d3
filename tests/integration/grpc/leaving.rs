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
use crate::support::hand::{Call, END, Hand, STREAM, chunk, event, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::message;

/// A stream of which one event has been read.
async fn streaming(hand: &mut Hand, proxy: &Proxy, rid: &str) -> (Streaming<GenerateReply>, Call) {
    let mut client = generate(proxy.data).await;
    let json = json!({"text": "a", "rid": rid, "stream": true}).to_string();
    let asking = tokio::spawn(async move {
        client.generate(GenerateRequest { json: Bytes::from(json), session: String::new() }).await
    });
    let mut call = hand.next().await;
    call.say(STREAM).await;
    call.say(&event(rid, 0)).await;
    let mut replies = asking.await.unwrap().unwrap().into_inner();
    assert!(soon("an event", replies.message()).await.unwrap().is_some());
    (replies, call)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_cancelled_is_aborted_in_the_engine() {
    let mut hand = Hand::start().await;
    let proxy = Proxy::probed(hand.addr, &[]).await;
    let (replies, call) = streaming(&mut hand, &proxy, "midway").await;
    drop(replies);
    call.gone().await;
    let abort = hand.next().await;
    assert_eq!(abort.aborted(), "midway");
    abort.ok().await;

    // and one whose reply has not begun
    let mut client = generate(proxy.data).await;
    let json = Bytes::from_static(br#"{"text":"a","rid":"early"}"#);
    let asking = tokio::spawn(async move { client.generate(GenerateRequest { json, session: String::new() }).await });
    let call = hand.next().await;
    asking.abort();
    call.gone().await;
    let abort = hand.next().await;
    assert_eq!(abort.aborted(), "early");
    abort.ok().await;
    soon("both are counted", async { while proxy.metric("tokentap_aborts_sent_total").await != 2.0 {} }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_a_caller_stops_reading_so_does_tokentap_and_it_may_go_on() {
    const LIMIT: usize = 48 << 20;
    let mut hand = Hand::start().await;
    let proxy = Proxy::probed(hand.addr, &["--record", "false"]).await;
    let (mut replies, mut call) = streaming(&mut hand, &proxy, "slow").await;
    let meta = json!({"id": "slow", "finish_reason": null});
    let large = json!({"text": "a".repeat(64 << 10), "output_ids": [], "meta_info": meta, "index": 0}).to_string();
    let piece = chunk(format!("data: {large}\n\n").as_bytes());
    let (mut written, mut idle) = (0, 0);
    // blocked is a stream that has not moved while tokentap answered a hundred others
    while idle < 100 {
        match call.try_say(&piece[written % piece.len()..]) {
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
        call.say(&rest).await;
        call.say(&chunk(b"data: [DONE]\n\n")).await;
        call.reply(END).await;
    });
    let mut read = 0;
    while let Some(reply) = soon("the rest", replies.message()).await.unwrap() {
        assert!(reply.json.len() >= large.len(), "an event is whole");
        read += 1;
    }
    assert_eq!(read, sent, "everything came in the end");
    engine.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_break_disturb_nobody_and_hold_nothing_up() {
    let mut hand = Hand::start().await;
    let proxy = Proxy::probed(hand.addr, &[]).await;
    let (mut replies, mut call) = streaming(&mut hand, &proxy, "watched").await;
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
            // with its connection, which nobody else uses
            drop((watching, client));
        }
    }
    call.say(&event("watched", 0)).await;
    assert!(soon("the stream goes on", replies.message()).await.unwrap().is_some());
    call.say(&chunk(b"data: [DONE]\n\n")).await;
    call.reply(END).await;
    assert!(soon("the end", replies.message()).await.unwrap().is_none());
    drop(replies);
    proxy.phase.send_replace(Phase::Draining);
    assert_eq!(soon("tokentap ends", proxy.task).await.unwrap(), 0, "nothing was left to cut");
}

/// A call of a named session; whether it says that it comes again.
fn ask(json: &'static str, again: bool) -> tonic::Request<GenerateRequest> {
    let json = Bytes::from_static(json.as_bytes());
    let mut request = tonic::Request::new(GenerateRequest { json, session: "s".to_owned() });
    if again {
        request.metadata_mut().insert("x-stainless-retry-count", "1".parse().unwrap());
    }
    request
}

/// What the engine says of one token, with this text.
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
async fn a_small_reply_that_found_no_room_is_there_for_a_retry() {
    let mut hand = Hand::start().await;
    let proxy = Proxy::probed(hand.addr, &[]).await;
    // its connection takes heads, and not a byte of a reply
    let deaf = Endpoint::from_shared(format!("http://{}", proxy.data)).unwrap().initial_stream_window_size(0);
    let mut deaf = Generate::new(deaf.connect().await.unwrap());
    let asking = tokio::spawn(async move { deaf.generate(ask(WHOLE, false)).await });
    let reply = one_token("x");
    let engine =
        async |call: Call| call.reply(&message(200, &[("content-type", "application/json")], reply.as_bytes())).await;
    engine(hand.next().await).await;
    drop(soon("the reply begins", asking).await.unwrap().unwrap());
    soon("it has left", async { while proxy.metric(ACTIVE).await != 0.0 {} }).await;
    let mut client = generate(proxy.data).await;
    let mut again = soon("the retry", client.generate(ask(WHOLE, true))).await.unwrap().into_inner();
    assert!(soon("its reply", again.message()).await.unwrap().is_some());
    assert!(soon("the end", again.message()).await.unwrap().is_none());
    assert_eq!(proxy.metric(REPLAYED).await, 1.0);
    assert!(!hand.has_more(), "the engine was asked once");
    // now it has arrived: the same call is another sample
    let another = tokio::spawn(async move { client.generate(ask(WHOLE, true)).await });
    engine(hand.next().await).await;
    soon("another", another).await.unwrap().unwrap();
    assert_eq!(proxy.metric(SUPERSEDED).await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_event_that_nobody_took_has_not_arrived() {
    // small ones, which find no room at all, and large ones, of which the beginning does
    for (text, window) in [("x".to_owned(), 0), ("x".repeat(4 << 20), 64 << 10)] {
        let mut hand = Hand::start().await;
        let proxy = Proxy::probed(hand.addr, &[]).await;
        let slow = Endpoint::from_shared(format!("http://{}", proxy.data)).unwrap().initial_stream_window_size(window);
        let mut slow = Generate::new(slow.connect().await.unwrap());
        let asking = tokio::spawn(async move { slow.generate(ask(STREAMED, false)).await });
        let event = chunk(format!("data: {}\n\n", one_token(&text)).as_bytes());
        let events = [event, chunk(b"data: [DONE]\n\n"), END.to_vec()].concat();
        let engine = async |mut call: Call| {
            call.say(STREAM).await;
            call.reply(&events).await;
        };
        let first = hand.next().await;
        let (unread, ()) = tokio::join!(soon("the reply begins", asking), engine(first));
        let unread = unread.unwrap().unwrap();
        // the event has come: its turn is there
        soon("its turn", async { while get(proxy.control, "/v1/sessions/s").await.json()["turns"] != 1 {} }).await;
        drop(unread);
        soon("it has left", async { while proxy.metric(ACTIVE).await != 0.0 {} }).await;
        // its end has not, so that it is asked for again, and the first stands in nobody's way
        let client = Generate::new(super::client::channel(proxy.data).await).max_decoding_message_size(64 << 20);
        for (nth, superseded) in [(2, 1.0), (3, 1.0)] {
            let mut client = client.clone();
            let asking = tokio::spawn(async move { client.generate(ask(STREAMED, true)).await });
            let mut call = hand.next().await;
            // the call before may have been aborted, as it left before the end mark
            while call.asked.path == "/abort_request" {
                call.ok().await;
                call = hand.next().await;
            }
            let read = async {
                let mut again = soon("the retry", asking).await.unwrap().unwrap().into_inner();
                assert!(soon("its event", again.message()).await.unwrap().is_some());
                assert!(soon("the end", again.message()).await.unwrap().is_none());
            };
            tokio::join!(read, engine(call));
            soon("it has ended", async { while proxy.metric(ACTIVE).await != 0.0 {} }).await;
            // a second one of the same that arrived is another sample
            assert_eq!(proxy.metric(SUPERSEDED).await, superseded, "call {nth}, window {window}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_is_here_but_was_not_taken_is_there_for_a_retry() {
    let mut hand = Hand::start().await;
    let proxy = Proxy::probed(hand.addr, &[]).await;
    let narrow = Endpoint::from_shared(format!("http://{}", proxy.data)).unwrap().initial_stream_window_size(64 << 10);
    let mut client = Generate::new(narrow.connect().await.unwrap()).max_decoding_message_size(64 << 20);
    let mut first = client.clone();
    let asking = tokio::spawn(async move { first.generate(ask(WHOLE, false)).await });
    let large = one_token(&"x".repeat(4 << 20));
    hand.next().await.reply(&message(200, &[("content-type", "application/json")], large.as_bytes())).await;
    let unread = soon("the reply begins", asking).await.unwrap().unwrap();
    drop(unread);
    soon("it has left", async { while proxy.metric(ACTIVE).await != 0.0 {} }).await;
    let mut again = soon("the retry", client.generate(ask(WHOLE, true))).await.unwrap().into_inner();
    let reply = soon("its reply", again.message()).await.unwrap().unwrap();
    assert!(reply.json.len() > large.len(), "with its entropies");
    assert!(soon("the end", again.message()).await.unwrap().is_none());
    assert_eq!(proxy.metric(REPLAYED).await, 1.0);
    // now it has arrived: the same call is another sample
    let another = tokio::spawn(async move { client.generate(ask(WHOLE, true)).await });
    hand.next().await.reply(&message(200, &[("content-type", "application/json")], large.as_bytes())).await;
    soon("another", another).await.unwrap().unwrap();
}
