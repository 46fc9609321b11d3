// SPDX-License-Identifier: Apache-2.0
//! Scripted engines with unusual replies: the requests that they receive, and the handling of invalid numbers.

use serde_json::{Value, json};
use tokentap::app::settings::client;
use tokentap::engine::capabilities::{Capabilities, PluginState};
use tokentap::engine::engines::Engines;
use tokentap::engine::survey::Survey;

use crate::support::client::{Answer, post};
use crate::support::demo::numbers;
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, FakeReply, Upstream, UpstreamRequest, json_message, stream};

/// Starts an engine whose plugin and masks the probe has found, and which then answers with `fake_reply`.
async fn engine(
    profile: EngineProfile,
    fake_reply: impl Fn(&UpstreamRequest) -> FakeReply + Send + Sync + 'static,
) -> (Upstream, Proxy) {
    let upstream = Upstream::start(EngineProfile { plugin: true, masks: true, ..profile }, fake_reply).await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    (upstream, proxy)
}

async fn scripted(reply: Value) -> (Upstream, Proxy) {
    engine(EngineProfile::default(), move |_| json_message(200, reply.to_string().as_bytes())).await
}

async fn ask(proxy: &Proxy, body: &Value) -> Answer {
    post(proxy.data, "/generate", body.to_string().as_bytes()).await
}

/// A reply or an event of `tokens` tokens.
fn object(tokens: usize, finish: Option<&str>, more: Value) -> Value {
    let rows: Vec<Value> = (0..tokens).map(|at| json!([-0.5, at, null])).collect();
    let mut meta = json!({"id": "x", "completion_tokens": tokens, "output_token_logprobs": rows,
        "finish_reason": finish.map(|kind| json!({"type": kind}))});
    meta.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"text": "", "output_ids": (0..tokens).collect::<Vec<_>>(), "meta_info": meta})
}

fn events(objects: &[Value]) -> FakeReply {
    let texts: Vec<String> =
        objects.iter().map(|object| format!("data: {object}\n\n")).chain(["data: [DONE]\n\n".to_owned()]).collect();
    let pieces: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
    stream(&pieces)
}

async fn lost_count(proxy: &Proxy, reason: &str) -> f64 {
    proxy.metric(&format!("tokentap_exact_lost_total{{reason=\"{reason}\"}}")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_request_keeps_the_parameters_of_the_client() {
    let (upstream, proxy) = scripted(json!({"text": "", "output_ids": [], "meta_info": {}})).await;
    for (sent, expected) in [
        (json!({}), json!({"custom_params": {"tokentap_entropy": true}})),
        (json!({"sampling_params": null}), json!({"custom_params": {"tokentap_entropy": true}})),
        (
            json!({"sampling_params": {"temperature": 0.5}}),
            json!({"temperature": 0.5, "custom_params": {"tokentap_entropy": true}}),
        ),
        (
            json!({"sampling_params": {"custom_params": {"budget": 5}, "n": 2}}),
            json!({"custom_params": {"budget": 5, "tokentap_entropy": true}, "n": 2}),
        ),
        (json!({"sampling_params": {"custom_params": {}}}), json!({"custom_params": {"tokentap_entropy": true}})),
        (
            json!({"sampling_params": {"custom_params": {"tokentap_entropy": "full"}}}),
            json!({"custom_params": {"tokentap_entropy": "full"}}),
        ),
        (
            json!({"sampling_params": {"top_k": 1, "temperature": 0.5, "custom_params": null}}),
            json!({"top_k": 1, "temperature": 1.0, "custom_params": {"tokentap_entropy": true}}),
        ),
    ] {
        let mut body = json!({"text": "a"});
        body.as_object_mut().unwrap().extend(sent.as_object().unwrap().clone());
        post(proxy.data, "/generate", body.to_string().as_bytes()).await;
        let asked = upstream.generations().pop().unwrap();
        assert_eq!(asked["sampling_params"], expected, "{sent}");
        assert_eq!(asked["return_logprob"], true, "turns are recorded with logprobs");
        assert!(
            asked["top_logprobs_num"].as_u64().unwrap_or(0) == 0
                && asked.get("return_flat_raw_output_top_logprobs").is_none()
        );
    }
    // if the plugin cannot measure, or the client declined it, tokentap requests top-k
    for sent in [
        json!({"custom_logit_processor": "{}"}),
        json!({"sampling_params": {"custom_params": {"tokentap_entropy": false}}}),
    ] {
        let mut body = json!({"text": "a"});
        body.as_object_mut().unwrap().extend(sent.as_object().unwrap().clone());
        post(proxy.data, "/generate", body.to_string().as_bytes()).await;
        let asked = upstream.generations().pop().unwrap();
        assert_eq!(asked["top_logprobs_num"], 20, "{sent}: {asked}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unrequested_plugin_member_is_removed() {
    let reply = json!({"text": "a", "output_ids": [5], "meta_info": {"id": "x", "output_token_entropy": [null], "completion_tokens": 1,
        "finish_reason": {"type": "length", "length": 1}}});
    let (_upstream, proxy) = scripted(reply).await;
    let silent = json!({"text": "a", "return_entropy": false});
    let answer = post(proxy.data, "/generate", silent.to_string().as_bytes()).await.json();
    assert!(answer["meta_info"].get("output_token_entropy").is_none(), "{answer}");
    let mut own = silent.clone();
    own["sampling_params"] = json!({"custom_params": {"tokentap_entropy": true}});
    let answer = post(proxy.data, "/generate", own.to_string().as_bytes()).await.json();
    assert_eq!(
        answer["meta_info"]["output_token_entropy"],
        json!([null]),
        "a client that requests the plugin gets its values"
    );
    let reply = json!({"text": "a", "output_ids": [5], "meta_info": {"output_token_entropy": "of another plugin"}});
    let (_upstream, proxy) = scripted(reply).await;
    let answer = post(proxy.data, "/generate", br#"{"text":"a"}"#).await.json();
    assert_eq!(answer["meta_info"]["output_token_entropy"], json!([null]), "a value of another type is no entropy");
}

#[tokio::test(flavor = "multi_thread")]
async fn supports_that_lag_behind_their_tokens_are_null() {
    // supports of 2, 4, 8, 16 equally likely tokens; each event lacks that of its last token
    let support = |count: usize| json!(vec![-(count as f64).ln(); count]);
    let supports = |tokens: usize| json!((0..tokens - 1).map(|at| support(2 << at)).collect::<Vec<_>>());
    let whole = |tokens: usize, finish| {
        object(
            tokens,
            finish,
            json!({"output_token_sampling_logprobs": supports(tokens), "output_token_sampling_mask": []}),
        )
    };
    let cut = [
        object(2, None, json!({"output_token_sampling_logprobs": [support(2), support(4)]})),
        whole(3, None),
        whole(4, None),
        whole(5, Some("length")),
    ];
    let (_upstream, proxy) = engine(EngineProfile::default(), move |_| events(&cut)).await;
    let body = json!({"input_ids": [1], "stream": true, "sampling_params": {"top_k": 20, "max_new_tokens": 5},
        "entropy_options": {"estimator": "sampled"}});
    let last = ask(&proxy, &body).await.events().pop().unwrap();
    let found = numbers(&last["meta_info"]["output_token_entropy"]);
    let expected = [Some(2.0_f64.ln() as f32), Some(4.0_f64.ln() as f32), None, None, None];
    assert_eq!(found.iter().map(|value| value.map(|value| value as f32)).collect::<Vec<_>>(), expected, "{last}");
    let info = &last["meta_info"]["entropy_info"];
    assert_eq!((&info["source"], &info["reason"]), (&json!("exact"), &json!("missing_values")), "{info}");
    assert_eq!(lost_count(&proxy, "misaligned").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn request_rejected_for_added_members_is_resent_unchanged() {
    for (status, sampled) in [(400, true), (500, true), (400, false), (500, false)] {
        let (upstream, proxy) = engine(EngineProfile::default(), move |asked| {
            let body = asked.json();
            let added = body["return_sampling_mask"] == true || !body["sampling_params"]["custom_params"].is_null();
            match added {
                true => json_message(status, br#"{"error":{"message":"Sampling support exceeds"}}"#),
                false => json_message(200, object(1, Some("length"), json!({})).to_string().as_bytes()),
            }
        })
        .await;
        for logprob in [true, false] {
            let mut body = json!({"input_ids": [1], "return_logprob": logprob, "sampling_params": {"top_k": 5}});
            if sampled {
                body["entropy_options"] = json!({"estimator": "sampled"});
            }
            let answer = ask(&proxy, &body).await;
            assert_eq!(answer.status, 200, "{status} {body}: {}", answer.text());
            let mut sent = upstream.generations().pop().unwrap();
            sent.as_object_mut().unwrap().remove("rid");
            body.as_object_mut().unwrap().remove("entropy_options");
            assert_eq!(sent, body, "the second request is the client's own");
            let info = &answer.json()["meta_info"]["entropy_info"];
            assert_eq!(info["reason"], "refused_by_engine", "{info}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_request_does_not_disable_the_plugin() {
    // aborted in the queue: ids and logprobs, but none of the plugin's values
    let (upstream, proxy) = scripted(object(3, Some("abort"), json!({}))).await;
    let body = json!({"input_ids": [1], "sampling_params": {"max_new_tokens": 5}});
    let first = ask(&proxy, &body).await.json();
    assert_eq!(numbers(&first["meta_info"]["output_token_entropy"]), [None; 3]);
    ask(&proxy, &body).await;
    let asked = upstream.generations().pop().unwrap();
    assert_eq!(
        asked["sampling_params"]["custom_params"]["tokentap_entropy"], true,
        "the next request uses the plugin again"
    );
    assert_eq!(lost_count(&proxy, "missing").await, 0.0);

    // merged with the previous event: the two new tokens, then all four, and the plugin's values of the two
    let delta = |tokens: &[u32]| json!(tokens.iter().map(|at| json!([-0.5, at, null])).collect::<Vec<_>>());
    let mut begin = object(2, None, json!({"output_token_entropy": [0.25, 0.5]}));
    begin["meta_info"]["output_token_logprobs"] = delta(&[0, 1]);
    let mut end = object(4, Some("abort"), json!({"output_token_entropy": [0.75, 1.0]}));
    end["meta_info"]["output_token_logprobs"] = delta(&[2, 3, 0, 1, 2, 3]);
    let script = [begin, end];
    let profile = EngineProfile { streaming: "incremental", ..EngineProfile::default() };
    let (_upstream, proxy) = engine(profile, move |_| events(&script)).await;
    let mut body = body.clone();
    body["stream"] = json!(true);
    let answer = ask(&proxy, &body).await.events();
    assert_eq!(numbers(&answer[1]["meta_info"]["output_token_entropy"])[2..], [Some(0.75), Some(1.0)], "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn out_of_range_entropy_is_null_and_the_next_request_uses_top_k() {
    for values in [json!([-3.0, 1e9]), json!([null, null]), json!([11.94, "x"]), json!([])] {
        let (upstream, proxy) = scripted(object(2, Some("length"), json!({"output_token_entropy": values}))).await;
        let body = json!({"input_ids": [1]});
        let reply = ask(&proxy, &body).await.json();
        assert_eq!(numbers(&reply["meta_info"]["output_token_entropy"]), [None; 2], "{values}");
        assert_eq!(reply["meta_info"]["entropy_info"]["reason"], "missing_values", "{values}");
        ask(&proxy, &body).await;
        assert_eq!(
            upstream.generations().pop().unwrap()["top_logprobs_num"],
            20,
            "{values}: the next reply has estimates"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_params_of_the_server_are_not_replaced() {
    let preferred = json!({"custom_params": {"thinking_budget": 100}});
    let profile = EngineProfile { preferred, ..EngineProfile::default() };
    let (upstream, proxy) = engine(profile, |_| json_message(200, b"{}")).await;
    for (sent, asks) in [
        (json!({"input_ids": [1]}), false),
        (json!({"input_ids": [1], "sampling_params": {"temperature": 0.5}}), false),
        // the client's own parameters replace them already
        (json!({"input_ids": [1], "sampling_params": {"custom_params": {"x": 1}}}), true),
    ] {
        ask(&proxy, &sent).await;
        let asked = upstream.generations().pop().unwrap();
        let switch = &asked["sampling_params"]["custom_params"]["tokentap_entropy"];
        assert_eq!(*switch == json!(true), asks, "{asked}");
        assert_eq!(asked["top_logprobs_num"] == 20, !asks, "{asked}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_supports_of_cumulative_streams_are_not_requested() {
    let (upstream, proxy) = engine(EngineProfile::default(), |_| json_message(200, b"{}")).await;
    for (stream, top_k, tokens, reason) in [
        (true, 20, 500, None),
        (true, 1000, 500, Some("cumulative_stream")),
        (true, 20, 2000, Some("cumulative_stream")),
        (false, 1000, 2000, None),
        (false, 2000, 2000, Some("reply_budget")),
        // above half of the engine's limit, tokens that are equally likely could end the request
        (false, 2049, 2, Some("open_support")),
    ] {
        let body = json!({"input_ids": [1], "stream": stream, "return_entropy": true,
            "entropy_options": {"estimator": "sampled"}, "sampling_params": {"top_k": top_k, "max_new_tokens": tokens}});
        ask(&proxy, &body).await;
        let asked = upstream.generations().pop().unwrap();
        assert_eq!(asked["return_sampling_mask"] == true, reason.is_none(), "{stream} {top_k} {tokens}: {reason:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unanswered_probe_resets_the_capabilities() {
    let profile = EngineProfile { answers_probe: false, ..EngineProfile::default() };
    let upstream = Upstream::start(profile, |_| json_message(503, b"{}")).await;
    let config = crate::support::proxy::config(upstream.addr, &[]);
    let client = client(&config).unwrap();
    let probe = Survey::new(Engines::try_new(client, &[]).unwrap(), Some(1024), 20);
    let before = Capabilities {
        plugin: PluginState::Exact,
        original_logprobs: Some(false),
        sampling_mask: Some(4096),
        ..Capabilities::unknown(Some(1024))
    };
    let (found, is_complete) = probe.probe_generation(before).await.unwrap();
    assert!(is_complete);
    assert_eq!((found.plugin, found.original_logprobs, found.sampling_mask), (PluginState::Absent, None, None));
}
