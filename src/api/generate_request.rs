//! What the requests of all APIs to the engine share: the length of the reply, sampling defaults and their sources.

use super::body::invalid;
use crate::chat::RequestError;
use crate::engine::capabilities::Capabilities;
use crate::engine::sglang::request::SamplingParam;
use crate::json::Malformed;
use crate::session::{SamplingSource, SamplingSources};
use crate::tokenizer::SamplingDefaults;

/// The number of tokens that a reply may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplyLength {
    /// `None` without a limit.
    pub(crate) tokens: Option<u64>,
    /// The context leaves less than the client wants.
    pub(crate) is_limited_by_context: bool,
}

/// The length of the reply to a prompt: what the client wants, or what the context of the model leaves.
///
/// # Errors
/// The length of the context, in tokens, if it leaves nothing.
pub(crate) fn reply_length(upstream: &Capabilities, prompt: usize, wanted: Option<u64>) -> Result<ReplyLength, u64> {
    let Some(context) = upstream.context_length else {
        return Ok(ReplyLength { tokens: wanted, is_limited_by_context: false });
    };
    let room = context.saturating_sub(prompt as u64).saturating_sub(upstream.reserved_tokens());
    if room == 0 {
        return Err(context);
    }
    let is_limited_by_context = wanted.is_none_or(|wanted| room < wanted);
    Ok(ReplyLength { tokens: Some(wanted.unwrap_or(room).min(room)), is_limited_by_context })
}

/// The sources of the sampling parameters. `is_set` says whether the client has set one.
pub(crate) fn sampling_sources(
    model: &SamplingDefaults,
    is_set: impl Fn(&str) -> bool,
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
    for (name, is_of_model) in of_model.into_iter().filter(|(name, _)| !is_set(name)) {
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
            let length = reply_length(&upstream(context), prompt, wanted);
            length.map(|length| (length.tokens, length.is_limited_by_context))
        };
        assert_eq!(length(Some(100), 10, Some(20)), Ok((Some(20), false)));
        assert_eq!(length(Some(100), 10, Some(84)), Ok((Some(84), false)));
        assert_eq!(length(Some(100), 10, Some(85)), Ok((Some(84), true)));
        assert_eq!(length(Some(100), 10, None), Ok((Some(84), true)));
        assert_eq!(length(Some(100), 94, Some(1)), Err(100));
        assert_eq!(length(None, 94, None), Ok((None, false)));
    }
}
