// SPDX-License-Identifier: Apache-2.0
//! Recognises a reply of the session in a message of the client, and detects what the client changed in it.
//!
//! Text and calls that are equal show that a message is the reply. If the message also carries a key of the reply, clients may have left out
//! the text beside calls, repeated the reasoning as text, or rewritten a call. All other changes make it another message: its text is then
//! not what the model has sampled.

use super::Conversation;
use super::message::{Message, MessageToolCall, split_thought};
use super::reply_reader::RecordedReply;
use super::returned_arguments::{may_return, quotes};
use super::tool_choice;
use crate::json::Value;
use crate::session::{ReplyChange, ReplyChanges};
use crate::tokenizer::Renderer;

/// The length in bytes of the shortest beginning that quotes a longer text.
const SHORTEST_CUT: usize = 8;

/// Compares messages of one request with replies of its session.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplyMatcher<'a> {
    tools: &'a [Value],
    /// The template shows the name of an assistant message.
    pub(super) shows_names: bool,
}

impl<'a> ReplyMatcher<'a> {
    pub(super) fn new(request: &'a Conversation, renderer: &Renderer) -> Self {
        let tools = request.tools.as_deref().unwrap_or_default();
        Self { tools, shows_names: renderer.features().shows_assistant_names }
    }

    /// What the client changed in the reply that `message` repeats; `None` if the message is not the reply. Thoughts are not compared.
    pub(super) fn changes(&self, message: &Message, reply: &RecordedReply) -> Option<ReplyChanges> {
        let has_key = message.keys().any(|key| reply.keys.contains(&key));
        let reply = &reply.message;
        let is_named = message.name.as_deref().is_some_and(|name| !name.is_empty());
        if !message.is_assistant()
            || is_named && self.shows_names
            || !message.media.is_empty()
            || message.calls.len() != reply.calls.len()
        {
            return None;
        }
        let mut changes = text_changes(message, reply, has_key)?;
        changes.extend(is_named.then_some(ReplyChange::NameAdded));
        for (returned, sampled) in message.calls.iter().zip(&reply.calls) {
            if !is_same_call(returned, sampled) {
                if !has_key || !self.is_rewritten(sampled, returned) {
                    return None;
                }
                changes.extend([ReplyChange::CallRewritten]);
            }
        }
        Some(changes)
    }

    /// Whether a client may return a call as `returned`.
    fn is_rewritten(&self, sampled: &MessageToolCall, returned: &MessageToolCall) -> bool {
        let Ok(rewritten) = Value::parse(returned.arguments.trim().as_bytes()) else { return false };
        let is_same_tool = sampled.name == returned.name;
        // a client that cannot run a call may return it as a call of a tool that it has only for this
        let is_tool = self.tools.iter().any(|tool| tool_choice::name(tool) == Some(&returned.name));
        let has_same_id = sampled.id == returned.id;
        if !is_same_tool && (is_tool || !has_same_id) {
            return false;
        }
        match Value::parse(sampled.arguments.trim().as_bytes()) {
            Ok(arguments @ Value::Object(_)) if is_same_tool => may_return(&arguments, &rewritten),
            Ok(Value::Object(_)) => quotes(&rewritten, &|text| text == sampled.name),
            // no API has a form for arguments that are not a JSON object
            _ if is_same_tool && rewritten == Value::Object(Vec::new()) => true,
            _ => {
                let (raw, name) = (sampled.arguments.trim(), &sampled.name);
                // a client may cut a long text; a shorter beginning may be a part of a repaired call
                let is_beginning = |text: &str| raw.starts_with(text) && text.len() >= raw.len().clamp(1, SHORTEST_CUT);
                let is_quote = |text: &str| is_beginning(text) || !is_same_tool && text == name;
                has_same_id && quotes(&rewritten, &|text| is_quote(text.trim()))
            }
        }
    }
}

fn is_same_call(a: &MessageToolCall, b: &MessageToolCall) -> bool {
    a.name == b.name && (a.arguments == b.arguments || a.canonical() == b.canonical())
}

/// How the text of a message differs from that of the reply; `None` if the message is not the reply.
fn text_changes(message: &Message, reply: &Message, has_key: bool) -> Option<ReplyChanges> {
    let (message_text, reply_text) = (message.text(), reply.text());
    let (text, sampled) = (split_thought(&message_text).1, split_thought(&reply_text).1);
    let mut changes = ReplyChanges::default();
    if text.trim() == sampled.trim() {
        // a client that takes a thought out of the text takes the white space after it, too
        let has_thought = [&message_text, &reply_text].iter().any(|text| text.contains("</think>"));
        let is_equal = message_text == reply_text || text.trim().is_empty() || has_thought;
        changes.extend((!is_equal).then_some(ReplyChange::WhiteSpace));
        return Some(changes);
    }
    if !has_key {
        return None;
    }
    let reasoning = reply.reasoning.as_deref().map(str::trim).filter(|reasoning| !reasoning.is_empty());
    let rest = reasoning.and_then(|reasoning| text.trim().strip_prefix(reasoning));
    changes.extend(rest.map(|_| ReplyChange::ReasoningAsText));
    let rest = rest.unwrap_or(text).trim();
    if rest != sampled.trim() {
        if !rest.is_empty() || reply.calls.is_empty() {
            return None;
        }
        changes.extend([ReplyChange::TextLeftOut]);
    }
    Some(changes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::session::{Digest, TurnKey};

    const TOOL: &str = r#"[{"type": "function", "function": {"name": "weather"}}]"#;

    fn key() -> TurnKey {
        TurnKey::of("rid", 0)
    }

    fn call(name: &str, arguments: &str) -> MessageToolCall {
        MessageToolCall { id: Some(key().call_id(0)), name: name.to_owned(), arguments: arguments.to_owned() }
    }

    fn message(text: &str, calls: &[MessageToolCall]) -> Message {
        Message { calls: calls.to_vec(), ..Message::new("assistant", text.to_owned()) }
    }

    /// The names of the changes; `None` if the message is not the reply.
    fn changes(returned: &Message, sampled: &Message) -> Option<Vec<&'static str>> {
        let Ok(Value::Array(tools)) = Value::parse(TOOL.as_bytes()) else { unreachable!("it is a list") };
        let matcher = ReplyMatcher { tools: &tools, shows_names: false };
        let reply = RecordedReply { message: sampled.clone(), keys: vec![key().digest()] };
        matcher.changes(returned, &reply).map(|changes| changes.names().collect())
    }

    #[test]
    fn notation_of_a_client_quotes_the_call_that_it_could_not_execute() {
        let malformed = r#"{"command": "echo broken""#;
        for (sampled, returned, is_reply) in [
            (call("weather", malformed), call("weather", "{}"), true),
            (
                call("weather", malformed),
                call("weather", r#"{"__unparsedToolInput": {"raw": "{\"command\": \"echo", "len": 25}}"#),
                true,
            ),
            (call("weather", malformed), call("weather", r#""{\"command\": \"echo broken\"""#), true),
            (call("weather", malformed), call("weather", r#"{"raw": ""}"#), false),
            // beginnings of the malformed text in a repaired call
            (call("weather", malformed), call("weather", r#"{"command": "{"}"#), false),
            (
                call("weather", r#"{"path":"a.c","old":"{","new":"{ // x""#),
                call("weather", r#"{"path":"a.c","old":"{","new":"{ // x"}"#),
                false,
            ),
            (call("weather", "{"), call("weather", r#"{"raw": "{"}"#), true),
            (call("weather", malformed), call("weather", r#"{"command": "echo broken"}"#), false),
            (call("weather", malformed), call("weather", "[]"), false),
            (call("weather", malformed), call("invalid", r#"{"tool": "weather", "error": "e"}"#), true),
            (call("weather", malformed), call("invalid", r#"{"error": "e"}"#), false),
            (call("weather", malformed), call("invalid", "{}"), false),
            (call("weather", "{}"), call("invalid", r#"{"tool": "weather"}"#), true),
            (call("nosuch", r#"{"a": 1}"#), call("invalid", r#"{"tool": "nosuch"}"#), true),
            // a call of a tool that the client has
            (call("nosuch", r#"{"a": 1}"#), call("weather", r#"{"tool": "nosuch"}"#), false),
            (call("nosuch", malformed), call("weather", r#"{"tool": "nosuch"}"#), false),
            (call("weather", ""), call("weather", r#"{"raw": ""}"#), false),
            (call("weather", ""), call("weather", "{}"), true),
        ] {
            let found =
                changes(&message("", std::slice::from_ref(&returned)), &message("", std::slice::from_ref(&sampled)));
            assert_eq!(found, is_reply.then(|| vec!["call_rewritten"]), "{sampled:?} {returned:?}");
            let other = MessageToolCall { id: Some(TurnKey::of("other", 0).call_id(0)), ..returned };
            assert_eq!(changes(&message("", &[other]), &message("", &[sampled])), None, "the key of another turn");
        }
    }

    #[test]
    fn reasoning_is_repeated_as_text_in_whole() {
        let sampled = Message { reasoning: Some("I look.\n".into()), ..message("Rain.", &[call("weather", "{}")]) };
        for (text, expected) in [
            ("I look.", Some(vec!["text_left_out", "reasoning_as_text"])),
            (" I look.\nRain.", Some(vec!["reasoning_as_text"])),
            ("I look.Rain.", Some(vec!["reasoning_as_text"])),
            ("Rain.", Some(vec![])),
            ("\n\n", Some(vec!["text_left_out"])),
            ("I look", None),
            ("I look. Sun.", None),
            ("Rain.I look.", None),
        ] {
            assert_eq!(changes(&message(text, &sampled.calls), &sampled), expected, "{text:?}");
        }
        let alone = Message { calls: Vec::new(), turn_keys: vec![key()], ..message("", &[]) };
        let sampled = Message { calls: Vec::new(), ..sampled };
        assert_eq!(changes(&alone, &sampled), None, "there are no calls beside the text");
    }

    #[test]
    fn calls_are_compared_in_order_and_number() {
        let [one, two] = ["1", "2"].map(|n| call("weather", &format!(r#"{{"n": {n}}}"#)));
        let sampled = message("", &[one.clone(), two.clone()]);
        assert_eq!(changes(&sampled, &sampled), Some(vec![]));
        for calls in [vec![one.clone()], vec![two.clone(), one.clone()], vec![one, two.clone(), two], vec![]] {
            assert_eq!(changes(&message("", &calls), &sampled), None, "{calls:?}");
        }
    }

    #[test]
    fn key_of_the_session_does_not_make_other_roles_and_images_replies() {
        let sampled = message("Rain.", &[]);
        let user = Message { turn_keys: vec![key()], ..Message::new("user", "Rain.".into()) };
        assert_eq!(changes(&user, &sampled), None);
        let image = crate::chat::media::MediaPart::image(0, "u", None);
        assert_eq!(changes(&Message { media: vec![image], ..message("Rain.", &[]) }, &sampled), None);
    }

    proptest! {
        #[test]
        fn edited_text_is_never_a_reply(
            text in "[ab \n]{0,6}", sampled in "[ab \n]{0,6}", has_key in any::<bool>(), has_call in any::<bool>(),
        ) {
            let calls: Vec<_> = has_call.then(|| call("weather", r#"{"a": 1}"#)).into_iter().collect();
            let mut returned = message(&text, &calls);
            match has_key {
                true => returned.turn_keys.push(key()),
                false => returned.calls.iter_mut().for_each(|call| call.id = None),
            }
            let is_left_out = has_key && has_call && text.trim().is_empty();
            let found = changes(&returned, &message(&sampled, &calls));
            prop_assert_eq!(found.is_some(), text.trim() == sampled.trim() || is_left_out);
            prop_assert_eq!(found.is_some_and(|found| found.is_empty()), text == sampled || text.trim().is_empty() && sampled.trim().is_empty());
        }

        #[test]
        fn edited_arguments_are_never_a_reply(a in 0..4_i64, b in 0..4_i64, text in "[a-c]{0,3}", other in "[a-c]{0,3}") {
            let arguments = |n: i64, text: &str| format!(r#"{{"n": {n}, "text": "{text}", "null": null}}"#);
            let found = changes(
                &message("", &[call("weather", &arguments(b, &other))]),
                &message("", &[call("weather", &arguments(a, &text))]),
            );
            prop_assert_eq!(found.is_some(), a == b && text == other);
        }
    }

    #[test]
    fn keys_are_those_of_the_reply() {
        let id = |id: &str| MessageToolCall { id: Some(id.into()), ..call("weather", "{}") };
        let keys = |message: &Message| message.keys().collect::<Vec<_>>();
        assert_eq!(keys(&message("", &[id(&key().call_id(3))])), [key().digest()]);
        assert_eq!(keys(&message("", &[id("abcdefghi")])), [Digest::sha256(b"abcdefghi")]);
    }
}
