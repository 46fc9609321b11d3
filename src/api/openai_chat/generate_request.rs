//! Builds the /generate request of a chat.

use std::sync::Arc;

use super::request::ChatRequest;
use crate::api::body::{RequestBody, is_present, two_constraints};
use crate::api::generate_request::{self, MemberWriter};
use crate::api::openai::{lora_adapter, output_constraint};
use crate::budget::Work;
use crate::chat::{RequestError, dumps, quoted};
use crate::engine::sglang::request::GenerateRequest;
use crate::tokenizer::SamplingDefaults;

/// The inputs of a /generate request that are not in the body of the chat request.
#[derive(Debug, Clone, Copy)]
pub struct GenerateInputs<'a> {
    /// The token ids of the prompt.
    pub ids: &'a Arc<[u32]>,
    /// The sampling defaults for members that the client omits.
    pub defaults: &'a SamplingDefaults,
    /// `skip_special_tokens`: the engine leaves special tokens out of the text.
    pub skip_special: bool,
    /// `require_reasoning`: the engine applies a grammar only after the thinking.
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
            (constraint, schema) => constraint.or_else(|| Some(("json_schema", quoted(&dumps(&schema?))))),
        };
        let sampling = |sampling: &mut MemberWriter<'_>| {
            // without this member /generate would apply its own default, which is small
            sampling.put("max_new_tokens", max_tokens.unwrap_or(b"null"));
            if !skip_special {
                sampling.put("skip_special_tokens", b"false");
            }
            if let Some((name, value)) = constraint {
                sampling.put(name, value.as_bytes());
            }
            body.write_sampling(sampling, defaults);
        };
        let members = |members: &mut MemberWriter<'_>| {
            body.write_top_level(members, lora_adapter(&self.model, served_model));
            if require_reasoning {
                members.put_require_reasoning();
            }
            if self.stream {
                members.put("stream", b"true");
            }
            if self.logprobs {
                members.put("return_logprob", b"true");
                members.put("top_logprobs_num", body.raw("top_logprobs").filter(|k| is_present(k)).unwrap_or(b"0"));
            } else if self.stream && loses_ids {
                members.put("return_logprob", b"true");
            }
        };
        generate_request::generate_request(ids, sampling, members, work)
    }
}
