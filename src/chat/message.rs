// SPDX-License-Identifier: Apache-2.0
//! A message of a conversation, its value for the chat template, and its digest, which is equal for messages with the same meaning.

use std::borrow::Cow;
use std::collections::HashMap;

use sha2::{Digest as _, Sha256};

use super::canonical::canonical;
use super::media::{InlineImage, Media, MediaPart};
use crate::json::Value;
use crate::session::{Digest, TurnKey};
use crate::tokenizer::{Content, TextOrigin};

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The role of the author.
    pub role: String,
    /// The text, or the text of each content part in order. Empty without text.
    pub texts: Vec<String>,
    /// The client sent the content as a list of parts.
    pub in_parts: bool,
    /// The parts of the content that are not text.
    pub media: Vec<MediaPart>,
    /// `reasoning_content`, or `reasoning`.
    pub reasoning: Option<String>,
    /// The tool calls of an assistant.
    pub calls: Vec<MessageToolCall>,
    /// `tool_call_id`: the call whose result this message is.
    pub tool_call_id: Option<String>,
    /// `name`.
    pub name: Option<String>,
    /// The keys of turns that the client returned with the message of an assistant, besides those in the ids of its calls.
    pub turn_keys: Vec<TurnKey>,
}

/// A part of the content of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ContentPart<'a> {
    Text(&'a str),
    Media(&'a Media),
}

/// The content of messages that a template gets.
#[derive(Debug, Clone, Copy)]
pub struct AcceptedContent {
    /// Lists of parts.
    pub parts: bool,
    /// Pictures, which are parts.
    pub images: bool,
}

/// A tool call in the message of an assistant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageToolCall {
    /// `id`.
    pub id: Option<String>,
    /// `function.name`.
    pub name: String,
    /// `function.arguments`, as text. An object is written as Python's `json.dumps` writes it.
    pub arguments: String,
}

impl Message {
    /// A message with a text.
    #[must_use]
    pub fn new(role: &str, text: String) -> Self {
        Self::from_parts(role, vec![text])
    }

    /// A message with the texts of its parts.
    #[must_use]
    pub fn from_parts(role: &str, texts: Vec<String>) -> Self {
        Self {
            role: role.to_owned(),
            in_parts: texts.len() > 1,
            texts,
            media: Vec::new(),
            reasoning: None,
            calls: Vec::new(),
            tool_call_id: None,
            name: None,
            turn_keys: Vec::new(),
        }
    }

    /// A message with texts, and with other parts.
    #[must_use]
    pub fn with_media(role: &str, texts: Vec<String>, media: Vec<MediaPart>) -> Self {
        Self { media, ..Self::from_parts(role, texts) }
    }

    /// The digest of an assistant message without the messages before it. White space around the text does not count; the name counts if
    /// `has_name`.
    #[must_use]
    pub fn standalone_digest(&self, has_name: bool) -> Digest {
        let text = self.text();
        let name = self.name.as_deref().filter(|_| has_name);
        self.digest_of(split_thought(&text).1.trim(), name, Digest::default(), &HashMap::new())
    }

    /// Whether it is the result of a tool.
    #[must_use]
    pub fn is_tool_result(&self) -> bool {
        matches!(&*self.role, "tool" | "function")
    }

    /// The message without its text, reasoning and tool calls.
    #[must_use]
    pub fn without_text(&self) -> Self {
        let (tool_call_id, name) = (self.tool_call_id.clone(), self.name.clone());
        Self { tool_call_id, name, ..Self::from_parts(&self.role, Vec::new()) }
    }

    /// Whether it has no text, no tool calls and no media.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.media.is_empty() && self.texts.iter().all(|text| text.trim().is_empty())
    }

    /// Whether its author is the assistant.
    #[must_use]
    pub fn is_assistant(&self) -> bool {
        self.role == "assistant"
    }

    /// The text, with all parts joined.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        match &self.texts[..] {
            [text] => text.into(),
            texts => texts.concat().into(),
        }
    }

    /// The reasoning from the two places where clients keep it: the member for reasoning, and the text before `</think>`. Each is empty
    /// without reasoning.
    #[must_use]
    pub fn thoughts(&self) -> [String; 2] {
        let text = self.text();
        [self.reasoning.as_deref().unwrap_or_default().trim().to_owned(), split_thought(&text).0.to_owned()]
    }

    /// The content in the order of its parts.
    pub(crate) fn parts(&self) -> impl Iterator<Item = ContentPart<'_>> {
        let mut media = self.media.iter().peekable();
        let mut texts = self.texts.iter().enumerate().peekable();
        std::iter::from_fn(move || {
            let next = texts.peek().map(|(at, _)| *at);
            if let Some(part) = media.next_if(|part| next.is_none_or(|next| part.at <= next)) {
                return Some(ContentPart::Media(&part.media));
            }
            texts.next().map(|(_, text)| ContentPart::Text(text))
        })
    }

    /// The pictures, in their order.
    pub fn images(&self) -> impl Iterator<Item = &InlineImage> {
        self.media.iter().filter_map(|part| if let Media::Image(image) = &part.media { Some(image) } else { None })
    }

    /// The value for the template, with a mark in each name of a control token. Of its media it has the pictures, if `accepted` has them. A
    /// template that does not accept parts gets the texts joined with spaces, as in SGLang.
    #[must_use]
    pub fn template_value(&self, marks: &Content, accepted: AcceptedContent) -> Value {
        let origin = if self.is_tool_result() { TextOrigin::Tool } else { TextOrigin::Person };
        let string = |text: &str| Value::String(marks.mark(text, origin).into_owned());
        let has_images = accepted.images && self.images().next().is_some();
        let content = if accepted.parts && (self.in_parts || has_images) {
            let part = |part: ContentPart<'_>| match part {
                ContentPart::Text(text) => Some(Value::object([("type", "text".into()), ("text", string(text))])),
                ContentPart::Media(media) => media.template_value().filter(|_| accepted.images),
            };
            Value::Array(self.parts().filter_map(part).collect())
        } else {
            match &self.texts[..] {
                [text] => string(text),
                texts => string(&texts.join(" ")),
            }
        };
        let mut members = vec![("role", string(&self.role)), ("content", content)];
        if self.role == "user" {
            // SGLang drops all other members of a user message
            return Value::object(members);
        }
        if let Some(id) = &self.tool_call_id {
            members.push(("tool_call_id", string(id)));
        }
        if let Some(name) = &self.name {
            members.push(("name", string(name)));
        }
        if let Some(reasoning) = &self.reasoning {
            members.push(("reasoning_content", string(reasoning)));
        }
        if !self.calls.is_empty() {
            let calls: Vec<Value> = self.calls.iter().map(|call| call.template_value(marks)).collect();
            members.push(("tool_calls", calls.into()));
        }
        Value::object(members)
    }

    /// The digests of the keys that the message of an assistant carries: keys of turns, and the ids of its calls.
    pub fn keys(&self) -> impl Iterator<Item = Digest> {
        let in_calls = self.calls.iter().filter_map(|call| call.id.as_deref().map(call_key));
        self.turn_keys.iter().map(TurnKey::digest).chain(in_calls)
    }

    /// The indexes of its tool calls by their ids.
    #[must_use]
    pub fn call_indexes(&self) -> HashMap<&str, usize> {
        // reversed, so that the first of several calls with the same id is kept
        self.calls.iter().enumerate().rev().filter_map(|(at, call)| Some((call.id.as_deref()?, at))).collect()
    }

    /// The digest of a conversation that ends with this message. `previous` is the digest of the messages before it. `call_indexes` are
    /// those of the last assistant message.
    ///
    /// Messages with the same meaning have the same digest. Texts of content parts are joined. White space at the end of the text, the order
    /// of the keys of arguments, and the difference between `null` and a missing member do not count. Reasoning does not count, because most
    /// clients drop it. Ids of tool calls do not count, because some clients renumber them: a tool result is identified by the index of its
    /// call. Media count with their place among the texts.
    #[must_use]
    pub fn digest(&self, previous: Digest, call_indexes: &HashMap<&str, usize>) -> Digest {
        let text = self.text();
        let text = if self.is_assistant() { split_thought(&text).1 } else { text.trim_end() };
        self.digest_of(text, self.name.as_deref(), previous, call_indexes)
    }

    /// The digest with this text and this name.
    fn digest_of(
        &self,
        text: &str,
        name: Option<&str>,
        previous: Digest,
        call_indexes: &HashMap<&str, usize>,
    ) -> Digest {
        let mut hash = Sha256::new();
        hash.update(previous.as_bytes());
        let mut put = |part: &str| {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        };
        put(&self.role);
        put(text);
        put(name.unwrap_or_default());
        match &self.tool_call_id {
            Some(id) => put(&call_indexes.get(id.as_str()).map_or_else(|| id.clone(), |index| format!("#{index}"))),
            None => put(""),
        }
        for call in &self.calls {
            put(&call.name);
            put(&call.canonical());
        }
        for media in &self.media {
            // no text has this number as its length, so no message without media has the same digest
            hash.update(u64::MAX.to_le_bytes());
            hash.update((media.at as u64).to_le_bytes());
            hash.update(media.media.digest());
        }
        Digest::of(hash.finalize().as_slice())
    }
}

/// The digest of the key in the id of a tool call, or of the id if it contains none.
pub(super) fn call_key(id: &str) -> Digest {
    TurnKey::in_call_id(id).map_or_else(|| Digest::sha256(id.as_bytes()), |key| key.digest())
}

/// Splits a text into its thought and the text after `</think>`, both trimmed. `<think>` may be missing, because the prompt may have opened
/// the thought. Without `</think>`, the thought is empty and only the end of the text is trimmed.
pub(super) fn split_thought(text: &str) -> (&str, &str) {
    let Some((thought, answer)) = text.rsplit_once("</think>") else { return ("", text.trim_end()) };
    (thought.trim().trim_start_matches("<think>").trim(), answer.trim())
}

impl MessageToolCall {
    /// The value for the template. Arguments are an object, because templates iterate over them; other arguments are a string.
    fn template_value(&self, marks: &Content) -> Value {
        let text = self.arguments.trim();
        let arguments = match Value::parse(text.as_bytes()) {
            Ok(value @ Value::Object(_)) => value,
            _ if text.is_empty() => Value::Object(Vec::new()),
            _ => Value::String(self.arguments.clone()),
        };
        let function = Value::object([("name", self.name.as_str().into()), ("arguments", arguments)]);
        let id = self.id.as_deref().map(|id| ("id", id.into()));
        let members = id.into_iter().chain([("type", "function".into()), ("function", function)]);
        marks.mark_all(&Value::object(members), TextOrigin::Person)
    }

    /// The arguments in canonical form; unchanged except for outer white space if they are not JSON.
    pub(super) fn canonical(&self) -> String {
        match Value::parse(self.arguments.trim().as_bytes()) {
            Ok(value) => canonical(&value),
            Err(_) => self.arguments.trim().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::system_messages::fold_system_messages;

    fn message(texts: &[&str], media: Vec<MediaPart>) -> Message {
        Message::with_media("user", texts.iter().map(|&text| text.to_owned()).collect(), media)
    }

    #[test]
    fn digest_depends_on_the_media_and_their_places() {
        let image = |at, url| MediaPart::image(at, url, None);
        let messages = [
            message(&["a", "b"], vec![]),
            message(&["a", "b"], vec![image(0, "u")]),
            message(&["a", "b"], vec![image(1, "u")]),
            message(&["a", "b"], vec![image(1, "v")]),
            message(&["a", "b"], vec![MediaPart::image(1, "u", Some("low"))]),
            message(&["a", "b"], vec![image(1, "u"), image(1, "u")]),
        ];
        let digest = |message: &Message| message.digest(Digest::default(), &HashMap::new());
        let digests: std::collections::HashSet<_> = messages.iter().map(digest).collect();
        assert_eq!(digests.len(), messages.len());
        assert_eq!(digest(&messages[1]), digest(&messages[1].clone()));
    }

    #[test]
    fn folded_system_message_keeps_the_place_of_the_media() {
        let assistant = Message::new("assistant", "a".to_owned());
        let system = Message::new("system", "s".to_owned());
        let image = MediaPart::image(1, "u", None);
        let folded = fold_system_messages(vec![assistant, system, message(&["b", "c"], vec![image])]);
        assert_eq!((folded[1].texts.len(), folded[1].media[0].at), (3, 2), "the reminder comes before the texts");
    }
}
