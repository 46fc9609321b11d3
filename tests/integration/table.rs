// SPDX-License-Identifier: Apache-2.0
//! The list of sessions as a table, the overview of training steps, and the search in texts.

use serde_json::{Value, json};
use tokentap::demo::EngineOptions;

use crate::chat::{Chat, messages, with_say};
use crate::support::client::{Answer, get, post, request};
use crate::support::demo::Demo;

/// Three sessions of step 9 and three of step 10, with rewards from 0 to 1, the last without.
async fn demo() -> Demo {
    let demo = Demo::start(EngineOptions::default(), &["--chat", "passthrough"]).await;
    for at in 0..6_u32 {
        let prompt = if at < 3 { [299, 467] } else { [11, 12] };
        let sampling = json!({"max_new_tokens": 2 + at, "ignore_eos": true, "temperature": 1, "sampling_seed": at});
        let body = json!({"input_ids": prompt, "sampling_params": sampling, "session_tags": {"step": 9 + at / 3}});
        let answer = demo.post(&format!("/sessions/s{at}/generate"), &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        if at < 5 {
            let reward = json!({"reward": f64::from(at / 2) / 2.0}).to_string();
            let set = post(demo.proxy.control, &format!("/v1/sessions/s{at}/reward"), reward.as_bytes()).await;
            assert_eq!(set.status, 200, "{}", set.text());
        }
    }
    demo
}

async fn list(demo: &Demo, query: &str) -> Value {
    let answer = get(demo.proxy.control, &format!("/v1/sessions?{query}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn names(page: &Value) -> Vec<&str> {
    page["sessions"].as_array().unwrap().iter().map(|row| row["session"].as_str().unwrap()).collect()
}

async fn refused(demo: &Demo, target: &str) -> String {
    let answer: Answer = get(demo.proxy.control, target).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    answer.json()["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_sorted_selected_and_paged() {
    let demo = demo().await;
    let page = list(&demo, "sort=-sampled_tokens&limit=4").await;
    assert_eq!((names(&page), &page["matched"]), (vec!["s5", "s4", "s3", "s2"], &json!(6)));
    let next = page["next"].as_str().unwrap().to_owned();
    let rest = list(&demo, &format!("sort=-sampled_tokens&limit=4&after={next}")).await;
    assert_eq!((names(&rest), &rest["next"]), (vec!["s1", "s0"], &Value::Null));
    assert_eq!(names(&list(&demo, "sort=-reward").await).last(), Some(&"s5"), "without a reward");
    let chosen = list(&demo, "where=reward%3E0,step=9").await;
    assert_eq!((names(&chosen), &chosen["matched"]), (vec!["s2"], &json!(1)));
    let row = &chosen["sessions"][0];
    assert_eq!(row["reward"], 0.5);
    assert_eq!((&row["trained_tokens"], &row["finish_reason"]), (&json!(4), &json!("length")));
    assert_eq!((&row["policy"], &row["flags"]), (&json!("0"), &json!([])));
    let path = get(demo.proxy.control, "/v1/sessions/s2/trajectories").await.json()["trajectories"][0].clone();
    let entropies: Vec<f64> = path["entropy"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    let mean = entropies.iter().sum::<f64>() / entropies.len() as f64;
    assert!((row["mean_entropy"].as_f64().unwrap() - mean).abs() < 1e-6, "{row} and {mean}");
    assert_eq!(row["high_entropy_share"], path["high_entropy_share"]);
    assert_eq!(names(&list(&demo, "search=s4&sort=session").await), ["s4"]);
    assert_eq!(names(&list(&demo, "search=S4&order=newest").await), ["s4"], "in any case");
    let same = list(&demo, "same_prompt=s4&sort=-session").await;
    assert_eq!((names(&same), &same["matched"]), (vec!["s5", "s4", "s3"], &json!(3)));
    assert_eq!(names(&list(&demo, "same_prompt=s1/0&where=reward%3E0").await), ["s2"]);
    for target in ["s9", "s1/1"] {
        let missing = get(demo.proxy.control, &format!("/v1/sessions?same_prompt={target}")).await;
        assert_eq!(missing.status, 404, "{}", missing.text());
    }
    for (query, message) in [
        ("same_prompt=s1/x", "same_prompt: must be SESSION or SESSION/TURN, with the number of a turn"),
        ("sort=a%20b", "sort: must be the name of a field or of a tag"),
        ("sort=reward&order=newest", "order: not with sort, where or same_prompt"),
        ("where=step", "where: \"step\" is not a condition"),
        (&*format!("sort=reward&after={next}"), "after: must be the next of a page with the same sort"),
    ] {
        let found = refused(&demo, &format!("/v1/sessions?{query}")).await;
        assert!(found.starts_with(message), "{query}: {found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_sum_their_sessions() {
    let demo = demo().await;
    let reply = get(demo.proxy.control, "/v1/steps").await.json();
    assert_eq!((&reply["by"], &reply["total"]), (&json!("step"), &json!(2)));
    let [nine, ten] = &reply["steps"].as_array().unwrap()[..] else { panic!("{reply}") };
    assert_eq!((&nine["step"], &nine["sessions"], &nine["sampled_tokens"]), (&json!("9"), &json!(3), &json!(9)));
    let reward = &nine["reward"];
    assert_eq!((&reward["count"], &reward["p50"], &reward["p90"]), (&json!(3), &json!(0.0), &json!(0.4)));
    assert_eq!(ten["reward"]["count"], 2);
    assert_eq!((&nine["truncated_share"], &nine["fault_share"]), (&json!(1.0), &json!(0.0)));
    assert_eq!(nine["groups"], json!({"count": 1, "one_reward": 0}));
    assert_eq!((&nine["length"]["mean"], &nine["mismatch"]), (&json!(3.0), &Value::Null));
    let rows = list(&demo, "where=step=9").await;
    let sum = |name: &str| {
        rows["sessions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row[name].as_f64().unwrap() * row["sampled_tokens"].as_f64().unwrap())
            .sum::<f64>()
    };
    let mean = nine["entropy"]["mean"].as_f64().unwrap();
    assert!((mean - sum("mean_entropy") / 9.0).abs() < 1e-6, "{mean}");
    assert_eq!(nine["entropy"]["tokens"], 9);
    let latest = get(demo.proxy.control, "/v1/steps?limit=1&where=reward%3E=0").await.json();
    assert_eq!((&latest["total"], &latest["steps"][0]["step"]), (&json!(2), &json!("10")));
    let policies = get(demo.proxy.control, "/v1/steps?by=policy").await.json();
    assert_eq!((&policies["steps"][0]["step"], &policies["steps"][0]["sessions"]), (&json!("0"), &json!(6)));
    assert!(refused(&demo, "/v1/steps?by=a%20b").await.starts_with("by: must be policy or the name of a tag"));
    let none = request(demo.proxy.control, "GET", "/v1/steps?by=task", &[], b"").await.json();
    assert_eq!(none["steps"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_sorted_selected_and_paged() {
    let demo = demo().await;
    let groups = async |query: &str| get(demo.proxy.control, &format!("/v1/groups?{query}")).await.json();
    let reply = groups("").await;
    assert_eq!((&reply["by"], &reply["pass_above"], &reply["matched"]), (&json!("step"), &json!(0.0), &json!(2)));
    let [nine, ten] = &reply["groups"].as_array().unwrap()[..] else { panic!("{reply}") };
    let (pass_rate, std) = (nine["pass_rate"].as_f64().unwrap(), nine["std"].as_f64().unwrap());
    assert!((pass_rate - 1.0 / 3.0).abs() < 1e-9 && (std - 0.75_f64.sqrt() / 3.0).abs() < 1e-9, "{nine}");
    assert_eq!((&nine["step"], &nine["session"], &nine["turn"]), (&json!("9"), &json!("s0"), &json!(0)));
    assert_eq!(
        (&ten["samples"], &ten["rewarded"], &ten["min"], &ten["max"]),
        (&json!(3), &json!(2), &json!(0.5), &json!(1.0))
    );
    let first = groups("sort=-mean&limit=1").await;
    assert_eq!(first["groups"][0]["step"], "10");
    let rest = groups(&format!("sort=-mean&limit=1&after={}", first["next"].as_str().unwrap())).await;
    assert_eq!((&rest["groups"][0]["step"], &rest["next"]), (&json!("9"), &Value::Null));
    let equal = groups("where=reward=0&by=policy").await;
    assert_eq!((&equal["groups"][0]["one_reward"], &equal["groups"][0]["std"]), (&json!(true), &json!(0.0)));
    for (query, message) in [
        ("sort=reward", "sort: must be one of step, session, sessions"),
        ("sort=mean&after=7", "after: must be the next of a page with the same sort"),
        ("by=a%20b", "by: must be policy or the name of a tag"),
    ] {
        assert!(refused(&demo, &format!("/v1/groups?{query}")).await.starts_with(message), "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_with_the_highest_entropies_are_returned_with_their_places() {
    let demo = demo().await;
    let control = demo.proxy.control;
    let path = get(control, "/v1/sessions/s1/paths/0?from=0&limit=100").await.json();
    let ids: Vec<u64> = path["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    let continued = [&ids[..], &[7, 8]].concat();
    let sampling = json!({"max_new_tokens": 9, "temperature": 1, "sampling_seed": 3});
    let more = json!({"input_ids": continued, "sampling_params": sampling});
    assert_eq!(demo.post("/sessions/s1/generate", &more).await.status, 200);
    let reply = get(control, "/v1/high-entropy-tokens?where=session=s1&limit=5").await.json();
    let path = get(control, "/v1/sessions/s1/paths/1?from=0&limit=100").await.json();
    let mut all: Vec<f64> = path["entropy"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    assert_eq!((&reply["measured"], &reply["sessions"], &reply["next"]), (&json!(all.len()), &json!(1), &Value::Null));
    all.sort_by(|one, other| other.total_cmp(one));
    let tokens = reply["tokens"].as_array().unwrap();
    assert_eq!(tokens.iter().map(|token| token["entropy"].as_f64().unwrap()).collect::<Vec<_>>(), all[..5]);
    for token in tokens {
        let at = token["position"].as_u64().unwrap() as usize;
        assert_eq!((&path["token_ids"][at], &path["entropy"][at]), (&token["token_id"], &token["entropy"]), "{token}");
        assert_eq!(token["turn"], u64::from(at >= ids.len()), "{token}");
    }
    assert!(refused(&demo, "/v1/high-entropy-tokens?after=x").await.starts_with("after: must be the next of a reply"));
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_meet_conditions_are_exported() {
    let demo = demo().await;
    let export = async |body: Value| post(demo.proxy.control, "/v1/samples", body.to_string().as_bytes()).await;
    let exported = |answer: Answer| -> Vec<String> {
        assert_eq!(answer.status, 200, "{}", answer.text());
        let samples = answer.json()["samples"].as_array().unwrap().clone();
        samples.iter().map(|row| row["session"].as_str().unwrap().to_owned()).collect()
    };
    let strands = |more: Value| {
        let mut body = json!({"format": "strands"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    assert_eq!(exported(export(strands(json!({"where": "step=9,reward<0.5"}))).await), ["s0", "s1"]);
    assert_eq!(exported(export(strands(json!({"where": "step=9", "sessions": ["s4", "s2"]}))).await), ["s2"]);
    assert_eq!(exported(export(strands(json!({}))).await).len(), 6, "all in memory");
    let refused = export(strands(json!({"where": "step"}))).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!("bad_request")), "{}", refused.text());
    assert!(refused.text().contains("where: "), "{}", refused.text());
}

/// The session, the turn and the part of each match.
fn places(reply: &Value) -> Vec<(&str, u64, &str)> {
    let matches = reply["matches"].as_array().unwrap();
    matches
        .iter()
        .map(|found| {
            (found["session"].as_str().unwrap(), found["turn"].as_u64().unwrap(), found["kind"].as_str().unwrap())
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_are_searched_by_substring_and_expression() {
    let chat = Chat::start(&[]).await;
    for (session, text, reply) in
        [("a", "Where is the Lamp?", "On the table.<|im_end|>"), ("b", "And the chair?", "A lamp. The lamp.<|im_end|>")]
    {
        let body = with_say(&json!({"model": "m", "messages": messages(&[("user", text)])}), reply);
        let target = format!("/sessions/{session}/v1/chat/completions");
        let headers = [
            ("content-type", "application/json"),
            ("x-tokentap-tags", if session == "a" { "step=1" } else { "step=2" }),
        ];
        let answer = request(chat.demo.proxy.data, "POST", &target, &headers, body.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let control = chat.demo.proxy.control;
    let find = async |query: &str| get(control, &format!("/v1/search?{query}")).await.json();
    let lamps = find("q=LAMP").await;
    assert_eq!(places(&lamps), [("b", 0, "response"), ("a", 0, "prompt")], "{lamps}");
    let first = &lamps["matches"][0];
    assert_eq!(
        (&first["match"], &first["count"], &first["before"]),
        (&json!("lamp"), &json!(2), &json!("A ")),
        "{first}"
    );
    assert_eq!((&lamps["by"], &lamps["next"], &lamps["sessions"]), (&json!("text"), &Value::Null, &json!(2)));
    assert_eq!(places(&find("q=Lamp&case=true").await), [("a", 0, "prompt")]);
    assert_eq!(places(&find("q=lamp&where=step=2").await), [("b", 0, "response")]);
    assert_eq!(places(&find("q=the%20(table%7Cchair)&regex=true").await), [("b", 0, "prompt"), ("a", 0, "response")]);
    assert_eq!(places(&find("q=(table").await), [], "not an expression");
    let one = find("q=lamp&limit=1").await;
    let next = one["next"].as_str().unwrap();
    assert_eq!(places(&one), [("b", 0, "response")]);
    let rest = find(&format!("q=lamp&limit=1&after={next}")).await;
    assert_eq!(places(&rest), [("a", 0, "prompt")]);
    for (query, message) in [
        ("q=", "q: is what to search"),
        ("q=(&regex=true", "q: regex parse error"),
        ("q=x&regex=1", "regex: must be true or false"),
        ("q=x&after=7", "after: must be the next of a reply"),
    ] {
        assert!(refused(&chat.demo, &format!("/v1/search?{query}")).await.starts_with(message), "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_searched_without_a_tokenizer() {
    let demo = demo().await;
    let found = get(demo.proxy.control, "/v1/search?q=11,12").await.json();
    assert_eq!(places(&found), [("s5", 0, "prompt"), ("s4", 0, "prompt"), ("s3", 0, "prompt")], "{found}");
    assert_eq!((&found["by"], &found["matches"][0]["token"]), (&json!("tokens"), &json!(0)));
    let text = get(demo.proxy.control, "/v1/search?q=lamp").await;
    assert_eq!((text.status, &text.json()["error"]["code"]), (409, &json!("no_tokenizer")), "{}", text.text());
}
