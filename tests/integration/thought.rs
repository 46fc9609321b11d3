// SPDX-License-Identifier: Apache-2.0
//! The entropy of thinking tokens: the metric compared with the replies.

use serde_json::{Value, json};
use tokentap::demo::EngineOptions;

use tokentap::chat::model::Chats;

use crate::support::demo::Demo;
use crate::support::manual_upstream::soon;

/// The think tokens of the demo's tokenizer.
const START: u64 = 1020;
const END: u64 = 1021;

/// The mean entropy of the tokens before the end token.
fn thinking(reply: &Value) -> f64 {
    let ids = reply["output_ids"].as_array().unwrap();
    let length = ids.iter().position(|id| *id == END).unwrap_or(ids.len());
    let entropies = reply["meta_info"]["output_token_entropy"].as_array().unwrap();
    entropies[..length].iter().map(|nats| nats.as_f64().unwrap()).sum::<f64>() / length as f64
}

#[tokio::test(flavor = "multi_thread")]
async fn thinking_entropy_of_each_turn_is_counted_once() {
    let flags = ["--think-tokens", "1020,1021"];
    counted(&Demo::start(EngineOptions::default(), &flags).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn think_tokens_come_from_the_tokenizer() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/demo/assets");
    let demo = Demo::start(EngineOptions::default(), &["--tokenizer", folder]).await;
    let mut chats = demo.proxy.parts.chats.clone();
    chats.wait_for(|chats| matches!(**chats, Chats::Rendered(_))).await.unwrap();
    counted(&demo).await;
}

async fn counted(demo: &Demo) {
    let sampling = json!({"max_new_tokens": 12, "temperature": 0.8, "ignore_eos": true});
    let mut sum = 0.0;
    for last in [START, START, END, 300] {
        let reply = demo.ask(&json!({"input_ids": [1018, 300, last], "sampling_params": sampling})).await;
        // no other turn begins to think
        let thinks = last == START || reply["output_ids"].as_array().unwrap().iter().any(|id| *id == START);
        assert_eq!(thinks, last == START, "{reply}");
        sum += if thinks { thinking(&reply) } else { 0.0 };
    }
    let model = &demo.proxy.parts.upstream.borrow().model.clone();
    let name = |part: &str| format!("tokentap_think_mean_entropy_nats_{part}{{model_name=\"{model}\"}}");
    soon("both turns are counted", async { while demo.proxy.metric(&name("count")).await < 2.0 {} }).await;
    assert_eq!(demo.proxy.metric(&name("count")).await, 2.0);
    let counted = demo.proxy.metric(&name("sum")).await;
    assert!((counted - sum).abs() < 1e-5 && sum > 0.0, "{counted} for {sum}");
}
