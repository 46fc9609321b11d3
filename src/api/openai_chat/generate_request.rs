//! A chat request as the body of /generate.

use std::sync::Arc;

use bytes::Bytes;

use super::request::ChatRequest;
use crate::api::openai::{Members, RequestBody, adapter, constraint, is_present, unreadable, wrong};
use crate::chat::{RequestError, dumps, quoted};
use crate::engine::request::GenerateRequest;
use crate::json::write_ids;
use crate::tokenizer::SamplingDefaults;

/// What a native request has that the chat has not.
#[derive(Debug, Clone, Copy)]
pub struct Addition<'a> {
    /// The prompt.
    pub ids: &'a Arc<[u32]>,
    /// The sampling defaults for members that the client omits.
    pub defaults: &'a SamplingDefaults,
    /// Special tokens are no part of the text.
    pub skip_special: bool,
    /// The engine is to expect a thought before a grammar begins.
    pub thinks: bool,
    /// The name that the model is served under.
    pub served_model: &'a str,
    /// Its streams lose ids when events are merged, but logprobs list all of them.
    pub loses_ids: bool,
}

impl ChatRequest {
    /// The request for /generate. `hold` makes bytes of its body that are counted for as long as they are held.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn native(
        &self,
        addition: Addition<'_>,
        hold: impl FnOnce(Vec<u8>) -> Bytes,
    ) -> Result<GenerateRequest, RequestError> {
        let Addition { ids, defaults, skip_special, thinks, served_model, loses_ids } = addition;
        let body = RequestBody { bytes: &self.bytes, object: &self.object };
        let mut out = Vec::with_capacity(7 * ids.len() + 512);
        out.extend_from_slice(b"{\"input_ids\":");
        let start = out.len();
        out.push(b'[');
        write_ids(&mut out, ids);
        out.push(b']');
        let written = start..out.len();
        out.extend_from_slice(b",\"sampling_params\":{");
        let mut sampling = Members::new(&mut out);
        let most = ["max_completion_tokens", "max_tokens"]
            .iter()
            .find_map(|name| body.raw(name).filter(|n| *n != b"0" && is_present(n)));
        // absent it would be /generate's own default, which is small
        sampling.put("max_new_tokens", most.unwrap_or(b"null"));
        if !skip_special {
            sampling.put("skip_special_tokens", b"false");
        }
        match (
            constraint(&body)?,
            self.conversation
                .tool_choice
                .schema(self.conversation.tools.as_deref().unwrap_or_default(), self.parallel_calls),
        ) {
            (Some(_), Some(_)) => {
                return Err(wrong(
                    "tool_choice forces a call and response_format an answer: they cannot both be honored",
                ));
            }
            (Some((name, value)), None) => sampling.put(name, value.as_bytes()),
            (None, Some(schema)) => sampling.put("json_schema", quoted(&dumps(&schema)).as_bytes()),
            (None, None) => {}
        }
        body.sampling(&mut sampling, defaults);
        out.push(b'}');
        let mut members = Members::more(&mut out);
        body.top(&mut members, adapter(&self.model, served_model));
        if thinks {
            // a grammar begins behind the thought; the older name is 0.5.6's
            members.put("require_reasoning", b"true");
            members.put("reasoning", b"true");
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
        out.push(b'}');
        GenerateRequest::parse_with_ids(hold(out), Arc::clone(ids), written).map_err(unreadable)
    }
}
