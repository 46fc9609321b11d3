// SPDX-License-Identifier: Apache-2.0
//! Encodes the reply to a completion. Its text is the engine's text.

use super::request::CompletionRequest;
use crate::api::openai::error::{write_done, write_event};
use crate::api::openai::{TokenNames, Usage, id_list, metadata};
use crate::api::{ApiError, EncodedReply, ReplyEncoder};
use crate::chat::{dumps, quoted};
use crate::engine::capabilities::StreamMode;
use crate::error::BoxError;
use crate::generation::update::{SequenceUpdate, TokenLogprob};
use crate::json::Value;

/// Encodes the reply to a completion, whole or streamed.
#[derive(Debug)]
pub(super) struct CompletionEncoder {
    model: String,
    created: u64,
    logprobs: Option<u32>,
    token_names: TokenNames,
    token_ids: bool,
    routed_experts: bool,
    echo: Vec<String>,
    n: usize,
    /// The number of requested sequences.
    sequences: usize,
    /// The streaming mode that the engine reports.
    streaming: Option<StreamMode>,
    include_usage: bool,
    continuous_usage: bool,
    choices: Vec<Choice>,
    usage: Usage,
    id: String,
    metadata: String,
    /// The routed experts of the first choice that has them, as JSON text.
    experts: Option<String>,
}

/// The part of a sequence that was sent to the client.
#[derive(Debug, Default)]
struct Choice {
    tokens: usize,
    text: String,
    /// An event has shown that events hold only new text.
    is_incremental: bool,
    has_started: bool,
    has_ended: bool,
}

impl Choice {
    /// Returns the new text of an event. The event has the whole text or only the new text. If its ids repeat, it has the whole text. If
    /// its ids are only the new ones, the text itself must show the mode: SGLang 0.5.6 with `--stream-output` repeats text but not ids.
    fn new_text<'a>(&mut self, text: &'a str, ids_repeat: bool, streaming: Option<StreamMode>) -> &'a str {
        let known = self.text.len();
        let continues = || text.len() > known && text.starts_with(&self.text);
        let repeats = match streaming {
            _ if ids_repeat => true,
            Some(StreamMode::Incremental) => false,
            // the engine may have cut a stop string off the end of the earlier text
            Some(StreamMode::IncrementalIds) if self.text.starts_with(text) => true,
            _ => known > 0 && !self.is_incremental && continues(),
        };
        self.is_incremental |= known > 0 && !repeats && !text.is_empty();
        let new = if repeats { text.get(known..).unwrap_or_default() } else { text };
        self.text.push_str(new);
        new
    }
}

impl CompletionEncoder {
    /// An encoder at the beginning of a reply.
    pub(super) fn new(request: &CompletionRequest, created: u64, streaming: Option<StreamMode>) -> Self {
        Self {
            model: request.model.clone(),
            created,
            logprobs: request.logprobs,
            token_names: request.token_names,
            token_ids: request.token_ids,
            routed_experts: request.routed_experts,
            experts: None,
            echo: request.echo.clone(),
            n: request.n,
            sequences: request.prompt_count * request.n,
            streaming,
            include_usage: request.include_usage,
            continuous_usage: request.continuous_usage,
            choices: Vec::new(),
            usage: Usage::default(),
            id: String::new(),
            metadata: String::new(),
        }
    }

    /// The start of a reply or a chunk, up to `choices`.
    fn head(&self, id: &str) -> String {
        format!(
            "{{\"id\":{},\"object\":\"text_completion\",\"created\":{},\"model\":{},",
            quoted(id),
            self.created,
            quoted(&self.model)
        )
    }

    /// `sglext` with the routed experts of a sequence, if the client asks for them, with a leading comma.
    fn sglext(&self, experts: Option<&str>) -> String {
        // SGLang leaves out an empty text
        let experts = experts.filter(|experts| self.routed_experts && *experts != "\"\"");
        experts.map_or(String::new(), |experts| format!(",\"sglext\":{{\"routed_experts\":{experts}}}"))
    }

    /// The prompt of a sequence if the reply repeats it, or an empty text.
    fn prompt(&self, index: usize) -> &str {
        self.echo.get(index / self.n).map_or("", String::as_str)
    }

    /// A choice, as JSON text.
    fn choice(&self, update: &SequenceUpdate<'_>, text: &str, first: bool) -> String {
        let logprobs = self
            .logprobs
            .map_or("null".to_owned(), |count| logprobs(&update.token_logprobs(), self.token_names, count > 0));
        let mut ids = String::new();
        if self.token_ids {
            ids = format!(",\"token_ids\":{}", id_list(&update.ids));
            if let Some(prompt) = update.prompt_ids().filter(|_| first) {
                ids.push_str(&format!(",\"prompt_token_ids\":{prompt}"));
            }
        }
        format!(
            "{{\"index\":{},\"text\":{},\"logprobs\":{logprobs},\"finish_reason\":{},\"matched_stop\":{}{ids}}}",
            update.index,
            quoted(text),
            update.finish.map_or("null".to_owned(), quoted),
            update.matched.unwrap_or("null"),
        )
    }
}

impl ReplyEncoder for CompletionEncoder {
    fn encode_whole(&self, updates: &[SequenceUpdate<'_>]) -> Result<EncodedReply, BoxError> {
        let mut usage = Usage::default();
        let choices: Vec<String> = updates
            .iter()
            .map(|update| {
                usage.add(update, self.n);
                let text = format!("{}{}", self.prompt(update.index), update.text());
                self.choice(update, &text, true)
            })
            .collect();
        let first = updates.first();
        Ok(Ok(format!(
            "{}\"choices\":[{}],\"usage\":{}{}{}}}",
            self.head(first.and_then(SequenceUpdate::rid).unwrap_or_default()),
            choices.join(","),
            usage.json(),
            first.map(metadata).unwrap_or_default(),
            self.sglext(first.and_then(SequenceUpdate::routed_experts)),
        )))
    }

    fn encoded_tokens(&self, index: usize) -> usize {
        self.choices.get(index).map_or(0, |choice| choice.tokens)
    }

    fn encode_update(&mut self, update: &SequenceUpdate<'_>, out: &mut String) -> Result<(), BoxError> {
        let at = update.index;
        if at >= self.sequences {
            // the client did not ask for it
            return Ok(());
        }
        if self.choices.len() <= at {
            self.choices.resize_with(at + 1, Choice::default);
        }
        let text = update.text();
        let choice = &mut self.choices[at];
        let new = choice.new_text(&text, update.repeats, self.streaming);
        choice.tokens = update.tokens;
        let first = !std::mem::replace(&mut choice.has_started, true);
        let text = if first { format!("{}{new}", self.prompt(at)) } else { new.to_owned() };
        if let Some(rid) = update.rid() {
            rid.clone_into(&mut self.id);
        }
        let choice = self.choice(update, &text, first);
        let usage = match self.continuous_usage {
            true => Usage::so_far(update).json(),
            false => "null".to_owned(),
        };
        out.push_str(&format!("data: {}\"choices\":[{choice}],\"usage\":{usage}}}\n\n", self.head(&self.id)));
        if update.finish.is_some() {
            self.choices[at].has_ended = true;
            self.usage.add(update, self.n);
            self.metadata = metadata(update);
            if self.experts.is_none() && self.routed_experts {
                self.experts = update.routed_experts().map(str::to_owned);
            }
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.choices.iter().filter(|choice| choice.has_ended).count() >= self.sequences
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        write_event(error, out);
    }

    fn finish(&mut self, out: &mut String) {
        let sglext = self.sglext(self.experts.as_deref());
        if !sglext.is_empty() {
            out.push_str(&format!("data: {}\"choices\":[],\"usage\":null{sglext}}}\n\n", self.head(&self.id)));
        }
        if self.include_usage {
            let usage = self.usage.json();
            out.push_str(&format!(
                "data: {}\"choices\":[],\"usage\":{usage}{}}}\n\n",
                self.head(&self.id),
                self.metadata
            ));
        }
        write_done(out);
    }
}

/// `logprobs` of a completion: lists with an entry for each token. With `top`, one of them has the likeliest tokens.
fn logprobs(tokens: &[TokenLogprob], names: TokenNames, top: bool) -> String {
    let name = |id: u32, text: &Option<String>| names.name(id, text.as_deref().unwrap_or_default()).into_owned();
    let joined = |list: Vec<String>| list.join(",");
    let likeliest = |token: &TokenLogprob| {
        // tokens with the same text become one member, as in a Python dict
        let mut members: Vec<(String, Value)> = Vec::new();
        for (id, logprob, text) in &token.top {
            let text = name(*id, text);
            let value = if logprob == "null" { Value::Null } else { Value::Number(logprob.as_str().into()) };
            match members.iter_mut().find(|(known, _)| *known == text) {
                Some((_, known)) => *known = value,
                None => members.push((text, value)),
            }
        }
        dumps(&Value::Object(members))
    };
    format!(
        "{{\"text_offset\":[{}],\"token_logprobs\":[{}],\"tokens\":[{}],\"top_logprobs\":[{}]}}",
        joined(tokens.iter().map(|_| "-1".to_owned()).collect()),
        joined(tokens.iter().map(|token| token.logprob.clone()).collect()),
        joined(tokens.iter().map(|token| quoted(&name(token.id, &token.text))).collect()),
        if top { joined(tokens.iter().map(likeliest).collect()) } else { String::new() },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(streaming: Option<StreamMode>, ids_repeat: bool, texts: &[&str]) -> String {
        let mut choice = Choice::default();
        texts.iter().map(|text| choice.new_text(text, ids_repeat, streaming).to_owned()).collect()
    }

    #[test]
    fn new_text_is_found_in_each_streaming_mode() {
        use StreamMode::{Cumulative, Incremental, IncrementalIds};
        let (all, new) = (["The", "The sea", "The sea is"], ["The", " sea", " is"]);
        for streaming in [None, Some(Cumulative), Some(Incremental), Some(IncrementalIds)] {
            assert_eq!(text_of(streaming, true, &all), "The sea is", "{streaming:?}: events repeat ids and text");
            assert_eq!(
                text_of(streaming, false, &new),
                "The sea is",
                "{streaming:?}: events have only new ids and text"
            );
        }
        for streaming in [None, Some(Cumulative), Some(IncrementalIds)] {
            assert_eq!(
                text_of(streaming, false, &all),
                "The sea is",
                "{streaming:?}: events repeat the text but not the ids"
            );
        }
        assert_eq!(text_of(Some(Incremental), false, &["ha", "ha", "haha"]), "hahahaha");
        assert_eq!(text_of(None, false, &["ha", "ha", " no"]), "haha no");
        assert_eq!(text_of(Some(IncrementalIds), false, &["a st", "a "]), "a st", "the engine cut off a stop string");
    }
}
