// SPDX-License-Identifier: Apache-2.0
//! Families whose own tokenizer no package has: their templates with the demo's tokenizer and the control tokens that the template writes. A
//! reply that the template renders in a history is parsed to the message that it was rendered from.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tokentap::api::openai_chat::request::ChatRequest;
use tokentap::chat::reply_reader::{ParserSettings, ReplyReader, Stops};
use tokentap::parse::Message;
use tokentap::tokenizer::template::Setting;
use tokentap::tokenizer::{ContinuationCheck, Family, Fit, Renderer};

use super::record::{self, RecordedConversation};

fn demo_tokenizer() -> Vec<u8> {
    record::read(&record::demo().join("tokenizer.json"))
}

/// A vocabulary with these tokens, with a template or another file that names the model.
fn renderer(tokenizer: &[u8], (file, content): (&str, &str), special: &[&str], other: &[&str]) -> Arc<Renderer> {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &[u8]| std::fs::write(folder.path().join(name), text).unwrap();
    write("tokenizer.json", tokenizer);
    write(file, content.as_bytes());
    let tokens = special.iter().map(|token| (token, true)).chain(other.iter().map(|token| (token, false)));
    let added: serde_json::Map<String, Value> = tokens
        .enumerate()
        .map(|(at, (content, special))| ((10_000 + at).to_string(), json!({"content": content, "special": special})))
        .collect();
    write("tokenizer_config.json", json!({ "added_tokens_decoder": added }).to_string().as_bytes());
    Arc::new(Renderer::open(folder.path()).unwrap())
}

/// Renderers of the models of DeepSeek that have no template.
pub fn deepseek() -> [(Family, Arc<Renderer>); 2] {
    deepseek_with(&demo_tokenizer())
}

/// The same with another tokenizer.
pub fn deepseek_with(tokenizer: &[u8]) -> [(Family, Arc<Renderer>); 2] {
    let special = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"];
    let other = ["<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜"];
    let config = |architecture: &str| json!({ "architectures": [architecture] }).to_string();
    [(Family::DeepSeekV32, "DeepseekV32ForCausalLM"), (Family::DeepSeekV4, "DeepseekV4ForCausalLM")].map(
        |(family, architecture)| {
            (family, renderer(tokenizer, ("config.json", &config(architecture)), &special, &other))
        },
    )
}

fn fetched(name: &str) -> String {
    let template = record::fetched().join(name).join("chat_template.jinja");
    String::from_utf8(record::read(Path::new(&template))).unwrap()
}

/// The text that the template writes for the message at `at`, and whether it begins in an open thought. `None` if the template refuses the
/// conversation, or has no place for the message.
fn rendered_reply(renderer: &Renderer, conversation: &RecordedConversation, at: usize) -> Option<(String, bool)> {
    let extra = [&conversation.extra[..], &[("thinking".to_owned(), tokentap::json::Value::Bool(true))]].concat();
    let setting =
        |generation_prompt| Setting { tools: conversation.tools.as_deref(), generation_prompt, extra: &extra };
    let render =
        |messages, generation_prompt| renderer.folder().template.render(messages, setting(generation_prompt)).ok();
    let prompt = render(&conversation.messages[..at], true)?;
    let whole = render(&conversation.messages[..=at], false)?;
    if let Some(reply) = whole.strip_prefix(&prompt) {
        return Some((reply.trim_end().to_owned(), renderer.family().ends_in_thought(&prompt).unwrap_or(false)));
    }
    let (start, end) = renderer.family().think()?;
    let reply = whole.strip_prefix(prompt.trim_end().strip_suffix(start)?)?;
    Some((reply.strip_prefix(end).unwrap_or(reply).trim_end().to_owned(), false))
}

/// Parses the tokens of a reply in the format of the family.
fn parsed(renderer: &Arc<Renderer>, conversation: &Value, reply: &str, opened: bool) -> Message {
    let request = ChatRequest::parse(conversation.to_string().into()).unwrap();
    let format = renderer.family().tool_calls().map(Box::from);
    let settings = ParserSettings { format, separate: Some(true) };
    let options = settings.options(&request.conversation, opened);
    let reader = ReplyReader { renderer: Arc::clone(renderer), options, stops: Stops::default() };
    let ids = renderer.tokenizer().encode_rendered(reply).unwrap();
    reader.message(&ids, Some("stop")).unwrap()
}

/// A message as JSON, with the arguments of its calls as values.
fn expected(message: &Value) -> (String, Option<String>, Vec<(String, Value)>) {
    let text = |value: &Value| value.as_str().unwrap_or_default().trim().to_owned();
    let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
    let call = |call: &Value| {
        let function = &call["function"];
        let arguments = &function["arguments"];
        let parsed = arguments.as_str().map(|text| serde_json::from_str(text).unwrap());
        (text(&function["name"]), parsed.unwrap_or_else(|| arguments.clone()))
    };
    let reasoning = Some(text(&message["reasoning_content"])).filter(|text| !text.is_empty());
    (text(&message["content"]), reasoning, calls.iter().map(call).collect())
}

/// Renders and parses the replies of all conversations with string content. Returns how many were equal, and of these, how many have calls.
pub fn check_replies(renderer: &Arc<Renderer>) -> (usize, usize) {
    let (mut replies, mut with_calls) = (0, 0);
    let file: Value = serde_json::from_slice(&record::conversations_json()).unwrap();
    for (conversation, json) in record::conversations().iter().zip(file["conversations"].as_array().unwrap()) {
        for (at, message) in json["messages"].as_array().unwrap().iter().enumerate() {
            // the server gives a template a text in place of null
            let is_reply = message["role"] == "assistant" && message["content"].is_string();
            let thought_in_text = message["content"].as_str().is_some_and(|text| text.contains("think>"));
            if !is_reply || thought_in_text {
                continue;
            }
            let Some((reply, opened)) = rendered_reply(renderer, conversation, at) else { continue };
            let message_of = parsed(renderer, json, &reply, opened);
            let (content, reasoning, calls) = expected(message);
            assert_eq!(message_of.content.trim(), content, "{}: {reply:?}", conversation.name);
            // some templates write no thought in a history
            let reasoning = reasoning.filter(|thought| reply.contains(thought));
            assert_eq!(message_of.reasoning, reasoning, "{}: {reply:?}", conversation.name);
            assert_eq!(message_of.calls.len(), calls.len(), "{}: {reply:?}", conversation.name);
            for (call, (name, arguments)) in message_of.calls.iter().zip(calls) {
                assert_eq!((&call.name, call.error), (&name, false), "{}: {reply:?}", conversation.name);
                let ours: serde_json::Map<String, Value> = serde_json::from_str(&call.arguments).unwrap();
                // MiniMax writes no types: a value that the schema does not name is its text
                let has_types = renderer.family() != Family::MiniMax;
                let same = |(name, value): (&String, &Value)| {
                    let read = &ours[name];
                    let is_text_of = |text: &str| text.parse::<Value>().unwrap() == *value;
                    read == value || !has_types && read.as_str().is_some_and(is_text_of)
                };
                let arguments = arguments.as_object().unwrap();
                assert!(ours.len() == arguments.len() && arguments.iter().all(same), "{}: {call:?}", conversation.name);
            }
            replies += 1;
            with_calls += usize::from(!message_of.calls.is_empty());
        }
    }
    (replies, with_calls)
}

#[test]
#[ignore = "needs what tests/templates/run.sh fetches"]
fn minimax_m2_replies_are_parsed_as_they_were_rendered() {
    let tokens = ["<minimax:tool_call>", "</minimax:tool_call>"];
    let renderer = renderer(
        &demo_tokenizer(),
        ("chat_template.jinja", &fetched("minimax-m2")),
        &["]~!b[", "]~b]", "[e~["],
        &tokens,
    );
    assert_eq!(renderer.family(), Family::MiniMax);
    assert_eq!(renderer.end_of_turn(), renderer.tokenizer().token_to_id("[e~["));
    assert!(renderer.features().drops_thinking);
    // a turn without a thought has no markers in a history
    assert_eq!(renderer.check_continuation(), ContinuationCheck { user: Fit::Rewrites, tool: Fit::Rewrites });
    let (replies, with_calls) = check_replies(&renderer);
    assert!(replies > 15 && with_calls > 7, "{replies} replies, {with_calls} with calls");
}

#[test]
#[ignore = "needs what tests/templates/run.sh fetches"]
fn other_models_of_minimax_are_another_family() {
    let renderer =
        renderer(&demo_tokenizer(), ("chat_template.jinja", &fetched("minimax-m3")), &["]~!b[", "]~b]", "[e~["], &[]);
    assert_eq!(renderer.family(), Family::Other);
}
