//! Builds the /generate request of a chat.

use std::sync::Arc;

use super::request::ChatRequest;
use crate::api::body::{RequestBody, is_present, two_constraints};
use crate::api::generate_request::unreadable;
use crate::api::openai::{lora_adapter, output_constraint};
use crate::budget::Work;
use crate::chat::{RequestError, dumps, quoted};
use crate::engine::sglang::request::{GenerateRequest, RequestBuilder, SamplingParam};
use crate::tokenizer::SamplingDefaults;

/// The inputs of a /generate request that are not in the body of the chat request.
#[derive(Debug, Clone, Copy)]
pub struct GenerateInputs<'a> {
    /// The token ids of the prompt.
    pub ids: &'a Arc<[u32]>,
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

impl ChatRequest {
    /// Builds the /generate request. `work` counts its memory.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn generate_request(
        &self,
        inputs: GenerateInputs<'_>,
        work: &Work,
    ) -> Result<Box<GenerateRequest>, RequestError> {
        let GenerateInputs { ids, defaults, skip_special, require_reasoning, served_model, loses_ids } = inputs;
        let body = RequestBody { bytes: &self.bytes, object: &self.object };
        let max_tokens = ["max_completion_tokens", "max_tokens"]
            .iter()
            .find_map(|name| body.raw(name).filter(|n| *n != b"0" && is_present(n)));
        let constraint = match (output_constraint(&body)?, self.conversation.forced_call_schema(self.parallel_calls)) {
            (Some(_), Some(_)) => return Err(two_constraints("response_format")),
            (constraint, schema) => constraint.or_else(|| Some((SamplingParam::JsonSchema, quoted(&dumps(&schema?))))),
        };
        let mut request = RequestBuilder::from_ids(ids, work)?;
        request.sampling(|sampling| {
            // without this parameter /generate would apply its own default, which is small
            sampling.set(SamplingParam::MaxNewTokens, max_tokens.unwrap_or(b"null"));
            if !skip_special {
                sampling.keep_special_tokens();
            }
            if let Some((grammar, value)) = constraint {
                sampling.set(grammar, value.as_bytes());
            }
            body.write_sampling(sampling, defaults);
        });
        body.write_options(&mut request, lora_adapter(&self.model, served_model));
        if require_reasoning {
            request.require_reasoning();
        }
        if self.stream {
            request.stream();
        }
        if self.logprobs {
            request.top_logprobs(body.raw("top_logprobs").filter(|k| is_present(k)).unwrap_or(b"0"));
        } else if self.stream && loses_ids {
            request.logprobs();
        }
        request.finish().map_err(unreadable)
    }
}
