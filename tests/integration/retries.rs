// SPDX-License-Identifier: Apache-2.0
//! Repeated calls: retries get the reply to the first attempt, samples stay samples, and undelivered turns are not trained.

use serde_json::{Value, json};
use tokentap::demo::EngineOptions;
use tokentap::session::{Path, Row};
use tokio::net::TcpSocket;

use crate::support::client::{Answer, Connection, request, written};
use crate::support::demo::Demo;
use crate::support::manual_upstream::{Call, END, ManualUpstream, STREAM, chunk, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::message;

const SESSION: (&str, &str) = ("x-session-id", "s");
const RETRY: (&str, &str) = ("x-stainless-retry-count", "1");

async fn started() -> (ManualUpstream, Proxy) {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    (upstream, proxy)
}

fn body(stream: bool) -> Value {
    json!({"input_ids": [1, 2, 3], "stream": stream})
}

/// Sends a generation.
async fn send(proxy: &Proxy, headers: &[(&str, &str)], body: &Value) -> Connection {
    let mut client = Connection::open(proxy.data).await;
    client.send(&written(proxy.data, "POST", "/generate", headers, body.to_string().as_bytes())).await;
    client
}

/// Accepts the next generation as the engine.
async fn accept(upstream: &mut ManualUpstream) -> Call {
    let call = upstream.next().await;
    assert_eq!(call.asked.path, "/generate");
    call
}

/// The reply of the engine after it has sampled these tokens.
fn engine_reply(ids: &[u32], finish: &Value, text: &str) -> Value {
    let logprobs: Vec<Value> = ids.iter().map(|id| json!([-0.5, id, null])).collect();
    let meta = json!({
        "id": "engine", "finish_reason": finish, "prompt_tokens": 3, "output_token_logprobs": logprobs,
        "completion_tokens": ids.len(),
    });
    json!({"text": text, "output_ids": ids, "meta_info": meta})
}

fn stop() -> Value {
    json!({"type": "stop", "matched": 7})
}

fn reply(ids: &[u32]) -> Vec<u8> {
    let body = engine_reply(ids, &stop(), "ab").to_string();
    message(200, &[("content-type", "application/json")], body.as_bytes())
}

/// One event of a cumulative stream.
fn event(ids: &[u32], finish: &Value) -> Vec<u8> {
    chunk(format!("data: {}\n\n", engine_reply(ids, finish, "a")).as_bytes())
}

/// Waits until a metric has a value; each check is a request.
async fn wait_for_metric(proxy: &Proxy, name: &str, value: f64) {
    soon(&format!("{name} is {value}"), async { while proxy.metric(name).await != value {} }).await;
}

async fn wait_for_outcome(proxy: &Proxy, outcome: &str, value: f64) {
    wait_for_metric(proxy, &format!("tokentap_retries_total{{outcome=\"{outcome}\"}}"), value).await;
}

/// Waits until this number of generations is active.
async fn wait_for_active(proxy: &Proxy, value: f64) {
    wait_for_metric(proxy, "tokentap_http_requests_active{endpoint=\"/generate\"}", value).await;
}

/// Reads a stream up to the event with these tokens.
async fn read_tokens(client: &mut Connection, ids: &[u32]) {
    let named = format!("\"output_ids\":{}", json!(ids));
    let event = |read: &[u8]| memchr::memmem::find(read, named.as_bytes()).is_some() && read.ends_with(b"\n\n\r\n");
    assert!(soon("an event", client.read_until(event)).await, "the stream continues");
}

/// The exported rows of a session, and the rejected ones: the last turn of each, and the reason.
fn rows(proxy: &Proxy, session: &str) -> (Vec<Path>, Vec<(u32, &'static str)>) {
    let snapshot = proxy.parts.sessions.session(session).expect("the session exists").snapshot(None).unwrap();
    let (rows, refused) = snapshot.rows(true);
    (rows.iter().map(Row::path).collect(), refused.iter().map(|refused| (refused.leaf, refused.reason)).collect())
}

/// The last turns of the exported rows, and the rejected rows.
fn leaves(proxy: &Proxy) -> (Vec<u32>, Vec<(u32, &'static str)>) {
    let (rows, refused) = rows(proxy, "s");
    (rows.iter().map(|row| row.steps.last().unwrap().turn.id).collect(), refused)
}

fn same(first: &Answer, second: &Answer) {
    let plain = |answer: &Answer| {
        let kept = answer.headers.iter().filter(|(name, _)| name != "date");
        kept.cloned().collect::<Vec<_>>()
    };
    assert_eq!((first.status, plain(first)), (second.status, plain(second)), "the same head");
    assert_eq!(first.body, second.body, "the same bytes");
    assert!(first.complete && second.complete && first.header("x-tokentap-session") == Some("s"));
}

/// A connection with a small receive buffer, so that a large reply blocks.
async fn narrow(proxy: &Proxy) -> tokio::net::TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 * 1024).unwrap();
    socket.connect(proxy.data).await.unwrap()
}

/// Generates a complete reply to a client that disconnects in the middle of it.
async fn disconnect_mid_reply(
    upstream: &mut ManualUpstream,
    proxy: &Proxy,
    headers: &[(&str, &str)],
    asked: &Value,
) -> Vec<u8> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut client = narrow(proxy).await;
    let sent = written(proxy.data, "POST", "/generate", headers, asked.to_string().as_bytes());
    client.write_all(&sent).await.unwrap();
    let call = accept(upstream).await;
    let large = engine_reply(&[4, 5], &stop(), &"x".repeat(12 << 20)).to_string();
    call.reply(&message(200, &[("content-type", "application/json")], large.as_bytes())).await;
    soon("the reply begins", client.read_u8()).await.unwrap();
    assert_eq!(
        proxy.metric("tokentap_http_requests_active{endpoint=\"/generate\"}").await,
        1.0,
        "the reply is being sent"
    );
    drop(client);
    wait_for_active(proxy, 0.0).await;
    large.into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn identical_calls_are_samples() {
    let (mut upstream, proxy) = started().await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(send(&proxy, &[SESSION], &body(false)).await);
    }
    let mut calls = Vec::new();
    for _ in 0..8 {
        calls.push(accept(&mut upstream).await);
    }
    for (at, call) in calls.into_iter().enumerate() {
        call.reply(&reply(&[10, at as u32])).await;
    }
    for client in &mut clients {
        assert!(client.answer().await.complete);
    }
    for at in 8..12 {
        let mut client = send(&proxy, &[SESSION], &body(false)).await;
        accept(&mut upstream).await.reply(&reply(&[10, at])).await;
        assert!(client.answer().await.complete);
        wait_for_active(&proxy, 0.0).await;
    }
    assert_eq!(leaves(&proxy), ((0..12).collect(), vec![]), "twelve samples, all of them trained");
    assert!(!upstream.has_more());
    for outcome in ["joined", "replayed", "superseded"] {
        wait_for_outcome(&proxy, outcome, 0.0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn identical_calls_to_the_demo_engine_are_samples() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let ask = |stream: bool| {
        let body =
            json!({"text": "The", "sampling_params": {"max_new_tokens": 8, "temperature": 1.0}, "stream": stream});
        let data = demo.proxy.data;
        tokio::spawn(async move { request(data, "POST", "/generate", &[SESSION], body.to_string().as_bytes()).await })
    };
    let asked: Vec<_> = (0..16).map(|at| ask(at % 2 == 1)).collect();
    let mut replies = std::collections::HashSet::new();
    for answer in asked {
        let answer = answer.await.unwrap();
        assert!(answer.complete);
        replies.insert(answer.body);
    }
    assert!(replies.len() > 8, "samples differ: {}", replies.len());
    let snapshot = demo.proxy.parts.sessions.session("s").unwrap().snapshot(None).unwrap();
    assert_eq!(snapshot.turns().len(), 16);
    assert!(snapshot.turns().iter().all(|turn| turn.about.supersedes.is_empty() && turn.about.fault.is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_joins_the_running_attempt() {
    let (mut upstream, proxy) = started().await;
    let mut first = send(&proxy, &[SESSION], &body(false)).await;
    let call = accept(&mut upstream).await;
    let mut second = send(&proxy, &[SESSION, RETRY], &body(false)).await;
    wait_for_outcome(&proxy, "joined", 1.0).await;
    call.reply(&reply(&[4, 5])).await;
    same(&first.answer().await, &second.answer().await);
    assert!(!upstream.has_more(), "one generation");
    assert_eq!(leaves(&proxy), (vec![0], vec![]), "one turn");
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_of_a_failed_sample_does_not_join_another_sample() {
    let (mut upstream, proxy) = started().await;
    let mut refused = send(&proxy, &[SESSION], &body(false)).await;
    let call = accept(&mut upstream).await;
    let mut other = send(&proxy, &[SESSION], &body(false)).await;
    let sample = accept(&mut upstream).await;
    call.reply(&message(503, &[], b"busy")).await;
    assert_eq!(refused.answer().await.status, 503);
    // one of two calls is still running: it is not the call that is retried
    let mut again = send(&proxy, &[SESSION, RETRY], &body(false)).await;
    accept(&mut upstream).await.reply(&reply(&[6])).await;
    sample.reply(&reply(&[4, 5])).await;
    assert_eq!(again.answer().await.json()["output_ids"], json!([6]));
    assert_eq!(other.answer().await.json()["output_ids"], json!([4, 5]));
    assert_eq!(leaves(&proxy), (vec![0, 1], vec![]), "two samples");
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_joins_a_stream_from_the_beginning() {
    let (mut upstream, proxy) = started().await;
    let mut first = send(&proxy, &[SESSION], &body(true)).await;
    let mut call = accept(&mut upstream).await;
    call.send(STREAM).await;
    call.send(&event(&[4], &Value::Null)).await;
    read_tokens(&mut first, &[4]).await;
    let mut second = send(&proxy, &[SESSION, RETRY], &body(true)).await;
    read_tokens(&mut second, &[4]).await;
    call.send(&event(&[4, 5], &stop())).await;
    read_tokens(&mut second, &[4, 5]).await;
    call.reply(&[&chunk(b"data: [DONE]\n\n"), END].concat()).await;
    same(&first.answer().await, &second.answer().await);
    assert!(!upstream.has_more());
    assert_eq!(leaves(&proxy), (vec![0], vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn generation_continues_for_remaining_clients() {
    let (mut upstream, proxy) = started().await;
    // the client disconnects before the response head
    let first = send(&proxy, &[SESSION], &body(false)).await;
    let call = accept(&mut upstream).await;
    let mut second = send(&proxy, &[SESSION, RETRY], &body(false)).await;
    wait_for_outcome(&proxy, "joined", 1.0).await;
    drop(first);
    wait_for_active(&proxy, 1.0).await;
    call.reply(&reply(&[4, 5])).await;
    assert_eq!(second.answer().await.json()["output_ids"], json!([4, 5]));
    wait_for_active(&proxy, 0.0).await;
    // the client disconnects during a stream
    let mut first = send(&proxy, &[SESSION], &body(true)).await;
    let mut call = accept(&mut upstream).await;
    call.send(STREAM).await;
    call.send(&event(&[6], &Value::Null)).await;
    read_tokens(&mut first, &[6]).await;
    let mut second = send(&proxy, &[SESSION, RETRY], &body(true)).await;
    read_tokens(&mut second, &[6]).await;
    drop(first);
    wait_for_active(&proxy, 1.0).await;
    call.send(&event(&[6, 7], &stop())).await;
    call.reply(&[&chunk(b"data: [DONE]\n\n"), END].concat()).await;
    let answer = second.answer().await;
    assert!(answer.complete && answer.events().len() == 2, "the complete stream: {}", answer.text());
    wait_for_active(&proxy, 0.0).await;
    assert_eq!(leaves(&proxy), (vec![0, 1], vec![]), "two generations, two turns");
    assert!(!upstream.has_more(), "no abort was sent");
    assert_eq!(proxy.metric("tokentap_client_disconnects_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_attempt_is_superseded_by_its_retry() {
    let (mut upstream, proxy) = started().await;
    let mut first = send(&proxy, &[SESSION], &body(true)).await;
    let mut call = accept(&mut upstream).await;
    call.send(STREAM).await;
    call.send(&event(&[4], &Value::Null)).await;
    read_tokens(&mut first, &[4]).await;
    drop(first);
    call.closed().await;
    for _ in 0..2 {
        // the assigned id, and the one that the engine reported
        let abort = upstream.next().await;
        abort.aborted();
        abort.ok().await;
    }
    wait_for_active(&proxy, 0.0).await;
    assert_eq!(leaves(&proxy), (vec![], vec![(0, "disconnected")]), "the received tokens are kept");
    let mut second = send(&proxy, &[SESSION, RETRY], &body(true)).await;
    let call = accept(&mut upstream).await;
    call.reply(&[STREAM, &event(&[5, 6], &stop()), &chunk(b"data: [DONE]\n\n"), END].concat()).await;
    assert!(second.answer().await.complete);
    wait_for_outcome(&proxy, "superseded", 1.0).await;
    assert_eq!(leaves(&proxy), (vec![1], vec![(0, "superseded")]));
    let turns = rows(&proxy, "s").0;
    assert_eq!(turns[0].steps.last().unwrap().turn.about.supersedes, [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_with_the_same_rid_waits_for_the_aborts_of_the_first_attempt() {
    let (mut upstream, proxy) = started().await;
    let named = json!({"input_ids": [1, 2, 3], "rid": "mine"});
    let first = send(&proxy, &[SESSION], &named).await;
    let call = accept(&mut upstream).await;
    drop(first);
    call.closed().await;
    let abort = upstream.next().await;
    assert_eq!(abort.aborted(), "mine");
    let mut second = send(&proxy, &[SESSION], &named).await;
    wait_for_active(&proxy, 1.0).await;
    assert!(!upstream.has_more(), "a pending abort would abort the retry");
    abort.ok().await;
    accept(&mut upstream).await.reply(&reply(&[4, 5])).await;
    assert_eq!(second.answer().await.status, 200, "it is not rejected as a duplicate rid");
    assert_eq!(leaves(&proxy), (vec![0], vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_is_repeated_while_the_engine_still_has_its_rid() {
    let (mut upstream, proxy) = started().await;
    let named = json!({"input_ids": [1, 2, 3], "rid": "mine"});
    let first = send(&proxy, &[SESSION], &named).await;
    let asked = accept(&mut upstream).await;
    drop(first);
    asked.closed().await;
    upstream.next().await.ok().await;
    let mut second = send(&proxy, &[SESSION], &named).await;
    // the engine acknowledges an abort before it completes
    let refusal = br#"{"error":{"message":"Duplicate request ID detected: mine"}}"#;
    for _ in 0..2 {
        let call = accept(&mut upstream).await;
        assert!(
            memchr::memmem::find(&call.asked.body, b"\"return_logprob\":true").is_some(),
            "logprobs are still requested"
        );
        call.reply(&message(400, &[("content-type", "application/json")], refusal)).await;
    }
    accept(&mut upstream).await.reply(&reply(&[4, 5])).await;
    assert_eq!(second.answer().await.status, 200);
    assert_eq!(proxy.metric("tokentap_unforced_retries_total{status_code=\"400\"}").await, 0.0);
    assert_eq!(leaves(&proxy), (vec![0], vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn same_rid_marks_a_retry() {
    let (mut upstream, proxy) = started().await;
    let named = json!({"input_ids": [1, 2, 3], "rid": "mine"});
    let mut first = send(&proxy, &[SESSION], &named).await;
    let call = accept(&mut upstream).await;
    let mut second = send(&proxy, &[SESSION], &named).await;
    wait_for_outcome(&proxy, "joined", 1.0).await;
    call.reply(&reply(&[4, 5])).await;
    same(&first.answer().await, &second.answer().await);
    assert_eq!(proxy.metric("tokentap_guard_refusals_total{rule=\"rid_live\"}").await, 0.0);
    // without a session a duplicate rid is rejected, because it crashes engines
    let first = send(&proxy, &[], &named).await;
    let _call = accept(&mut upstream).await;
    assert_eq!(send(&proxy, &[], &named).await.answer().await.status, 400);
    drop(first);
}

#[tokio::test(flavor = "multi_thread")]
async fn undelivered_reply_is_replayed() {
    let (mut upstream, proxy) = started().await;
    let large = disconnect_mid_reply(&mut upstream, &proxy, &[SESSION], &body(false)).await;
    // the second client disconnects as well
    let mut second = send(&proxy, &[SESSION, RETRY], &body(false)).await;
    assert!(second.read_until(|read| !read.is_empty()).await);
    drop(second);
    wait_for_active(&proxy, 0.0).await;
    wait_for_outcome(&proxy, "replayed", 1.0).await;
    let mut third = send(&proxy, &[SESSION, RETRY], &body(false)).await;
    let answer = third.answer().await;
    assert!(answer.complete && answer.header("content-length").is_some());
    assert_eq!(answer.json()["text"].as_str().unwrap().len(), 12 << 20);
    assert!(answer.body.len() > large.len(), "with its entropies");
    wait_for_outcome(&proxy, "replayed", 2.0).await;
    wait_for_active(&proxy, 0.0).await;
    assert!(!upstream.has_more(), "nothing was generated again");
    assert_eq!(leaves(&proxy), (vec![0], vec![]), "one turn, which is exported");
    // the reply was delivered: from now on an identical call is a sample, even with a retry header
    let mut fourth = send(&proxy, &[SESSION, RETRY], &body(false)).await;
    accept(&mut upstream).await.reply(&reply(&[8, 9])).await;
    assert_eq!(fourth.answer().await.json()["output_ids"], json!([8, 9]));
    assert_eq!(leaves(&proxy), (vec![0, 1], vec![]));
    wait_for_outcome(&proxy, "superseded", 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn undelivered_reply_is_superseded_by_an_unmarked_retry() {
    let (mut upstream, proxy) = started().await;
    disconnect_mid_reply(&mut upstream, &proxy, &[SESSION], &body(false)).await;
    assert_eq!(leaves(&proxy), (vec![0], vec![]));
    // an error reply has no turn and supersedes none
    let mut second = send(&proxy, &[SESSION], &body(false)).await;
    accept(&mut upstream).await.reply(&message(503, &[], b"later")).await;
    assert_eq!(second.answer().await.status, 503);
    wait_for_active(&proxy, 0.0).await;
    assert_eq!(leaves(&proxy), (vec![0], vec![]));
    let mut third = send(&proxy, &[SESSION], &body(false)).await;
    accept(&mut upstream).await.reply(&reply(&[6, 7])).await;
    assert!(third.answer().await.complete);
    wait_for_active(&proxy, 0.0).await;
    assert_eq!(leaves(&proxy), (vec![1], vec![(0, "superseded")]));
    let mut fourth = send(&proxy, &[SESSION], &body(false)).await;
    accept(&mut upstream).await.reply(&reply(&[8])).await;
    assert!(fourth.answer().await.complete);
    assert_eq!(
        leaves(&proxy),
        (vec![1, 2], vec![(0, "superseded")]),
        "the first call supersedes it, the next is a sample"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn different_calls_are_not_retries() {
    let (mut upstream, proxy) = started().await;
    let key = ("authorization", "Bearer one");
    let _first = send(&proxy, &[SESSION, key], &body(false)).await;
    let _call = accept(&mut upstream).await;
    let others: [(&[(&str, &str)], Value); 5] = [
        (&[SESSION, RETRY, key], json!({"input_ids": [1, 2, 4], "stream": false})),
        (&[("x-session-id", "t"), RETRY, key], body(false)),
        (&[SESSION, RETRY, ("authorization", "Bearer two")], body(false)),
        (&[RETRY, key], body(false)),
        (&[SESSION, ("x-stainless-retry-count", "0"), key], body(false)),
    ];
    for (headers, body) in &others {
        let mut client = send(&proxy, headers, body).await;
        accept(&mut upstream).await.reply(&reply(&[4])).await;
        assert!(client.answer().await.complete, "{headers:?} is a separate call");
    }
    wait_for_outcome(&proxy, "joined", 0.0).await;
    // two identical calls are running: the retry is ambiguous
    let _second = send(&proxy, &[SESSION, key], &body(false)).await;
    let _other = accept(&mut upstream).await;
    let mut third = send(&proxy, &[SESSION, RETRY, key], &body(false)).await;
    accept(&mut upstream).await.reply(&reply(&[5])).await;
    assert!(third.answer().await.complete);
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnect_after_the_last_token_counts_as_delivered() {
    let (mut upstream, proxy) = started().await;
    for (ends, session) in [(&b"data: [DONE]\n\n"[..], "done"), (b": the end is near\n\n", "finished")] {
        let session = ("x-session-id", session);
        let mut first = send(&proxy, &[session], &body(true)).await;
        let mut call = accept(&mut upstream).await;
        call.send(&[STREAM, &event(&[4, 5], &stop()), &chunk(ends)].concat()).await;
        assert!(first.read_until(|read| memchr::memmem::find(read, ends).is_some()).await);
        drop(first);
        call.closed().await;
        wait_for_active(&proxy, 0.0).await;
        let mut second = send(&proxy, &[session, RETRY], &body(true)).await;
        let call = soon("a call", async {
            loop {
                let call = upstream.next().await;
                if call.asked.path == "/generate" {
                    break call;
                }
                call.ok().await;
            }
        });
        let call = call.await;
        call.reply(&[STREAM, &event(&[6], &stop()), &chunk(b"data: [DONE]\n\n"), END].concat()).await;
        assert!(second.answer().await.complete);
        let (rows, refused) = rows(&proxy, session.1);
        assert_eq!((rows.len(), refused), (2, vec![]), "{session:?}: two samples");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn truncated_reply_is_truncated_for_all_clients_and_not_replayed() {
    let (mut upstream, proxy) = started().await;
    let mut first = send(&proxy, &[SESSION], &body(true)).await;
    let mut call = accept(&mut upstream).await;
    call.send(&[STREAM, &event(&[4], &Value::Null)].concat()).await;
    read_tokens(&mut first, &[4]).await;
    let mut second = send(&proxy, &[SESSION, RETRY], &body(true)).await;
    read_tokens(&mut second, &[4]).await;
    drop(call);
    for client in [&mut first, &mut second] {
        let answer = client.answer().await;
        assert!(!answer.complete && answer.events().len() == 1, "the received events are forwarded");
    }
    wait_for_active(&proxy, 0.0).await;
    let mut third = send(&proxy, &[SESSION, RETRY], &body(true)).await;
    let call = accept(&mut upstream).await;
    call.reply(&[STREAM, &event(&[5, 6], &stop()), &chunk(b"data: [DONE]\n\n"), END].concat()).await;
    assert!(third.answer().await.complete);
    assert_eq!(leaves(&proxy), (vec![1], vec![(0, "superseded")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_does_not_supersede_turns_of_a_deleted_session() {
    let (mut upstream, proxy) = started().await;
    let mut first = send(&proxy, &[SESSION], &body(true)).await;
    let mut call = accept(&mut upstream).await;
    call.send(&[STREAM, &event(&[4], &Value::Null)].concat()).await;
    read_tokens(&mut first, &[4]).await;
    drop(first);
    call.closed().await;
    for _ in 0..2 {
        upstream.next().await.ok().await;
    }
    wait_for_active(&proxy, 0.0).await;
    assert!(proxy.parts.sessions.delete("s").await.is_ok());
    let mut other = send(&proxy, &[SESSION], &json!({"input_ids": [1, 2]})).await;
    accept(&mut upstream).await.reply(&reply(&[9])).await;
    assert!(other.answer().await.complete);
    let mut second = send(&proxy, &[SESSION, RETRY], &body(true)).await;
    let call = accept(&mut upstream).await;
    call.reply(&[STREAM, &event(&[5, 6], &stop()), &chunk(b"data: [DONE]\n\n"), END].concat()).await;
    assert!(second.answer().await.complete);
    let turns = proxy.parts.sessions.session("s").unwrap().snapshot(None).unwrap();
    assert!(
        turns.turns().iter().all(|turn| turn.about.supersedes.is_empty()),
        "turn ids belong to the deleted session"
    );
}

/// Sends a completion, whose reply tokentap encodes from the engine's.
async fn complete(proxy: &Proxy, headers: &[(&str, &str)], body: &Value) -> Connection {
    let mut client = Connection::open(proxy.data).await;
    client.send(&written(proxy.data, "POST", "/v1/completions", headers, body.to_string().as_bytes())).await;
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_of_a_failed_completion_is_generated_again() {
    let (mut upstream, proxy) = started().await;
    let body = json!({"prompt": "a", "max_tokens": 2});
    let mut first = complete(&proxy, &[SESSION], &body).await;
    let page = message(200, &[("content-type", "text/html")], b"<html>maintenance</html>");
    accept(&mut upstream).await.reply(&page).await;
    let failed = first.answer().await;
    assert_eq!(failed.status, 502, "{}", failed.text());
    let mut retry = complete(&proxy, &[SESSION, RETRY], &body).await;
    accept(&mut upstream).await.reply(&reply(&[4, 5])).await;
    assert_eq!(retry.answer().await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_call_after_an_engine_error_is_sent_once() {
    let (mut upstream, proxy) = started().await;
    let body = json!({"prompt": "a", "max_tokens": 2, "rid": "mine"});
    for attempt in 0..2 {
        let mut client = complete(&proxy, &[SESSION], &body).await;
        // the second request is without forced logprobs
        for _ in 0..2 {
            let refusal = message(400, &[("content-type", "application/json")], b"{\"error\":{\"message\":\"no\"}}");
            accept(&mut upstream).await.reply(&refusal).await;
        }
        assert_eq!(client.answer().await.status, 400, "attempt {attempt}");
        assert!(!upstream.has_more(), "attempt {attempt}: the rid of an ended call is free");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn completion_stream_with_an_error_event_is_not_aborted() {
    let (mut upstream, proxy) = started().await;
    let mut client = complete(&proxy, &[SESSION], &json!({"prompt": "a", "max_tokens": 2, "stream": true})).await;
    let error = b"data: {\"error\":{\"message\":\"no\",\"code\":400}}\n\ndata: [DONE]\n\n";
    // once forced, once unchanged
    for _ in 0..2 {
        accept(&mut upstream).await.reply(&[STREAM, &chunk(error), b"0\r\n\r\n"].concat()).await;
    }
    assert_eq!(client.answer().await.status, 400);
    wait_for_metric(&proxy, "tokentap_http_requests_active{endpoint=\"/v1/completions\"}", 0.0).await;
    assert_eq!(proxy.metric("tokentap_client_disconnects_total").await, 0.0);
    assert!(!upstream.has_more(), "no abort is sent");
}
