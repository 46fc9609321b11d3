//! The reply to a completion: the engine's own text.

use super::request::CompletionRequest;
use crate::api::openai::problem::{write_done, write_event};
use crate::api::openai::{Usage, list, metadata};
use crate::api::sample::{Sample, TokenLogprob};
use crate::api::{ApiError, ReplyEncoder};
use crate::chat::{dumps, quoted};
use crate::engine::probe::Streaming;
use crate::error::BoxError;
use crate::json::Value;

/// Encodes the reply to a completion, whole or streamed.
#[derive(Debug)]
pub(crate) struct CompletionEncoder {
    model: String,
    created: u64,
    logprobs: Option<u32>,
    token_ids: bool,
    echo: Vec<String>,
    n: usize,
    /// How many sequences were asked for.
    most: usize,
    /// The streaming mode that the engine names.
    streaming: Option<Streaming>,
    include_usage: bool,
    running_usage: bool,
    choices: Vec<Choice>,
    usage: Usage,
    id: String,
    metadata: String,
}

/// The part of a sample that was sent.
#[derive(Debug, Default)]
struct Choice {
    tokens: usize,
    text: String,
    /// An event has shown that events hold new text alone.
    is_incremental: bool,
    begun: bool,
}

impl Choice {
    /// The new text of an event, which holds all text or only the new text. Ids that repeat show the first; where ids are new ones
    /// alone, only the text tells the modes apart (SGLang 0.5.6 with `--stream-output` repeats text but not ids).
    fn new_text<'a>(&mut self, text: &'a str, ids_repeat: bool, streaming: Option<Streaming>) -> &'a str {
        let known = self.text.len();
        let continues = || text.len() > known && text.starts_with(&self.text);
        let repeats = match streaming {
            _ if ids_repeat => true,
            Some(Streaming::Incremental) => false,
            // a stop string may be cut off the end of what came before
            Some(Streaming::IncrementalIds) if self.text.starts_with(text) => true,
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
    #[must_use]
    pub(crate) fn new(request: &CompletionRequest, created: u64, streaming: Option<Streaming>) -> Self {
        Self {
            model: request.model.clone(),
            created,
            logprobs: request.logprobs,
            token_ids: request.token_ids,
            echo: request.echo.clone(),
            n: request.n,
            most: request.prompts * request.n,
            streaming,
            include_usage: request.include_usage,
            running_usage: request.running_usage,
            choices: Vec::new(),
            usage: Usage::default(),
            id: String::new(),
            metadata: String::new(),
        }
    }

    fn head(&self, id: &str) -> String {
        format!(
            "{{\"id\":{},\"object\":\"text_completion\",\"created\":{},\"model\":{},",
            quoted(id),
            self.created,
            quoted(&self.model)
        )
    }

    /// The prompt of a sample, where it is repeated.
    fn prompt(&self, index: usize) -> &str {
        self.echo.get(index / self.n).map_or("", String::as_str)
    }

    fn choice(&self, sample: &Sample<'_>, text: &str, first: bool) -> String {
        let logprobs = self.logprobs.map_or("null".to_owned(), |count| logprobs(&sample.token_logprobs(), count > 0));
        let mut ids = String::new();
        if self.token_ids {
            ids = format!(",\"token_ids\":{}", list(&sample.ids));
            if let Some(prompt) = sample.prompt_ids().filter(|_| first) {
                ids.push_str(&format!(",\"prompt_token_ids\":{prompt}"));
            }
        }
        format!(
            "{{\"index\":{},\"text\":{},\"logprobs\":{logprobs},\"finish_reason\":{},\"matched_stop\":{}{ids}}}",
            sample.index,
            quoted(text),
            sample.finish.as_deref().map_or("null".to_owned(), quoted),
            sample.matched.as_deref().unwrap_or("null"),
        )
    }
}

impl ReplyEncoder for CompletionEncoder {
    fn whole(&self, samples: &[Sample<'_>]) -> Result<String, BoxError> {
        let mut usage = Usage::default();
        let choices: Vec<String> = samples
            .iter()
            .map(|sample| {
                usage.add(sample, self.n);
                let text = format!("{}{}", self.prompt(sample.index), sample.text());
                self.choice(sample, &text, true)
            })
            .collect();
        let first = samples.first();
        Ok(format!(
            "{}\"choices\":[{}],\"usage\":{}{}}}",
            self.head(first.and_then(Sample::rid).unwrap_or_default()),
            choices.join(","),
            usage.json(),
            first.map(metadata).unwrap_or_default()
        ))
    }

    fn known(&self, index: usize) -> usize {
        self.choices.get(index).map_or(0, |choice| choice.tokens)
    }

    fn event(&mut self, sample: &Sample<'_>, out: &mut String) -> Result<(), BoxError> {
        let at = sample.index;
        if at >= self.most {
            // the client did not ask for it
            return Ok(());
        }
        if self.choices.len() <= at {
            self.choices.resize_with(at + 1, Choice::default);
        }
        let text = sample.text();
        let choice = &mut self.choices[at];
        let new = choice.new_text(&text, sample.repeats, self.streaming);
        choice.tokens = sample.tokens;
        let first = !std::mem::replace(&mut choice.begun, true);
        let text = if first { format!("{}{new}", self.prompt(at)) } else { new.to_owned() };
        if let Some(rid) = sample.rid() {
            rid.clone_into(&mut self.id);
        }
        let choice = self.choice(sample, &text, first);
        let mut usage = Usage { prompt: sample.prompt_tokens(), ..Usage::default() };
        usage.completion = sample.tokens as u64;
        let usage = if self.running_usage { usage.json() } else { "null".to_owned() };
        out.push_str(&format!("data: {}\"choices\":[{choice}],\"usage\":{usage}}}\n\n", self.head(&self.id)));
        if sample.finish.is_some() {
            self.usage.add(sample, self.n);
            self.metadata = metadata(sample);
        }
        Ok(())
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        write_event(error, out);
    }

    fn finish(&mut self, out: &mut String) {
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

/// `logprobs` of a completion: lists, with an entry a token.
fn logprobs(said: &[TokenLogprob], top: bool) -> String {
    let texts = |said: &TokenLogprob| quoted(said.text.as_deref().unwrap_or_default());
    let joined = |list: Vec<String>| list.join(",");
    let likeliest = |said: &TokenLogprob| {
        // tokens with the same text are one member, as in a dict
        let mut members: Vec<(String, Value)> = Vec::new();
        for (_, logprob, text) in &said.top {
            let text = text.clone().unwrap_or_default();
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
        joined(said.iter().map(|_| "-1".to_owned()).collect()),
        joined(said.iter().map(|said| said.logprob.clone()).collect()),
        joined(said.iter().map(texts).collect()),
        if top { joined(said.iter().map(likeliest).collect()) } else { String::new() },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(streaming: Option<Streaming>, ids_repeat: bool, texts: &[&str]) -> String {
        let mut choice = Choice::default();
        texts.iter().map(|text| choice.new_text(text, ids_repeat, streaming).to_owned()).collect()
    }

    #[test]
    fn new_text_is_found_in_each_kind_of_stream() {
        use Streaming::{Cumulative, Incremental, IncrementalIds};
        let (all, new) = (["The", "The sea", "The sea is"], ["The", " sea", " is"]);
        for streaming in [None, Some(Cumulative), Some(Incremental), Some(IncrementalIds)] {
            assert_eq!(text_of(streaming, true, &all), "The sea is", "{streaming:?}: ids repeat");
            assert_eq!(text_of(streaming, false, &new), "The sea is", "{streaming:?}: ids and text are new");
        }
        for streaming in [None, Some(Cumulative), Some(IncrementalIds)] {
            assert_eq!(text_of(streaming, false, &all), "The sea is", "{streaming:?}: text repeats, ids do not");
        }
        assert_eq!(text_of(Some(Incremental), false, &["ha", "ha", "haha"]), "hahahaha");
        assert_eq!(text_of(None, false, &["ha", "ha", " no"]), "haha no");
        assert_eq!(text_of(Some(IncrementalIds), false, &["a st", "a "]), "a st", "a stop string is cut off");
    }
}
