// SPDX-License-Identifier: Apache-2.0
//! When tokentap does not force logprobs: the upstream request, the reply, and the metrics.

use std::collections::HashSet;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::support::client::{Answer, get, post};
use crate::support::engine;
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, FakeReply, Upstream, json_message, stream};

async fn start(profile: EngineProfile, flags: &[&str]) -> (Upstream, Proxy) {
    let upstream = Upstream::start(profile, engine::answer).await;
    let proxy = Proxy::probed(upstream.addr, flags).await;
    (upstream, proxy)
}

async fn ask(proxy: &Proxy, body: &Value) -> Answer {
    let answer = post(proxy.data, "/generate", body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    answer
}

/// The last `entropy_info` of a reply.
fn info(answer: &Answer) -> Value {
    let objects = match answer.body.starts_with(b"data:") {
        true => answer.events(),
        false => answer.json().as_array().cloned().unwrap_or_else(|| vec![answer.json()]),
    };
    objects.iter().rev().find_map(|object| object["meta_info"].get("entropy_info")).cloned().unwrap_or(Value::Null)
}

/// One case: the engine, the flags and the request, then the expected upstream request, and the source and reason in the reply.
struct Case {
    name: &'static str,
    profile: EngineProfile,
    flags: &'static [&'static str],
    request: Value,
    upstream: Value,
    source: &'static str,
    reason: Value,
}

fn cases() -> Vec<Case> {
    let case = |name, request: Value, upstream: Value, source, reason: Value| Case {
        name,
        profile: EngineProfile::default(),
        flags: &[],
        request,
        upstream,
        source,
        reason,
    };
    let incremental = || EngineProfile { streaming: "incremental", ..EngineProfile::default() };
    let jax = || EngineProfile { jax: true, flat: false, ..EngineProfile::default() };
    let long = |n: u64| json!({"max_new_tokens": n});
    vec![
        case(
            "a short cumulative stream is forced",
            json!({"text": "a", "stream": true}),
            json!({"return_logprob": true, "top_logprobs_num": 20}),
            "top_k",
            Value::Null,
        ),
        case(
            "a long stream requests only the chosen logprob",
            json!({"text": "a", "stream": true, "sampling_params": long(513)}),
            json!({"return_logprob": true, "top_logprobs_num": 0}),
            "none",
            json!("cumulative_stream"),
        ),
        case(
            "items count together",
            json!({"text": ["a", "b"], "stream": true, "sampling_params": long(300)}),
            json!({"top_logprobs_num": 0}),
            "none",
            json!("cumulative_stream"),
        ),
        case(
            "return_entropy forces a long stream",
            json!({"text": "a", "stream": true, "return_entropy": true, "sampling_params": long(5000)}),
            json!({"top_logprobs_num": 20}),
            "top_k",
            Value::Null,
        ),
        case(
            "the client's own k is kept",
            json!({"text": "a", "stream": true, "return_logprob": true, "top_logprobs_num": 2, "sampling_params": long(5000)}),
            json!({"top_logprobs_num": 2}),
            "top_k",
            Value::Null,
        ),
        Case {
            profile: incremental(),
            ..case(
                "an incremental stream may be long",
                json!({"text": "a", "stream": true, "sampling_params": long(2000)}),
                json!({"top_logprobs_num": 20}),
                "top_k",
                Value::Null,
            )
        },
        Case {
            flags: &["limit:cumulative-stream-tokens", "8"],
            ..case(
                "the limit is a setting",
                json!({"text": "a", "stream": true, "sampling_params": long(9)}),
                json!({"top_logprobs_num": 0}),
                "none",
                json!("cumulative_stream"),
            )
        },
        case(
            "stream_interval is forwarded unchanged",
            json!({"text": "a", "stream": true, "sampling_params": {"max_new_tokens": 4, "stream_interval": 3}}),
            json!({"sampling_params": {"max_new_tokens": 4, "stream_interval": 3}}),
            "top_k",
            Value::Null,
        ),
        Case {
            flags: &["limit:reply-budget", "30000"],
            ..case(
                "k is lowered to fit the budget",
                json!({"text": "a", "entropy_options": {"top_k": 100}}),
                json!({"top_logprobs_num": 5}),
                "top_k",
                Value::Null,
            )
        },
        Case {
            flags: &["limit:reply-budget", "5000"],
            ..case(
                "the budget may lower k to 0",
                json!({"text": "a"}),
                json!({"top_logprobs_num": 0}),
                "none",
                json!("reply_budget"),
            )
        },
        Case {
            profile: EngineProfile { context: 262_144, ..EngineProfile::default() },
            flags: &["--columns", "routed_experts", "--moe-shape", "94x8x128"],
            ..case(
                "a reply of open length has routed experts: its size is checked while it is read",
                json!({"input_ids": [1], "sampling_params": {"max_new_tokens": null}}),
                json!({"return_routed_experts": true, "top_logprobs_num": 20}),
                "top_k",
                Value::Null,
            )
        },
        Case {
            profile: EngineProfile { context: 262_144, ..EngineProfile::default() },
            flags: &["--columns", "routed_experts", "--moe-shape", "48x8x128"],
            ..case(
                "routed experts do not lower k while the largest reply holds both",
                json!({"input_ids": [1], "sampling_params": {"max_new_tokens": 4000, "n": 8}}),
                json!({"return_routed_experts": true, "top_logprobs_num": 20}),
                "top_k",
                Value::Null,
            )
        },
        Case {
            profile: EngineProfile { context: 262_144, ..EngineProfile::default() },
            flags: &["--columns", "routed_experts", "--moe-shape", "48x8x128"],
            ..case(
                "routed experts that do not fit the largest reply are not requested",
                json!({"input_ids": [1], "sampling_params": {"max_new_tokens": 100_000}}),
                json!({"return_routed_experts": null, "top_logprobs_num": 20}),
                "top_k",
                Value::Null,
            )
        },
        Case {
            profile: EngineProfile { context: 131_072, flat: false, ..EngineProfile::default() },
            ..case(
                "a reply of open length keeps k: its size is checked while it is read",
                json!({"text": "a", "sampling_params": {"max_new_tokens": null}}),
                json!({"top_logprobs_num": 20}),
                "top_k",
                Value::Null,
            )
        },
        Case {
            profile: EngineProfile { context: 131_072, flat: false, ..EngineProfile::default() },
            flags: &["--max-bytes-in-flight", "512MiB"],
            ..case(
                "k is lowered if the reply could exceed an eighth of --max-bytes-in-flight",
                json!({"text": "a", "sampling_params": {"max_new_tokens": null}}),
                json!({"top_logprobs_num": 5}),
                "top_k",
                Value::Null,
            )
        },
        Case {
            profile: jax(),
            ..case(
                "sglang-jax is not forced",
                json!({"text": "a"}),
                json!({"return_logprob": null, "top_logprobs_num": null}),
                "none",
                json!("jax"),
            )
        },
        Case {
            profile: jax(),
            ..case(
                "sglang-jax is forced on request",
                json!({"text": "a", "return_entropy": true}),
                json!({"top_logprobs_num": 20, "return_text_in_logprobs": false, "return_flat_raw_output_top_logprobs": null}),
                "top_k",
                Value::Null,
            )
        },
        Case {
            profile: jax(),
            flags: &["--entropy", "always"],
            ..case(
                "the operator can force sglang-jax",
                json!({"text": "a"}),
                json!({"top_logprobs_num": 20}),
                "top_k",
                Value::Null,
            )
        },
        Case {
            profile: jax(),
            flags: &["--entropy", "always"],
            ..case(
                "a stream of sglang-jax is never forced",
                json!({"text": "a", "stream": true, "return_entropy": true}),
                json!({"return_logprob": null}),
                "none",
                json!("jax_stream"),
            )
        },
        Case {
            profile: jax(),
            ..case(
                "logprobs of sglang-jax are raised to k = 1",
                json!({"text": "a", "return_logprob": true}),
                json!({"top_logprobs_num": 1}),
                "top_k",
                Value::Null,
            )
        },
        case(
            "prompt logprobs are requested flat on both sides",
            json!({"text": "a", "return_logprob": true, "logprob_start_len": 0}),
            json!({"top_logprobs_num": 20, "logprob_start_len": 0, "return_flat_raw_output_top_logprobs": true, "return_flat_raw_top_logprobs": true}),
            "top_k",
            Value::Null,
        ),
        Case {
            profile: EngineProfile { flat: false, ..EngineProfile::default() },
            ..case(
                "prompt logprobs without flat rows keep the client's k",
                json!({"text": "a", "return_logprob": true, "logprob_start_len": 0}),
                json!({"top_logprobs_num": null}),
                "none",
                json!("prompt_logprobs"),
            )
        },
        case(
            "prompt lists are the client's own form",
            json!({"text": "a", "return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 3}),
            json!({"top_logprobs_num": 3}),
            "top_k",
            Value::Null,
        ),
        Case {
            profile: EngineProfile {
                server_info: json!({"disaggregation_mode": "decode"}),
                ..EngineProfile::default()
            },
            ..case(
                "disaggregation hands over 128",
                json!({"text": "a", "entropy_options": {"top_k": 500}}),
                json!({"top_logprobs_num": 128}),
                "top_k",
                Value::Null,
            )
        },
        case(
            "beam search refuses logprobs",
            json!({"text": "a", "sampling_params": {"beam_width": 4}}),
            json!({"return_logprob": null}),
            "none",
            json!("beam_search"),
        ),
        case(
            "an ambiguous request is not edited",
            json!({"text": "a", "return_logprob": 0}),
            json!({"return_logprob": 0, "top_logprobs_num": null}),
            "none",
            json!("unreadable_request"),
        ),
        case(
            "members without effect do not take effect",
            json!({"text": "a", "logprob_start_len": 0, "token_ids_logprob": [1], "return_flat_raw_top_logprobs": true}),
            json!({"logprob_start_len": -1, "token_ids_logprob": null, "return_flat_raw_top_logprobs": false}),
            "top_k",
            Value::Null,
        ),
        case(
            "top_k 1 is requested at temperature 1",
            json!({"text": "a", "sampling_params": {"top_k": 1, "temperature": 0.5}}),
            json!({"sampling_params": {"top_k": 1, "temperature": 1.0}}),
            "top_k",
            Value::Null,
        ),
        case(
            "top_k 1 keeps its temperature if the client requests logprobs",
            json!({"text": "a", "return_logprob": true, "sampling_params": {"top_k": 1, "temperature": 0.5}}),
            json!({"sampling_params": {"top_k": 1, "temperature": 0.5}}),
            "top_k",
            json!("top_k_1"),
        ),
        case(
            "a batch with mixed return_logprob",
            json!({"text": ["a", "b"], "return_logprob": [true, false], "top_logprobs_num": [30, 0], "logprob_start_len": [-1, 0]}),
            json!({"return_logprob": true, "top_logprobs_num": [30, 20], "logprob_start_len": -1}),
            "top_k",
            Value::Null,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn each_rule_determines_the_upstream_request_and_the_reason() {
    for case in cases() {
        let (upstream, proxy) = start(case.profile.clone(), case.flags).await;
        let answer = ask(&proxy, &case.request).await;
        let asked = upstream.generations();
        assert_eq!(asked.len(), 1, "{}: asked once", case.name);
        for (field, expected) in case.upstream.as_object().unwrap() {
            assert_eq!(&asked[0][field], expected, "{}: {field} of {}", case.name, asked[0]);
        }
        assert!(asked[0].get("entropy_options").is_none(), "{}: entropy_options is tokentap's own", case.name);
        let info = info(&answer);
        assert_eq!(
            (&info["source"], &info["reason"]),
            (&json!(case.source), &case.reason),
            "{}: {}",
            case.name,
            answer.text()
        );
        let text = answer.text();
        if case.request.get("return_logprob").is_none() {
            assert!(!text.contains("logprobs\""), "{}: forced members are removed: {text}", case.name);
        }
        if let (true, Value::String(reason)) = (case.source == "none", &case.reason) {
            let name = format!("tokentap_entropy_skipped_total{{reason=\"{reason}\"}}");
            assert!(proxy.metric(&name).await >= 1.0, "{}: is counted", case.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_forced_request_is_resent_unforced() {
    for status in [400, 500] {
        let upstream =
            Upstream::start(EngineProfile::default(), move |asked| match asked.json()["return_logprob"] == true {
                true => json_message(status, b"Internal Server Error"),
                false => engine::answer(asked),
            })
            .await;
        let proxy = Proxy::probed(upstream.addr, &[]).await;
        let request = json!({"text": "a", "sampling_params": {"temperature": 0, "regex": "[a-z]+"}});
        let answer = ask(&proxy, &request).await;
        assert_eq!(info(&answer)["reason"], "refused_by_engine");
        let asked = upstream.generations();
        assert_eq!(asked.len(), 2, "{status}: once forced, once unchanged");
        let mut second = asked[1].clone();
        second.as_object_mut().unwrap().remove("rid");
        assert_eq!(second, request, "{status}");
        assert_eq!(proxy.metric(&format!("tokentap_unforced_retries_total{{status_code=\"{status}\"}}")).await, 1.0);

        let again = ask(&proxy, &request).await;
        let expected = if status == 500 { ("refused_before", 3) } else { ("refused_by_engine", 4) };
        assert_eq!(info(&again)["reason"], expected.0, "{status}: a 500 is remembered for the shape, a 400 is not");
        assert_eq!(upstream.generations().len(), expected.1);
        // another shape is forced as before
        ask(&proxy, &json!({"text": "a", "sampling_params": {"temperature": 1.5}})).await;
        assert_eq!(upstream.generations()[expected.1]["return_logprob"], true);
    }
}

/// SGLang 0.5.12 keeps the ids of requests that it has refused, and refuses them from then on.
#[tokio::test(flavor = "multi_thread")]
async fn refused_id_is_not_used_again() {
    const REFUSED: &[u8] = b"{\"error\":{\"message\":\"no\"}}";
    let kept = Mutex::new(HashSet::new());
    let upstream = Upstream::start(EngineProfile::default(), move |asked| {
        let body = asked.json();
        if kept.lock().contains(&body["rid"].to_string()) {
            return json_message(400, b"{\"error\":{\"message\":\"Duplicate request ID\"}}");
        }
        if body["return_logprob"] == true || body["sampling_params"]["temperature"] == -1 {
            kept.lock().insert(body["rid"].to_string());
            return json_message(400, REFUSED);
        }
        engine::answer(asked)
    })
    .await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    for prompt in [json!("a"), json!(["a", "b"])] {
        let answer = ask(&proxy, &json!({"text": prompt})).await;
        assert_eq!(info(&answer)["reason"], "refused_by_engine", "{prompt}: another id is accepted");
    }
    let invalid = json!({"text": "a", "sampling_params": {"temperature": -1}});
    let mut named = invalid.clone();
    named["rid"] = json!("mine");
    for request in [invalid, named] {
        let answer = post(proxy.data, "/generate", request.to_string().as_bytes()).await;
        assert_eq!((answer.status, &answer.body[..]), (400, REFUSED), "{request}: the refusal is not about the id");
    }
    assert_eq!(upstream.generations().len(), 8, "each request is sent twice");
}

/// The two forms in which SGLang refuses a request in a stream: an error, and an abort with a status.
const STREAMED_REFUSALS: [&str; 2] = [
    r#"{"error":{"message":"no","type":"invalid_request_error","code":400,"retryable":false}}"#,
    r#"{"text":"","output_ids":[],"meta_info":{"id":"r","finish_reason":{"type":"abort","message":"no","status_code":400},"prompt_tokens":3,"completion_tokens":0}}"#,
];

fn refused_stream(refusal: &str) -> FakeReply {
    stream(&[format!("data: {refusal}\n\n").as_bytes(), b"data: [DONE]\n\n"])
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_stream_that_is_refused_in_its_first_event_is_resent_unforced() {
    for refusal in STREAMED_REFUSALS {
        let upstream =
            Upstream::start(EngineProfile::default(), move |asked| match asked.json()["return_logprob"] == true {
                true => refused_stream(refusal),
                false => engine::answer(asked),
            })
            .await;
        let proxy = Proxy::probed(upstream.addr, &[]).await;
        let request = json!({"input_ids": [1, 2, 3], "stream": true, "sampling_params": {"max_new_tokens": 4}});
        let answer = post(proxy.data, "/sessions/s/generate", request.to_string().as_bytes()).await;
        assert!(answer.text().ends_with("data: [DONE]\n\n") && !answer.text().contains("\"no\""), "{}", answer.text());
        assert_eq!(info(&answer)["reason"], "refused_by_engine", "{}", answer.text());
        let asked = upstream.generations();
        assert_eq!(asked.len(), 2, "once forced, once unchanged");
        let mut second = asked[1].clone();
        second.as_object_mut().unwrap().remove("rid");
        assert_eq!(second, request);
        assert_ne!(asked[0]["rid"], asked[1]["rid"], "an engine may keep the id of a refused request");
        assert_eq!(proxy.metric("tokentap_unforced_retries_total{status_code=\"200\"}").await, 1.0);
        let shown = get(proxy.control, "/v1/sessions/s").await.json();
        let turns = shown["list"].as_array().unwrap();
        assert_eq!((turns.len(), &turns[0]["sampled_tokens"]), (1, &json!(4)), "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_of_the_clients_own_stream_reaches_it() {
    for (refusal, request, calls) in [
        // the client's id: a second refusal may be about the id
        (STREAMED_REFUSALS[0], json!({"input_ids": [1], "stream": true, "rid": "mine"}), 2),
        (STREAMED_REFUSALS[1], json!({"input_ids": [1], "stream": true}), 2),
        // nothing is forced
        (STREAMED_REFUSALS[0], json!({"input_ids": [1], "stream": true, "return_entropy": false}), 1),
        // the engine's state, not the request
        (r#"{"error":{"message":"no","code":503}}"#, json!({"input_ids": [1], "stream": true}), 1),
    ] {
        let upstream = Upstream::start(EngineProfile::default(), move |asked| {
            match asked.json()["return_logprob"] == true || asked.json()["rid"] != "mine" {
                true => refused_stream(refusal),
                false => refused_stream(r#"{"error":{"message":"Duplicate request ID","code":400}}"#),
            }
        })
        .await;
        let proxy = Proxy::probed(upstream.addr, &[]).await;
        let answer = post(proxy.data, "/generate", request.to_string().as_bytes()).await;
        let text = answer.text();
        assert!(text.contains("\"no\"") && text.ends_with("data: [DONE]\n\n"), "{request}: {text}");
        assert_eq!(text.matches("data: ").count(), 2, "{request}: {text}");
        assert_eq!(upstream.generations().len(), calls, "{request}");
    }
    // the second request is answered without a stream
    let upstream =
        Upstream::start(EngineProfile::default(), move |asked| match asked.json()["return_logprob"] == true {
            true => refused_stream(STREAMED_REFUSALS[0]),
            false => json_message(500, b"{}"),
        })
        .await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let answer = post(proxy.data, "/generate", br#"{"input_ids":[1],"stream":true}"#).await;
    assert_eq!(answer.text(), format!("data: {}\n\ndata: [DONE]\n\n", STREAMED_REFUSALS[0]));
}

/// The second reply is forwarded unread, or has no event.
#[tokio::test(flavor = "multi_thread")]
async fn refusal_comes_only_if_the_second_reply_does_not_begin() {
    let large = format!("data: {{\"text\":\"{}\"}}\n\ndata: [DONE]\n\n", "a".repeat(80_000));
    for second in [large, String::new()] {
        let reply = second.clone();
        let upstream =
            Upstream::start(EngineProfile::default(), move |asked| match asked.json()["return_logprob"] == true {
                true => refused_stream(STREAMED_REFUSALS[0]),
                false => stream(&[reply.as_bytes()]),
            })
            .await;
        let proxy = Proxy::probed(upstream.addr, &["limit:max-reply-bytes", "65536"]).await;
        let answer =
            post(proxy.data, "/generate", br#"{"input_ids":[1],"stream":true,"sampling_params":{"max_new_tokens":4}}"#)
                .await;
        let refused = format!("data: {}\n\ndata: [DONE]\n\n", STREAMED_REFUSALS[0]);
        let expected = if second.is_empty() { &refused } else { &second };
        assert!(answer.text() == *expected, "{:.200}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn masks_that_the_engine_refuses_within_its_limit_are_not_requested() {
    for (masks, refused) in [(true, false), (true, true), (false, false)] {
        let profile = EngineProfile { masks, refuses_masks: refused, ..EngineProfile::default() };
        let upstream = Upstream::start(profile, engine::answer).await;
        let proxy = Proxy::probed(upstream.addr, &["--columns", "sampling_mask"]).await;
        let request = json!({"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2, "top_k": 4}});
        ask(&proxy, &request).await;
        let asked = &upstream.generations()[0];
        assert_eq!(asked["return_sampling_mask"] == true, masks && !refused, "{masks} {refused}: {asked}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_is_not_resent_after_503_or_with_client_logprobs() {
    for (status, request) in [(503, json!({"text": "a"})), (400, json!({"text": "a", "return_logprob": true}))] {
        let upstream = Upstream::start(EngineProfile::default(), move |_| {
            json_message(status, b"{\"error\":{\"message\":\"no\"}}")
        })
        .await;
        let proxy = Proxy::probed(upstream.addr, &[]).await;
        let answer = post(proxy.data, "/generate", request.to_string().as_bytes()).await;
        assert_eq!((answer.status, answer.text().as_str()), (status, "{\"error\":{\"message\":\"no\"}}"));
        assert_eq!(upstream.generations().len(), 1, "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_reply_passes_unchanged() {
    let broken: &[&[u8]] = &[
        b"{\"text\":\"a\",\"meta_info\":{\"output_top_logprobs\":[[[oops,1,null]]]}}",
        b"{\"text\":\"a\",\"meta_info\":{\"output_top_logprobs_shape\":[9,9],\"output_top_logprobs_val_flat_b64\":\"AAAA\"}}",
        b"{\"text\":",
        b"not JSON at all",
        b"[1,2,3]",
        b"",
    ];
    for body in broken {
        let upstream = Upstream::start(EngineProfile::default(), move |_| json_message(200, body)).await;
        let proxy = Proxy::probed(upstream.addr, &[]).await;
        let answer = post(proxy.data, "/generate", b"{\"text\":\"a\"}").await;
        assert_eq!((answer.status, &answer.body[..]), (200, *body), "{}", String::from_utf8_lossy(body));
        assert_eq!(
            proxy.metric("tokentap_entropy_skipped_total{reason=\"unreadable_reply\"}").await,
            1.0,
            "{}",
            String::from_utf8_lossy(body)
        );
        let strict = Proxy::probed(upstream.addr, &["--strict"]).await;
        let answer = post(strict.data, "/generate", b"{\"text\":\"a\"}").await;
        assert_eq!(answer.status, 502, "strict: {}", answer.text());
        assert!(answer.text().contains("unreadable_reply"), "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_mode_rejects_an_unmeasurable_request_early() {
    let (upstream, proxy) = start(EngineProfile::default(), &["--strict"]).await;
    let unmeasurable = json!({"text": "a", "stream": true, "sampling_params": {"max_new_tokens": 9999}});
    let answer = post(proxy.data, "/generate", unmeasurable.to_string().as_bytes()).await;
    assert_eq!(answer.status, 502);
    assert!(answer.text().contains("cumulative_stream"), "{}", answer.text());
    assert!(upstream.generations().is_empty(), "no generation was wasted");
    let unwanted =
        json!({"text": "a", "stream": true, "return_entropy": false, "sampling_params": {"max_new_tokens": 9999}});
    assert_eq!(post(proxy.data, "/generate", unwanted.to_string().as_bytes()).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_do_not_wait_for_the_probe() {
    // an engine that answers generations but not the probe
    let upstream = Upstream::start(EngineProfile { answers_probe: false, ..EngineProfile::default() }, |asked| {
        match asked.path.as_str() {
            "/generate" => engine::answer(asked),
            _ => FakeReply::Silence,
        }
    })
    .await;
    let proxy = Proxy::start(upstream.addr, &[]).await;
    let answer = ask(&proxy, &json!({"text": "a", "sampling_params": {"temperature": 0.7}})).await;
    let known = info(&answer);
    assert_eq!((&known["source"], &known["temperature"]), (&json!("top_k"), &Value::Null), "{known}");
    assert_eq!((&known["reason"], &known["estimator"]), (&json!("probe_pending"), &json!("lower")), "{known}");
    let answer = ask(&proxy, &json!({"text": "a", "stream": true})).await;
    assert_eq!(info(&answer)["reason"], "probe_pending", "an unknown engine's stream is not forced");
}

#[tokio::test(flavor = "multi_thread")]
async fn lowered_k_is_reported_in_entropy_info() {
    let (_upstream, proxy) = start(EngineProfile::default(), &["limit:reply-budget", "30000"]).await;
    let lowered = info(&ask(&proxy, &json!({"text": "a", "entropy_options": {"top_k": 100}})).await);
    assert_eq!((&lowered["top_k"], &lowered["top_k_lowered_from"]), (&json!(5), &json!(100)), "{lowered}");
    let whole = info(
        &ask(&proxy, &json!({"text": "a", "entropy_options": {"top_k": 20}, "sampling_params": {"max_new_tokens": 4}}))
            .await,
    );
    assert_eq!((&whole["top_k"], whole.get("top_k_lowered_from")), (&json!(20), None), "{whole}");
}
