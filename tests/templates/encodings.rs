//! Models with code in place of a template: texts are those of DeepSeek's own encoders (`encodings.py` records them), and the text after a
//! turn is the end of the whole text.

use tokentap::budget::Work;
use tokentap::json::Value;
use tokentap::tokenizer::template::{ChatTemplate, Encoding, Setting};
use tokentap::tokenizer::{ContinuationCheck, EncodeLimits, Fit};

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
fn text_after_a_turn_is_the_end_of_the_whole_text() {
    for (family, renderer) in families::deepseek() {
        let limits = EncodeLimits { work: &Work::unlimited(), tokens: None };
        let mut turns = 0;
        for conversation in Conversation::all() {
            let (messages, setting) = (conversation.messages(), conversation.setting());
            let is_reply = |at: &usize| messages[*at].get_str("role") == Some("assistant");
            let replies: Vec<usize> = (0..messages.len()).filter(is_reply).chain([messages.len()]).collect();
            for ends in replies.windows(2).filter(|ends| ends[0] + 1 < ends[1]) {
                let whole = renderer.render_conversation(&messages[..ends[1]], setting, &limits).unwrap();
                let new = &messages[ends[0] + 1..ends[1]];
                let after = renderer.render_after_turn(&messages[ends[0]], new, true, setting, &limits).unwrap();
                let text = || renderer.tokenizer().decode(&after.ids, false).unwrap();
                assert!(whole.ids.ends_with(&after.ids), "{}: {:?}", family.name(), text());
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
        assert!(families::check_replies(&renderer).1 > 7);
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
