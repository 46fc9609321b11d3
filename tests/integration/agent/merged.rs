// SPDX-License-Identifier: Apache-2.0
//! Aborts as SGLang writes them into a stream: the last event repeats the logprobs of all tokens, and the last id or all ids, sometimes
//! after the tokens of an event that it was merged with.

use serde_json::{Value, json};

use crate::support::client::{get, request};
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, Upstream, stream};

fn event(ids: &[u32], completion: usize, finish: &Value, logprobs: bool) -> String {
    let mut meta = json!({"id": "r", "finish_reason": finish, "prompt_tokens": 3, "completion_tokens": completion});
    if logprobs {
        let row = |id: &u32| json!([-0.5 - f64::from(*id), id, null]);
        meta["output_token_logprobs"] = ids.iter().map(row).collect();
        meta["output_top_logprobs"] = ids.iter().map(|id| json!([row(id), [-9.0, 900, null]])).collect();
        meta["output_token_ids_logprobs"] = ids.iter().map(|id| json!([[-7.0 - f64::from(*id), 5, null]])).collect();
    }
    format!("data: {}\n\n", json!({"text": "t", "output_ids": ids, "meta_info": meta}))
}

#[tokio::test(flavor = "multi_thread")]
async fn abort_that_repeats_tokens_is_recorded_without_the_repetition() {
    for (last, logprobs) in [&[1, 2, 3][..], &[3, 1, 2, 3]].into_iter().flat_map(|ids| [(ids, false), (ids, true)]) {
        let events = [
            event(&[1], 1, &Value::Null, logprobs),
            event(&[2], 2, &Value::Null, logprobs),
            event(last, 3, &json!({"type": "abort", "message": "no"}), logprobs),
            "data: [DONE]\n\n".to_owned(),
        ];
        let profile = EngineProfile { streaming: "incremental", ..EngineProfile::default() };
        let upstream =
            Upstream::start(profile, move |_| stream(&events.each_ref().map(|event| event.as_bytes()))).await;
        let proxy = Proxy::probed(upstream.addr, &[]).await;
        let body = json!({
            "input_ids": [7, 8, 9], "stream": true, "return_entropy": logprobs, "return_logprob": logprobs,
            "top_logprobs_num": 1, "token_ids_logprob": [5],
        });
        let headers = [("x-session-id", "s")];
        let answer = request(proxy.data, "POST", "/generate", &headers, body.to_string().as_bytes()).await;
        assert!(answer.complete);
        let exported = get(proxy.control, "/v1/sessions/s/trajectories").await.json();
        let row = &exported["trajectories"][0];
        assert_eq!(row["token_ids"], json!([7, 8, 9, 1, 2, 3]), "{last:?}, logprobs {logprobs}: {row}");
        assert_eq!(exported["refused"], json!([{"leaf": 0, "reason": "aborted"}]));
        if logprobs {
            assert_eq!(row["logprobs"], json!([null, null, null, -1.5, -2.5, -3.5]), "{last:?}");
            let extras = &row["turns"][0]["extras"];
            let events = answer.events();
            let seen = &events.last().unwrap()["meta_info"]["output_token_ids_logprobs"];
            assert_eq!(extras["output_token_ids_logprobs"], *seen, "{last:?}: the extras equal the client's reply");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn abort_that_repeats_the_last_id_is_recorded_without_it() {
    // (streaming, the lists of all events, the number of tokens after each)
    type Case = (&'static str, &'static [&'static [u32]], &'static [usize]);
    let cases: [Case; 7] = [
        ("incremental", &[&[1], &[2, 3], &[3]], &[1, 3, 3]),
        // merged with the event before it
        ("incremental", &[&[1], &[2, 3, 3]], &[1, 3]),
        ("incremental", &[&[1, 2], &[3, 3]], &[2, 3]),
        ("incremental", &[&[1, 2, 3, 3]], &[3]),
        // 0.5.12
        ("cumulative", &[&[1, 2], &[1, 2, 3], &[3]], &[2, 3, 3]),
        // all tokens after a single one
        ("cumulative", &[&[1], &[1, 3, 3]], &[1, 3]),
        ("cumulative", &[&[1, 2, 3, 3]], &[3]),
    ];
    for (streaming, lists, counts) in cases {
        let finish =
            |at: usize| if at + 1 == lists.len() { json!({"type": "abort", "message": "no"}) } else { Value::Null };
        let mut events: Vec<_> = (0..lists.len()).map(|at| event(lists[at], counts[at], &finish(at), false)).collect();
        events.push("data: [DONE]\n\n".to_owned());
        let profile = EngineProfile { streaming, ..EngineProfile::default() };
        let upstream =
            Upstream::start(profile, move |_| stream(&events.iter().map(String::as_bytes).collect::<Vec<_>>())).await;
        let proxy = Proxy::probed(upstream.addr, &[]).await;
        let body = json!({"input_ids": [7, 8, 9], "stream": true, "return_entropy": false}).to_string();
        let answer = request(proxy.data, "POST", "/generate", &[("x-session-id", "s")], body.as_bytes()).await;
        assert!(answer.complete);
        let exported = get(proxy.control, "/v1/sessions/s/trajectories").await.json();
        assert_eq!(exported["refused"], json!([{"leaf": 0, "reason": "aborted"}]), "{streaming} {lists:?}");
        let sampled = if lists.concat() == [1, 1, 3, 3] { [1, 3, 3] } else { [1, 2, 3] };
        let row = &exported["trajectories"][0];
        assert_eq!(row["token_ids"], json!([[7, 8, 9], sampled].concat()), "{streaming} {lists:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn event_with_mismatched_id_lists_is_not_trained() {
    for odd in [false, true] {
        let mut second = event(&[2], 2, &Value::Null, true);
        if odd {
            second = second.replace("\"output_ids\":[2]", "\"output_ids\":[4]");
        }
        let stop = json!({"type": "stop", "matched": 3});
        let events =
            [event(&[1], 1, &Value::Null, true), second, event(&[3], 3, &stop, true), "data: [DONE]\n\n".to_owned()];
        let profile = EngineProfile { streaming: "incremental", ..EngineProfile::default() };
        let upstream =
            Upstream::start(profile, move |_| stream(&events.each_ref().map(|event| event.as_bytes()))).await;
        let proxy = Proxy::probed(upstream.addr, &[]).await;
        let body = json!({"input_ids": [7, 8, 9], "stream": true}).to_string();
        request(proxy.data, "POST", "/generate", &[("x-session-id", "s")], body.as_bytes()).await;
        let exported = get(proxy.control, "/v1/sessions/s/trajectories").await.json();
        let expected = if odd { json!([{"leaf": 0, "reason": "ids_mismatch"}]) } else { json!([]) };
        assert_eq!(exported["refused"], expected, "{exported}");
    }
}
