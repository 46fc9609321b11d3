//! The parts of a reply that whole and streamed replies share.

use crate::api::openai::Usage;
use crate::chat::quoted;
use crate::chat::reply_reader::ReplyReader;
use crate::generation::update::SequenceUpdate;
use crate::json::Cursor;
use crate::parse::ToolCall;

/// The properties of a request that the encoding of its reply depends on.
#[derive(Debug)]
pub(super) struct ReplyContext {
    /// Parses the sampled tokens.
    pub(super) reader: ReplyReader,
    /// `model` of the request.
    pub(super) model: String,
    /// The id of the message. Clients join messages with the same id, so every reply has its own.
    pub(super) id: String,
    /// Tokens of the prompt.
    pub(super) prompt_tokens: u64,
    /// Whether the context of the model is shorter than the prompt and `max_tokens` together.
    pub(super) is_limited_by_context: bool,
}

/// Why a message ended: `stop_reason` and `stop_sequence`, as JSON text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StopReason {
    pub(super) reason: &'static str,
    pub(super) sequence: String,
}

impl ReplyContext {
    /// The start of a message, up to the value of `content`.
    pub(super) fn head(&self) -> String {
        format!(
            "{{\"id\":{},\"type\":\"message\",\"role\":\"assistant\",\"model\":{},\"content\":",
            quoted(&self.id),
            quoted(&self.model)
        )
    }

    /// Why the message ended. `has_calls` is true if it calls tools.
    pub(super) fn stop_reason(&self, update: &SequenceUpdate<'_>, has_calls: bool) -> StopReason {
        let reason = |reason| StopReason { reason, sequence: "null".to_owned() };
        match update.finish {
            Some("length") if self.is_limited_by_context => reason("model_context_window_exceeded"),
            Some("length") => reason("max_tokens"),
            _ if has_calls => reason("tool_use"),
            _ => match update.matched.filter(|matched| self.is_stop_sequence(matched)) {
                Some(matched) => StopReason { reason: "stop_sequence", sequence: matched.to_owned() },
                None => reason("end_turn"),
            },
        }
    }

    /// Whether the engine reports a stop string of the request, and not a token. `matched` is JSON text.
    fn is_stop_sequence(&self, matched: &str) -> bool {
        let text = Cursor::new(matched.as_bytes()).string();
        text.is_ok_and(|text| self.reader.stops.strings.iter().any(|stop| *stop == *text.decode()))
    }
}

/// `usage`, as JSON text. The cached tokens of the prompt are not part of `input_tokens`.
pub(super) fn usage(usage: &Usage) -> String {
    let cached = usage.cached.unwrap_or(0).min(usage.prompt);
    let details = match usage.reasoning {
        0 => String::new(),
        tokens => format!(",\"output_tokens_details\":{{\"thinking_tokens\":{tokens}}}"),
    };
    format!(
        "{{\"input_tokens\":{},\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":{cached},\"output_tokens\":{}{details}}}",
        usage.prompt - cached,
        usage.completion
    )
}

/// The input of a call, as JSON text. Clients expect an object, so the input of an invalid call is empty: its validation fails, and the
/// model sees that.
pub(super) fn input(call: &ToolCall) -> &str {
    // stricter than the parser of calls, which accepts NaN as Python does
    let is_object =
        || call.arguments.starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(&call.arguments).is_ok();
    if !call.error && is_object() { &call.arguments } else { "{}" }
}
