// SPDX-License-Identifier: Apache-2.0
//! Models with code in place of a template: DeepSeek V3.2 and V4.

use serde_json::{Value, json};
use tempfile::TempDir;
use tokentap::api::openai_chat::request::ChatRequest;
use tokentap::chat::model::Chats;
use tokentap::config::EarlierThinking;
use tokentap::tokenizer::Renderer;

use super::super::support::proxy::Proxy;
use super::super::support::upstream::{EngineProfile, FakeReply, Upstream};
use super::families::{Family, TOKENIZER};
use super::tools;

/// A folder with the tokens of DeepSeek's models.
fn folder() -> TempDir {
    let tokens = [
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        "<｜User｜>",
        "<｜Assistant｜>",
        "<think>",
        "</think>",
        "｜DSML｜",
    ];
    let added: serde_json::Map<_, _> = tokens
        .iter()
        .enumerate()
        .map(|(at, token)| ((10_000 + at).to_string(), json!({"content": token, "special": at < 2})))
        .collect();
    let folder = tempfile::tempdir().unwrap();
    write(&folder, "tokenizer.json", TOKENIZER);
    write(&folder, "tokenizer_config.json", json!({ "added_tokens_decoder": added }).to_string().as_bytes());
    folder
}

fn write(folder: &TempDir, name: &str, text: &[u8]) {
    std::fs::write(folder.path().join(name), text).unwrap();
}

/// A folder of a model with this architecture. The file has members that other programs read.
fn model(architecture: &str) -> TempDir {
    let folder = folder();
    write(&folder, "config.json", json!({ "architectures": [architecture], "unused": 1 }).to_string().as_bytes());
    folder
}

const V32: &str = "DeepseekV32ForCausalLM";
const V4: &str = "DeepseekV4ForCausalLM";

fn family(architecture: &str) -> Family {
    Family::of(Renderer::open(model(architecture).path()).unwrap())
}

fn chat(messages: &Value, thinks: bool) -> Value {
    json!({"messages": messages, "chat_template_kwargs": {"thinking": thinks}})
}

#[test]
fn turns_are_continued() {
    assert!(Renderer::open(folder().path()).is_err(), "nothing names the model");
    for architecture in [V32, V4] {
        for (reply, finish, end, inserted) in
            [("A<｜end▁of▁sentence｜>", "stop", "", 0), ("A", "length", "<｜end▁of▁sentence｜>", 1)]
        {
            let expected = format!("{end}<｜User｜>V<｜Assistant｜></think>");
            assert_eq!(family(architecture).text_after_turn(reply, finish), (expected, inserted), "{architecture}");
        }
    }
}

#[test]
fn branch_drops_thinking_where_the_encoder_does() {
    // V4 keeps the thoughts of conversations with tools
    for (architecture, has_tools, is_kept) in
        [(V32, false, false), (V32, true, false), (V4, false, false), (V4, true, true)]
    {
        let mut family = family(architecture);
        family.earlier_thinking = EarlierThinking::Branch;
        let mut body = chat(&json!([{"role": "user", "content": "U"}]), true);
        if has_tools {
            body["tools"] = tools();
        }
        let known = family.record(family.prepare(&body), "R</think>A<｜end▁of▁sentence｜>", "stop");
        let list = body["messages"].as_array_mut().unwrap();
        list.extend([json!({"role": "assistant", "content": "A"}), json!({"role": "user", "content": "V"})]);
        let next = family.prepare(&body);
        assert_eq!(next.ids.starts_with(&known), is_kept, "{architecture} {has_tools}: {}", family.decode(&next.ids));
        family.earlier_thinking = EarlierThinking::Keep;
        assert!(family.prepare(&body).ids.starts_with(&known), "{architecture} {has_tools}");
    }
}

#[test]
fn turns_after_tool_results_keep_their_tokens_after_an_edit() {
    for (architecture, block) in [(V32, "function_calls"), (V4, "tool_calls")] {
        let family = family(architecture);
        let mut body = chat(&json!([{"role": "user", "content": "U"}]), true);
        body["tools"] = tools();
        let call = format!(
            "R</think>\n\n<｜DSML｜{block}>\n<｜DSML｜invoke name=\"weather\">\n\
             <｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n\
             </｜DSML｜invoke>\n</｜DSML｜{block}><｜end▁of▁sentence｜>"
        );
        let answer = "S</think>It rains.<｜end▁of▁sentence｜>";
        family.record(family.prepare(&body), &call, "stop");
        let function = json!({"name": "weather", "arguments": "{\"city\": \"Oslo\"}"});
        let list = body["messages"].as_array_mut().unwrap();
        list.push(json!({"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]}));
        list.push(json!({"role": "tool", "tool_call_id": "c", "content": "rain"}));
        let second = family.prepare(&body);
        assert!(second.reused > 0, "{architecture}");
        family.record(second, answer, "stop");
        let list = body["messages"].as_array_mut().unwrap();
        list.push(json!({"role": "assistant", "content": "It rains."}));
        list.push(json!({"role": "user", "content": "V"}));
        body["messages"][0]["content"] = json!("Other.");
        let edited = family.prepare(&body);
        let text = family.decode(&edited.ids);
        assert_eq!((edited.spliced, edited.chat.retokenised), (2, false), "{architecture}: {text}");
        assert!(text.contains(&call) && text.contains(answer), "{architecture}: {text}");
    }
}

#[test]
fn continued_message_is_where_sglang_has_it() {
    // the content, the reasoning, the API has items for reasoning; the start of the reply. SGLang appends the text to the start of a reply of
    // V3.2; deepseek-recipe writes a message of V4 with `prefix`
    for (architecture, thinks, content, reasoning, has_items, expected) in [
        (V32, false, "The", "R", false, "</think>The"),
        (V32, true, "The", "", false, "<think>The"),
        (V32, true, "The", "R", false, "<think>The"),
        (V32, true, "The", "", true, "<think></think>The"),
        (V4, false, "The", "R", false, "</think>The"),
        (V4, true, "The", "", false, "<think></think>The"),
        (V4, true, "The", "R", false, "<think>R</think>The"),
        (V4, true, "The", "R", true, "<think>R</think>The"),
        (V4, true, "", "R", false, "<think>R"),
        (V4, true, "", "", false, "<think>"),
    ] {
        let family = family(architecture);
        let last = json!({"role": "assistant", "content": content, "reasoning_content": reasoning});
        let mut body = chat(&json!([{"role": "user", "content": "U"}, last]), thinks);
        body["continue_final_message"] = json!(true);
        let request = ChatRequest::parse(body.to_string().into()).unwrap();
        let mut conversation = (*request.conversation).clone();
        conversation.has_reasoning_items = has_items;
        let prepared = family.prepare_conversation(&conversation);
        let text = family.decode(&prepared.ids);
        let start = text.split_once("<｜Assistant｜>").unwrap().1;
        assert_eq!(start, expected, "{architecture} {last} {has_items}");
        assert_eq!(prepared.chat.reading.opened, !start.contains("</think>"), "{architecture} {last} {has_items}");
    }
}

const TEMPLATE: &[u8] = b"{% for m in messages %}{{ m.content }}{% endfor %}";

#[test]
fn template_of_a_model_that_sglang_encodes_by_code_is_not_used() {
    for (architecture, unsupported) in [
        (V32, None),
        (V4, None),
        ("DeepseekV41ForCausalLM", Some("DeepSeek V4.1")),
        ("KimiK3ForCausalLM", Some("Kimi K3")),
    ] {
        let folder = model(architecture);
        write(&folder, "chat_template.jinja", TEMPLATE);
        let opened = Renderer::open(folder.path());
        match unsupported {
            Some(name) => {
                let error = opened.unwrap_err().to_string();
                assert!(error.contains(name) && error.contains(folder.path().to_str().unwrap()), "{error}");
            }
            None => {
                let is_template = !opened.unwrap().folder().template.mentions("｜DSML｜");
                assert_eq!(is_template, architecture == V32, "{architecture}");
            }
        }
    }
}

#[tokio::test]
async fn tool_call_parser_of_the_engine_chooses_the_encoding() {
    let folder = model(V32);
    write(&folder, "chat_template.jinja", TEMPLATE);
    let path = folder.path().to_str().unwrap();
    for (parser, expected) in [
        ("deepseekv31", "from tokens: family deepseek, tool calls deepseek,"),
        ("deepseekv32", "from tokens: family deepseek_v32, tool calls deepseek_v32,"),
        ("deepseekv4", "from tokens: family deepseek_v4, tool calls deepseek_v4,"),
        ("deepseekv41", "SGLang writes the prompts of DeepSeek V4.1 by code that tokentap does not have"),
    ] {
        let server_info = json!({"sampling_defaults": "openai", "tool_call_parser": parser});
        let profile = EngineProfile { server_info, ..EngineProfile::default() };
        let upstream = Upstream::start(profile, |_| FakeReply::Silence).await;
        let proxy = Proxy::probed(upstream.addr, &["--tokenizer", path]).await;
        let mut chats = proxy.parts.chats.clone();
        let unknown = Chats::unknown().describe();
        let found = chats.wait_for(|chats| chats.describe() != unknown).await.unwrap().describe();
        assert!(found.contains(expected), "{parser}: {found}");
    }
}
