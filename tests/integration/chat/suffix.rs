// SPDX-License-Identifier: Apache-2.0
//! The cost of a turn depends only on its new part.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokentap::api::openai_chat::request::ChatRequest;
use tokentap::budget::Work;
use tokentap::chat::prompt::{PromptBuilder, PromptLimits};
use tokentap::chat::reply_reader::ParserSettings;
use tokentap::config::EarlierThinking;
use tokentap::demo::Model;
use tokentap::session::{Call, Draft, Sessions, StoreLimits, TurnMetadata};
use tokentap::tokenizer::Renderer;

#[test]
fn bytes_rendered_and_tokens_encoded_do_not_grow_with_the_conversation() {
    let renderer = Renderer::new(Model::folder());
    let limits = StoreLimits { bytes: 1 << 30, ttl: Duration::from_secs(86_400), idle: Duration::from_secs(300) };
    let store = Arc::new(Sessions::new(limits));
    let mut messages = Vec::new();
    let mut costs = Vec::new();
    for turn in 0..50 {
        // all turns have the same length
        messages.push(json!({"role": "user", "content": format!("The harbour lamp, {turn:03}")}));
        let body = json!({"messages": messages, "tools": super::tools()}).to_string();
        let request = ChatRequest::parse(Bytes::from(body)).unwrap();
        let session = store.session("s");
        let builder = PromptBuilder {
            renderer: &renderer,
            session: session.as_deref(),
            earlier_thinking: EarlierThinking::Keep,
            parser: ParserSettings { format: Some("hermes".into()), separate: Some(true) },
            shows_images: false,
        };
        let prepared =
            builder.prepare(&request.conversation, PromptLimits { work: &Work::unlimited(), context: None }).unwrap();
        costs.push((prepared.rendered, prepared.ids.len() - prepared.reused));
        let answer = "was lit at dusk";
        let mut response = renderer.tokenizer().encode(answer).unwrap();
        response.extend(renderer.end_of_turn());
        let about = TurnMetadata {
            finish: Some("stop".into()),
            chat: Some(Box::new(prepared.chat)),
            ..TurnMetadata::default()
        };
        let draft = Draft { prompt: Some(prepared.ids), response, about, ..Draft::default() };
        drop(Call::new(Arc::clone(&store), "s".into()).commit(draft));
        messages.push(json!({"role": "assistant", "content": answer}));
    }
    assert!(costs[0] > costs[1], "the first renders the tools, too: {costs:?}");
    let (rendered, encoded) = costs[1];
    // digits are separate tokens, and which of them merge differs by turn
    assert!(costs[1..].iter().all(|cost| cost.0 == rendered && cost.1.abs_diff(encoded) <= 2), "{costs:?}");
}
