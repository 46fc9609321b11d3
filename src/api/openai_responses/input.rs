// SPDX-License-Identifier: Apache-2.0
//! Converts input items to the messages of a conversation.
//!
//! Ids, statuses, phases, annotations and logprobs of items are not part of the conversation.

use std::collections::HashMap;

use super::items::RAW_CUSTOM;
use super::tools::{ToolName, Tools};
use crate::api::body::{SkippedParts, invalid};
use crate::api::openai::tools::{custom_arguments, is_raw_call};
use crate::chat::media::MediaPart;
use crate::chat::message::{Message, MessageToolCall};
use crate::chat::system_messages::fold_system_messages;
use crate::chat::{RequestError, dumps};
use crate::json::Value;
use crate::session::TurnKey;
use crate::tokenizer::TemplateFeatures;

/// The name under which calls of the hosted local shell are shown.
const LOCAL_SHELL: &str = "local_shell";

/// `input`.
#[derive(Debug)]
pub(super) enum Input<'a> {
    /// The words of a user.
    Text(String),
    /// Items, of which the same may occur often.
    Items(Vec<&'a Value>),
    /// A value that is neither.
    Other,
}

impl Input<'_> {
    fn items(&self) -> &[&Value] {
        match self {
            Self::Items(items) => items,
            Self::Text(_) | Self::Other => &[],
        }
    }
}

/// Adds the tools of the items `additional_tools` of an input. Returns whether the input has such items.
///
/// # Errors
/// [`RequestError::Invalid`].
pub(super) fn add_tools(
    input: &Input<'_>,
    tools: &mut Tools,
    skipped: &mut SkippedParts,
) -> Result<bool, RequestError> {
    let mut adds = false;
    for (at, item) in input.items().iter().enumerate() {
        if kind(item) == "additional_tools" {
            adds = true;
            tools.add(item.get("tools"), &format!("input[{at}].tools"), skipped)?;
        }
    }
    Ok(adds)
}

/// Converts `instructions` and `input`.
///
/// # Errors
/// [`RequestError`].
pub(super) fn messages(
    instructions: Option<String>,
    input: Input<'_>,
    template: TemplateFeatures,
    tools: &Tools,
    skipped: &mut SkippedParts,
) -> Result<Vec<Message>, RequestError> {
    let mut reader = InputReader {
        template,
        tools,
        skipped,
        messages: Vec::new(),
        reply: None,
        answered: None,
        shells: HashMap::new(),
    };
    let instructions = instructions.filter(|text| !text.is_empty());
    reader.messages.extend(instructions.map(|text| Message::new("system", text)));
    match input {
        Input::Text(text) => reader.messages.push(Message::new("user", text)),
        Input::Items(items) => {
            for (at, item) in items.iter().enumerate() {
                reader.item(item, &format!("input[{at}]"))?;
            }
        }
        Input::Other => return Err(invalid("input must be a string or a list of items")),
    }
    reader.end_reply();
    if template.shows_system_messages {
        return Ok(reader.messages);
    }
    Ok(fold_system_messages(join_leading_system_messages(reader.messages)))
}

/// Joins the system messages before the first other message, because templates that do not show system messages in
/// their places accept one only.
fn join_leading_system_messages(mut messages: Vec<Message>) -> Vec<Message> {
    let leading = messages.iter().take_while(|message| message.role == "system").count();
    if leading > 1 {
        let texts: Vec<String> = messages.drain(..leading).map(|message| message.texts.join("\n")).collect();
        messages.insert(0, Message::new("system", texts.join("\n\n")));
    }
    messages
}

/// Reads the items of an input.
struct InputReader<'a> {
    template: TemplateFeatures,
    tools: &'a Tools,
    skipped: &'a mut SkippedParts,
    messages: Vec<Message>,
    /// The assistant message of the items before the current one.
    reply: Option<Reply>,
    /// The last assistant message and its key, while only results of its calls follow it.
    answered: Option<(usize, TurnKey)>,
    /// The call ids of calls of the local shell, by their item ids. Outputs name either.
    shells: HashMap<String, String>,
}

/// An assistant message whose items are being read.
struct Reply {
    message: Message,
    /// The key of the turn that sampled it, if an item carries it.
    key: Option<TurnKey>,
}

impl InputReader<'_> {
    fn item(&mut self, item: &Value, place: &str) -> Result<(), RequestError> {
        if !matches!(item, Value::Object(_)) {
            return Err(invalid(format!("{place} must be an object")));
        }
        match kind(item) {
            "message" => self.message(item, place)?,
            "" if item.get("role").is_some() => self.message(item, place)?,
            "reasoning" => self.reasoning(item),
            "function_call" => {
                let arguments = match item.get("arguments") {
                    None | Some(Value::Null) => "{}".to_owned(),
                    Some(Value::String(arguments)) => arguments.clone(),
                    Some(arguments @ Value::Object(_)) => dumps(arguments),
                    Some(_) => return Err(invalid(format!("{place}.arguments must be a string"))),
                };
                self.call(item, place, arguments)?;
            }
            "custom_tool_call" => {
                let input = match item.get("input") {
                    None | Some(Value::Null) => "",
                    Some(Value::String(input)) => input.as_str(),
                    Some(_) => return Err(invalid(format!("{place}.input must be a string"))),
                };
                let prefix = item.get_str("id").and_then(|id| id.split_once('_')).map(|(prefix, _)| prefix);
                let is_marked = item.get_str("call_id").is_some_and(is_raw_call);
                let is_raw = is_marked || prefix == Some(RAW_CUSTOM) && key(item).is_some();
                self.call(item, place, custom_arguments(input, is_raw))?;
            }
            "local_shell_call" => self.local_shell_call(item),
            "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" => {
                self.output(item, place)?;
            }
            // read by `add_tools`
            "additional_tools" => {}
            "compaction" | "context_compaction" => {
                let text = item.get_str("encrypted_content").or_else(|| item.get_str("summary"));
                self.tagged("compaction", "", text.unwrap_or_default());
            }
            "agent_message" => {
                let texts = self.texts(item.get("content"), &format!("{place}.content"))?;
                let attributes = ["author", "recipient"].into_iter().filter_map(|name| {
                    let value = item.get_str(name)?;
                    Some(format!(" {name}=\"{}\"", value.replace(['"', '<', '>', '\n'], " ")))
                });
                self.tagged("agent_message", &attributes.collect::<String>(), &texts.join("\n"));
            }
            // resolved by `history`
            "item_reference" => {}
            "" if is_reference(item) => {}
            "" => return Err(invalid(format!("{place}.type must be a string"))),
            other => self.skipped.add(other)?,
        }
        Ok(())
    }

    fn message(&mut self, item: &Value, place: &str) -> Result<(), RequestError> {
        let content = item.get("content");
        let (texts, media) = self.parts(content, &format!("{place}.content"))?;
        if !media.is_empty() && item.get_str("role") != Some("user") {
            return Err(unsupported("input_image"));
        }
        let role = match item.get_str("role") {
            Some("assistant") => {
                let is_list = matches!(content, Some(Value::Array(_)));
                let texts = texts.into_iter().filter(|text| !is_list || !text.is_empty());
                self.open_reply(item, false).texts.extend(texts);
                return Ok(());
            }
            Some("developer") if self.template.has_developer_role => "developer",
            Some("system" | "developer") => "system",
            Some("user") => "user",
            _ => return Err(invalid(format!("{place}.role must be user, assistant, system or developer"))),
        };
        self.end_reply();
        self.answered = None;
        if role == "user" || texts.iter().any(|text| !text.is_empty()) {
            self.messages.push(Message::with_media(role, texts, media));
        }
        Ok(())
    }

    /// The texts of a string or of a list of parts without images.
    fn texts(&mut self, content: Option<&Value>, place: &str) -> Result<Vec<String>, RequestError> {
        match self.parts(content, place)? {
            (texts, media) if media.is_empty() => Ok(texts),
            _ => Err(unsupported("input_image")),
        }
    }

    /// The texts and images of a string or of a list of parts.
    fn parts(&mut self, content: Option<&Value>, place: &str) -> Result<(Vec<String>, Vec<MediaPart>), RequestError> {
        match content {
            None | Some(Value::Null) => Ok((Vec::new(), Vec::new())),
            Some(Value::String(text)) => Ok((vec![text.clone()], Vec::new())),
            Some(Value::Array(parts)) => {
                let (mut texts, mut media) = (Vec::with_capacity(parts.len()), Vec::new());
                for (at, part) in parts.iter().enumerate() {
                    let text = part.get_str("text").or_else(|| part.get_str("refusal"));
                    match (kind(part), text) {
                        ("", _) => return Err(invalid(format!("{place}[{at}].type must be a string"))),
                        ("input_text" | "output_text" | "text" | "refusal" | "summary_text", Some(text)) => {
                            texts.push(text.to_owned());
                        }
                        ("input_image", _) => media.push(image(part, texts.len())?),
                        (kind @ ("input_file" | "input_audio" | "computer_screenshot"), _) => {
                            return Err(unsupported(kind));
                        }
                        ("input_text" | "output_text" | "text" | "refusal" | "summary_text", None) => {
                            return Err(invalid(format!("{place}[{at}].text must be a string")));
                        }
                        (kind, _) => self.skipped.add(kind)?,
                    }
                }
                Ok((texts, media))
            }
            Some(_) => Err(invalid(format!("{place} must be a string or a list of parts"))),
        }
    }

    fn reasoning(&mut self, item: &Value) {
        let texts = |name: &str| -> Vec<&str> {
            let parts = item.get(name).and_then(Value::as_array).unwrap_or_default();
            parts.iter().filter_map(|part| part.get_str("text")).filter(|text| !text.is_empty()).collect()
        };
        let content = texts("content");
        let text = if content.is_empty() { texts("summary") } else { content }.join("\n");
        let message = self.open_reply(item, true);
        if !text.is_empty() {
            message.reasoning.get_or_insert_default().push_str(&text);
        }
    }

    fn call(&mut self, item: &Value, place: &str, arguments: String) -> Result<(), RequestError> {
        let name = ToolName::parse(item).ok_or_else(|| invalid(format!("{place}.name must be a string")))?;
        let name = self.tools.shown_name(&name);
        let id = item.get_str("call_id").map(str::to_owned);
        self.calls(item).push(MessageToolCall { id, name, arguments });
        Ok(())
    }

    /// The calls of the assistant message to which a call belongs. Clients may send the results of parallel calls between the calls.
    fn calls(&mut self, item: &Value) -> &mut Vec<MessageToolCall> {
        let answered = self.answered.filter(|(_, answered)| self.reply.is_none() && key(item) == Some(*answered));
        match answered {
            Some((at, _)) => &mut self.messages[at].calls,
            None => &mut self.open_reply(item, false).calls,
        }
    }

    fn local_shell_call(&mut self, item: &Value) {
        let arguments = item.get("action").map_or_else(|| "{}".to_owned(), dumps);
        let id = item.get_str("call_id").or_else(|| item.get_str("id")).map(str::to_owned);
        self.shells.extend(item.get_str("id").map(str::to_owned).zip(id.clone()));
        self.calls(item).push(MessageToolCall { id, name: LOCAL_SHELL.to_owned(), arguments });
    }

    fn output(&mut self, item: &Value, place: &str) -> Result<(), RequestError> {
        self.end_reply();
        let (mut texts, media) = match item.get("output") {
            Some(output @ Value::Object(_)) => (vec![dumps(output)], Vec::new()),
            output => self.parts(output, &format!("{place}.output"))?,
        };
        if texts.is_empty() && media.is_empty() {
            texts.push(String::new());
        }
        let id = item.get_str("call_id").or_else(|| {
            let id = item.get_str("id")?;
            Some(self.shells.get(id).map_or(id, String::as_str))
        });
        let id = id.unwrap_or_default().to_owned();
        self.messages.push(Message { tool_call_id: Some(id), ..Message::with_media("tool", texts, media) });
        Ok(())
    }

    /// Appends a user message for an item that chat templates do not know.
    fn tagged(&mut self, tag: &str, attributes: &str, text: &str) {
        self.end_reply();
        self.answered = None;
        self.messages.push(Message::new("user", format!("<{tag}{attributes}>\n{text}\n</{tag}>")));
    }

    /// The assistant message of an item. It is a new one if the item is of another reply than the items before it: their keys differ, or the
    /// item is reasoning, with which a reply begins.
    fn open_reply(&mut self, item: &Value, is_reasoning: bool) -> &mut Message {
        let key = key(item);
        let continues = self.reply.as_ref().is_some_and(|reply| match (key, reply.key) {
            (Some(key), Some(other)) => key == other,
            _ => !is_reasoning,
        });
        if !continues {
            self.end_reply();
        }
        let reply =
            self.reply.get_or_insert_with(|| Reply { message: Message::from_parts("assistant", Vec::new()), key });
        reply.key = reply.key.or(key);
        &mut reply.message
    }

    /// Appends the assistant message whose items have been read.
    fn end_reply(&mut self) {
        let Some(Reply { mut message, key }) = self.reply.take() else { return };
        self.answered = key.map(|key| (self.messages.len(), key));
        message.in_parts = message.texts.len() > 1;
        message.turn_keys.extend(key);
        self.messages.push(message);
    }
}

/// Converts an image after `at` texts. An image in a file of OpenAI's servers is not supported.
fn image(part: &Value, at: usize) -> Result<MediaPart, RequestError> {
    let url = part.get_str("image_url").filter(|url| !url.is_empty()).ok_or_else(|| unsupported("input_image"))?;
    // chats have no other values
    let detail = part.get_str("detail").filter(|detail| matches!(*detail, "auto" | "low" | "high"));
    Ok(MediaPart::image(at, url, detail))
}

fn unsupported(kind: &str) -> RequestError {
    RequestError::Unsupported(format!("a part of type {kind:?}"))
}

/// The key of the turn that sampled an item.
fn key(item: &Value) -> Option<TurnKey> {
    let in_content = item.get_str("encrypted_content").and_then(TurnKey::parse);
    let in_call = || item.get_str("call_id").and_then(TurnKey::in_call_id);
    in_content.or_else(in_call).or_else(|| item.get_str("id").and_then(TurnKey::in_item_id))
}

/// The key of the last turn whose items are in an input.
pub(super) fn last_key(input: &Input<'_>) -> Option<TurnKey> {
    input.items().iter().rev().find_map(|item| key(item))
}

/// Whether an input has items of the type `item_reference`.
pub(super) fn has_references(input: &Input<'_>) -> bool {
    input.items().iter().any(|item| is_reference(item))
}

/// Whether an item stands for a stored item. Clients may leave out its type.
pub(super) fn is_reference(item: &Value) -> bool {
    let is_typed = kind(item) == "item_reference";
    is_typed || kind(item).is_empty() && item.get_str("id").is_some() && item.get("role").is_none()
}

/// `type` of an item or part; empty if it has none.
fn kind(item: &Value) -> &str {
    item.get_str("type").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(items: &str) -> Vec<Message> {
        read_for(items, true)
    }

    fn read_for(items: &str, shows_system_messages: bool) -> Vec<Message> {
        let (tools, mut skipped) = (Tools::default(), SkippedParts::new(false));
        let template = TemplateFeatures { shows_system_messages, ..TemplateFeatures::default() };
        let items = Value::parse(items.as_bytes()).unwrap();
        let input = Input::Items(items.as_array().unwrap().iter().collect());
        messages(None, input, template, &tools, &mut skipped).unwrap()
    }

    fn roles(items: &str) -> String {
        read(items).iter().map(|message| format!("{}{} ", &message.role[..1], message.calls.len())).collect()
    }

    #[test]
    fn items_of_one_reply_become_one_message() {
        let call = |key: &TurnKey| format!(r#"{{"type":"function_call","call_id":"{}","name":"f"}}"#, key.call_id(0));
        let (one, two) = (TurnKey::of("one", 0), TurnKey::of("two", 0));
        let said = |id: String| format!(r#"{{"type":"message","role":"assistant","id":"{id}","content":"x"}}"#);
        for (items, expected) in [
            (r#"[{"role":"user","content":"x"}]"#.to_owned(), "u0 "),
            (
                r#"[{"type":"reasoning"},{"role":"assistant","content":"x"},{"type":"function_call","name":"f"}]"#
                    .to_owned(),
                "a1 ",
            ),
            (
                r#"[{"role":"assistant","content":"x"},{"type":"reasoning"},{"role":"assistant","content":"x"}]"#
                    .to_owned(),
                "a0 a0 ",
            ),
            (format!("[{},{}]", call(&one), call(&two)), "a1 a1 "),
            (format!("[{},{}]", call(&one), call(&one)), "a2 "),
            (format!("[{},{}]", said(one.item_id("msg", 0)), call(&one)), "a1 "),
            (format!("[{},{}]", said(one.item_id("msg", 0)), said(two.item_id("msg", 0))), "a0 a0 "),
            // an item of another server may join
            (format!("[{},{}]", said("msg_1".to_owned()), call(&one)), "a1 "),
        ] {
            assert_eq!(roles(&items), expected, "{items}");
        }
    }

    #[test]
    fn system_messages_stay_or_are_joined_as_the_template_shows_them() {
        let items = r#"[{"role":"system","content":"a"},{"role":"developer","content":[{"type":"input_text","text":"b"}]},{"role":"user","content":"u"},{"role":"developer","content":"c"}]"#;
        let shown = |shows_system_messages: bool| -> Vec<String> {
            let messages = read_for(items, shows_system_messages);
            messages.iter().map(|message| format!("{}: {}", message.role, message.text().replace('\n', "|"))).collect()
        };
        assert_eq!(shown(true), ["system: a", "system: b", "user: u", "system: c"]);
        let reminder = "user: u|<system-reminder>|c|</system-reminder>|";
        assert_eq!(shown(false), ["system: a||b", reminder]);
    }

    #[test]
    fn members_that_are_not_part_of_the_conversation_do_not_change_the_digest() {
        let plain = r#"[{"role":"user","content":"u"},{"type":"message","role":"assistant","content":"x"},
            {"type":"function_call","call_id":"c","name":"f","arguments":"{\"a\": 1}"},
            {"type":"function_call_output","call_id":"c","output":"o"}]"#;
        let full = r#"[{"type":"message","role":"user","id":"u1","status":"completed","content":[{"type":"input_text","text":"u"}]},
            {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}],"encrypted_content":"blob","status":null},
            {"type":"message","role":"assistant","id":"msg_1","phase":"final","status":"completed","content":[{"type":"output_text","text":"x","annotations":[{"a":1}],"logprobs":[1]}]},
            {"type":"function_call","id":"fc_1","call_id":"d","name":"f","arguments":"{\"a\":1}","status":"completed"},
            {"type":"function_call_output","id":"o1","call_id":"d","output":[{"type":"input_text","text":"o"}],"status":"completed"}]"#;
        let digest = |items: &str| {
            let mut calls = std::collections::HashMap::new();
            let messages = read(items);
            messages.iter().fold(crate::session::Digest::default(), |digest, message| {
                let digest = message.digest(digest, &calls);
                if message.is_assistant() {
                    calls = message.call_indexes();
                }
                digest
            })
        };
        assert_eq!(digest(plain), digest(full));
    }
}
