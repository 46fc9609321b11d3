// SPDX-License-Identifier: Apache-2.0
//! Converts content blocks to the messages of a conversation, as SGLang's own endpoint converts them.

use crate::api::body::{SkippedParts, invalid, take_member};
use crate::chat::media::MediaPart;
use crate::chat::message::{Message, MessageToolCall};
use crate::chat::{RequestError, dumps};
use crate::json::Value;
use crate::session::TurnKey;

/// The start of the line with which Claude Code describes itself. It changes between calls and is not part of the prompt.
const ATTRIBUTION: &str = "x-anthropic-billing-header";

/// The text of a system prompt, and the attribution that it began with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SystemPrompt {
    /// The texts of its blocks, joined by line feeds. `None` without text.
    pub(super) text: Option<String>,
    /// The line that describes the client.
    pub(super) attribution: Option<String>,
}

/// Reads the member `system`.
///
/// # Errors
/// [`RequestError::Invalid`] when it is neither a string nor a list of text blocks.
pub(super) fn system_prompt(system: Option<Value>, skipped: &mut SkippedParts) -> Result<SystemPrompt, RequestError> {
    let mut texts = match system {
        None => Vec::new(),
        Some(Value::String(text)) if text.trim().is_empty() => Vec::new(),
        Some(system) => texts(system, "system", skipped)?,
    };
    texts.retain(|text| !text.is_empty());
    let mut attribution = None;
    if let Some(first) = texts.first_mut().filter(|text| text.starts_with(ATTRIBUTION)) {
        let (line, rest) = first.split_once('\n').unwrap_or((first, ""));
        attribution = Some(line.to_owned());
        *first = rest.to_owned();
        texts.retain(|text| !text.is_empty());
    }
    Ok(SystemPrompt { text: (!texts.is_empty()).then(|| texts.join("\n")), attribution })
}

/// Converts a message of the list and appends it to `messages`. `at` is its index, for the error.
///
/// # Errors
/// [`RequestError`].
pub(super) fn append_message(
    messages: &mut Vec<Message>,
    message: Value,
    at: usize,
    skipped: &mut SkippedParts,
) -> Result<(), RequestError> {
    let Value::Object(mut members) = message else { return Err(invalid(format!("messages.{at} must be an object"))) };
    let (role, content) = (take_member(&mut members, "role"), take_member(&mut members, "content"));
    match role.as_ref().and_then(Value::as_str) {
        Some("user") => append_user(messages, content, at, skipped),
        Some("assistant") => append_assistant(messages, content, at, skipped),
        Some("system") => {
            let content = content.ok_or_else(|| invalid(format!("messages.{at}.content: Field required")))?;
            let mut texts = texts(content, &format!("messages.{at}.content"), skipped)?;
            texts.retain(|text| !text.is_empty());
            if !texts.is_empty() {
                messages.push(Message::from_parts("system", texts));
            }
            Ok(())
        }
        _ => Err(invalid(format!("messages.{at}.role: must be user, assistant or system"))),
    }
}

/// The texts of a string or of a list of text blocks. Other blocks are skipped.
fn texts(content: Value, place: &str, skipped: &mut SkippedParts) -> Result<Vec<String>, RequestError> {
    match content {
        Value::String(text) => Ok(vec![text]),
        Value::Array(blocks) => {
            let mut texts = Vec::new();
            for block in blocks {
                match (kind(&block), block.get_str("text")) {
                    ("text", Some(text)) => texts.push(text.to_owned()),
                    (kind, _) => skipped.add(kind)?,
                }
            }
            Ok(texts)
        }
        _ => Err(invalid(format!("{place}: must be a string or a list of blocks"))),
    }
}

/// The blocks of a message. `None` if the content is a string, which is appended as a message.
fn blocks_of(
    role: &str,
    content: Option<Value>,
    messages: &mut Vec<Message>,
    at: usize,
) -> Result<Option<Vec<Value>>, RequestError> {
    match content {
        Some(Value::String(text)) => {
            messages.push(Message::new(role, text));
            Ok(None)
        }
        Some(Value::Array(blocks)) => Ok(Some(blocks)),
        _ => Err(invalid(format!("messages.{at}.content: must be a string or a list of blocks"))),
    }
}

fn append_user(
    messages: &mut Vec<Message>,
    content: Option<Value>,
    at: usize,
    skipped: &mut SkippedParts,
) -> Result<(), RequestError> {
    let Some(blocks) = blocks_of("user", content, messages, at)? else { return Ok(()) };
    let (mut texts, mut media) = (Vec::new(), Vec::new());
    let flush = |texts: &mut Vec<String>, media: &mut Vec<MediaPart>, messages: &mut Vec<Message>| {
        if !texts.is_empty() || !media.is_empty() {
            messages.push(Message::with_media("user", std::mem::take(texts), std::mem::take(media)));
        }
    };
    for block in blocks {
        match kind(&block) {
            "text" => texts.extend(block.get_str("text").map(str::to_owned)),
            "search_result" => texts.extend(Some(search_result(&block)).filter(|text| !text.is_empty())),
            "tool_result" => {
                flush(&mut texts, &mut media, messages);
                messages.push(tool_result(&block, skipped)?);
            }
            "mid_conv_system" => {
                flush(&mut texts, &mut media, messages);
                let text = block.get("content").or_else(|| block.get("text")).cloned().unwrap_or_default();
                let text = self::texts(text, "mid_conv_system", skipped)?.join("\n");
                if !text.is_empty() {
                    messages.push(Message::new("system", text));
                }
            }
            "image" => media.push(image(&block, texts.len())?),
            kind @ ("document" | "container_upload") => return Err(unsupported(kind)),
            kind => skipped.add(kind)?,
        }
    }
    flush(&mut texts, &mut media, messages);
    Ok(())
}

fn append_assistant(
    messages: &mut Vec<Message>,
    content: Option<Value>,
    at: usize,
    skipped: &mut SkippedParts,
) -> Result<(), RequestError> {
    let Some(blocks) = blocks_of("assistant", content, messages, at)? else { return Ok(()) };
    let mut message = Message::from_parts("assistant", Vec::new());
    let mut thoughts = Vec::new();
    for block in blocks {
        match kind(&block) {
            "text" => message.texts.extend(block.get_str("text").map(str::to_owned)),
            "thinking" => {
                let member = |name: &str| block.get_str(name).filter(|text| !text.is_empty());
                thoughts.extend(member("thinking").map(str::to_owned));
                message.turn_keys.extend(member("signature").and_then(TurnKey::parse));
            }
            "tool_use" => message.calls.push(tool_use(&block, at)?),
            kind @ ("image" | "document" | "container_upload") => return Err(unsupported(kind)),
            kind => skipped.add(kind)?,
        }
    }
    message.in_parts = message.texts.len() > 1;
    message.reasoning = (!thoughts.is_empty()).then(|| thoughts.join("\n"));
    messages.push(message);
    Ok(())
}

fn tool_use(block: &Value, at: usize) -> Result<MessageToolCall, RequestError> {
    let Some(name) = block.get_str("name") else {
        return Err(invalid(format!("messages.{at}.content: a tool_use block has no name")));
    };
    let arguments = block.get("input").map_or_else(|| "{}".to_owned(), dumps);
    let id = block.get_str("id").map(str::to_owned);
    Ok(MessageToolCall { id, name: name.to_owned(), arguments })
}

/// Converts a tool result. Its texts stay parts, as in SGLang.
fn tool_result(block: &Value, skipped: &mut SkippedParts) -> Result<Message, RequestError> {
    let (mut texts, mut media) = (Vec::new(), Vec::new());
    match block.get("content") {
        None => {}
        Some(Value::String(text)) => texts.push(text.clone()),
        Some(Value::Array(items)) => {
            for item in items {
                match kind(item) {
                    "text" => texts.extend(item.get_str("text").filter(|text| !text.is_empty()).map(str::to_owned)),
                    "search_result" => texts.extend(Some(search_result(item)).filter(|text| !text.is_empty())),
                    // the tool itself is in the prompt already
                    "tool_reference" => {
                        let name = item.get("tool_name").or_else(|| item.get("name"));
                        texts.extend(name.and_then(Value::as_str).map(str::to_owned));
                    }
                    "image" => media.push(image(item, texts.len())?),
                    "document" => return Err(unsupported("document")),
                    kind => skipped.add(kind)?,
                }
            }
        }
        Some(_) => return Err(invalid("the content of a tool_result must be a string or a list of blocks")),
    }
    if texts.is_empty() && media.is_empty() {
        texts.push(String::new());
    }
    let id = block.get("tool_use_id").or_else(|| block.get("id")).and_then(Value::as_str);
    Ok(Message { tool_call_id: Some(id.unwrap_or_default().to_owned()), ..Message::with_media("tool", texts, media) })
}

/// The text of a search result, in SGLang's format.
fn search_result(block: &Value) -> String {
    let text = |name: &str| block.get_str(name).filter(|text| !text.is_empty());
    let source = match block.get("source") {
        Some(Value::String(text)) => Some(text.as_str()),
        Some(source) => source.get("url").or_else(|| source.get("text")).and_then(Value::as_str),
        None => None,
    };
    let content = match block.get("content") {
        Some(Value::String(text)) => vec![text.as_str()],
        Some(Value::Array(parts)) => parts
            .iter()
            .filter(|part| kind(part) == "text")
            .filter_map(|part| part.get_str("text"))
            .filter(|text| !text.is_empty())
            .collect(),
        _ => Vec::new(),
    };
    let mut lines = Vec::new();
    lines.extend(text("title").map(|title| format!("Title: {title}")));
    lines.extend(source.filter(|source| !source.is_empty()).map(|source| format!("Source: {source}")));
    if !content.is_empty() {
        lines.push(format!("Content: {}", content.join("\n")));
    }
    lines.join("\n")
}

/// Converts an image after `at` texts. An image in a file of Anthropic's servers is not supported.
fn image(block: &Value, at: usize) -> Result<MediaPart, RequestError> {
    let source = block.get("source");
    let text = |name: &str| source?.get(name)?.as_str().filter(|text| !text.is_empty());
    let url = match text("type") {
        Some("base64") => text("data").map(|data| {
            // the default of SGLang's own endpoint
            format!("data:{};base64,{data}", text("media_type").unwrap_or("image/png"))
        }),
        Some("url") => text("url").map(str::to_owned),
        _ => None,
    };
    url.map(|url| MediaPart::image(at, &url, None)).ok_or_else(|| unsupported("image"))
}

fn unsupported(kind: &str) -> RequestError {
    RequestError::Unsupported(format!("a block of type {kind:?}"))
}

/// `type` of a block; empty if it has none.
fn kind(block: &Value) -> &str {
    block.get_str("type").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The role, the texts, and the places and URLs of the images.
    type ExpectedMessage<'a> = (&'a str, &'a [&'a str], &'a [(usize, &'a str)]);

    fn read(content: &str) -> Result<Vec<Message>, RequestError> {
        let mut messages = Vec::new();
        let message = format!(r#"{{"role":"user","content":{content}}}"#);
        append_message(&mut messages, Value::parse(message.as_bytes()).unwrap(), 0, &mut SkippedParts::new(false))?;
        Ok(messages)
    }

    #[test]
    fn images_become_parts_of_a_chat_in_their_places() {
        let image =
            |source: &str| format!(r#"{{"type":"image","source":{source},"cache_control":{{"type":"ephemeral"}}}}"#);
        let data = image(r#"{"type":"base64","media_type":"image/x-unknown","data":"!"}"#);
        let url = image(r#"{"type":"url","url":"https://host/a.png"}"#);
        let result = format!(r#"{{"type":"tool_result","tool_use_id":"c","content":[{url}]}}"#);
        let text = r#"{"type":"text","text":"t"}"#;
        let messages = read(&format!("[{data},{text},{url},{result},{url}]")).unwrap();
        // the engine decides whether an image is valid
        let data = "data:image/x-unknown;base64,!";
        let url = "https://host/a.png";
        let expected: [ExpectedMessage<'_>; 3] =
            [("user", &["t"], &[(0, data), (1, url)]), ("tool", &[], &[(0, url)]), ("user", &[], &[(0, url)])];
        assert_eq!(messages.len(), expected.len());
        for (message, (role, texts, media)) in messages.iter().zip(expected) {
            let media: Vec<MediaPart> = media.iter().map(|(at, url)| MediaPart::image(*at, url, None)).collect();
            assert_eq!((&*message.role, &message.media), (role, &media));
            assert_eq!(message.texts, texts);
        }
    }

    #[test]
    fn other_sources_and_documents_are_not_supported() {
        for block in [
            r#"{"type":"image","source":{"type":"file","file_id":"f"}}"#,
            r#"{"type":"image","source":{"type":"base64","media_type":"image/png"}}"#,
            r#"{"type":"image"}"#,
            r#"{"type":"document","source":{"type":"url","url":"u"}}"#,
            r#"{"type":"tool_result","tool_use_id":"c","content":[{"type":"document"}]}"#,
        ] {
            assert!(matches!(read(&format!("[{block}]")), Err(RequestError::Unsupported(_))), "{block}");
        }
    }
}
