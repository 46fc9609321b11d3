//! A chat reply: what was sampled, as a message.

use std::sync::Arc;

use super::logprobs;
use super::members::{MessageMember, ToolCallMember};
use super::request::ReplyExtras;
use super::sglext::{self, Wanted};
use crate::api::openai::{Usage, list, metadata, to_json};
use crate::api::sample::Sample;
use crate::chat::quoted;
use crate::chat::reading::{self, Ending, Stops, call_id};
use crate::session::Reading;
use crate::tokenizer::{Renderer, TokenizerError};

/// What the chunks and bodies of a reply are made with.
#[derive(Debug, Clone)]
pub(crate) struct ReplyContext {
    /// Decodes.
    pub renderer: Arc<Renderer>,
    /// How texts are read.
    pub reading: Reading,
    /// Where they end.
    pub stops: Stops,
    /// `model`, as the client named it.
    pub model: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The prompt, where the client wants it back.
    pub prompt: Option<Arc<[u32]>>,
    /// Logprobs are wanted.
    pub logprobs: bool,
    /// Other members that the client wants.
    pub wants: ReplyExtras,
    /// Which ids `sglext` has.
    pub sglext: Wanted,
    /// How many samples.
    pub n: usize,
}

impl ReplyContext {
    /// How a reply that ended so is read.
    #[must_use]
    pub(crate) fn ending(&self, finish: Option<&str>) -> Ending<'_> {
        Ending { stopped: finish == Some("stop"), stops: &self.stops.strings, stop_ids: &self.stops.ids }
    }

    /// The body of a reply that does not stream.
    ///
    /// # Errors
    /// When the tokenizer fails on what was sampled.
    pub(crate) fn whole(&self, samples: &[Sample<'_>]) -> Result<String, TokenizerError> {
        let mut usage = Usage::default();
        let mut choices = String::new();
        for (at, sample) in samples.iter().enumerate() {
            usage.add(sample, self.n);
            choices.push_str(if at > 0 { "," } else { "" });
            self.choice(&mut choices, sample)?;
        }
        let first = samples.first();
        let id = first.and_then(Sample::rid).unwrap_or_default();
        let (id, model, created) = (quoted(id), quoted(&self.model), self.created);
        let metadata = first.map(metadata).unwrap_or_default();
        let sglext = self.sglext(samples.iter().map(|sample| &*sample.ids));
        Ok(format!(
            "{{\"id\":{id},\"object\":\"chat.completion\",\"created\":{created},\"model\":{model},\"choices\":[{choices}],\"usage\":{}{metadata}{}{sglext}}}",
            usage.json(),
            self.prompt_ids(),
        ))
    }

    /// `prompt_token_ids` where vLLM has them, beside the choices, behind a comma.
    #[must_use]
    pub(crate) fn prompt_ids(&self) -> String {
        let wanted = self.prompt.as_ref().filter(|_| self.wants.token_ids);
        wanted.map_or(String::new(), |ids| format!(",\"prompt_token_ids\":{}", list(ids)))
    }

    /// `sglext`, behind a comma, where it is wanted.
    #[must_use]
    pub(crate) fn sglext<'a>(&self, responses: impl Iterator<Item = &'a [u32]>) -> String {
        sglext::member(self.sglext, self.prompt.as_deref().unwrap_or_default(), responses)
    }

    fn choice(&self, out: &mut String, sample: &Sample<'_>) -> Result<(), TokenizerError> {
        let ending = self.ending(sample.finish.as_deref());
        let message = reading::parsed(&self.renderer, &sample.ids, &self.reading, ending)?;
        let ids: Vec<String> = message
            .calls
            .iter()
            .enumerate()
            .map(|(at, call)| call_id(call, at, sample.name(), &self.reading))
            .collect();
        let calls = message.calls.iter().zip(&ids).enumerate();
        let member = MessageMember {
            role: "assistant",
            content: &message.content,
            reasoning_content: message.reasoning.as_deref(),
            tool_calls: calls
                .map(|(at, (call, id))| ToolCallMember::named(id, at, &call.name, &call.arguments))
                .collect(),
        };
        let called = !message.calls.is_empty() && ending.stopped;
        let finish = if called { "tool_calls" } else { sample.finish.as_deref().unwrap_or("stop") };
        let matched = sample.matched.as_deref().filter(|_| !called).unwrap_or("null");
        let logprobs = match self.logprobs {
            true => logprobs::content(self.renderer.tokenizer(), &sample.token_logprobs()),
            false => "null".to_owned(),
        };
        out.push_str(&format!(
            "{{\"index\":{},\"message\":{},\"logprobs\":{logprobs},\"finish_reason\":{},\"matched_stop\":{matched}{}{}{}}}",
            sample.index,
            to_json(&member),
            quoted(finish),
            self.prompt_of_choice(),
            self.ids(sample),
            self.meta_info(sample),
        ));
        Ok(())
    }

    /// The prompt's ids in a choice, behind a comma, where they are wanted there.
    #[must_use]
    pub(crate) fn prompt_of_choice(&self) -> String {
        let wanted = self.prompt.as_ref().filter(|_| self.wants.prompt());
        wanted.map_or(String::new(), |ids| format!(",\"prompt_token_ids\":{}", list(ids)))
    }

    /// The sampled ids, under SGLang's name and vLLM's, each behind a comma, where they are wanted.
    #[must_use]
    pub(crate) fn ids(&self, sample: &Sample<'_>) -> String {
        if !self.wants.token_ids {
            return String::new();
        }
        let ids = list(&sample.ids);
        format!(",\"response_token_ids\":{ids},\"token_ids\":{ids}")
    }

    /// `meta_info`, behind a comma, where it is wanted.
    #[must_use]
    pub(crate) fn meta_info(&self, sample: &Sample<'_>) -> String {
        if !self.wants.meta_info && !self.wants.entropy {
            return String::new();
        }
        format!(",\"meta_info\":{}", sample.meta_info().unwrap_or_else(|| "null".to_owned()))
    }
}
