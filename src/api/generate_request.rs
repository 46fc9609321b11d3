//! Writes /generate requests.

use std::sync::Arc;

use super::body::invalid;
use crate::budget::Work;
use crate::chat::RequestError;
use crate::engine::capabilities::Capabilities;
use crate::engine::sglang::request::GenerateRequest;
use crate::json::{Malformed, write_ids};
use crate::session::{SamplingSource, SamplingSources};
use crate::tokenizer::SamplingDefaults;

/// The bytes of an id in a prompt: as a number, and as text.
const ID_BYTES: usize = 4 + 7;

/// Writes the /generate request of a prompt. `sampling` writes the members of `sampling_params`, `members` the other ones. `work` counts the
/// ids and the body until the body is dropped.
///
/// # Errors
/// [`RequestError`].
pub(crate) fn generate_request(
    ids: &Arc<[u32]>,
    sampling: impl FnOnce(&mut MemberWriter<'_>),
    members: impl FnOnce(&mut MemberWriter<'_>),
    work: &Work,
) -> Result<Box<GenerateRequest>, RequestError> {
    let mut share = work.take(ID_BYTES * ids.len() + 512)?;
    let mut out = Vec::with_capacity(7 * ids.len() + 512);
    out.extend_from_slice(b"{\"input_ids\":");
    let start = out.len();
    out.push(b'[');
    write_ids(&mut out, ids);
    out.push(b']');
    let ids_span = start..out.len();
    out.extend_from_slice(b",\"sampling_params\":{");
    sampling(&mut MemberWriter::new(&mut out));
    out.push(b'}');
    members(&mut MemberWriter::after_members(&mut out));
    out.push(b'}');
    share.insist(4 * ids.len() + out.capacity());
    GenerateRequest::parse_with_ids(share.hold(out), Arc::clone(ids), ids_span).map(Box::new).map_err(unreadable)
}

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
        sources.set("max_new_tokens", SamplingSource::Context);
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

/// Writes members of a JSON object and the commas between them.
pub(crate) struct MemberWriter<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl<'a> MemberWriter<'a> {
    /// A writer after the opening brace.
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, first: true }
    }

    /// A writer after other members of the object.
    pub(crate) fn after_members(out: &'a mut Vec<u8>) -> Self {
        Self { out, first: false }
    }

    /// Writes a member. `value` is JSON text.
    pub(crate) fn put(&mut self, name: &str, value: &[u8]) {
        if !std::mem::replace(&mut self.first, false) {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out.extend_from_slice(value);
    }

    /// Writes the limit of the reply's length. Without this member /generate would apply its own default, which is small.
    pub(crate) fn put_max_new_tokens(&mut self, tokens: Option<u64>) {
        let value = tokens.map_or_else(|| "null".to_owned(), |tokens| tokens.to_string());
        self.put("max_new_tokens", value.as_bytes());
    }

    /// Writes that the engine applies a grammar only after the thinking.
    pub(crate) fn put_require_reasoning(&mut self) {
        // SGLang 0.5.6 has the name `reasoning`
        self.put("require_reasoning", b"true");
        self.put("reasoning", b"true");
    }
}

/// The sampling parameters for fields that the client omits: the model's defaults, or else the defaults of SGLang's OpenAI adapter. All
/// five are always sent, so that the engine's `preferred_sampling_params` do not apply.
pub(crate) fn sampling_defaults(model: &SamplingDefaults) -> [(&'static str, String); 5] {
    let float = |value: Option<f64>, fallback: f64| value.unwrap_or(fallback).to_string();
    [
        ("temperature", float(model.temperature, 1.0)),
        ("top_p", float(model.top_p, 1.0)),
        ("top_k", model.top_k.unwrap_or(-1).to_string()),
        ("min_p", float(model.min_p, 0.0)),
        ("repetition_penalty", float(model.repetition_penalty, 1.0)),
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
