// SPDX-License-Identifier: Apache-2.0
//! `entropy_options`, `return_entropy` and `--entropy`: a client gets exactly the members it requested.

use serde_json::{Value, json};
use tokentap::demo::EngineOptions;

use crate::support::client::post;
use crate::support::demo::{Demo, all_numbers};
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, FakeReply, Upstream, message};

const SAMPLING: &str = r#"{"max_new_tokens": 6, "temperature": 0.9, "sampling_seed": 3}"#;

fn body(extra: Value) -> Value {
    let sampling: Value = serde_json::from_str(SAMPLING).unwrap();
    let mut body = json!({"text": "the lamp", "rid": "fixed", "sampling_params": sampling});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// The members that tokentap added.
fn added(reply: &Value) -> Vec<&str> {
    let meta = reply["meta_info"].as_object().unwrap();
    meta.keys().map(String::as_str).filter(|key| key.contains("entropy") || *key == "output_token_stats").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_estimator_publishes_its_entropy() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let ask = async |options: Value| demo.ask(&body(json!({"entropy_options": options}))).await["meta_info"].clone();
    let full = ask(json!({"bounds": true, "stats": true})).await;
    assert_eq!(full["entropy_info"]["estimator"], "estimate", "the default");
    let list = |meta: &Value| all_numbers(&meta["output_token_entropy"]);
    for (name, expected) in [
        ("estimate", &full["output_token_entropy"]),
        ("lower", &full["output_token_entropy_lower"]),
        ("upper", &full["output_token_entropy_upper"]),
    ] {
        let meta = ask(json!({"estimator": name})).await;
        assert_eq!(&meta["output_token_entropy"], expected, "{name}");
        assert_eq!(meta["entropy_info"]["estimator"], name);
        let mean = list(&meta).iter().sum::<f64>() / 6.0;
        assert!(
            (meta["entropy_info"]["mean"].as_f64().unwrap() - mean).abs() < 1e-6,
            "{name}: the mean is of its numbers"
        );
    }
    let renormalized = list(&ask(json!({"estimator": "renormalized"})).await);
    for (renormalized, lower) in renormalized.iter().zip(all_numbers(&full["output_token_entropy_lower"])) {
        assert!(*renormalized <= lower + 1e-6, "{renormalized} is not above the certified {lower}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn optional_members_are_returned_on_request() {
    let demo = Demo::start(EngineOptions::default(), &["--top-logprobs", "7"]).await;
    let always = ["entropy_info", "output_token_entropy"];
    let bounds = ["output_token_entropy_lower", "output_token_entropy_upper"];
    for (options, expected) in [
        (Value::Null, always.to_vec()),
        (json!({}), always.to_vec()),
        (json!({"bounds": false, "stats": false, "top_k": null, "estimator": null}), always.to_vec()),
        (json!({"bounds": true}), [always, bounds].concat()),
        (json!({"stats": true}), [&always[..], &["output_token_stats"]].concat()),
        (json!({"stats": true, "bounds": true}), [&always[..], &bounds, &["output_token_stats"]].concat()),
    ] {
        let reply = demo.ask(&body(json!({"entropy_options": options}))).await;
        assert_eq!(added(&reply), expected, "{options}");
        assert_eq!(reply["meta_info"]["entropy_info"]["top_k"], 7, "--top-logprobs is the default");
    }
    for k in [1, 2, 1023] {
        let reply = demo.ask(&body(json!({"entropy_options": {"top_k": k}}))).await;
        let info = &reply["meta_info"]["entropy_info"];
        assert_eq!((&info["top_k"], &info["source"]), (&json!(k), &json!("top_k")), "{info}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stats_name_each_number() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let reply = demo.ask(&body(json!({"entropy_options": {"stats": true}}))).await;
    let stats = reply["meta_info"]["output_token_stats"].as_object().unwrap();
    let mut names: Vec<&str> = stats.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["confidence", "margin", "rank", "surprisal", "tail_mass", "varentropy"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_options_are_rejected_by_name() {
    let demo = Demo::start(EngineOptions::default(), &["limit:max-top-logprobs", "100"]).await;
    for (options, named) in [
        (json!({"estimator": "guess"}), "entropy_options.estimator"),
        (json!({"estimator": "Estimate"}), "entropy_options.estimator"),
        (json!({"estimator": 5}), "entropy_options"),
        (json!({"bound": true}), "bound"),
        (json!({"bounds": "yes"}), "entropy_options"),
        (json!({"top_k": 0}), "entropy_options.top_k"),
        (json!({"top_k": -1}), "entropy_options"),
        (json!({"top_k": 101}), "entropy_options.top_k"),
        (json!({"top_k": 2.5}), "entropy_options"),
        (json!("estimate"), "entropy_options"),
        (json!(true), "entropy_options"),
    ] {
        for stream in [false, true] {
            let answer = demo.post("/generate", &body(json!({"entropy_options": options, "stream": stream}))).await;
            assert_eq!(answer.status, 400, "{options}: {}", answer.text());
            assert!(answer.text().contains(named), "{options} is refused for {named}: {}", answer.text());
        }
    }
    let most = demo.ask(&body(json!({"entropy_options": {"top_k": 100}}))).await;
    assert_eq!(most["meta_info"]["entropy_info"]["top_k"], 100, "the limit itself is allowed");
    let above = demo.post("/generate", &body(json!({"return_logprob": true, "top_logprobs_num": 101}))).await;
    assert_eq!(above.status, 400, "{}", above.text());
    assert!(above.text().contains("top_logprobs_num"), "{}", above.text());
}

/// The reply without times and cache numbers.
fn timeless(mut reply: Value) -> Value {
    let own = ["e2e_latency", "response_sent_to_client_ts", "cached_tokens", "cached_tokens_details"];
    reply["meta_info"].as_object_mut().unwrap().retain(|key, _| !own.contains(&key.as_str()));
    reply
}

#[tokio::test(flavor = "multi_thread")]
async fn reply_without_entropy_is_unchanged() {
    let bare = body(json!({}));
    for (flags, extra, wanted) in [
        (&[][..], json!({}), true),
        (&[], json!({"return_entropy": true}), true),
        (&[], json!({"return_entropy": null}), true),
        (&[], json!({"return_entropy": false}), false),
        (&[], json!({"return_entropy": false, "entropy_options": {"bounds": true, "stats": true}}), false),
        (&["--entropy", "request"], json!({}), false),
        (&["--entropy", "request"], json!({"return_entropy": false}), false),
        (&["--entropy", "request"], json!({"return_entropy": true}), true),
        (&["--entropy", "always"], json!({}), true),
        (&["--entropy", "always"], json!({"return_entropy": false}), true),
        (&["--entropy", "off"], json!({}), false),
        (&["--entropy", "off"], json!({"return_entropy": true}), false),
    ] {
        let demo = Demo::start(EngineOptions::default(), flags).await;
        let through = demo.ask(&body(extra.clone())).await;
        let events = demo.stream(&body(extra.clone())).await;
        let about = format!("{flags:?} {extra}");
        if wanted {
            assert_eq!(added(&through), ["entropy_info", "output_token_entropy"], "{about}");
            assert_eq!(added(&events[0]), ["output_token_entropy"], "{about}");
            continue;
        }
        let direct = post(demo.direct, "/generate", bare.to_string().as_bytes()).await.json();
        assert_eq!(timeless(through), timeless(direct), "{about}");
        assert!(events.iter().all(|event| added(event).is_empty()), "{about}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_without_entropy_is_unchanged() {
    let upstream = Upstream::start(EngineProfile::default(), |_| {
        FakeReply::KeepAlive(vec![message(
            200,
            &[("content-type", "application/json")],
            br#"{"text":"","output_ids":[],"meta_info":{}}"#,
        )])
    })
    .await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let sent = json!({"text": "a", "rid": "r", "return_entropy": false, "top_logprobs_num": 4, "sampling_params": {"top_k": 1, "temperature": 0.3}});
    let mut with_options = sent.clone();
    with_options["entropy_options"] = json!({"top_k": 9});
    for body in [&sent, &with_options] {
        post(proxy.data, "/generate", body.to_string().as_bytes()).await;
        assert_eq!(upstream.generations().pop().unwrap(), sent, "the request is forwarded unchanged");
    }
    let mut wished = with_options;
    wished["return_entropy"] = json!(true);
    post(proxy.data, "/generate", wished.to_string().as_bytes()).await;
    let asked = upstream.generations().pop().unwrap();
    assert_eq!((&asked["return_logprob"], &asked["top_logprobs_num"]), (&json!(true), &json!(9)), "{asked}");
    assert_eq!(asked.get("entropy_options"), None, "entropy_options is not forwarded");
}
