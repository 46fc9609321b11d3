// SPDX-License-Identifier: Apache-2.0
//! Models with code in place of a template: texts are those of DeepSeek's own encoders (`encodings.py` records them), and the text after a
//! turn is that of the whole text.

use std::sync::Arc;

use tokentap::budget::Work;
use tokentap::json::Value;
use tokentap::tokenizer::template::{ChatTemplate, Encoding, Setting};
use tokentap::tokenizer::{ContinuationCheck, EncodeLimits, Family, Fit, Renderer};

use super::{families, record};

const RECORD: &[u8] = include_bytes!("encodings.json");

/// The encodings, and their names in the record.
const ENCODINGS: [(Encoding, &str); 2] = [(Encoding::V32, "v32"), (Encoding::V4, "v4")];

/// A recorded conversation.
struct Conversation {
    recorded: Value,
    variables: Vec<(String, Value)>,
}

impl Conversation {
    fn all() -> Vec<Self> {
        let Value::Array(all) = Value::parse(RECORD).unwrap() else { panic!("the record is a list") };
        let conversation = |recorded: Value| {
            let variable = |name: &str| Some((name.to_owned(), recorded.get(name)?.clone()));
            let variables = ["thinking", "reasoning_effort"].into_iter().filter_map(variable).collect();
            Self { variables, recorded }
        };
        all.into_iter().map(conversation).collect()
    }

    fn messages(&self) -> &[Value] {
        self.recorded.get("messages").and_then(Value::as_array).unwrap()
    }

    fn setting(&self) -> Setting<'_> {
        let tools = self.recorded.get("tools").and_then(Value::as_array);
        Setting { tools, generation_prompt: true, extra: &self.variables }
    }

    /// The number of characters and the hash that an encoder returned; `None` if it refused the conversation.
    fn expected(&self, encoding: &str) -> Option<(String, &str)> {
        let line = self.recorded.get("expected").unwrap().get(encoding).unwrap();
        let Some(Value::Number(chars)) = line.get("chars") else { return None };
        Some((chars.to_string(), line.get_str("sha256").unwrap()))
    }
}

#[test]
fn texts_are_those_of_the_encoders_of_the_models() {
    for (encoding, name) in ENCODINGS {
        let mut compared = 0;
        for conversation in Conversation::all() {
            let text =
                ChatTemplate::from_encoding(encoding).render(conversation.messages(), conversation.setting()).unwrap();
            let Some((chars, sha256)) = conversation.expected(name) else { continue };
            assert_eq!((text.chars().count().to_string(), &*record::sha256(&text)), (chars, sha256), "{name}: {text}");
            compared += 1;
        }
        assert!(compared > 180, "{name}: {compared} texts are too few");
    }
}

#[test]
fn text_after_a_turn_is_that_of_the_whole_text() {
    for (family, renderer) in families::deepseek() {
        let limits = EncodeLimits { work: &Work::unlimited(), tokens: None };
        let end = renderer.end_of_turn().unwrap();
        let mut turns = 0;
        for conversation in Conversation::all() {
            let (messages, setting) = (conversation.messages(), conversation.setting());
            let is_reply = |at: &usize| messages[*at].get_str("role") == Some("assistant");
            let replies: Vec<usize> = (0..messages.len()).filter(is_reply).chain([messages.len()]).collect();
            for (at, ends) in replies.windows(2).enumerate().filter(|(_, ends)| ends[0] + 1 < ends[1]) {
                let whole = renderer.render_conversation(&messages[..ends[1]], setting, &limits).unwrap();
                let new = &messages[ends[0] + 1..ends[1]];
                let after = renderer.render_after_turn(&messages[ends[0]], new, true, setting, &limits).unwrap();
                let text = || renderer.tokenizer().decode(&after.ids, false).unwrap();
                // only a reply ends with the token
                let expected = whole.ids.splitn(at + 2, |id| *id == end).last().unwrap();
                assert_eq!(after.ids, expected, "{}: {:?}", family.name(), text());
                assert_eq!(after.opened, conversation.variables[0].1 == Value::Bool(true), "{:?}", text());
                turns += 1;
            }
        }
        assert!(turns > 300, "{turns} turns are too few");
    }
}

#[test]
fn families_are_recognised_and_continued() {
    for (family, renderer) in families::deepseek() {
        assert_eq!(renderer.family(), family);
        assert_eq!(renderer.end_of_turn(), renderer.tokenizer().token_to_id("<｜end▁of▁sentence｜>"));
        assert_eq!(renderer.check_continuation(), ContinuationCheck { user: Fit::Exact, tool: Fit::Exact });
        let features = renderer.features();
        assert!(!features.shows_system_messages && !features.has_developer_role);
        // V4 keeps the thoughts of a conversation with tools
        assert!(features.drops_thinking);
        assert_eq!(features.drops_thinking_with_tools, family == Family::DeepSeekV32);
        assert!(families::check_replies(&renderer).1 > 7);
    }
}

#[test]
fn prompts_end_with_the_generation_prompt_of_their_last_message() {
    ends_with_generation_prompt(&families::deepseek());
}

#[test]
#[ignore = "needs what tests/templates/run.sh fetches"]
fn tokens_with_the_end_of_a_result_and_white_space_end_with_a_generation_prompt() {
    let tokenizer = record::read(&record::fetched().join("tokenizers/deepseek_v3/tokenizer.json"));
    ends_with_generation_prompt(&families::deepseek_with(&tokenizer));
}

/// Prompts with and without thinking end with the generation prompt of their last message and their mode, and with no other one.
fn ends_with_generation_prompt(renderers: &[(Family, Arc<Renderer>)]) {
    for (family, renderer) in renderers {
        let limits = EncodeLimits { work: &Work::unlimited(), tokens: None };
        for (at, conversation) in Conversation::all().iter().enumerate() {
            let (messages, setting) = (conversation.messages(), conversation.setting());
            let prompt = renderer.render_conversation(messages, setting, &limits).unwrap();
            let (Some(last), true) = (messages.last().unwrap().get_str("role"), setting.extra[0].0 == "thinking")
            else {
                panic!("a message has a role, and thinking is the first variable")
            };
            // other messages have no generation prompt after them
            if !matches!(last, "user" | "tool") {
                continue;
            }
            let thinks = setting.extra[0].1 == Value::Bool(true);
            let other = [("thinking".to_owned(), Value::Bool(!thinks))];
            let ends = |after_tool, extra| {
                renderer.ends_with_generation_prompt(&prompt.ids, after_tool, Setting { extra, ..setting })
            };
            let is_tool = last == "tool";
            assert!(ends(is_tool, setting.extra) && !ends(is_tool, &other), "{} {at}", family.name());
            // V4 has the same after all messages
            assert_eq!(ends(!is_tool, setting.extra), *family == Family::DeepSeekV4, "{} {at}", family.name());
        }
    }
}

#[test]
fn conversations_without_a_place_are_refused() {
    let message = |role: &str| Value::object([("role", role.into()), ("content", "x".into())]);
    let setting = Setting { tools: None, generation_prompt: true, extra: &[] };
    for (roles, v4_renders) in
        [(&["user", "tool"][..], true), (&["user", "system"], true), (&["tool"], true), (&["user", "critic"], false)]
    {
        let messages: Vec<Value> = roles.iter().map(|role| message(role)).collect();
        let renders = |encoding| ChatTemplate::from_encoding(encoding).render(&messages, setting).is_ok();
        assert_eq!((renders(Encoding::V32), renders(Encoding::V4)), (false, v4_renders), "{roles:?}");
    }
}

#[test]
fn parts_of_a_text_and_null_members_of_tools_are_written_as_by_the_encoders() {
    let part = |text: &str| Value::object([("type", "text".into()), ("text", text.into())]);
    let content = Value::Array(vec![part("one"), part("two")]);
    let messages = [Value::object([("role", "user".into()), ("content", content)])];
    let function = [("name", "f".into()), ("description", Value::Null), ("parameters", Value::Null)];
    let tools = [Value::object([("type", "function".into()), ("function", Value::object(function))])];
    let text = |encoding: Encoding, tools: Option<&[Value]>| {
        let setting = Setting { tools, generation_prompt: true, extra: &[] };
        ChatTemplate::from_encoding(encoding).render(&messages, setting).unwrap()
    };
    assert!(text(Encoding::V32, None).contains("one two"));
    assert!(text(Encoding::V4, None).contains("one\n\ntwo"));
    assert!(!text(Encoding::V4, Some(&tools)).contains("null"));
}
