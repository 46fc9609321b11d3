// SPDX-License-Identifier: Apache-2.0
//! Builds the /generate requests of the APIs.

use std::sync::Arc;

use super::body::invalid;
use super::openai::FieldTarget;
use crate::budget::Work;
use crate::chat::model::ChatModel;
use crate::chat::prompt::PreparedPrompt;
use crate::chat::{Conversation, RequestError, quoted};
use crate::engine::capabilities::Capabilities;
use crate::engine::sglang::request::{GenerateRequest, RequestBuilder, RequestOption, SamplingParam, SamplingWriter};
use crate::images::Image;
use crate::json::Malformed;
use crate::session::{SamplingSource, SamplingSources};
use crate::tokenizer::SamplingDefaults;

/// The inputs of the /generate request of a chat that are not in the client's request.
#[derive(Debug, Clone, Copy)]
pub struct GenerateInputs<'a> {
    /// The token ids of the prompt, with one placeholder for each picture.
    pub ids: &'a Arc<[u32]>,
    /// The pictures, in the order of their placeholders.
    pub images: &'a [Arc<Image>],
    /// The sampling defaults for members that the client omits.
    pub defaults: &'a SamplingDefaults,
    /// The engine leaves special tokens out of the text.
    pub skip_special: bool,
    /// The engine applies a grammar only after the thinking.
    pub require_reasoning: bool,
    /// The served model name.
    pub served_model: &'a str,
    /// The engine's streams lose ids when events are merged, so that only logprobs list all of them.
    pub loses_ids: bool,
}

/// The parts of the /generate request of a chat that come from the client's request, as JSON text.
#[derive(Debug)]
pub(crate) struct ClientParams<'a> {
    /// The limit of the reply's length; null for the rest of the context.
    pub(crate) max_new_tokens: &'a [u8],
    /// The grammar of the reply.
    pub(crate) constraint: Option<(SamplingParam, String)>,
    /// The members that are copied.
    pub(crate) fields: Vec<(FieldTarget, &'a [u8])>,
    /// The adapter in `model`. It takes precedence over a field.
    pub(crate) adapter: Option<&'a str>,
    pub(crate) stream: bool,
    /// The number of likeliest tokens whose logprobs are requested at each position; `None` if the client asks for no logprobs.
    pub(crate) top_logprobs: Option<&'a [u8]>,
    /// The reply has the ids of the prompt, where only the engine knows them.
    pub(crate) echoes_prompt: bool,
}

impl<'a> GenerateInputs<'a> {
    pub(crate) fn new(
        model: &'a ChatModel,
        prompt: &'a PreparedPrompt,
        conversation: &Conversation,
        engine: &'a Capabilities,
    ) -> Self {
        Self {
            ids: &prompt.ids,
            images: &prompt.images,
            defaults: &model.defaults,
            skip_special: prompt.chat.reading.skip_special,
            require_reasoning: model.has_reasoning_parser && !conversation.disables_thinking(),
            served_model: &engine.model,
            loses_ids: engine.loses_ids(),
        }
    }

    /// Builds the request. `work` counts its memory.
    ///
    /// # Errors
    /// [`RequestError`].
    pub(crate) fn build(&self, client: ClientParams<'_>, work: &Work) -> Result<Box<GenerateRequest>, RequestError> {
        let ClientParams { max_new_tokens, constraint, fields, adapter, stream, top_logprobs, echoes_prompt } = client;
        let mut request = RequestBuilder::from_ids(self.ids, self.images, work)?;
        request.images(self.images, samples(&fields) > 1);
        request.sampling(|sampling| {
            // without this parameter /generate would apply its own default, which is small
            sampling.set(SamplingParam::MaxNewTokens, max_new_tokens);
            if !self.skip_special {
                sampling.keep_special_tokens();
            }
            if let Some((grammar, value)) = constraint {
                sampling.set(grammar, value.as_bytes());
            }
            write_defaults(sampling, &fields, self.defaults);
            write_sampling(sampling, &fields);
        });
        write_options(&mut request, &fields, adapter);
        if self.require_reasoning {
            request.require_reasoning();
        }
        if stream {
            request.stream();
        }
        if echoes_prompt && !self.images.is_empty() {
            request.echo_prompt_ids();
        }
        match top_logprobs {
            Some(count) => request.top_logprobs(count),
            None if stream && self.loses_ids => request.logprobs(),
            None => {}
        }
        request.finish().map_err(unreadable)
    }
}

/// Writes the sampling parameters of the client.
pub(crate) fn write_sampling(sampling: &mut SamplingWriter<'_>, fields: &[(FieldTarget, &[u8])]) {
    for (target, value) in fields {
        if let FieldTarget::Sampling(param) = target {
            sampling.set(*param, value);
        }
    }
}

/// Writes the sampling defaults of the parameters that the client omits.
pub(crate) fn write_defaults(
    sampling: &mut SamplingWriter<'_>,
    fields: &[(FieldTarget, &[u8])],
    defaults: &SamplingDefaults,
) {
    for (param, value) in sampling_defaults(defaults) {
        if !has(fields, param.name()) {
            sampling.set(param, value.as_bytes());
        }
    }
}

/// Writes the options of the client. An `adapter` from `model` takes precedence over the client's.
pub(crate) fn write_options(request: &mut RequestBuilder, fields: &[(FieldTarget, &[u8])], adapter: Option<&str>) {
    if let Some(adapter) = adapter {
        request.option(RequestOption::LoraPath, quoted(adapter).as_bytes());
    }
    for (target, value) in fields {
        match target {
            FieldTarget::Top(RequestOption::LoraPath) if adapter.is_some() => {}
            FieldTarget::Top(option) => request.option(*option, value),
            FieldTarget::Sampling(_) => {}
        }
    }
}

/// The number of samples.
fn samples(fields: &[(FieldTarget, &[u8])]) -> u64 {
    let is_n = |target: &FieldTarget| matches!(target, FieldTarget::Sampling(SamplingParam::N));
    let n = fields.iter().find(|(target, _)| is_n(target));
    n.and_then(|(_, value)| std::str::from_utf8(value).ok()?.parse().ok()).unwrap_or(1)
}

/// Whether the client sets a sampling parameter.
fn has(fields: &[(FieldTarget, &[u8])], param: &str) -> bool {
    fields.iter().any(|(target, _)| matches!(target, FieldTarget::Sampling(known) if known.name() == param))
}

/// The number of tokens that a reply may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplyLength {
    /// `None` without a limit.
    pub(crate) tokens: Option<u64>,
    /// The context leaves less than the client wants.
    pub(crate) is_limited_by_context: bool,
}

impl ReplyLength {
    /// The length of the reply to a prompt: what the client wants, or what the context of the model leaves.
    ///
    /// # Errors
    /// [`RequestError::TooLong`] if the context leaves nothing.
    pub(crate) fn of_reply(
        engine: &Capabilities,
        prompt: &PreparedPrompt,
        wanted: Option<u64>,
    ) -> Result<Self, RequestError> {
        let length = Self::try_new(engine, prompt.least_tokens, wanted)?;
        // the number of tokens of new pictures is not known, so the engine determines the rest of the context
        let is_known = prompt.images.is_empty() || !length.is_limited_by_context;
        Ok(if is_known { length } else { Self { tokens: None, ..length } })
    }

    fn try_new(engine: &Capabilities, prompt: usize, wanted: Option<u64>) -> Result<Self, RequestError> {
        let Some(context) = engine.context_length else {
            return Ok(Self { tokens: wanted, is_limited_by_context: false });
        };
        let room = context.saturating_sub(prompt as u64).saturating_sub(engine.reserved_tokens());
        if room == 0 {
            return Err(RequestError::TooLong { tokens: prompt, context });
        }
        let is_limited_by_context = wanted.is_none_or(|wanted| room < wanted);
        Ok(Self { tokens: Some(wanted.unwrap_or(room).min(room)), is_limited_by_context })
    }

    /// `max_new_tokens`, as JSON text.
    pub(crate) fn json(self) -> String {
        self.tokens.map_or_else(|| "null".to_owned(), |tokens| tokens.to_string())
    }
}

/// The sources of the sampling parameters of a chat. `fields` are those of the client.
pub(crate) fn sampling_sources(
    model: &SamplingDefaults,
    fields: &[(FieldTarget, &[u8])],
    is_limited_by_context: bool,
) -> SamplingSources {
    let SamplingDefaults { temperature, top_p, top_k, min_p, repetition_penalty } = model;
    let of_model = [
        ("temperature", temperature.is_some()),
        ("top_p", top_p.is_some()),
        ("top_k", top_k.is_some()),
        ("min_p", min_p.is_some()),
        ("repetition_penalty", repetition_penalty.is_some()),
    ];
    let mut sources = SamplingSources::default();
    for (name, is_of_model) in of_model.into_iter().filter(|(name, _)| !has(fields, name)) {
        sources.set(name, if is_of_model { SamplingSource::Model } else { SamplingSource::Default });
    }
    if is_limited_by_context {
        sources.set(SamplingParam::MaxNewTokens.name(), SamplingSource::Context);
    }
    sources
}

/// The error for a /generate request that cannot be parsed because of a member that was copied from the client's request.
pub(crate) fn unreadable(error: Malformed) -> RequestError {
    match error.too_deep {
        true => invalid("the body nests deeper than 128 levels"),
        false => RequestError::Unsupported(format!("a member of the body cannot be read: {error}")),
    }
}

/// The sampling parameters for fields that the client omits: the model's defaults, or else the defaults of SGLang's OpenAI adapter. All
/// five are always sent, so that the engine's `preferred_sampling_params` do not apply.
pub(crate) fn sampling_defaults(model: &SamplingDefaults) -> [(SamplingParam, String); 5] {
    let float = |value: Option<f64>, fallback: f64| value.unwrap_or(fallback).to_string();
    [
        (SamplingParam::Temperature, float(model.temperature, 1.0)),
        (SamplingParam::TopP, float(model.top_p, 1.0)),
        (SamplingParam::TopK, model.top_k.unwrap_or(-1).to_string()),
        (SamplingParam::MinP, float(model.min_p, 0.0)),
        (SamplingParam::RepetitionPenalty, float(model.repetition_penalty, 1.0)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_fits_the_context_without_the_tokens_that_the_engine_reserves() {
        let upstream = |context_length| Capabilities { context_length, ..Capabilities::unknown(None) };
        let length = |context, prompt, wanted| {
            let length = ReplyLength::try_new(&upstream(context), prompt, wanted);
            length.map(|length| (length.tokens, length.is_limited_by_context))
        };
        assert_eq!(length(Some(100), 10, Some(20)), Ok((Some(20), false)));
        assert_eq!(length(Some(100), 10, Some(84)), Ok((Some(84), false)));
        assert_eq!(length(Some(100), 10, Some(85)), Ok((Some(84), true)));
        assert_eq!(length(Some(100), 10, None), Ok((Some(84), true)));
        assert_eq!(length(Some(100), 94, Some(1)), Err(RequestError::TooLong { tokens: 94, context: 100 }));
        assert_eq!(length(None, 94, None), Ok((None, false)));
    }
}
