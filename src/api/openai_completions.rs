// SPDX-License-Identifier: Apache-2.0
//! OpenAI's Completions API. The engine encodes the prompt and decodes the sampled tokens.

mod reply;
pub mod request;

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode};
use tokio::sync::watch;

use super::openai::error::OpenAiError;
use super::openai::seconds_since_1970;
use super::{Api, ApiError, ApiGeneration, ApiPlan, ApiRequest};
use crate::budget::{Work, values_bytes};
use crate::chat::model::PASSTHROUGH;
use crate::chat::{RequestError, RequestSession};
use crate::config::{ChatMode, Config};
use crate::engine::capabilities::Capabilities;
use crate::engine::sglang::request::SessionNames;
use crate::session::Dialect;
use reply::CompletionEncoder;
use request::CompletionRequest;

/// `POST /v1/completions`. Cheap to clone.
#[derive(Debug, Clone)]
pub struct OpenAiCompletions {
    /// The configuration.
    pub config: Arc<Config>,
    /// The capabilities of the engine.
    pub upstream: watch::Receiver<Arc<Capabilities>>,
}

/// A decoded request.
#[derive(Debug)]
struct DecodedCompletion {
    api: OpenAiCompletions,
    completion: CompletionRequest,
}

impl Api for OpenAiCompletions {
    fn dialect(&self) -> Option<Dialect> {
        Some(Dialect::Completions)
    }

    fn not_served(&self) -> Option<String> {
        (self.config.chat.chat == ChatMode::Passthrough).then(|| PASSTHROUGH.to_owned())
    }

    /// The prompt is parsed only for `echo`, whose name may have escapes.
    fn decoded_bytes(&self, body: &[u8]) -> usize {
        decoded_bytes(body)
    }

    fn decode(&self, request: &Request<Bytes>) -> Result<Box<dyn ApiRequest>, RequestError> {
        let completion = CompletionRequest::parse(request.body().clone())?;
        Ok(Box::new(DecodedCompletion { api: self.clone(), completion }))
    }

    fn error(&self, status: StatusCode, message: String) -> ApiError {
        OpenAiError::new(status, message).into()
    }
}

/// The memory that decoding a body takes.
fn decoded_bytes(body: &[u8]) -> usize {
    let may_echo = ["echo", "\\u"].iter().any(|text| memchr::memmem::find(body, text.as_bytes()).is_some());
    if may_echo { values_bytes(body) } else { body.len() }
}

impl ApiRequest for DecodedCompletion {
    fn session_names(&self) -> SessionNames {
        self.completion.body.session_names()
    }

    fn plan(&self, _session: RequestSession<'_>, work: &Work) -> Result<ApiPlan, RequestError> {
        let Self { api, completion } = self;
        let upstream = Arc::clone(&api.upstream.borrow());
        let request = completion.generate_request(&upstream.model, upstream.loses_ids(), work)?;
        let encoder = Box::new(CompletionEncoder::new(completion, seconds_since_1970(), upstream.streaming));
        Ok(ApiPlan::Generation(ApiGeneration { request, chat: None, encoder }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_prompts_are_counted_where_echo_parses_them() {
        for (echo, is_counted) in [("echo", true), ("\\u0065cho", true), ("stream", false)] {
            let body = format!("{{\"prompt\":[\"a\",\"b\"],\"{echo}\":true}}");
            assert_eq!(decoded_bytes(body.as_bytes()) == values_bytes(body.as_bytes()), is_counted, "{body}");
        }
    }
}
