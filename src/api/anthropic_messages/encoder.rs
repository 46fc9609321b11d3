// SPDX-License-Identifier: Apache-2.0
//! Encodes a message, whole or as a stream of events.

use std::time::Duration;

use super::error;
use crate::api::openai::Usage;
use crate::api::{ApiError, EncodedReply, ReplyEncoder};
use crate::chat::quoted;
use crate::chat::reply_reader::{ReplyReader, ReplyStream};
use crate::error::BoxError;
use crate::generation::update::SequenceUpdate;
use crate::json::Cursor;
use crate::parse::{Event, ToolCall};
use crate::session::TurnKey;

/// The time without an event after which a stream sends `ping`. Clients give up on streams that are silent for minutes.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// The time after which a stream begins without an event of the engine. Until then an error of the engine is replied with its status, so that
/// clients handle it as such.
const FIRST_EVENT_TIMEOUT: Duration = Duration::from_secs(1);

/// The properties of a request that the encoding of its reply depends on.
#[derive(Debug)]
pub(super) struct MessageContext {
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

/// Encodes a message.
#[derive(Debug)]
pub(super) struct MessageEncoder {
    context: MessageContext,
    reply: ReplyStream,
    /// The block that has begun and has not ended.
    open: Option<Block>,
    /// The number of blocks that have begun.
    blocks: usize,
    /// The number of tool calls so far.
    calls: usize,
    /// The number of tokens so far.
    tokens: usize,
    usage: Usage,
    /// Set once the message has ended.
    stop: Option<StopReason>,
    /// The stream ended with an error.
    has_failed: bool,
}

/// A kind of content block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    ToolUse,
}

/// Why a message ended: `stop_reason` and `stop_sequence`, as JSON text.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StopReason {
    reason: &'static str,
    sequence: String,
}

impl MessageContext {
    /// The start of a message, up to the value of `content`.
    fn head(&self) -> String {
        format!(
            "{{\"id\":{},\"type\":\"message\",\"role\":\"assistant\",\"model\":{},\"content\":",
            quoted(&self.id),
            quoted(&self.model)
        )
    }

    /// Why the message ended. `has_calls` is true if it calls tools.
    fn stop_reason(&self, update: &SequenceUpdate<'_>, has_calls: bool) -> StopReason {
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

impl MessageEncoder {
    /// An encoder at the beginning of a reply.
    pub(super) fn new(context: MessageContext) -> Self {
        let usage = Usage { prompt: context.prompt_tokens, ..Usage::default() };
        Self {
            reply: ReplyStream::new(&context.reader),
            context,
            open: None,
            blocks: 0,
            calls: 0,
            tokens: 0,
            usage,
            stop: None,
            has_failed: false,
        }
    }

    /// Begins a block. `content` is the value of `content_block`.
    fn begin_block(&mut self, block: Block, content: &str, out: &mut String) {
        let data =
            format!("{{\"type\":\"content_block_start\",\"index\":{},\"content_block\":{content}}}", self.blocks);
        write_event("content_block_start", &data, out);
        self.open = Some(block);
        self.blocks += 1;
    }

    /// Ends the open block, if it is not of the kind `next`.
    fn end_block(&mut self, next: Option<Block>, update: &SequenceUpdate<'_>, out: &mut String) {
        if self.open.is_none() || self.open == next {
            return;
        }
        if self.open == Some(Block::Thinking) {
            let (rid, index) = update.name();
            self.delta("signature_delta", "signature", &TurnKey::of(rid, index).to_string(), out);
        }
        let data = format!("{{\"type\":\"content_block_stop\",\"index\":{}}}", self.blocks - 1);
        write_event("content_block_stop", &data, out);
        self.open = None;
    }

    /// Appends a delta of the open block.
    fn delta(&self, kind: &str, member: &str, text: &str, out: &mut String) {
        let data = format!(
            "{{\"type\":\"content_block_delta\",\"index\":{},\"delta\":{{\"type\":\"{kind}\",\"{member}\":{}}}}}",
            self.blocks - 1,
            quoted(text)
        );
        write_event("content_block_delta", &data, out);
    }

    fn write(&mut self, event: &Event, update: &SequenceUpdate<'_>, out: &mut String) {
        match event {
            Event::Reasoning(text) => {
                self.end_block(Some(Block::Thinking), update, out);
                let mut text = text.as_str();
                if self.open.is_none() {
                    self.begin_block(Block::Thinking, r#"{"type":"thinking","thinking":"","signature":""}"#, out);
                    // the separator of two thoughts, which are two blocks here
                    text = text.strip_prefix('\n').unwrap_or(text);
                }
                if !text.is_empty() {
                    self.delta("thinking_delta", "thinking", text, out);
                }
            }
            Event::Content(text) => {
                self.end_block(Some(Block::Text), update, out);
                if self.open.is_none() {
                    self.begin_block(Block::Text, r#"{"type":"text","text":""}"#, out);
                }
                self.delta("text_delta", "text", text, out);
            }
            Event::CallStart { name, id } => {
                self.end_block(None, update, out);
                let (rid, index) = update.name();
                let id = self.context.reader.call_id(id.as_deref(), self.calls, rid, index);
                self.calls += 1;
                self.begin_block(Block::ToolUse, &tool_use(&id, name, "{}"), out);
            }
            Event::Arguments(text) => self.delta("input_json_delta", "partial_json", text, out),
            Event::CallEnd { .. } => self.end_block(None, update, out),
        }
    }
}

impl ReplyEncoder for MessageEncoder {
    fn encode_whole(&self, updates: &[SequenceUpdate<'_>]) -> Result<EncodedReply, BoxError> {
        let [update] = updates else { return Err("the engine's reply does not have one sequence".into()) };
        let reader = &self.context.reader;
        if update.finish == Some("abort") {
            return Ok(Err(error::aborted()));
        }
        let message = reader.message(&update.ids, update.finish)?;
        let stop = self.context.stop_reason(update, !message.calls.is_empty());
        let (rid, index) = update.name();
        let mut blocks = Vec::new();
        blocks.extend(message.reasoning.as_deref().map(|thinking| {
            format!(
                "{{\"type\":\"thinking\",\"thinking\":{},\"signature\":{}}}",
                quoted(thinking),
                quoted(&TurnKey::of(rid, index).to_string())
            )
        }));
        if !message.content.is_empty() {
            blocks.push(format!("{{\"type\":\"text\",\"text\":{}}}", quoted(&message.content)));
        }
        blocks.extend(
            message.calls.iter().enumerate().map(|(at, call)| {
                tool_use(&reader.call_id(call.id.as_deref(), at, rid, index), &call.name, input(call))
            }),
        );
        Ok(Ok(format!(
            "{}[{}],\"stop_reason\":\"{}\",\"stop_sequence\":{},\"usage\":{}}}",
            self.context.head(),
            blocks.join(","),
            stop.reason,
            stop.sequence,
            usage(&Usage::total(update))
        )))
    }

    fn begin(&mut self, out: &mut String) {
        let message = format!(
            "{{\"type\":\"message_start\",\"message\":{}[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{}}}}}",
            self.context.head(),
            usage(&self.usage)
        );
        write_event("message_start", &message, out);
    }

    fn first_event_timeout(&self) -> Option<Duration> {
        Some(FIRST_EVENT_TIMEOUT)
    }

    fn keepalive_interval(&self) -> Option<Duration> {
        Some(PING_INTERVAL)
    }

    fn keepalive(&mut self, out: &mut String) {
        write_event("ping", r#"{"type":"ping"}"#, out);
    }

    fn encoded_tokens(&self, _index: usize) -> usize {
        self.tokens
    }

    fn encode_update(&mut self, update: &SequenceUpdate<'_>, out: &mut String) -> Result<(), BoxError> {
        if update.index > 0 || self.stop.is_some() || self.has_failed {
            return Ok(());
        }
        self.tokens = update.tokens;
        if update.finish == Some("abort") {
            // clients use a block that has stopped: they would run the part of a call that was sampled
            self.fail(&error::aborted(), out);
            return Ok(());
        }
        let events = self.reply.push(&self.context.reader, &update.ids, update.finish)?;
        for (at, event) in events.iter().enumerate() {
            // SDKs parse the input while it arrives, and fail at text that cannot be JSON: the rest of an invalid call
            let ends_invalid = matches!(events.get(at + 1), Some(Event::CallEnd { error: true }));
            if !(ends_invalid && matches!(event, Event::Arguments(_))) {
                self.write(event, update, out);
            }
        }
        if update.finish.is_some() {
            self.end_block(None, update, out);
            self.usage = Usage::total(update);
            self.stop = Some(self.context.stop_reason(update, self.calls > 0));
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.stop.is_some()
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        if !std::mem::replace(&mut self.has_failed, true) {
            write_event("error", &error.body, out);
        }
    }

    fn finish(&mut self, out: &mut String) {
        let Some(StopReason { reason, sequence }) = self.stop.take().filter(|_| !self.has_failed) else { return };
        let data = format!(
            "{{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"{reason}\",\"stop_sequence\":{sequence}}},\"usage\":{}}}",
            usage(&self.usage)
        );
        write_event("message_delta", &data, out);
        write_event("message_stop", r#"{"type":"message_stop"}"#, out);
    }
}

/// A block that calls a tool. `input` is JSON text.
fn tool_use(id: &str, name: &str, input: &str) -> String {
    format!("{{\"type\":\"tool_use\",\"id\":{},\"name\":{},\"input\":{input}}}", quoted(id), quoted(name))
}

fn write_event(name: &str, data: &str, out: &mut String) {
    out.push_str("event: ");
    out.push_str(name);
    out.push_str("\ndata: ");
    out.push_str(data);
    out.push_str("\n\n");
}

/// `usage`, as JSON text. The cached tokens of the prompt are not part of `input_tokens`.
fn usage(usage: &Usage) -> String {
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
fn input(call: &ToolCall) -> &str {
    // stricter than the parser of calls, which accepts NaN as Python does
    let is_object =
        || call.arguments.starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(&call.arguments).is_ok();
    if !call.error && is_object() { &call.arguments } else { "{}" }
}
