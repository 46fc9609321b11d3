//! Encodes a chat that streams: chunks from the events of a native stream.

mod choice;

use super::logprobs;
use super::members::{Delta, ToolCallMember};
use super::reply::ReplyContext;
use super::request::StreamOptions;
use crate::api::openai::problem::{write_done, write_event};
use crate::api::openai::{Usage, metadata, to_json};
use crate::api::sample::Sample;
use crate::api::{ApiError, ReplyEncoder};
use crate::chat::quoted;
use crate::chat::reading::call_id;
use crate::error::BoxError;
use crate::parse::Event;
use choice::Choice;

/// Encodes the chunks of a reply.
#[derive(Debug)]
pub(crate) struct ChatEncoder {
    context: ReplyContext,
    options: StreamOptions,
    choices: Vec<Choice>,
    usage: Usage,
    /// Choices that have ended, in the order of their ends: how, and by what.
    ended: Vec<(usize, String, String)>,
    /// One of them ended by an error.
    failed: bool,
    /// The id that chunks bear which are of no choice.
    id: String,
    metadata: String,
}

impl ChatEncoder {
    /// An encoder at the beginning of a reply.
    #[must_use]
    pub(crate) fn new(context: ReplyContext, options: StreamOptions) -> Self {
        Self {
            context,
            options,
            choices: Vec::new(),
            usage: Usage::default(),
            ended: Vec::new(),
            failed: false,
            id: String::new(),
            metadata: String::new(),
        }
    }

    /// What the client has asked for of the new tokens.
    fn chunk_extras(&self, sample: &Sample<'_>) -> ChunkExtras {
        let ReplyContext { renderer, logprobs: wanted, .. } = &self.context;
        let mut beside = ChunkExtras::default();
        if *wanted && !sample.ids.is_empty() {
            beside.logprobs = Some(logprobs::content(renderer.tokenizer(), &sample.token_logprobs()));
        }
        if !sample.ids.is_empty() {
            beside.extras = self.context.ids(sample);
        }
        beside.extras.push_str(&self.context.meta_info(sample));
        if self.options.running_usage {
            let usage = Usage { prompt: sample.prompt_tokens(), completion: sample.tokens as u64, ..Usage::default() };
            beside.top = format!(",\"usage\":{}", usage.json());
        }
        beside
    }

    fn end(&mut self, at: usize, sample: &Sample<'_>, finish: &str) {
        self.usage.add(sample, self.context.n);
        self.metadata = metadata(sample);
        self.failed |= sample.failed;
        let choice = &mut self.choices[at];
        choice.ended = true;
        let finish = if choice.calls > 0 && finish == "stop" { "tool_calls" } else { finish };
        let matched = sample.matched.clone().unwrap_or_else(|| "null".to_owned());
        self.ended.push((at, finish.to_owned(), matched));
    }

    fn head(&self, id: &str) -> String {
        format!(
            "data: {{\"id\":{},\"object\":\"chat.completion.chunk\",\"created\":{},\"model\":{},\"choices\":",
            quoted(id),
            self.context.created,
            quoted(&self.context.model)
        )
    }

    fn chunk(&self, at: usize, delta: &str, beside: &ChunkExtras, out: &mut String) {
        let ChunkExtras { logprobs, extras, top } = beside;
        out.push_str(&self.head(&self.choices[at].id));
        out.push_str(&format!(
            "[{{\"index\":{at},\"delta\":{delta},\"logprobs\":{},\"finish_reason\":null,\"matched_stop\":null{extras}}}]{top}}}\n\n",
            logprobs.as_deref().unwrap_or("null")
        ));
    }
}

impl ReplyEncoder for ChatEncoder {
    fn whole(&self, samples: &[Sample<'_>]) -> Result<String, BoxError> {
        Ok(self.context.whole(samples)?)
    }

    fn known(&self, index: usize) -> usize {
        self.choices.get(index).map_or(0, |choice| choice.tokens)
    }

    fn event(&mut self, sample: &Sample<'_>, out: &mut String) -> Result<(), BoxError> {
        let at = sample.index;
        if at >= self.context.n {
            // the client did not ask for it
            return Ok(());
        }
        if let Some(rid) = sample.rid() {
            rid.clone_into(&mut self.id);
        }
        // choices begin in their order, whichever has the first event: OpenAI's SDK keeps them by their place
        for begun in self.choices.len()..=at {
            self.choices.push(Choice::new(&self.context, &self.id));
            let extras = self.context.prompt_of_choice();
            let top = if begun == 0 { self.context.prompt_ids() } else { String::new() };
            let delta = Delta { role: Some("assistant"), content: Some(""), ..Delta::default() };
            self.chunk(begun, &to_json(&delta), &ChunkExtras { extras, top, ..ChunkExtras::default() }, out);
        }
        if self.choices[at].ended {
            return Ok(());
        }
        self.id.clone_into(&mut self.choices[at].id);
        let mut events = self.choices[at].read(&self.context, sample)?;
        if self.options.whole_thoughts {
            events = self.choices[at].hold(events, sample.finish.is_some());
        }
        let mut beside = self.chunk_extras(sample);
        let mut deltas = Vec::new();
        for event in events {
            match event {
                Event::Reasoning(text) => {
                    deltas.push(to_json(&Delta { reasoning_content: Some(&text), ..Delta::default() }));
                }
                Event::Content(text) => {
                    deltas.push(to_json(&Delta { content: Some(&text), ..Delta::default() }));
                }
                Event::Call(call) => {
                    let number = self.choices[at].calls;
                    self.choices[at].calls += 1;
                    let id = call_id(&call, number, sample.name(), &self.context.reading);
                    let name = ToolCallMember::named(&id, number, &call.name, "");
                    deltas.push(to_json(&Delta { tool_calls: &[name], ..Delta::default() }));
                    let arguments = ToolCallMember::more(number, &call.arguments);
                    deltas.push(to_json(&Delta { tool_calls: &[arguments], ..Delta::default() }));
                }
            }
        }
        if deltas.is_empty() && beside.is_needed() {
            deltas.push(to_json(&Delta::default()));
        }
        for delta in deltas {
            self.chunk(at, &delta, &beside, out);
            // members about the tokens go with the first of their chunks
            beside = ChunkExtras { top: beside.top, ..ChunkExtras::default() };
        }
        if let Some(finish) = &sample.finish {
            self.end(at, sample, finish);
        }
        Ok(())
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
        // as in the engine, a reply that failed has none
        if self.context.sglext.any() && !self.failed {
            let frame = if self.context.sglext.framed { "event: sglext_ids\n" } else { "" };
            let sglext = self.context.sglext(self.choices.iter().map(|choice| &*choice.ids));
            out.push_str(&format!("{frame}{}[],\"usage\":null{sglext}}}\n\n", self.head(&self.id)));
        }
        if self.options.usage {
            let head = self.head(&self.id);
            out.push_str(&format!("{head}[],\"usage\":{}{}}}\n\n", self.usage.json(), self.metadata));
        }
        write_done(out);
    }
}

/// Members of a chunk beside its delta.
#[derive(Debug, Default)]
struct ChunkExtras {
    logprobs: Option<String>,
    /// More members of the choice, each behind a comma.
    extras: String,
    /// More members of the chunk, each behind a comma.
    top: String,
}

impl ChunkExtras {
    /// Whether the client would miss it if there were no chunk for it.
    fn is_needed(&self) -> bool {
        self.logprobs.is_some() || !self.extras.is_empty()
    }
}
