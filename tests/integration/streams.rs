// SPDX-License-Identifier: Apache-2.0
//! Streams of all forms: each event has exactly the entropies of its tokens.

use serde_json::{Value, json};

use crate::support::client::{Answer, get, post};
use crate::support::fixture::Fixture;
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, FakeReply, Router, Upstream, json_message, stream, torn_stream};

/// The logprob row of a token, distinct for each id, and its triple.
fn row(id: u64) -> Value {
    let first = -0.3 - id as f64 / 64.0;
    json!([[first, id, null], [first - 2.0, 900, null], [first - 3.0, 901, null]])
}

/// An event with these ids in its lists.
fn event(rid: &str, ids: &[u64], completion: usize, finish: &Value) -> Value {
    let rows: Vec<Value> = ids.iter().map(|id| row(*id)).collect();
    let chosen: Vec<Value> = rows.iter().map(|row| row[0].clone()).collect();
    json!({
        "text": "t",
        "output_ids": ids,
        "meta_info": {
            "id": rid, "finish_reason": finish, "prompt_tokens": 3,
            "output_token_logprobs": chosen, "output_top_logprobs": rows, "completion_tokens": completion,
        }
    })
}

fn indexed(mut event: Value, index: usize) -> Value {
    event["index"] = json!(index);
    event
}

fn written(events: &[Value], done: bool) -> Vec<u8> {
    let mut text: Vec<u8> = events.iter().flat_map(|event| format!("data: {event}\n\n").into_bytes()).collect();
    if done {
        text.extend_from_slice(b"data: [DONE]\n\n");
    }
    text
}

async fn through(events: Vec<Value>, streaming: &'static str, request: Value) -> Answer {
    let router = (streaming == "unknown").then(Router::default);
    let profile = EngineProfile { streaming, flat: router.is_none(), router, ..EngineProfile::default() };
    let upstream = Upstream::start(profile, move |asked| {
        // the stream of the probe, which does not show the mode
        if asked.json()["input_ids"] == json!([10, 11, 12]) {
            return json_message(200, b"{}");
        }
        let text = written(&events, true);
        let pieces: Vec<&[u8]> = text.chunks(97).collect();
        stream(&pieces)
    })
    .await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    post(proxy.data, "/generate", request.to_string().as_bytes()).await
}

/// The entropy of an id, requested alone.
async fn alone(id: u64) -> f64 {
    let answer = through(
        vec![event("x", &[id], 1, &json!({"type": "length"}))],
        "cumulative",
        json!({"text": "a", "stream": true}),
    )
    .await;
    answer.events()[0]["meta_info"]["output_token_entropy"][0].as_f64().unwrap()
}

/// Asserts that the entropies of each event are those of the ids in its lists.
async fn check(what: &str, events: Vec<Value>, streaming: &'static str, request: Value) {
    let sent = events.clone();
    let answer = through(events, streaming, request).await;
    assert!(answer.complete, "{what}");
    let got = answer.events();
    assert_eq!(got.len(), sent.len(), "{what}: as many events");
    for (at, (got, sent)) in got.iter().zip(&sent).enumerate() {
        let ids: Vec<u64> = sent["meta_info"]["output_token_logprobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| t[1].as_u64().unwrap())
            .collect();
        let entropy = got["meta_info"]["output_token_entropy"].as_array().unwrap();
        assert_eq!(entropy.len(), ids.len(), "{what}, event {at}: {got}");
        for (id, entropy) in ids.iter().zip(entropy) {
            let expected = alone(*id).await;
            assert!(
                (entropy.as_f64().unwrap() - expected).abs() < 1e-6,
                "{what}, event {at}, id {id}: {entropy}, alone {expected}"
            );
        }
        assert!(got["meta_info"].get("output_top_logprobs").is_none(), "{what}: forced members are removed");
    }
}

const RUNNING: Value = Value::Null;

#[tokio::test(flavor = "multi_thread")]
async fn each_event_has_the_entropies_of_its_tokens() {
    let length = json!({"type": "length", "length": 5});
    let abort = json!({"type": "abort", "message": "Aborted", "status_code": null, "err_type": null});
    let one = json!({"text": "a", "stream": true});
    let two = json!({"text": ["a", "b"], "stream": true});
    let cumulative = |finish: &Value| {
        vec![
            event("r", &[1], 1, &RUNNING),
            event("r", &[1, 2, 3], 3, &RUNNING),
            event("r", &[1, 2, 3, 4, 5], 5, finish),
        ]
    };
    check("cumulative, several tokens an event", cumulative(&length), "cumulative", one.clone()).await;
    check("cumulative against the probe", cumulative(&length), "incremental", one.clone()).await;
    check(
        "an event without a new token",
        vec![event("r", &[1], 1, &RUNNING), event("r", &[1], 1, &RUNNING), event("r", &[1, 2], 2, &length)],
        "cumulative",
        one.clone(),
    )
    .await;
    let lists_ahead =
        vec![event("r", &[1, 2], 1, &RUNNING), event("r", &[1, 2, 3], 2, &RUNNING), event("r", &[1, 2, 3], 3, &length)];
    check("lists that are ahead of their event", lists_ahead, "cumulative", one.clone()).await;
    let incremental = vec![
        event("r", &[1], 1, &RUNNING),
        event("r", &[1], 2, &RUNNING),
        event("r", &[1, 2], 4, &RUNNING),
        event("r", &[5], 5, &length),
    ];
    check("incremental, the same token again", incremental.clone(), "incremental", one.clone()).await;
    check("incremental against the probe", incremental, "cumulative", one.clone()).await;
    let aborted = vec![
        event("r", &[1], 1, &RUNNING),
        event("r", &[2], 2, &RUNNING),
        event("r", &[3], 3, &RUNNING),
        event("r", &[1, 2, 3], 3, &abort),
    ];
    check("an abort that repeats everything", aborted, "incremental", one.clone()).await;
    let interleaved = vec![
        indexed(event("p", &[1], 1, &RUNNING), 1),
        indexed(event("q", &[1], 1, &RUNNING), 0),
        indexed(event("p", &[1, 2], 2, &RUNNING), 1),
        indexed(event("p", &[1, 2, 3], 3, &length), 1),
        indexed(event("q", &[1, 2, 7], 3, &RUNNING), 0),
        indexed(event("q", &[1, 2, 7, 8], 4, &length), 0),
    ];
    check("interleaved sequences that begin alike", interleaved, "cumulative", two.clone()).await;
    let deltas = vec![
        indexed(event("p", &[1], 1, &RUNNING), 1),
        indexed(event("q", &[4, 5], 2, &RUNNING), 0),
        indexed(event("p", &[2], 2, &RUNNING), 1),
        indexed(event("q", &[6], 3, &length), 0),
        indexed(event("p", &[3], 3, &length), 1),
    ];
    check("interleaved deltas", deltas, "incremental", two).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn contradictory_events_have_a_reason_and_no_numbers() {
    let length = json!({"type": "length", "length": 9});
    for streaming in ["cumulative", "incremental"] {
        let profile = EngineProfile { streaming, ..EngineProfile::default() };
        // neither nine tokens in total nor eight new ones
        let events =
            vec![event("r", &[1], 1, &RUNNING), event("r", &[4, 5, 6], 9, &RUNNING), event("r", &[7], 10, &length)];
        let text = written(&events, true);
        let upstream = Upstream::start(profile, move |_| stream(&[&text])).await;
        let proxy = Proxy::probed(upstream.addr, &[]).await;
        let answer = post(proxy.data, "/generate", br#"{"input_ids":[1,2,3],"stream":true,"session_id":"s"}"#).await;
        let got = answer.events();
        let anomalies = |kind: &str| format!("tokentap_logprob_anomalies_total{{kind=\"{kind}\"}}");
        let turns = get(proxy.control, "/v1/sessions/s").await.json();
        if streaming == "cumulative" {
            let numbers = got[1]["meta_info"]["output_token_entropy"].as_array().unwrap();
            assert!(numbers[1..].iter().all(Value::is_null), "{numbers:?}");
            assert_eq!(got[2]["meta_info"]["entropy_info"]["reason"], "stream_contradiction");
            assert!(proxy.metric(&anomalies("stream_contradiction")).await >= 1.0);
        }
        assert!(turns["list"][0]["fault"].is_string(), "{streaming}: not trained: {turns}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_lists_follow_the_stream_mode_or_have_no_numbers() {
    let length = json!({"type": "length", "length": 4});
    // two new tokens that start with the previous one, or a lagging list with two of three tokens: the count is 3 in both cases
    let first = event("r", &[1], 1, &RUNNING);
    let second = event("r", &[1, 2], 3, &RUNNING);
    let request = || json!({"text": "a", "stream": true});
    let last = event("r", &[1, 2, 3, 4], 4, &length);
    check("a list that lags", vec![first.clone(), second.clone(), last], "cumulative", request()).await;
    let last = event("r", &[4], 4, &length);
    check("a token that is repeated", vec![first.clone(), second.clone(), last.clone()], "incremental", request())
        .await;
    let answer = through(vec![first, second, last], "unknown", request()).await;
    let got = answer.events();
    let numbers = got[1]["meta_info"]["output_token_entropy"].as_array().unwrap();
    assert!(numbers.iter().skip(1).all(Value::is_null), "{numbers:?}");
    assert_eq!(got[2]["meta_info"]["entropy_info"]["reason"], "stream_contradiction");
}

#[tokio::test(flavor = "multi_thread")]
async fn incremental_ids_with_cumulative_logprobs_are_supported() {
    // recorded from 0.5.6 with --stream-output
    for name in ["stream-top5", "stream-n2-top5", "stream-batch2-top2"] {
        let fixture = Fixture::named(&format!("sglang-0.5.6.post2/stream-output/{name}"));
        let reply = fixture.reply.clone();
        let upstream =
            Upstream::start(EngineProfile { streaming: "ids", flat: false, ..EngineProfile::default() }, move |_| {
                stream(&[&reply])
            })
            .await;
        let proxy = Proxy::probed(upstream.addr, &[]).await;
        let answer = post(proxy.data, "/generate", &fixture.body).await;
        for event in answer.events() {
            let meta = &event["meta_info"];
            let rows = meta["output_token_logprobs"].as_array().unwrap().len();
            let entropy = meta["output_token_entropy"].as_array().unwrap();
            assert_eq!(entropy.len(), rows, "{name}: {event}");
            assert!(entropy.iter().all(Value::is_number), "{name}: {event}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn end_of_a_stream_is_forwarded_unchanged() {
    let error = b"data: {\"error\":{\"message\":\"no\",\"type\":\"invalid_request_error\",\"code\":400,\"retryable\":false}}\n\ndata: [DONE]\n\n";
    let comment =
        b": keep-alive\n\nevent: sglext_ids\ndata: 1\ndata: 2\n\ndata: {\"text\":\"no meta_info\"}\n\ndata: [DONE]\n\n";
    let unreadable = b"data: {\"meta_info\":{\"output_token_logprobs\":[[x]]}}\n\ndata: {broken\n\ndata: [DONE]\n\n";
    let missing_done = b"data: {\"error\":{\"message\":\"no\"}}\n\n";
    for text in [&error[..], comment, unreadable, missing_done, b"data: [DONE]\n\n", b"data: {\"tex"] {
        for torn in [false, true] {
            let upstream = Upstream::start(EngineProfile::default(), move |_| -> FakeReply {
                if torn { torn_stream(&[text]) } else { stream(&[text]) }
            })
            .await;
            let proxy = Proxy::probed(upstream.addr, &[]).await;
            let answer = post(proxy.data, "/generate", b"{\"text\":\"a\",\"stream\":true}").await;
            let what = String::from_utf8_lossy(text);
            assert_eq!(answer.complete, !torn, "{what:?}: a torn stream is torn for the client too");
            let kept = if torn {
                &text[..text.windows(2).rposition(|pair| pair == b"\n\n").map_or(0, |at| at + 2)]
            } else {
                text
            };
            assert_eq!(String::from_utf8_lossy(&answer.body), String::from_utf8_lossy(kept), "torn: {torn}");
        }
    }
}

/// The session `s` after a call that the engine answers with this stream.
async fn recorded(reply: impl Fn() -> FakeReply + Send + Sync + 'static, request: Value) -> Value {
    let profile = EngineProfile { streaming: "incremental", ..EngineProfile::default() };
    let upstream = Upstream::start(profile, move |_| reply()).await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let answer = post(proxy.data, "/sessions/s/generate", request.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    get(proxy.control, "/v1/sessions/s").await.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_that_cannot_be_read_marks_the_session_incomplete() {
    for unreadable in [
        "data: [1]\n\ndata: [DONE]\n\n",
        "data: \"a\"\n\n",
        "data: {\"meta_info\"\n\ndata: [DONE]\n\n",
        "data: {\"text\":\ndata: \"a\"}\n\ndata: [DONE]\n\n",
        "{\"text\":\"a\",\"meta_info\":{}}\n",
    ] {
        let request = json!({"input_ids": [1, 2, 3], "stream": true});
        let session = recorded(move || stream(&[unreadable.as_bytes()]), request).await;
        assert_eq!((&session["turns"], &session["incomplete"]), (&json!(0), &json!(true)), "{unreadable:?}: {session}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn event_without_data_does_not_mark_the_session_incomplete() {
    for extra in ["data:\n\n", "data\n\n", "data: \n\n", ": keep-alive\n\n", "event: ping\n\n", ": the last one\n"] {
        let end = json!({"type": "stop", "matched": 2});
        let events = move || written(&[event("r", &[5], 1, &end)], false);
        let request = json!({"input_ids": [1, 2, 3], "stream": true});
        let reply = move || stream(&[extra.as_bytes(), &events(), extra.as_bytes()]);
        let session = recorded(reply, request).await;
        assert_eq!((&session["turns"], &session["incomplete"]), (&json!(1), &json!(false)), "{extra:?}: {session}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn turn_with_an_id_outside_the_vocabulary_is_not_trained() {
    let stop = json!({"type": "stop", "matched": 2});
    for (last, fault) in [(151_935, Value::Null), (151_936, json!("ids_outside"))] {
        let end = stop.clone();
        let events = move || vec![event("r", &[5], 1, &Value::Null), event("r", &[last], 2, &end)];
        let request = json!({"input_ids": [1, 2, 3], "stream": true, "return_entropy": true});
        let session = recorded(move || stream(&[&written(&events(), true)]), request).await;
        assert_eq!(session["list"][0]["fault"], fault, "{session}");
        let whole = event("r", &[5, last], 2, &stop).to_string();
        let reply = move || json_message(200, whole.as_bytes());
        let session = recorded(reply, json!({"input_ids": [1, 2, 3], "return_entropy": true})).await;
        assert_eq!(session["list"][0]["fault"], fault, "not streamed: {session}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_arrive_together_leave_together() {
    let events: Vec<Value> = (1..=512).map(|at| event("r", &[at], at as usize, &Value::Null)).collect();
    let FakeReply::KeepAlive(pieces) = stream(&written(&events, true).chunks(300).collect::<Vec<_>>()) else {
        unreachable!()
    };
    let whole = pieces.concat();
    let profile = EngineProfile { streaming: "incremental", ..EngineProfile::default() };
    let upstream = Upstream::start(profile, move |_| FakeReply::KeepAlive(vec![whole.clone()])).await;
    for flags in [&[][..], &["--record", "false"], &["--record", "false", "--entropy", "off"]] {
        let proxy = Proxy::probed(upstream.addr, flags).await;
        let answer = post(proxy.data, "/generate", br#"{"input_ids":[1,2,3],"stream":true}"#).await;
        assert_eq!(answer.events().len(), 512);
        let reads = answer.body.len() / 8192 + 2;
        assert!(answer.chunks <= reads, "{} chunks of {} bytes", answer.chunks, answer.body.len());
    }
}
