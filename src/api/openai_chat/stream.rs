// SPDX-License-Identifier: Apache-2.0
//! Encodes the chunks of a streamed chat from the events of a /generate stream.

use super::reply::{Delta, ReplyContext, ToolCallMember};
use super::request::StreamOptions;
use crate::api::openai::error::{write_done, write_event};
use crate::api::openai::{Usage, metadata};
use crate::api::{ApiError, EncodedReply, ReplyEncoder, to_json};
use crate::chat::quoted;
use crate::chat::reply_reader::ReplyStream;
use crate::error::BoxError;
use crate::generation::update::SequenceUpdate;
use crate::parse::Event;
use crate::tokenizer::TokenizerError;

/// Encodes a chat reply, whole or streamed.
#[derive(Debug)]
pub(super) struct ChatEncoder {
    context: ReplyContext,
    options: StreamOptions,
    choices: Vec<Choice>,
    usage: Usage,
    /// The choices that have ended, in the order of their ends: index, `finish_reason` and `matched_stop`.
    ended: Vec<(usize, String, String)>,
    /// A choice, or the stream, ended with an error.
    failed: bool,
    /// The `id` of chunks without a choice.
    id: String,
    metadata: String,
    /// The routed experts of the first choice that has them, as JSON text.
    experts: Option<String>,
}

impl ChatEncoder {
    /// An encoder at the beginning of a reply.
    pub(super) fn new(context: ReplyContext, options: StreamOptions) -> Self {
        Self {
            context,
            options,
            choices: Vec::new(),
            usage: Usage::default(),
            ended: Vec::new(),
            failed: false,
            id: String::new(),
            metadata: String::new(),
            experts: None,
        }
    }

    /// The members of a chunk that the client asks for and that describe the new tokens.
    fn chunk_extras(&self, update: &SequenceUpdate<'_>) -> ChunkExtras {
        let mut extras = ChunkExtras::default();
        if !update.ids.is_empty() {
            extras.logprobs = self.context.logprobs(update);
            extras.choice = self.context.choice_ids(update);
        }
        extras.choice.push_str(&self.context.meta_info(update));
        if self.options.continuous_usage {
            extras.chunk = format!(",\"usage\":{}", Usage::so_far(update).json());
        }
        extras
    }

    /// Records the end of a choice. Its last chunk is written when the stream ends.
    fn end(&mut self, at: usize, update: &SequenceUpdate<'_>, finish: &str) {
        self.usage.add(update, self.context.n);
        self.metadata = metadata(update);
        if self.experts.is_none() && self.context.extras.routed_experts {
            self.experts = update.routed_experts().map(str::to_owned);
        }
        let choice = &mut self.choices[at];
        choice.ended = true;
        let finish = if choice.calls > 0 && finish == "stop" { "tool_calls" } else { finish };
        let matched = update.matched.unwrap_or("null").to_owned();
        self.ended.push((at, finish.to_owned(), matched));
    }

    /// The start of a chunk, up to the value of `choices`.
    fn head(&self, id: &str) -> String {
        format!(
            "data: {{\"id\":{},\"object\":\"chat.completion.chunk\",\"created\":{},\"model\":{},\"choices\":",
            quoted(id),
            self.context.created,
            quoted(&self.context.model)
        )
    }

    /// Appends a chunk of a choice that has not ended.
    fn chunk(&self, at: usize, delta: &str, extras: &ChunkExtras, out: &mut String) {
        let ChunkExtras { logprobs, choice, chunk } = extras;
        out.push_str(&self.head(&self.choices[at].id));
        out.push_str(&format!(
            "[{{\"index\":{at},\"delta\":{delta},\"logprobs\":{},\"finish_reason\":null,\"matched_stop\":null{choice}}}]{chunk}}}\n\n",
            logprobs.as_deref().unwrap_or("null")
        ));
    }
}

impl ReplyEncoder for ChatEncoder {
    fn encode_whole(&self, updates: &[SequenceUpdate<'_>]) -> Result<EncodedReply, BoxError> {
        Ok(Ok(self.context.whole(updates)?))
    }

    fn encoded_tokens(&self, index: usize) -> usize {
        self.choices.get(index).map_or(0, |choice| choice.tokens)
    }

    fn encode_update(&mut self, update: &SequenceUpdate<'_>, out: &mut String) -> Result<(), BoxError> {
        let at = update.index;
        if at >= self.context.n {
            // the client did not ask for it
            return Ok(());
        }
        if let Some(rid) = update.rid() {
            rid.clone_into(&mut self.id);
        }
        self.context.read_prompt(update);
        // choices start in the order of their indexes, whichever has the first event, because OpenAI's SDK stores them by position
        for new in self.choices.len()..=at {
            self.choices.push(Choice::new(&self.context, &self.id));
            let choice = self.context.choice_prompt_ids();
            let chunk = if new == 0 { self.context.prompt_ids() } else { String::new() };
            let delta = Delta { role: Some("assistant"), content: Some(""), ..Delta::default() };
            self.chunk(new, &to_json(&delta), &ChunkExtras { choice, chunk, ..ChunkExtras::default() }, out);
        }
        if self.choices[at].ended {
            return Ok(());
        }
        self.id.clone_into(&mut self.choices[at].id);
        let mut events = self.choices[at].read(&self.context, update)?;
        if self.options.join_reasoning {
            events = self.choices[at].join_reasoning(events, update.finish.is_some());
        }
        let mut extras = self.chunk_extras(update);
        let mut deltas = Vec::new();
        for event in events {
            match event {
                Event::Reasoning(text) => {
                    deltas.push(to_json(&Delta { reasoning_content: Some(&text), ..Delta::default() }));
                }
                Event::Content(text) => {
                    deltas.push(to_json(&Delta { content: Some(&text), ..Delta::default() }));
                }
                Event::CallStart { name, id } => {
                    let number = self.choices[at].calls;
                    self.choices[at].calls += 1;
                    let (rid, index) = update.name();
                    let id = self.context.reader.call_id(id.as_deref(), number, rid, index);
                    if self.context.custom_tools.contains(&name) {
                        self.choices[at].custom = Some(CustomParts { id, name, arguments: String::new() });
                        continue;
                    }
                    let call = ToolCallMember::with_name(&id, number, &name, "");
                    deltas.push(to_json(&Delta { tool_calls: &[call], ..Delta::default() }));
                }
                Event::Arguments(text) => {
                    if let Some(custom) = &mut self.choices[at].custom {
                        custom.arguments.push_str(&text);
                        continue;
                    }
                    let call = ToolCallMember::arguments(self.choices[at].calls.saturating_sub(1), &text);
                    deltas.push(to_json(&Delta { tool_calls: &[call], ..Delta::default() }));
                }
                Event::CallEnd { .. } => {
                    let Some(CustomParts { id, name, arguments }) = self.choices[at].custom.take() else { continue };
                    let call = self.context.call(id, name, arguments);
                    let call = call.member(self.choices[at].calls.saturating_sub(1));
                    deltas.push(to_json(&Delta { tool_calls: &[call], ..Delta::default() }));
                }
            }
        }
        if deltas.is_empty() && extras.needs_chunk() {
            deltas.push(to_json(&Delta::default()));
        }
        for delta in deltas {
            self.chunk(at, &delta, &extras, out);
            // the members that describe the tokens belong to the first chunk of an event
            extras = ChunkExtras { chunk: extras.chunk, ..ChunkExtras::default() };
        }
        if let Some(finish) = update.finish {
            self.end(at, update, finish);
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.ended.len() >= self.context.n
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        self.failed = true;
        write_event(error, out);
    }

    fn finish(&mut self, out: &mut String) {
        for (at, finish, matched) in std::mem::take(&mut self.ended) {
            let head = self.head(&self.choices[at].id);
            out.push_str(&format!(
                "{head}[{{\"index\":{at},\"delta\":{{\"reasoning_content\":null}},\"logprobs\":null,\"finish_reason\":{},\"matched_stop\":{matched}}}]}}\n\n",
                quoted(&finish)
            ));
        }
        // as in SGLang, a failed reply has no `sglext`
        let ids = || self.choices.iter().map(|choice| &*choice.ids);
        let (experts, framed) = (self.experts.as_deref(), self.context.sglext.framed);
        let mut chunks = [("", self.context.sglext(experts, ids())), ("", String::new())];
        if framed && self.context.sglext.requests_ids() {
            // the ids alone have a separate event
            chunks =
                [("", self.context.experts_alone(experts)), ("event: sglext_ids\n", self.context.sglext(None, ids()))];
        }
        for (frame, sglext) in chunks.iter().filter(|(_, sglext)| !sglext.is_empty() && !self.failed) {
            out.push_str(&format!("{frame}{}[],\"usage\":null{sglext}}}\n\n", self.head(&self.id)));
        }
        if self.options.include_usage {
            let head = self.head(&self.id);
            out.push_str(&format!("{head}[],\"usage\":{}{}}}\n\n", self.usage.json(), self.metadata));
        }
        write_done(out);
    }
}

/// Members of a chunk in addition to `delta`.
#[derive(Debug, Default)]
struct ChunkExtras {
    logprobs: Option<String>,
    /// Additional members of the choice, each with a leading comma.
    choice: String,
    /// Additional members of the chunk, each with a leading comma.
    chunk: String,
}

impl ChunkExtras {
    /// Whether a chunk must be sent for these members alone.
    fn needs_chunk(&self) -> bool {
        self.logprobs.is_some() || !self.choice.is_empty()
    }
}

/// The state of a choice.
#[derive(Debug)]
struct Choice {
    id: String,
    reply: ReplyStream,
    /// The incomplete reasoning, if the client asks for it in one piece.
    reasoning: String,
    /// All sampled ids, if `sglext` is requested.
    ids: Vec<u32>,
    /// The number of tokens so far.
    tokens: usize,
    /// The number of tool calls so far.
    calls: usize,
    /// A call of a custom tool that is incomplete. It is sent when it is complete, because its input is a text in the arguments.
    custom: Option<CustomParts>,
    ended: bool,
}

/// The parts of an incomplete call of a custom tool.
#[derive(Debug)]
struct CustomParts {
    id: String,
    name: String,
    /// The arguments so far.
    arguments: String,
}

impl Choice {
    fn new(context: &ReplyContext, id: &str) -> Self {
        Self {
            id: id.to_owned(),
            reply: ReplyStream::new(&context.reader),
            reasoning: String::new(),
            ids: Vec::new(),
            tokens: 0,
            calls: 0,
            custom: None,
            ended: false,
        }
    }

    /// Parses the new tokens of an event.
    fn read(&mut self, context: &ReplyContext, update: &SequenceUpdate<'_>) -> Result<Vec<Event>, TokenizerError> {
        self.tokens = update.tokens;
        if context.sglext.output {
            self.ids.extend_from_slice(&update.ids);
        }
        self.reply.push(&context.reader, &update.ids, update.finish)
    }

    /// Joins the pieces of each reasoning text. An incomplete one is kept until it is complete, or until the reply has `ended`.
    fn join_reasoning(&mut self, events: Vec<Event>, ended: bool) -> Vec<Event> {
        let mut joined = Vec::new();
        let flush = |reasoning: &mut String, joined: &mut Vec<Event>| {
            joined.extend(Some(std::mem::take(reasoning)).filter(|text| !text.is_empty()).map(Event::Reasoning));
        };
        for event in events {
            match event {
                Event::Reasoning(text) => self.reasoning.push_str(&text),
                event => {
                    flush(&mut self.reasoning, &mut joined);
                    joined.push(event);
                }
            }
        }
        if ended {
            flush(&mut self.reasoning, &mut joined);
        }
        joined
    }
}
