//! SGLang 0.5.6 with `--stream-output`: events that it merges list the ids of the last alone.

use serde_json::{Value, json};
use tokentap::chat::model::Chats;
use tokentap::demo::Model;
use tokentap::tokenizer::Renderer;

use super::super::support::client::{get, post};
use super::super::support::proxy::Proxy;
use super::super::support::upstream::{Asked, Deed, Nature, Upstream, stream};
use super::TOKENIZER;

/// A stream of two events, of which the second was merged with two before it; logprobs as far as they were asked for.
fn merged(asked: &Asked, ids: &[u32], text: &str) -> Deed {
    let body = asked.json();
    let asked_for = body["return_logprob"] == true;
    let event = |count: usize, listed: &[u32], finish: Value| {
        let rows: Vec<Value> = ids[..count].iter().map(|id| json!([-0.5, id, null])).collect();
        let mut meta = json!({"id": body["rid"], "finish_reason": finish, "completion_tokens": count,
            "prompt_tokens": body["input_ids"].as_array().map_or(3, Vec::len), "cached_tokens": 0});
        if asked_for {
            meta["output_token_logprobs"] = json!(rows);
        }
        let told = json!({"text": text, "output_ids": listed, "meta_info": meta});
        format!("data: {told}\n\n").into_bytes()
    };
    let first = event(1, &ids[..1], Value::Null);
    let last = event(ids.len(), &ids[ids.len() - 1..], json!({"type": "length", "length": ids.len()}));
    stream(&[&first, &last, b"data: [DONE]\n\n"])
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_that_a_merged_event_does_not_list_are_told_all_the_same() {
    let renderer = Renderer::new(Model::folder());
    let text = "The lamp is lit.";
    let ids = renderer.tokenizer().encode(text).unwrap();
    assert!(ids.len() > 3);
    let sampled = ids.clone();
    let nature = Nature {
        streaming: "ids",
        flat: false,
        server_info: json!({"sampling_defaults": "openai"}),
        ..Nature::default()
    };
    let upstream = Upstream::start(nature, move |asked: &Asked| merged(asked, &sampled, text)).await;
    let proxy = Proxy::probed(upstream.addr, &["--tokenizer", TOKENIZER]).await;
    let mut chats = proxy.parts.chats.clone();
    drop(chats.wait_for(|chats| matches!(&**chats, Chats::Rendered(_))).await.unwrap());
    for (endpoint, asked) in [
        ("chat/completions", json!({"messages": [{"role": "user", "content": "Is it?"}]})),
        ("completions", json!({"model": "m", "prompt": [5, 6, 7]})),
    ] {
        let mut asked = asked;
        (asked["stream"], asked["return_token_ids"]) = (json!(true), json!(true));
        for entropy in [true, false] {
            asked["return_entropy"] = json!(entropy);
            let path = format!("/sessions/s/v1/{endpoint}");
            let events = post(proxy.data, &path, asked.to_string().as_bytes()).await.events();
            let choices: Vec<&Value> = events.iter().map(|event| &event["choices"][0]).collect();
            let told: Vec<&Value> =
                choices.iter().filter_map(|choice| choice["token_ids"].as_array()).flatten().collect();
            assert_eq!(json!(told), json!(ids), "{endpoint}");
            if endpoint == "chat/completions" {
                let said: String = choices.iter().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
                assert_eq!(said, text);
            }
            assert!(choices.iter().all(|choice| choice["logprobs"].is_null()), "nobody asked for them");
        }
    }
    let list = get(proxy.control, "/v1/sessions/s").await.json()["list"].take();
    for turn in list.as_array().unwrap() {
        assert_eq!((&turn["fault"], &turn["sampled_tokens"]), (&Value::Null, &json!(ids.len())), "{turn}");
    }
}
