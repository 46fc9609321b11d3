// SPDX-License-Identifier: Apache-2.0
//! Translates a request of another API to a chat of the engine's own endpoint.
//!
//! The engine renders what tokentap cannot render, such as images. The other members of the chat come from the /generate request that the API
//! builds for the conversation without these parts, so that no API needs code for this.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Serialize;

use crate::api::openai::{FIELDS, FieldTarget};
use crate::api::to_json;
use crate::chat::message::{ContentPart, Message, MessageToolCall};
use crate::chat::{Conversation, quoted};
use crate::engine::capabilities::Capabilities;
use crate::engine::sglang::request::{GenerateRequest, SESSION_TAGS};
use crate::json::{Cursor, MemberWriter, Object, Value};

/// Top-level members of a /generate request that a chat does not need: the engine's endpoint sets them, or tokentap reads them only.
const OMITTED: &[&str] = &[
    "input_ids",
    "sampling_params",
    "stream",
    "return_logprob",
    "require_reasoning",
    "reasoning",
    "session_id",
    "_proxy_session_id",
    SESSION_TAGS,
    "return_entropy",
    "entropy_options",
];

/// A chat request that asks for a reply that does not stream, with its token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TranslatedChat {
    /// The body.
    pub(super) body: Vec<u8>,
    /// The sampling parameters under their names in `sampling_params`, as a JSON object.
    pub(super) sampling: Box<str>,
    /// The client's request id.
    pub(super) rid: Option<Arc<str>>,
}

impl TranslatedChat {
    /// Translates a conversation. `request` is the /generate request of the conversation without its media. `None` if `request` has a member
    /// that chats do not have.
    #[must_use]
    pub(super) fn try_new(
        conversation: &Conversation,
        request: &GenerateRequest,
        engine: &Capabilities,
    ) -> Option<Self> {
        let sampling = Object::parse(request.object.get(&request.bytes, "sampling_params")?).ok()?;
        let sampling_bytes = &request.bytes[request.object.value_span(&request.bytes, "sampling_params")?];
        let mut body = b"{".to_vec();
        let mut members = MemberWriter::new(&mut body);
        members.put("model", quoted(&engine.model).as_bytes());
        let messages: Vec<ChatMessage<'_>> = conversation.messages.iter().map(ChatMessage::from).collect();
        members.put("messages", to_json(&messages).as_bytes());
        if let Some(tools) = conversation.tools.as_ref().filter(|_| conversation.parses_tool_calls()) {
            members.put("tools", to_json(tools).as_bytes());
        }
        if !conversation.template_variables.is_empty() {
            let variables = Value::Object(conversation.template_variables.clone());
            members.put("chat_template_kwargs", to_json(&variables).as_bytes());
        }
        if conversation.continues_last {
            members.put("continue_final_message", b"true");
        }
        for name in ["return_input_ids_in_sglext", "return_output_ids_in_sglext"] {
            members.put(name, b"true");
        }
        let mut recorded = b"{".to_vec();
        let mut recorded_members = MemberWriter::new(&mut recorded);
        for member in &sampling.members {
            let name = sampling.key(sampling_bytes, member).decode();
            let value = &sampling_bytes[member.value.clone()];
            match &*name {
                // the media take room too, and without a limit the engine uses the rest of the context
                "max_new_tokens" if fills_context(value, request, engine) => continue,
                "max_new_tokens" => members.put("max_completion_tokens", value),
                "skip_special_tokens" => members.put("skip_special_tokens", value),
                "json_schema" => {
                    let schema = Cursor::new(value).string().ok()?.decode().into_owned();
                    let format = format!(
                        "{{\"type\":\"json_schema\",\"json_schema\":{{\"name\":\"reply\",\"schema\":{schema}}}}}"
                    );
                    members.put("response_format", format.as_bytes());
                }
                name => members
                    .put(field(|target| matches!(target, FieldTarget::Sampling(to) if to.name() == name))?, value),
            }
            recorded_members.put(&name, value);
        }
        for member in &request.object.members {
            let name = request.object.key(&request.bytes, member).decode();
            if !OMITTED.contains(&&*name) {
                let value = &request.bytes[member.value.clone()];
                members.put(field(|target| matches!(target, FieldTarget::Top(to) if to.name() == name))?, value);
            }
        }
        body.push(b'}');
        recorded.push(b'}');
        let rid = request.rid.get(0).map(|rid| rid.as_str().into());
        Some(Self { body, sampling: String::from_utf8(recorded).ok()?.into(), rid })
    }
}

/// The field of chats with this target.
fn field(is_target: impl Fn(FieldTarget) -> bool) -> Option<&'static str> {
    FIELDS.iter().find(|(_, target)| is_target(*target)).map(|(name, _)| *name)
}

/// Whether a reply of `limit` tokens, which is JSON text, would fill the context after the prompt without its media.
fn fills_context(limit: &[u8], request: &GenerateRequest, engine: &Capabilities) -> bool {
    let limit: Option<u64> = std::str::from_utf8(limit).ok().and_then(|limit| limit.parse().ok());
    let prompt = request.prompt_ids(0).map_or(0, |ids| ids.len() as u64);
    match (limit, engine.context_length) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(limit), Some(context)) => {
            prompt.saturating_add(limit).saturating_add(engine.reserved_tokens()) >= context
        }
    }
}

/// A message of a chat request.
#[derive(Serialize)]
struct ChatMessage<'a> {
    role: &'a str,
    content: ChatContent<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ChatCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ChatContent<'a> {
    Missing(()),
    Text(&'a str),
    Parts(Vec<ChatPart<'a>>),
}

#[derive(Serialize)]
#[serde(untagged)]
enum ChatPart<'a> {
    Text {
        #[serde(rename = "type")]
        kind: &'static str,
        text: &'a str,
    },
    Media(Cow<'a, Value>),
}

impl<'a> From<ContentPart<'a>> for ChatPart<'a> {
    fn from(part: ContentPart<'a>) -> Self {
        match part {
            ContentPart::Text(text) => Self::Text { kind: "text", text },
            ContentPart::Media(media) => Self::Media(media.part()),
        }
    }
}

#[derive(Serialize)]
struct ChatCall<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(rename = "type")]
    kind: &'static str,
    function: ChatFunction<'a>,
}

#[derive(Serialize)]
struct ChatFunction<'a> {
    name: &'a str,
    arguments: String,
}

impl<'a> From<&'a Message> for ChatMessage<'a> {
    fn from(message: &'a Message) -> Self {
        let content = match &message.texts[..] {
            [] if message.media.is_empty() && message.is_assistant() => ChatContent::Missing(()),
            [] if message.media.is_empty() => ChatContent::Text(""),
            [text] if message.media.is_empty() && !message.in_parts => ChatContent::Text(text),
            _ => ChatContent::Parts(message.parts().map(ChatPart::from).collect()),
        };
        Self {
            role: &message.role,
            content,
            reasoning_content: message.reasoning.as_deref(),
            tool_calls: message.calls.iter().map(ChatCall::from).collect(),
            tool_call_id: message.tool_call_id.as_deref(),
            name: message.name.as_deref(),
        }
    }
}

impl<'a> From<&'a MessageToolCall> for ChatCall<'a> {
    fn from(call: &'a MessageToolCall) -> Self {
        let text = call.arguments.trim();
        // the engine parses the arguments: those that are not an object become a string, as in tokentap's own prompts
        let arguments = match Value::parse(text.as_bytes()) {
            Ok(Value::Object(_)) => text.to_owned(),
            _ if text.is_empty() => "{}".to_owned(),
            _ => quoted(&call.arguments),
        };
        Self { id: call.id.as_deref(), kind: "function", function: ChatFunction { name: &call.name, arguments } }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::chat::media::MediaPart;
    use crate::chat::tool_choice::ToolChoice;

    /// A conversation of a call whose result is an image between two texts.
    fn conversation() -> Conversation {
        let call = |arguments: &str| MessageToolCall {
            id: Some("c".to_owned()),
            name: "f".to_owned(),
            arguments: arguments.to_owned(),
        };
        let reply = Message {
            calls: vec![call("{\"a\": 1}"), call("no"), call("")],
            reasoning: Some("hm".to_owned()),
            ..Message::from_parts("assistant", Vec::new())
        };
        let image = MediaPart::image(1, "data:image/png;base64,AA", Some("low"));
        let result = Message::with_media("tool", vec!["a".to_owned(), "b".to_owned()], vec![image]);
        Conversation {
            messages: vec![
                Message::new("user", "u".to_owned()),
                reply,
                Message { tool_call_id: Some("c".to_owned()), ..result },
            ],
            tools: Some(vec![Value::parse(br#"{"type":"function","function":{"name":"f"}}"#).unwrap()]),
            tool_choice: ToolChoice::Auto,
            template_variables: vec![("thinking".to_owned(), Value::Bool(true))],
            continues_last: false,
            prompt_ids: None,
            separates_reasoning: true,
            has_reasoning_items: true,
            skips_special_tokens: true,
            keeps_stop: false,
        }
    }

    fn translate(request: &str) -> Option<(serde_json::Value, serde_json::Value)> {
        let request =
            GenerateRequest::parse_with_ids(Bytes::copy_from_slice(request.as_bytes()), Arc::new([1, 2]), 13..18);
        let engine = Capabilities { context_length: Some(100), ..Capabilities::unknown(None) };
        let chat = TranslatedChat::try_new(&conversation(), &request.unwrap(), &engine)?;
        let body: serde_json::Value = serde_json::from_slice(&chat.body).unwrap();
        assert_eq!(body["rid"].as_str(), chat.rid.as_deref());
        Some((body, serde_json::from_str(&chat.sampling).unwrap()))
    }

    #[test]
    fn chat_has_the_conversation_and_the_sampling_parameters() {
        let (body, sampling) = translate(
            r#"{"input_ids":[1,2],"sampling_params":{"max_new_tokens":20,"temperature":0.5,"sampling_seed":7,"stop":["x"],"json_schema":"{\"type\":\"object\"}"},"stream":true,"return_logprob":true,"require_reasoning":true,"lora_path":"l"}"#,
        )
        .unwrap();
        let call = |arguments: &str| serde_json::json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let text = |text: &str| serde_json::json!({"type": "text", "text": text});
        assert_eq!(
            body,
            serde_json::json!({
                "model": "unknown",
                "messages": [
                    {"role": "user", "content": "u"},
                    {"role": "assistant", "content": null, "reasoning_content": "hm",
                     "tool_calls": [call("{\"a\": 1}"), call("\"no\""), call("{}")]},
                    {"role": "tool", "tool_call_id": "c", "content": [
                        text("a"),
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
                        text("b"),
                    ]},
                ],
                "tools": [{"type": "function", "function": {"name": "f"}}],
                "chat_template_kwargs": {"thinking": true},
                "return_input_ids_in_sglext": true,
                "return_output_ids_in_sglext": true,
                "max_completion_tokens": 20,
                "temperature": 0.5,
                "seed": 7,
                "stop": ["x"],
                "response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": {"type": "object"}}},
                "lora_path": "l",
            })
        );
        assert_eq!((&sampling["sampling_seed"], &sampling["max_new_tokens"]), (&7.into(), &20.into()));
    }

    #[test]
    fn limit_that_fills_the_context_is_left_to_the_engine() {
        for (limit, expected) in
            [("91", serde_json::json!(91)), ("92", serde_json::Value::Null), ("null", serde_json::Value::Null)]
        {
            let request = format!(r#"{{"input_ids":[1,2],"sampling_params":{{"max_new_tokens":{limit}}}}}"#);
            let (body, sampling) = translate(&request).unwrap();
            assert_eq!(
                (&body["max_completion_tokens"], &sampling["max_new_tokens"]),
                (&expected, &expected),
                "{limit}"
            );
        }
    }

    #[test]
    fn member_that_chats_do_not_have_is_not_translated() {
        assert_eq!(translate(r#"{"input_ids":[1,2],"sampling_params":{},"top_logprobs_num":3}"#), None);
        assert_eq!(translate(r#"{"input_ids":[1,2],"sampling_params":{"unknown":3}}"#), None);
    }
}
