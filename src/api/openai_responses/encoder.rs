// SPDX-License-Identifier: Apache-2.0
//! Encodes a response, whole or as a stream of events.

use std::time::Duration;

use super::error;
use super::items::{CallNames, Item, ItemKind, Status};
use super::response::{ResponseContext, ResponseState};
use crate::api::openai::{LogprobWriter, TokenNames, Usage};
use crate::api::{ApiError, EncodedReply, ReplyEncoder};
use crate::chat::quoted;
use crate::chat::reply_reader::{ReplyReader, ReplyStream};
use crate::error::BoxError;
use crate::generation::update::SequenceUpdate;
use crate::parse::Event;
use crate::session::TurnKey;

/// The time without an event after which a stream sends `response.in_progress`. Clients give up on streams without events.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Encodes a response.
#[derive(Debug)]
pub(super) struct ResponseEncoder {
    context: ResponseContext,
    reply: ReplyStream,
    /// The number of the next event.
    sequence_number: u64,
    /// The items that have ended, as JSON texts.
    output: Vec<String>,
    /// The item that has begun and has not ended.
    open: Option<Item>,
    /// A call of a custom tool, and its arguments so far. Its item begins when the arguments are complete, because its input is a text in
    /// them.
    custom: Option<(CallNames, String)>,
    /// The number of tool calls so far.
    calls: usize,
    /// The number of tokens so far.
    tokens: usize,
    /// The status and the usage, once the response has ended.
    end: Option<(Status, Usage)>,
    /// The last event has been written.
    has_ended: bool,
}

impl ResponseEncoder {
    /// An encoder at the beginning of a reply.
    pub(super) fn new(context: ResponseContext) -> Self {
        Self {
            reply: ReplyStream::new(&context.reader),
            context,
            sequence_number: 0,
            output: Vec::new(),
            open: None,
            custom: None,
            calls: 0,
            tokens: 0,
            end: None,
            has_ended: false,
        }
    }

    /// A response without output that ended with an error, as JSON text.
    pub(super) fn failed(&self, error: &ApiError) -> String {
        let error = error::response_member(error);
        let usage = Usage { prompt: self.context.prompt_tokens, completion: self.tokens as u64, ..Usage::default() };
        let status = Status::Failed;
        self.context.json(ResponseState { status, output: &[], error: Some(&error), usage: Some(usage) })
    }

    /// Appends an event. `members` are its other members, as JSON text.
    fn write_event(&mut self, kind: &str, members: &str, out: &mut String) {
        let number = itoa::Buffer::new().format(self.sequence_number).to_owned();
        out.extend(["event: ", kind, "\ndata: {\"type\":\"", kind, "\",\"sequence_number\":", &number, ",", members]);
        out.push_str("}\n\n");
        self.sequence_number += 1;
    }

    /// Appends an event with the response.
    fn write_response(&mut self, kind: &str, state: ResponseState<'_>, out: &mut String) {
        let members = format!("\"response\":{}", self.context.json(state));
        self.write_event(kind, &members, out);
    }

    /// Appends an event of the open item. `members` are those after the ids, as JSON text.
    fn write_item_event(&mut self, kind: &str, members: &str, out: &mut String) {
        let Some(item) = &self.open else { return };
        let members = format!("\"item_id\":{},\"output_index\":{},{members}", quoted(&item.id), self.output.len());
        self.write_event(kind, &members, out);
    }

    /// Begins an item.
    fn begin_item(&mut self, kind: ItemKind, update: &SequenceUpdate<'_>, out: &mut String) {
        let at = self.output.len();
        let item = self.context.item(kind, at, self.context.turn_key(update));
        let added = format!("\"output_index\":{at},\"item\":{}", item.json(Status::InProgress));
        self.write_event("response.output_item.added", &added, out);
        let part = item.kind.part("");
        self.open = Some(item);
        if let Some(part) = part {
            self.write_item_event("response.content_part.added", &format!("\"content_index\":0,\"part\":{part}"), out);
        }
    }

    /// Appends text to the open item.
    fn push_text(&mut self, text: &str, out: &mut String) {
        let Some(item) = &mut self.open else { return };
        item.text.push_str(text);
        let text = quoted(text);
        match item.kind {
            ItemKind::Reasoning(_) => {
                let members = format!("\"content_index\":0,\"delta\":{text}");
                self.write_item_event("response.reasoning_text.delta", &members, out);
            }
            ItemKind::Message(_) => {
                let members = format!("\"content_index\":0,\"delta\":{text},\"logprobs\":[]");
                self.write_item_event("response.output_text.delta", &members, out);
            }
            ItemKind::Function(_) => {
                self.write_item_event("response.function_call_arguments.delta", &format!("\"delta\":{text}"), out);
            }
            ItemKind::Custom(_) | ItemKind::RawCustom(_) => {
                self.write_item_event("response.custom_tool_call_input.delta", &format!("\"delta\":{text}"), out);
            }
        }
    }

    /// Ends the open item.
    fn end_item(&mut self, status: Status, out: &mut String) {
        let Some(Item { kind, text, .. }) = self.open.clone() else { return };
        let part = kind.part(&text);
        let text = quoted(&text);
        match &kind {
            ItemKind::Reasoning(_) => {
                let members = format!("\"content_index\":0,\"text\":{text}");
                self.write_item_event("response.reasoning_text.done", &members, out);
            }
            ItemKind::Message(_) => {
                let members = format!("\"content_index\":0,\"text\":{text},\"logprobs\":[]");
                self.write_item_event("response.output_text.done", &members, out);
            }
            ItemKind::Function(names) => {
                let members = format!("\"name\":{},\"arguments\":{text}", quoted(&names.tool.name));
                self.write_item_event("response.function_call_arguments.done", &members, out);
            }
            ItemKind::Custom(_) | ItemKind::RawCustom(_) => {
                self.write_item_event("response.custom_tool_call_input.done", &format!("\"input\":{text}"), out);
            }
        }
        if let Some(part) = part {
            self.write_item_event("response.content_part.done", &format!("\"content_index\":0,\"part\":{part}"), out);
        }
        let Some(item) = self.open.take().map(|item| item.json(status)) else { return };
        let members = format!("\"output_index\":{},\"item\":{item}", self.output.len());
        self.write_event("response.output_item.done", &members, out);
        self.output.push(item);
    }

    /// Appends the text of a message or of reasoning. Begins an item unless one of this kind is open.
    fn write_text(&mut self, kind: ItemKind, text: &str, update: &SequenceUpdate<'_>, out: &mut String) {
        if self.open.as_ref().is_none_or(|item| item.kind.prefix() != kind.prefix()) {
            self.end_item(Status::Completed, out);
            self.begin_item(kind, update, out);
        }
        self.push_text(text, out);
    }

    /// Appends the events for a part of the reply. `is_last` is true for the last part: how the reply ended decides the status of its item.
    fn write(&mut self, event: &Event, is_last: bool, update: &SequenceUpdate<'_>, out: &mut String) {
        match event {
            Event::Reasoning(text) => {
                let kind = self.context.reasoning(self.context.turn_key(update));
                self.write_text(kind, text, update, out);
            }
            Event::Content(text) => self.write_text(ItemKind::Message("[]".to_owned()), text, update, out),
            Event::CallStart { name, id } => {
                self.end_item(Status::Completed, out);
                let (names, is_custom) = self.context.call(name, id.as_deref(), self.calls, update);
                self.calls += 1;
                if is_custom {
                    self.custom = Some((names, String::new()));
                } else {
                    self.begin_item(ItemKind::Function(names), update, out);
                }
            }
            Event::Arguments(text) => match &mut self.custom {
                Some((_, arguments)) => arguments.push_str(text),
                None => self.push_text(text, out),
            },
            Event::CallEnd { .. } => {
                if let Some((names, arguments)) = self.custom.take() {
                    let (kind, text) = ItemKind::custom(names, arguments);
                    self.begin_item(kind, update, out);
                    self.push_text(&text, out);
                }
                if !is_last {
                    self.end_item(Status::Completed, out);
                }
            }
        }
    }
}

impl ReplyEncoder for ResponseEncoder {
    fn encode_whole(&self, updates: &[SequenceUpdate<'_>]) -> Result<EncodedReply, BoxError> {
        let [update] = updates else { return Err("the engine's reply does not have one sequence".into()) };
        let context = &self.context;
        let status = match context.status(update) {
            Ok(status) => status,
            Err(error) => return Ok(Err(error)),
        };
        let message = context.reader.message(&update.ids, update.finish)?;
        let key = context.turn_key(update);
        let mut items = Vec::new();
        items.extend(message.reasoning.map(|text| (context.reasoning(key), text)));
        if !message.content.is_empty() {
            let logprobs = match context.includes_logprobs {
                true => {
                    let tokenizer = context.reader.renderer.tokenizer();
                    LogprobWriter { tokenizer, names: TokenNames::Texts }.list(&update.token_logprobs())
                }
                false => "[]".to_owned(),
            };
            items.push((ItemKind::Message(logprobs), message.content));
        }
        let before_calls = items.len();
        let calls = message.calls.into_iter().enumerate();
        items.extend(calls.map(|(at, call)| match context.call(&call.name, call.id.as_deref(), at, update) {
            (names, true) => ItemKind::custom(names, call.arguments),
            (names, false) => (ItemKind::Function(names), call.arguments),
        }));
        let cut = match status {
            Status::Incomplete => cut_item(&context.reader, update, before_calls, items.len())?,
            _ => None,
        };
        let items = items.into_iter().enumerate().map(|(at, (kind, text))| {
            let item = Item { text, ..context.item(kind, at, key) };
            item.json(if cut == Some(at) { Status::Incomplete } else { Status::Completed })
        });
        let output: Vec<String> = items.collect();
        let usage = Some(Usage::total(update));
        Ok(Ok(context.json(ResponseState { status, output: &output, error: None, usage })))
    }

    fn set_rid(&mut self, rid: &str) {
        (self.context.key, self.context.has_turn_key) = (TurnKey::of(rid, 0), true);
    }

    fn first_event_timeout(&self) -> Option<Duration> {
        // Codex shows errors only if they are events of the stream
        Some(Duration::ZERO)
    }

    fn begin(&mut self, out: &mut String) {
        let state = ResponseState { status: Status::InProgress, output: &[], error: None, usage: None };
        self.write_response("response.created", state, out);
        self.write_response("response.in_progress", state, out);
    }

    fn keepalive_interval(&self) -> Option<Duration> {
        Some(KEEPALIVE_INTERVAL)
    }

    fn keepalive(&mut self, out: &mut String) {
        let state = ResponseState { status: Status::InProgress, output: &[], error: None, usage: None };
        self.write_response("response.in_progress", state, out);
    }

    fn encoded_tokens(&self, _index: usize) -> usize {
        self.tokens
    }

    fn encode_update(&mut self, update: &SequenceUpdate<'_>, out: &mut String) -> Result<(), BoxError> {
        if update.index > 0 || self.end.is_some() || self.has_ended {
            return Ok(());
        }
        self.tokens = update.tokens;
        let status = match self.context.status(update) {
            Ok(status) => status,
            Err(error) => {
                self.fail(&error, out);
                return Ok(());
            }
        };
        let mut ids = &update.ids[..];
        if update.finish == Some("length") {
            // an item that is complete without the cut has not been cut
            for event in self.reply.push(&self.context.reader, ids, None)? {
                self.write(&event, false, update, out);
            }
            ids = &[];
        }
        let events = self.reply.push(&self.context.reader, ids, update.finish)?;
        for (at, event) in events.iter().enumerate() {
            let is_last = update.finish.is_some() && at + 1 == events.len();
            self.write(event, is_last, update, out);
        }
        if update.finish.is_some() {
            self.end_item(status, out);
            self.end = Some((status, Usage::total(update)));
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        // clients use an item that is done: they would run the part of a call that was sampled
        self.open = None;
        // a generation without a token leaves no turn
        self.context.has_turn_key &= self.tokens > 0;
        let error = error::response_member(error);
        let usage = Usage { prompt: self.context.prompt_tokens, completion: self.tokens as u64, ..Usage::default() };
        // a prompt that was not sent is not counted
        let usage = (usage.prompt > 0).then_some(usage);
        let output = std::mem::take(&mut self.output);
        let state = ResponseState { status: Status::Failed, output: &output, error: Some(&error), usage };
        self.write_response("response.failed", state, out);
    }

    fn finish(&mut self, out: &mut String) {
        let Some((status, usage)) = self.end.take().filter(|_| !self.has_ended) else { return };
        self.has_ended = true;
        let kind = if status == Status::Incomplete { "response.incomplete" } else { "response.completed" };
        let output = std::mem::take(&mut self.output);
        self.write_response(kind, ResponseState { status, output: &output, error: None, usage: Some(usage) }, out);
    }
}

/// The index of the item that the end of a reply has cut off; `None` if all are complete. The calls are the items from `calls` on.
fn cut_item(
    reader: &ReplyReader,
    update: &SequenceUpdate<'_>,
    calls: usize,
    items: usize,
) -> Result<Option<usize>, BoxError> {
    let mut reply = ReplyStream::new(reader);
    let before = reply.push(reader, &update.ids, None)?;
    let complete = calls + before.iter().filter(|event| matches!(event, Event::CallEnd { .. })).count();
    let is_text = |event: Option<&Event>| matches!(event, Some(Event::Content(_) | Event::Reasoning(_)));
    let has_text_at_end = is_text(reply.push(reader, &[], update.finish)?.last().or(before.last()));
    Ok(match complete < items {
        true => Some(items - 1),
        false if has_text_at_end => calls.checked_sub(1),
        false => None,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use bytes::Bytes;
    use http::StatusCode;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::tools::Tools;
    use super::*;
    use crate::api::body::SkippedParts;
    use crate::chat::reply_reader::Stops;
    use crate::generation::event::{EventAccess, EventKind, GenerationEvent};
    use crate::session::ParseOptions;
    use crate::tokenizer::Renderer;

    fn encoder(renderer: &Arc<Renderer>) -> ResponseEncoder {
        let list = r#"[{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}]"#;
        let mut tools = Tools::default();
        let list = crate::json::Value::parse(list.as_bytes()).unwrap();
        tools.add(Some(&list), "tools", &mut SkippedParts::new(false)).unwrap();
        let options = ParseOptions { format: Some("hermes".into()), separate: true, ..ParseOptions::default() };
        ResponseEncoder::new(ResponseContext {
            reader: ReplyReader { renderer: Arc::clone(renderer), options, stops: Stops::default() },
            tools: Arc::new(tools),
            key: TurnKey::of("r", 0),
            has_turn_key: false,
            stores: false,
            model: "m".to_owned(),
            created: 0,
            completed: None,
            echo: Bytes::new(),
            prompt_tokens: 1,
            includes_encrypted_reasoning: true,
            includes_logprobs: false,
            completes_at_length: false,
        })
    }

    fn renderer() -> Arc<Renderer> {
        let demo = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/demo/assets"));
        Arc::new(Renderer::open(demo).unwrap())
    }

    /// The events of a stream in which each piece of tokens has the length of the next number.
    fn stream(renderer: &Arc<Renderer>, text: &str, lengths: &[usize], keepalive: bool) -> Vec<Value> {
        let ids = renderer.tokenizer().encode_rendered(text).unwrap();
        let mut encoder = encoder(renderer);
        let mut out = String::new();
        encoder.begin(&mut out);
        let (mut sent, mut lengths) = (0, lengths.iter().cycle());
        while sent < ids.len() {
            let next = (sent + lengths.next().copied().unwrap_or(1)).min(ids.len());
            let finish = if next == ids.len() { json!({"type": "stop", "matched": 1}) } else { Value::Null };
            let event = json!({"output_ids": ids[sent..next], "meta_info": {"id": "rid", "completion_tokens": next, "prompt_tokens": 1, "finish_reason": finish}});
            let event = GenerationEvent::outline(Bytes::from(event.to_string()), EventAccess::Fields).unwrap();
            let EventKind::Outputs(outputs) = &event.kind else { panic!("an object") };
            let update = SequenceUpdate::new(&event, &outputs[0], encoder.encoded_tokens(0)).unwrap();
            encoder.encode_update(&update, &mut out).unwrap();
            if keepalive {
                encoder.keepalive(&mut out);
            }
            sent = next;
        }
        encoder.finish(&mut out);
        let data = out.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    /// The items of a response. Checks that the events build them.
    fn items(events: &[Value]) -> Vec<Value> {
        let mut built: Vec<Value> = Vec::new();
        let mut text = String::new();
        for (at, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], at);
            let kind = event["type"].as_str().unwrap();
            if kind.ends_with("item.added") {
                text.clear();
            } else if kind.ends_with(".delta") {
                text.push_str(event["delta"].as_str().unwrap());
            } else if kind.ends_with("item.done") {
                let item = &event["item"];
                let shown = [&item["content"][0]["text"], &item["arguments"], &item["input"]];
                assert_eq!(shown.iter().find_map(|shown| shown.as_str()), Some(&*text), "{item}");
                built.push(item.clone());
            }
        }
        let last = &events[events.len() - 1];
        assert_eq!((&last["type"], &last["response"]["output"]), (&json!("response.completed"), &json!(built)));
        built
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn items_do_not_depend_on_the_pieces_of_the_stream(
            parts in prop::collection::vec(prop_oneof![
                Just("<think>"), Just("</think>"), Just("<tool_call>"), Just("</tool_call>"), Just("\n"), Just("It rains."),
                Just(r#"{"name": "f", "arguments": {"a": 1}}"#), Just(r#"{"name": "c", "arguments": {"input": "é"}}"#),
                Just(r#"<tool_call>{"name": "c", "arguments": {"x": 1}}</tool_call>"#), Just(r#"{"name": "#), Just("\u{1f327}"),
            ], 1..9),
            lengths in prop::collection::vec(1_usize..7, 1..5),
            keepalive in any::<bool>(),
        ) {
            let renderer = renderer();
            let text = parts.concat() + "<|im_end|>";
            let pieces = stream(&renderer, &text, &lengths, keepalive);
            let at_once = stream(&renderer, &text, &[usize::MAX / 2], false);
            assert_eq!(items(&pieces), items(&at_once), "{text:?}");
        }
    }

    #[test]
    fn failed_stream_ends_with_its_items_and_an_error() {
        let renderer = renderer();
        let mut encoder = encoder(&renderer);
        let mut out = String::new();
        encoder.begin(&mut out);
        for status in [StatusCode::BAD_GATEWAY, StatusCode::BAD_REQUEST] {
            encoder.fail(&error::error(status, "gone"), &mut out);
            encoder.finish(&mut out);
        }
        assert_eq!(out.matches("event: response.failed\n").count(), 1, "{out}");
        assert!(out.contains(r#""error":{"code":"server_error","message":"gone"}"#), "{out}");
        assert!(!out.contains("response.completed"), "{out}");
    }
}
