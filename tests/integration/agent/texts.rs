// SPDX-License-Identifier: Apache-2.0
//! Conversations that begin with a text prompt, which the engine tokenises: its ids are recorded.

use serde_json::{Value, json};
use tokentap::demo::{Dialect, EngineOptions, Streaming};

use super::harness::{Agent, Harness};

const TASK: &str = "<|im_start|>user\nWhat did the keeper count?<|im_end|>\n<|im_start|>assistant\n";

/// Sends the first turn as text and the second as ids.
async fn text_first(options: EngineOptions, extra: Value) {
    let about = format!("{options:?} {extra}");
    let harness = Harness::exact(options).await;
    let mut agent = Agent::blank(&harness, "text");
    agent.stream = extra["stream"] == true;
    let mut body = json!({"text": TASK, "sampling_params": agent.stops(6)});
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    let first = harness.ask("text", &body).await;
    assert_eq!(harness.entry(&first.rid).prompt, harness.demo.encode(TASK), "{about}: one tokenizer");
    agent.tokens = harness.entry(&first.rid).prompt;
    agent.tokens.extend(first.output);
    agent.observe("one hundred and eighteen");
    agent.act(&agent.stops(4)).await;
    let audit = harness.audit("text").await;
    assert_eq!(audit.causes(), ["first", "extends"], "{about}");
    assert_eq!(audit.samples.len(), 1, "{about}");
    assert_eq!(audit.samples[0]["token_ids"], json!(agent.tokens), "{about}");
}

#[tokio::test(flavor = "multi_thread")]
async fn text_prompt_is_recorded_as_the_ids_of_the_engine() {
    let older = EngineOptions { dialect: Dialect::Sglang056, ..EngineOptions::default() };
    let incremental = EngineOptions { streaming: Streaming::Incremental, ..EngineOptions::default() };
    for options in [EngineOptions::default(), older, incremental] {
        for extra in [json!({}), json!({"stream": true})] {
            text_first(options.clone(), extra).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn text_prompt_is_recorded_for_every_request_option() {
    for extra in [json!({"return_entropy": false}), json!({"return_prompt_token_ids": true})] {
        text_first(EngineOptions::default(), extra).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prompt_token_ids_are_returned_only_on_request() {
    let harness = Harness::exact(EngineOptions::default()).await;
    let body = json!({"text": TASK, "sampling_params": {"max_new_tokens": 4}});
    let reply = harness.demo.ask(&body).await;
    assert!(reply["prompt_token_ids"].is_null(), "not requested: {reply}");
    let mut asked = body;
    asked["return_prompt_token_ids"] = json!(true);
    let reply = harness.demo.ask(&asked).await;
    assert_eq!(reply["prompt_token_ids"], json!(harness.demo.encode(TASK)), "requested");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_text_of_a_batch_has_its_own_ids() {
    let dialects = [Dialect::Sglang0523, Dialect::Sglang056];
    for (dialect, stream) in dialects.into_iter().flat_map(|dialect| [(dialect, false), (dialect, true)]) {
        let harness = Harness::exact(EngineOptions { dialect, ..EngineOptions::default() }).await;
        let texts = [TASK, "Lamp lit at 18:02", "\u{e9}t\u{e9} \u{1f30a} caf\u{e9}"];
        let body = json!({"text": texts, "stream": stream, "sampling_params": {"max_new_tokens": 4, "n": 2}});
        let replies = harness.call("texts", &body).await;
        assert_eq!(replies.len(), 6, "{dialect:?}");
        let audit = harness.audit("texts").await;
        assert_eq!((audit.samples.len(), audit.refused.len()), (6, 0), "{dialect:?}, stream {stream}");
        for (at, reply) in replies.iter().enumerate() {
            assert_eq!(
                harness.entry(&reply.rid).prompt,
                harness.demo.encode(texts[at / 2]),
                "two samples of each text"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn input_ids_take_precedence_over_text() {
    // the engine samples from the ids; the text, of the same length, only decides whether it is a batch
    let harness = Harness::exact(EngineOptions::default()).await;
    let [text, other] = ["Lamp lit at 18:02", "Lamp lit at 18:03"];
    let ids = [text, other].map(|text| harness.demo.encode(text));
    assert_eq!(ids[0].len(), ids[1].len(), "the token counts are equal");
    for (at, stream) in [false, true].into_iter().enumerate() {
        let one =
            json!({"text": text, "input_ids": ids[1], "stream": stream, "sampling_params": {"max_new_tokens": 4}});
        let session = format!("both-{at}");
        harness.ask(&session, &one).await;
        assert_eq!(harness.audit(&session).await.samples.len(), 1);
        let many = json!({"text": [text, text], "input_ids": [ids[1], ids[0]], "stream": stream, "sampling_params": {"max_new_tokens": 4}});
        let session = format!("many-{at}");
        assert_eq!(harness.call(&session, &many).await.len(), 2);
        assert_eq!(harness.audit(&session).await.samples.len(), 2);
    }
}
