// SPDX-License-Identifier: Apache-2.0
//! Decodes the messages of a chat request.

use crate::api::body::{invalid, take_member};
use crate::api::openai::tools::{custom_arguments, is_raw_call};
use crate::chat::media::MediaPart;
use crate::chat::message::{Message, MessageToolCall};
use crate::chat::{RequestError, dumps};
use crate::json::Value;

/// The only role that SGLang compares case-sensitively.
const USER: &str = "user";

/// The roles that SGLang accepts.
const ROLES: [&str; 7] = [USER, "system", "developer", "assistant", "tool", "function", "latest_reminder"];

/// The role in lower case; `user` must be in lower case already. The error is the unknown role.
fn parse_role(role: String) -> Result<String, String> {
    let lower = role.to_ascii_lowercase();
    match ROLES.contains(&lower.as_str()) && (lower != USER || role == USER) {
        true => Ok(lower),
        false => Err(role),
    }
}

/// Decodes a message. `at` is its index in `messages`, for the error.
///
/// # Errors
/// [`RequestError::Invalid`].
pub(super) fn decode_message(value: Value, at: usize) -> Result<Message, RequestError> {
    let invalid = |problem: &str| invalid(format!("messages[{at}]{problem}"));
    let Value::Object(mut members) = value else { return Err(invalid(" must be an object")) };
    let mut text = |name: &str| match take_member(&mut members, name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(invalid(&format!(".{name} must be a string"))),
    };
    let role = text("role")?.ok_or_else(|| invalid(".role must be a string"))?;
    let role =
        parse_role(role).map_err(|role| invalid(&format!(".role {role:?} is not one of {}", ROLES.join(", "))))?;
    let (tool_call_id, name, reasoning) = (text("tool_call_id")?, text("name")?, text("reasoning_content")?);
    // SGLang has no member `reasoning` and ignores it, so a value of another type is not an error
    let reasoning = reasoning.or_else(|| text("reasoning").ok().flatten());
    let (mut texts, mut media) = (Vec::new(), Vec::new());
    let content = take_member(&mut members, "content");
    let in_parts = matches!(content, Some(Value::Array(_)));
    match content {
        None if role == USER => return Err(invalid(".content is required")),
        None => {}
        Some(Value::String(text)) => texts.push(text),
        Some(Value::Array(parts)) => {
            for part in parts {
                match (&part, part.get_str("type"), part.get_str("text")) {
                    (Value::String(text), ..) => texts.push(text.clone()),
                    (_, Some("text" | "input_text") | None, Some(text)) => texts.push(text.to_owned()),
                    (_, Some("refusal"), _) => {
                        let refusal = part.get_str("refusal");
                        texts.push(refusal.ok_or_else(|| invalid(".content has a refusal without a text"))?.to_owned());
                    }
                    // an image or audio
                    (_, Some(kind), _) if kind != "text" => media.push(MediaPart::of_chat(texts.len(), part)),
                    _ => return Err(invalid(".content has a part without a text")),
                }
            }
        }
        Some(_) => return Err(invalid(".content must be a string or a list of parts")),
    }
    let calls = match take_member(&mut members, "tool_calls") {
        None => Vec::new(),
        Some(Value::Array(calls)) => calls
            .iter()
            .map(|call| tool_call(call).ok_or_else(|| invalid(".tool_calls has a call without the name of its tool")))
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(invalid(".tool_calls must be a list")),
    };
    Ok(Message { role, texts, in_parts, media, reasoning, calls, tool_call_id, name, turn_keys: Vec::new() })
}

/// Decodes a tool call of an assistant; `None` without `function.name` and `custom.name`.
fn tool_call(value: &Value) -> Option<MessageToolCall> {
    let id = value.get_str("id").map(str::to_owned);
    let text = |value: Option<&Value>| match value {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => dumps(value),
    };
    let (tool, arguments) = match (value.get("function"), value.get("custom")) {
        (None, Some(custom)) => {
            let is_raw = id.as_deref().is_some_and(is_raw_call);
            (custom, custom_arguments(&text(custom.get("input")), is_raw))
        }
        (function, _) => (function?, text(function?.get("arguments"))),
    };
    Some(MessageToolCall { id, name: tool.get_str("name")?.to_owned(), arguments })
}
