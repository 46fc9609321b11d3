// SPDX-License-Identifier: Apache-2.0
//! Clients that leave or stop reading: the engine stops their requests, and no others.

use serde_json::{Value, json};

use crate::support::client::{Connection, get, written};
use crate::support::manual_upstream::{Call, END, ManualUpstream, STREAM, chunk, event, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::message;

async fn start(flags: &[&str]) -> (ManualUpstream, Proxy) {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, flags).await;
    (upstream, proxy)
}

/// Sends a generation and accepts it at the engine.
async fn send_generation(upstream: &mut ManualUpstream, proxy: &Proxy, body: &Value) -> (Connection, Call) {
    let mut client = Connection::open(proxy.data).await;
    let key = [("authorization", "Bearer client")];
    client.send(&written(proxy.data, "POST", "/generate", &key, body.to_string().as_bytes())).await;
    let call = upstream.next().await;
    assert_eq!(call.asked.path, "/generate");
    (client, call)
}

/// Accepts `count` aborts and returns their ids, sorted.
async fn aborts(upstream: &mut ManualUpstream, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..count {
        let call = upstream.next().await;
        ids.push(call.aborted());
        assert_eq!(call.values("authorization"), ["Bearer client"], "the abort has the client's own key");
        call.ok().await;
    }
    ids.sort();
    ids
}

/// Polls a metric until it has a value.
async fn wait_for_metric(proxy: &Proxy, name: &str, value: f64) {
    soon(&format!("{name} is {value}"), async { while proxy.metric(name).await != value {} }).await;
}

/// Reads a stream until an event with this id.
async fn read(client: &mut Connection, rid: &str) {
    let named = format!("\"id\":\"{rid}\"");
    let event = |read: &[u8]| memchr::memmem::find(read, named.as_bytes()).is_some() && read.ends_with(b"\n\n\r\n");
    assert!(soon("an event", client.read_until(event)).await, "the stream continues");
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnect_before_a_reply_aborts_its_ids() {
    let (mut upstream, proxy) = start(&[]).await;
    let cases = [
        (json!({"text": "a", "rid": "mine"}), vec!["mine"]),
        (json!({"text": "a", "rid": "\u{e9}\"\\ /%"}), vec!["\u{e9}\"\\ /%"]),
        (json!({"text": ["a", "b"], "rid": ["x", "y"]}), vec!["x", "y"]),
        (json!({"text": ["a", "b"], "rid": "R"}), vec!["R_0", "R_1"]),
    ];
    let mut sent = 0;
    for (body, expected) in &cases {
        let (client, call) = send_generation(&mut upstream, &proxy, body).await;
        drop(client);
        call.closed().await;
        assert_eq!(aborts(&mut upstream, expected.len()).await, *expected, "{body}");
        sent += expected.len();
    }
    wait_for_metric(&proxy, "tokentap_aborts_sent_total", sent as f64).await;
    assert_eq!(proxy.metric("tokentap_client_disconnects_total").await, cases.len() as f64);
    assert!(!upstream.has_more(), "nothing else was aborted");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_rid_get_one_for_aborts() {
    let (mut upstream, proxy) = start(&[]).await;
    for body in [json!({"text": "a"}), json!({"text": ["a", "b"]})] {
        let (client, call) = send_generation(&mut upstream, &proxy, &body).await;
        // one string for a batch, too: the engine derives the ids of its items from it, and sglang-router rejects a list
        let rid = call.json()["rid"].as_str().unwrap().to_owned();
        assert!(rid.len() == 32 && rid.bytes().all(|b| b.is_ascii_hexdigit()), "{rid}");
        let expected = match body["text"].is_array() {
            true => vec![format!("{rid}_0"), format!("{rid}_1")],
            false => vec![rid],
        };
        drop(client);
        call.closed().await;
        assert_eq!(aborts(&mut upstream, expected.len()).await, expected, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn abort_uses_the_admin_key() {
    let (mut upstream, proxy) = start(&["--upstream-admin-key", "admin", "--upstream-api-key", "own"]).await;
    let (client, call) = send_generation(&mut upstream, &proxy, &json!({"text": "a", "rid": "mine"})).await;
    drop(client);
    call.closed().await;
    let abort = upstream.next().await;
    assert_eq!((abort.aborted().as_str(), abort.values("authorization")), ("mine", vec!["Bearer admin"]));
    abort.ok().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn abort_uses_tokentaps_key_for_clients_without_one() {
    let (mut upstream, proxy) = start(&["--upstream-api-key", "own"]).await;
    let mut client = Connection::open(proxy.data).await;
    client.send(&written(proxy.data, "POST", "/generate", &[], b"{\"text\":\"a\",\"rid\":\"mine\"}")).await;
    let call = upstream.next().await;
    drop(client);
    call.closed().await;
    let abort = upstream.next().await;
    assert_eq!((abort.aborted().as_str(), abort.values("authorization")), ("mine", vec!["Bearer own"]));
    abort.ok().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnect_from_a_stream_aborts_all_its_ids() {
    let (mut upstream, proxy) = start(&[]).await;
    let body = json!({"text": "a", "stream": true, "sampling_params": {"n": 3}});
    let (mut client, mut call) = send_generation(&mut upstream, &proxy, &body).await;
    assert!(call.json()["rid"].is_null(), "samples are named by the engine");
    call.send(STREAM).await;
    for (rid, index) in [("first", 0), ("second", 1), ("first", 0)] {
        call.send(&event(rid, index)).await;
    }
    read(&mut client, "second").await;
    drop(client);
    call.closed().await;
    assert_eq!(aborts(&mut upstream, 2).await, ["first", "second"], "exactly the ids seen");
    wait_for_metric(&proxy, "tokentap_aborts_sent_total", 2.0).await;
    assert_eq!(proxy.metric("tokentap_client_disconnects_total").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn id_that_is_a_prefix_of_a_running_id_is_not_aborted() {
    let (mut upstream, proxy) = start(&[]).await;
    let (ten, ten_call) = send_generation(&mut upstream, &proxy, &json!({"text": "a", "rid": "job-10"})).await;
    let (one, one_call) = send_generation(&mut upstream, &proxy, &json!({"text": "a", "rid": "job-1"})).await;
    drop(one);
    one_call.closed().await;
    wait_for_metric(&proxy, "tokentap_client_disconnects_total", 1.0).await;
    drop(ten);
    ten_call.closed().await;
    assert_eq!(aborts(&mut upstream, 1).await, ["job-10"], "engines abort by prefix: job-1 would have ended job-10");
    wait_for_metric(&proxy, "tokentap_client_disconnects_total", 2.0).await;
    assert!(!upstream.has_more(), "job-1 was left to end by itself");
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_request_is_not_aborted() {
    let (mut upstream, proxy) = start(&[]).await;
    let (mut client, call) = send_generation(&mut upstream, &proxy, &json!({"text": "a", "rid": "whole"})).await;
    call.ok().await;
    assert!(client.answer().await.complete);
    drop(client);
    let (mut client, mut call) =
        send_generation(&mut upstream, &proxy, &json!({"text": "a", "rid": "streamed", "stream": true})).await;
    call.send(STREAM).await;
    call.send(&chunk(b"data: [DONE]\n\n")).await;
    assert!(client.read_until(|read| read.ends_with(b"[DONE]\n\n\r\n")).await);
    // the generation has ended, but not the body
    drop(client);
    call.closed().await;
    let (mut client, call) = send_generation(&mut upstream, &proxy, &json!({"text": "a", "rid": "refused"})).await;
    call.reply(&message(503, &[], b"later")).await;
    assert_eq!(client.answer().await.status, 503);
    drop(client);
    let (client, call) = send_generation(&mut upstream, &proxy, &json!({"text": "a", "rid": "left"})).await;
    drop(client);
    call.closed().await;
    assert_eq!(aborts(&mut upstream, 1).await, ["left"]);
    wait_for_metric(&proxy, "tokentap_aborts_sent_total", 1.0).await;
    assert_eq!(proxy.metric("tokentap_client_disconnects_total").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnect_during_the_unforced_retry_aborts_it() {
    let (mut upstream, proxy) = start(&[]).await;
    let (client, call) = send_generation(&mut upstream, &proxy, &json!({"text": "a", "rid": "again"})).await;
    assert_eq!(call.json()["return_logprob"], true, "logprobs are forced");
    call.reply(&message(500, &[], b"no logprobs here")).await;
    let second = upstream.next().await;
    assert!(second.json()["return_logprob"].is_null(), "resent without forced logprobs");
    drop(client);
    second.closed().await;
    assert_eq!(aborts(&mut upstream, 1).await, ["again"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_abort_is_not_counted_as_sent() {
    let (mut upstream, proxy) = start(&[]).await;
    for (rid, status) in [("refused", 401), ("taken", 200)] {
        let (client, call) = send_generation(&mut upstream, &proxy, &json!({"text": "a", "rid": rid})).await;
        drop(client);
        call.closed().await;
        let abort = upstream.next().await;
        assert_eq!(abort.aborted(), rid);
        abort.reply(&message(status, &[], b"")).await;
    }
    wait_for_metric(&proxy, "tokentap_aborts_sent_total", 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_client_applies_backpressure() {
    const LIMIT: usize = 48 << 20;
    let (mut upstream, proxy) = start(&[]).await;
    let body = json!({"text": "a", "rid": "slow", "stream": true});
    let (mut client, mut call) = send_generation(&mut upstream, &proxy, &body).await;
    call.send(STREAM).await;
    call.send(&event("slow", 0)).await;
    read(&mut client, "slow").await;
    let comment = chunk(&[&b": "[..], &vec![b'a'; 64 * 1024], b"\n\n"].concat());
    let (mut written, mut idle, mut rest) = (0, 0, &comment[..]);
    // the stream counts as blocked if it did not move during a hundred other requests
    while idle < 100 {
        match call.try_send(rest) {
            Some(0) => {
                idle += 1;
                assert_eq!(get(proxy.control, "/livez").await.status, 200);
            }
            Some(length) => {
                idle = 0;
                written += length;
                rest = if length == rest.len() { &comment } else { &rest[length..] };
            }
            None => panic!("the connection lives as long as the client"),
        }
        assert!(written < LIMIT, "{written} bytes were taken from the engine for a client that reads none");
    }
    drop(client);
    call.closed().await;
    assert_eq!(aborts(&mut upstream, 1).await, ["slow"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnect_from_an_uncaptured_route_closes_the_upstream_without_an_abort() {
    let (mut upstream, proxy) = start(&[]).await;
    for path in ["/v1/chat/completions", "/tokenize"] {
        let mut client = Connection::open(proxy.data).await;
        client.send(&written(proxy.data, "POST", path, &[], b"{\"rid\":\"unknown\"}")).await;
        let call = upstream.next().await;
        drop(client);
        call.closed().await;
    }
    let (mut client, call) =
        send_generation(&mut upstream, &proxy, &json!({"text": "a", "rid": "last", "stream": true})).await;
    call.reply(&[STREAM, &event("last", 0), END].concat()).await;
    assert!(client.answer().await.complete);
    assert!(!upstream.has_more(), "tokentap aborts only ids that it has read");
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_leaves_before_its_answer_is_counted_as_499() {
    let (mut upstream, proxy) = start(&[]).await;
    for path in ["/generate", "/tokenize"] {
        let mut client = Connection::open(proxy.data).await;
        client.send(&written(proxy.data, "POST", path, &[], b"{\"text\":\"a\"}")).await;
        let call = upstream.next().await;
        drop(client);
        call.closed().await;
        let name = |status: u16| {
            format!("tokentap_http_requests_total{{endpoint=\"{path}\",method=\"POST\",status_code=\"{status}\"}}")
        };
        wait_for_metric(&proxy, &name(499), 1.0).await;
        assert_eq!(proxy.metric(&name(500)).await, 0.0, "{path}");
        if path == "/generate" {
            let abort = upstream.next().await;
            assert_eq!(abort.asked.path, "/abort_request");
            abort.ok().await;
        }
    }
}
