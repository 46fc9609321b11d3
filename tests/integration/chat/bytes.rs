// SPDX-License-Identifier: Apache-2.0
//! No input of a client or an engine makes the parsers panic or loop.

use std::sync::LazyLock;

use bytes::Bytes;
use proptest::prelude::*;

use tokentap::api::openai_chat::request::ChatRequest;
use tokentap::api::openai_completions::request::CompletionRequest;
use tokentap::budget::Work;
use tokentap::chat::prompt::{PromptBuilder, PromptLimits};
use tokentap::chat::reply_reader::ParserSettings;
use tokentap::config::EarlierThinking;
use tokentap::demo::Model;
use tokentap::generation::event::{EventAccess, GenerationEvent};
use tokentap::generation::update::SequenceUpdate;
use tokentap::tokenizer::Renderer;

static RENDERER: LazyLock<Renderer> = LazyLock::new(|| Renderer::new(Model::folder()));

/// JSON that resembles requests and is invalid in places.
fn value() -> impl Strategy<Value = String> {
    let words = [
        "user",
        "assistant",
        "tool",
        "system",
        "text",
        "f",
        "",
        "<|im_end|>",
        "\\ud800",
        "\u{fdd0}\u{fdd1}turn",
        "{}",
        "required",
    ];
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("1e999".to_owned()),
        any::<i32>().prop_map(|number| number.to_string()),
        prop::sample::select(words.to_vec()).prop_map(|word| format!("\"{word}\"")),
    ];
    let keys = [
        "messages",
        "role",
        "content",
        "type",
        "text",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "id",
        "tool_call_id",
        "tools",
        "tool_choice",
        "stop",
        "n",
        "prompt",
        "stream",
        "logprobs",
        "response_format",
        "json_schema",
        "schema",
        "chat_template_kwargs",
        "input_ids",
        "output_ids",
        "meta_info",
        "finish_reason",
    ];
    leaf.prop_recursive(5, 60, 5, move |inner| {
        let member = (prop::sample::select(keys.to_vec()), inner.clone());
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(|values| format!("[{}]", values.join(","))),
            prop::collection::vec(member, 0..6).prop_map(|members| {
                let members: Vec<String> = members.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    })
}

fn parse(body: &str, renderer: &Renderer) {
    let bytes = Bytes::copy_from_slice(body.as_bytes());
    if let Ok(request) = CompletionRequest::parse(bytes.clone()) {
        let _ = request.generate_request("m", false, &Work::unlimited());
    }
    let _ = GenerationEvent::outline(bytes.clone(), EventAccess::Fields)
        .is_ok_and(|event| SequenceUpdate::all(&event).is_ok());
    let Ok(request) = ChatRequest::parse(bytes) else { return };
    let parser = ParserSettings { format: Some("hermes".into()), separate: Some(true) };
    let builder = PromptBuilder {
        renderer,
        session: None,
        earlier_thinking: EarlierThinking::Branch,
        parser,
        shows_images: false,
    };
    let _ = builder.prepare(&request.conversation, PromptLimits { work: &Work::unlimited(), context: None });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn malformed_requests_do_not_panic(
        messages in prop::collection::vec(value(), 0..4),
        rest in value(),
    ) {
        parse(&format!("{{\"messages\":[{}],\"tools\":{rest}}}", messages.join(",")), &RENDERER);
        parse(&rest, &RENDERER);
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in ".{0,80}") {
        parse(&text, &RENDERER);
    }
}
