// SPDX-License-Identifier: Apache-2.0
//! Routes for viewing: search of sessions, ranges of paths, running requests.

use serde_json::{Value, json};
use tokentap::demo::{EngineOptions, Streaming};
use tokio::time::Duration;

use crate::support::client::{Connection, get, post, request, written};
use crate::support::demo::{Demo, numbers};

async fn at(demo: &Demo, path: &str) -> Value {
    let answer = get(demo.proxy.control, path).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

async fn say(demo: &Demo, session: &str, body: &Value) -> Value {
    let answer = post(demo.proxy.data, &format!("/sessions/{session}/generate"), body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// A session of two turns with two samples of the second. Its requests ask for intervals and statistics.
async fn two_turns(demo: &Demo) -> Vec<u32> {
    let mut prompt = demo.encode("the lamp");
    let body = |prompt: &[u32]| {
        json!({"input_ids": prompt, "entropy_options": {"bounds": true, "stats": true},
               "sampling_params": {"max_new_tokens": 20, "ignore_eos": true}})
    };
    for text in ["and the sea", ""] {
        let reply = say(demo, "talk", &body(&prompt)).await;
        if !text.is_empty() {
            prompt.extend(reply["output_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32));
            prompt.extend(demo.encode(text));
        }
    }
    say(demo, "talk", &body(&prompt)).await;
    prompt
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_of_a_path_add_up_to_the_path() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    two_turns(&demo).await;
    let whole = at(&demo, "/v1/sessions/talk/trajectories").await;
    let whole = whole["trajectories"].as_array().unwrap();
    assert_eq!(whole.len(), 2, "two samples of the second turn");
    for entry in whole {
        let path = format!("/v1/sessions/talk/paths/{}", entry["leaf"]);
        let head = at(&demo, &path).await;
        for member in ["session", "version", "leaf", "segments", "policy", "flags", "reward", "think_entropy_mean"] {
            assert_eq!(head[member], entry[member], "{member}");
        }
        assert!(head.as_object().unwrap().contains_key("think"), "{head}");
        assert_eq!(head["think"], Value::Null, "no tokenizer names the think tokens");
        assert_eq!(head["think_token_count"], Value::Null);
        assert!(head["turns"][0]["measured"]["source"] == "top_k" && head["turns"][0]["extras"].is_null(), "{head}");
        let total = usize::try_from(head["tokens"].as_u64().unwrap()).unwrap();
        let mut columns = [const { Vec::new() }; 4];
        let names = ["token_ids", "loss_mask", "logprobs", "entropy"];
        let mut from = 0;
        while from < total {
            let part = at(&demo, &format!("{path}?from={from}&limit=7")).await;
            assert_eq!(part["from"], from);
            let count = part["token_ids"].as_array().unwrap().len();
            for (column, name) in columns.iter_mut().zip(names) {
                match part[name].as_array() {
                    Some(list) => column.extend(list.iter().cloned()),
                    None => column.extend(vec![Value::Null; count]),
                }
            }
            from += count;
        }
        for (column, name) in columns.iter().zip(names) {
            assert_eq!(json!(column), entry[name], "{name} of leaf {}", entry["leaf"]);
        }
        assert_eq!(
            at(&demo, &format!("{path}?from={total}")).await["token_ids"],
            json!([]),
            "a range after the end is empty"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requested_intervals_and_ranks_are_stored_with_the_turn() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let prompt = demo.encode("the lamp");
    let sampling = json!({"max_new_tokens": 30, "ignore_eos": true});
    for stream in [false, true] {
        let session = format!("bounds-{stream}");
        let body = json!({"input_ids": prompt, "stream": stream, "entropy_options": {"bounds": true, "stats": true},
                          "sampling_params": sampling});
        let path = format!("/sessions/{session}/generate");
        assert_eq!(demo.post(&path, &body).await.status, 200);
        let part = at(&demo, &format!("/v1/sessions/{session}/paths/0?from={}", prompt.len())).await;
        let [lower, entropy, upper, rank] = ["lower", "entropy", "upper", "rank"].map(|name| numbers(&part[name]));
        assert_eq!([lower.len(), entropy.len(), upper.len(), rank.len()], [30; 4], "{part}");
        for ((lower, entropy), upper) in lower.iter().zip(&entropy).zip(&upper) {
            assert!(lower.unwrap() <= entropy.unwrap() && entropy.unwrap() <= upper.unwrap(), "{part}");
        }
        assert!(rank.iter().flatten().all(|rank| (1.0..=20.0).contains(rank)), "{part}");
    }
    let plain = json!({"input_ids": prompt, "sampling_params": sampling});
    say(&demo, "plain", &plain).await;
    let part = at(&demo, "/v1/sessions/plain/paths/0?from=0").await;
    assert_eq!((&part["lower"], &part["upper"], &part["rank"]), (&Value::Null, &Value::Null, &Value::Null));
    let entry = at(&demo, "/v1/sessions/plain/trajectories").await;
    assert_eq!(entry["trajectories"][0]["turns"][0]["extras"], json!({}), "not requested");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_path_returns_404() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    two_turns(&demo).await;
    let status = async |path: &str| get(demo.proxy.control, path).await.status;
    for (path, expected) in [
        ("/v1/sessions/talk/paths/2", 200),
        ("/v1/sessions/talk/paths/0", 200),
        ("/v1/sessions/talk/paths/3", 404),
        ("/v1/sessions/talk/paths/4294967295", 404),
        ("/v1/sessions/talk/paths/x", 400),
        ("/v1/sessions/talk/paths/-1", 400),
        ("/v1/sessions/talk/paths/", 400),
        ("/v1/sessions/nobody/paths/0", 404),
        ("/v1/sessions/talk/paths/0?version=9", 404),
        ("/v1/sessions/talk/paths/0?from=x", 400),
        ("/v1/sessions/talk/paths/0?from=18446744073709551615", 200),
        ("/v1/sessions/talk/paths/0?form=1", 400),
        ("/v1/sessions/talk/paths/0/more", 404),
        ("/v1/sessions?order=oldest", 400),
        ("/v1/sessions?search=t", 400),
    ] {
        assert_eq!(status(path).await, expected, "{path}");
    }
    assert_eq!(request(demo.proxy.control, "POST", "/v1/sessions/talk/paths/0", &[], b"{}").await.status, 405);
    assert_eq!(request(demo.proxy.control, "DELETE", "/v1/requests", &[], b"").await.status, 405);
    assert_eq!(request(demo.proxy.control, "HEAD", "/v1/sessions/talk/paths/0", &[], b"").await.status, 200);
    let inner = at(&demo, "/v1/sessions/talk/paths/0?from=0").await;
    assert!(inner["loss_mask"].as_array().unwrap().iter().all(|mask| *mask == 0), "no row ends there: {inner}");
    let list = at(&demo, "/v1/sessions/talk").await;
    let mean = list["list"][0]["mean_entropy"].as_f64().unwrap();
    let values: Vec<f64> = numbers(&inner["entropy"]).into_iter().flatten().collect();
    assert!((mean - values.iter().sum::<f64>() / values.len() as f64).abs() < 1e-6, "{list}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_searched_by_name_newest_first() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let body = json!({"text": "the", "sampling_params": {"max_new_tokens": 1}});
    for session in ["run-1", "eval-1", "run-2", "eval-2", "run-3"] {
        say(&demo, session, &body).await;
    }
    let names = async |query: &str| {
        let page = at(&demo, &format!("/v1/sessions?order=newest{query}")).await;
        let names: Vec<String> = page["sessions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["session"].as_str().unwrap().to_owned())
            .collect();
        (names.join(" "), page["next"].as_str().map(str::to_owned))
    };
    assert_eq!(names("").await, ("run-3 eval-2 run-2 eval-1 run-1".into(), None));
    assert_eq!(names("&search=eval").await.0, "eval-2 eval-1");
    assert_eq!(names("&search=%2D1").await.0, "eval-1 run-1", "percent-decoded");
    assert_eq!(names("&search=nobody").await, (String::new(), None));
    let (first, next) = names("&search=run&limit=2").await;
    assert_eq!(first, "run-3 run-2");
    let (second, next) = names(&format!("&search=run&limit=2&after={}", next.unwrap())).await;
    assert_eq!((second.as_str(), next), ("run-1", None));
}

#[tokio::test(flavor = "multi_thread")]
async fn running_requests_are_listed_with_their_tokens() {
    for streaming in [Streaming::Cumulative, Streaming::Incremental] {
        let delay = Some(Duration::from_millis(8));
        let demo = Demo::start(EngineOptions { streaming, token_delay: delay, ..EngineOptions::default() }, &[]).await;
        assert_eq!(at(&demo, "/v1/requests").await, json!({"requests": [], "total": 0}));
        let prompt = demo.encode("the lamp");
        let body = json!({"input_ids": prompt, "rid": "job", "stream": true,
                          "sampling_params": {"max_new_tokens": 80, "ignore_eos": true}});
        let mut stream = Connection::open(demo.proxy.data).await;
        let text = body.to_string();
        stream.send(&written(demo.proxy.data, "POST", "/sessions/live/generate", &[], text.as_bytes())).await;
        assert!(stream.read_until(|read| memchr::memmem::find(read, b"output_token_entropy").is_some()).await);
        let running = at(&demo, "/v1/requests?session=live").await;
        let found = &running["requests"][0];
        assert_eq!((&found["rid"], &found["index"], &found["session"]), (&json!("job"), &json!(0), &json!("live")));
        assert_eq!(found["listed"], false, "a session is listed from its first turn on");
        assert!((1..80).contains(&found["tokens"].as_u64().unwrap()), "{running}");
        assert_eq!((&found["epoch"], &found["entropy"], &running["total"]), (&json!(0), &Value::Null, &json!(1)));
        let recent = at(&demo, "/v1/requests?recent=2").await;
        let newest = recent["requests"][0].clone();
        let since = newest["tokens"].as_u64().unwrap() - newest["entropy"].as_array().unwrap().len() as u64;
        let same = at(&demo, &format!("/v1/requests/job/entropy?since={since}")).await;
        assert!(same["entropy"].as_array().unwrap().starts_with(newest["entropy"].as_array().unwrap()), "{same}");
        assert_eq!(at(&demo, "/v1/requests?session=other").await, json!({"requests": [], "total": 0}));
        let early = at(&demo, "/v1/requests/job/entropy").await;
        let ids = early["token_ids"].as_array().unwrap().clone();
        assert_eq!(ids.len(), early["entropy"].as_array().unwrap().len(), "{early}");
        let later = at(&demo, &format!("/v1/requests/job/entropy?since={}", ids.len() - 1)).await;
        assert_eq!(
            later["token_ids"].as_array().unwrap()[0],
            ids[ids.len() - 1],
            "continues at the same token: {later}"
        );
        assert!(stream.answer().await.complete);
        let turn = at(&demo, &format!("/v1/sessions/live/paths/0?from={}", prompt.len())).await;
        assert_eq!(turn["token_ids"].as_array().unwrap()[..ids.len()], ids[..], "the tokens of the turn");
        assert_eq!(at(&demo, "/v1/requests").await, json!({"requests": [], "total": 0}));
        let late = at(&demo, "/v1/requests/job/entropy").await;
        assert!(late["token_ids"].is_null() && late["next"] == 80, "ended requests are in the session: {late}");
    }
}
