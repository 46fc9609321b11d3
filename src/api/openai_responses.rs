// SPDX-License-Identifier: Apache-2.0
//! OpenAI's Responses API.

mod encoder;
mod error;
mod input;
mod items;
mod request;
mod response;
mod retrieval;
mod stored;
mod tools;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{Request, StatusCode};
use tokio::sync::watch;

use super::client_headers::{OVERRIDE_RID, add_codex};
use super::generate_request::{ClientParams, GenerateInputs, ReplyLength, sampling_defaults, sampling_sources};
use super::openai::seconds_since_1970;
use super::{Api, ApiError, ApiGeneration, ApiPlan, ApiRequest, ReplyEncoder as _};
use crate::budget::{Budget, Stopped, Work};
use crate::chat::forwarded::ForwardedChat;
use crate::chat::model::ChatModel;
use crate::chat::reply_reader::ReplyReader;
use crate::chat::{ChatService, RequestError, RequestSession};
use crate::engine::capabilities::Capabilities;
use crate::engine::rid;
use crate::engine::sglang::request::SessionNames;
use crate::session::{Dialect, Labels, ParseOptions, Session, TurnKey, fill_label};
use encoder::ResponseEncoder;
use request::{DecodeOptions, ResponsesRequest};
use response::ResponseContext;
pub use retrieval::StoredResponses;
use stored::WholeRequest;

/// `POST /v1/responses` and `POST /v1/responses/input_tokens`. Cheap to clone.
#[derive(Debug, Clone)]
pub struct OpenAiResponses {
    /// Prepares the prompts.
    pub chats: Arc<ChatService>,
    /// Counts what the replies repeat of their requests.
    pub budget: Budget,
    /// The capabilities of the engine.
    pub upstream: watch::Receiver<Arc<Capabilities>>,
    /// Requests are answered with the number of tokens of their prompt.
    pub counts_tokens: bool,
}

/// A decoded request.
#[derive(Debug)]
struct DecodedResponses {
    api: OpenAiResponses,
    request: ResponsesRequest,
    /// The API key of the client.
    caller: Vec<u8>,
    /// The client has chosen the request id. It could be guessed, so the response is not stored.
    names_rid: bool,
    /// The request with the stored items to which it refers, once they have been read.
    whole: OnceLock<Result<WholeRequest, RequestError>>,
}

impl OpenAiResponses {
    /// How the requests of a client are decoded.
    fn decode_options(&self, is_codex: bool) -> DecodeOptions {
        let template = self.chats.template_features();
        DecodeOptions { template, is_codex, is_strict: self.chats.is_strict(), is_complete: false }
    }
}

impl Api for OpenAiResponses {
    fn not_served(&self) -> Option<String> {
        self.chats.not_served()
    }

    fn generates(&self) -> bool {
        !self.counts_tokens
    }

    fn dialect(&self) -> Option<Dialect> {
        Some(Dialect::Responses)
    }

    fn decode(&self, request: &Request<Bytes>) -> Result<Box<dyn ApiRequest>, RequestError> {
        let headers = request.headers();
        let caller = stored::caller(headers);
        let request = ResponsesRequest::parse(request.body().clone(), self.decode_options(request::is_codex(headers)))?;
        self.chats.report_skipped(&request.skipped.kinds);
        let names_rid = headers.contains_key(OVERRIDE_RID) || request.body.present("rid").is_some();
        Ok(Box::new(DecodedResponses { api: self.clone(), request, caller, names_rid, whole: OnceLock::new() }))
    }

    fn error(&self, status: StatusCode, message: String) -> ApiError {
        error::error(status, message)
    }

    fn prompt_too_long(&self, tokens: usize, context: u64) -> String {
        error::prompt_too_long(tokens, context)
    }
}

impl ApiRequest for DecodedResponses {
    fn session_names(&self) -> SessionNames {
        self.request.body.session_names()
    }

    fn add_labels(&self, labels: &mut Labels) {
        let member = |name: &str| self.request.body.value(name).ok().flatten();
        if let Some(metadata) = member("client_metadata") {
            add_codex(labels, |name| metadata.get_str(name).map(Cow::Borrowed));
        }
        let reasoning = member("reasoning");
        if let Some(effort) = reasoning.as_ref().and_then(|reasoning| reasoning.get_str("effort")) {
            fill_label(&mut labels.effort, effort);
        }
    }

    fn is_long(&self, session: Option<&Session>) -> bool {
        // the stored items may be many
        self.request.refers || self.api.chats.is_long(session)
    }

    fn plan(&self, session: RequestSession<'_>, work: &Work) -> Result<ApiPlan, RequestError> {
        let api = &self.api;
        let request = self.with_history(session, work)?;
        let model = api.chats.model(&request.conversation)?;
        if api.counts_tokens {
            let tokens = api.chats.count_tokens(&model, &request.conversation, session, work)?;
            return Ok(Ok(format!("{{\"object\":\"response.input_tokens\",\"input_tokens\":{tokens}}}")).into());
        }
        request.body.check_fields(&[])?;
        let mut prompt = api.chats.prompt(&model, &request.conversation, session, work)?;
        let engine = Arc::clone(&api.upstream.borrow());
        let constraint = request.constraint()?;
        let length = ReplyLength::of_reply(&engine, &prompt, request.max_tokens)?;
        let (body, fields) = (&request.body, request.body.fields());
        let max_new_tokens = length.json();
        prompt.chat.sampling_sources = Some(sampling_sources(&model.defaults, &fields, length.is_limited_by_context));
        // any model name is accepted, so only the served name may be followed by an adapter
        let adapter = request.model.strip_prefix(&*engine.model).and_then(|rest| rest.strip_prefix(':'));
        let client = ClientParams {
            max_new_tokens: max_new_tokens.as_bytes(),
            constraint,
            fields,
            adapter: adapter.filter(|adapter| !adapter.is_empty()),
            stream: request.stream,
            echoes_prompt: false,
            top_logprobs: request.includes_logprobs.then(|| body.present("top_logprobs").unwrap_or(b"0")),
        };
        let inputs = GenerateInputs::new(&model, &prompt, &request.conversation, &engine);
        let generation = inputs.build(client, work)?;
        let mut context = request.context(api, &model, prompt.chat.reading.clone(), prompt.least_tokens);
        context.stores = request.stores && session.is_named && !self.names_rid && api.chats.records_sessions();
        if context.stores {
            prompt.chat.stored = Some(Arc::new(stored::request_to_store(request, session.existing, &self.caller)));
        }
        let encoder = Box::new(ResponseEncoder::new(context));
        Ok(ApiPlan::Generation(ApiGeneration { request: generation, chat: Some(Box::new(prompt.chat)), encoder }))
    }

    fn check_passthrough(&self) -> Result<(), RequestError> {
        if self.request.refers_to_session() { Err(error::not_for_engine()) } else { Ok(()) }
    }

    fn encode_failed_stream(&self, error: &RequestError) -> Option<String> {
        if !self.request.stream {
            return None;
        }
        // agents compact the conversation on the code of both
        let error = match error {
            RequestError::TooLong { tokens, context } => {
                error::error(StatusCode::BAD_REQUEST, error::prompt_too_long(*tokens, *context))
            }
            RequestError::Stopped(stopped @ Stopped::TooLarge { .. }) => {
                error::error(StatusCode::PAYLOAD_TOO_LARGE, stopped.to_string())
            }
            _ => return None,
        };
        let model = self.api.chats.model(&self.request.conversation).ok()?;
        let mut encoder = ResponseEncoder::new(self.request.context(&self.api, &model, ParseOptions::default(), 0));
        let mut events = String::new();
        encoder.begin(&mut events);
        encoder.fail(&error, &mut events);
        Some(events)
    }

    fn forwarded_chat(&self, session: RequestSession<'_>, work: &Work) -> Option<ForwardedChat> {
        let request = self.with_history(session, work).ok()?;
        self.api.chats.forwarded_chat(&request.conversation, session, work)
    }
}

impl DecodedResponses {
    /// The request with the stored items to which it refers.
    ///
    /// # Errors
    /// [`RequestError`].
    fn with_history(&self, session: RequestSession<'_>, work: &Work) -> Result<&ResponsesRequest, RequestError> {
        if !self.request.refers {
            return Ok(&self.request);
        }
        let read = || stored::with_history(&self.api, &self.request, session.existing, &self.caller, work);
        let whole = self.whole.get_or_init(read).as_ref();
        whole.map(|whole| &whole.request).map_err(Clone::clone)
    }
}

impl ResponsesRequest {
    /// What the encoding of a reply to a prompt of this many tokens depends on.
    fn context(
        &self,
        api: &OpenAiResponses,
        model: &ChatModel,
        options: ParseOptions,
        prompt_tokens: usize,
    ) -> ResponseContext {
        ResponseContext {
            reader: ReplyReader { renderer: Arc::clone(&model.renderer), options, stops: self.stops.clone() },
            tools: Arc::clone(&self.tools),
            key: TurnKey::of(&rid::fresh(), 0),
            has_turn_key: false,
            stores: false,
            model: self.model.clone(),
            created: seconds_since_1970(),
            completed: None,
            echo: api.budget.hold(self.echo(&sampling_defaults(&model.defaults))),
            prompt_tokens: prompt_tokens as u64,
            includes_encrypted_reasoning: self.includes_encrypted_reasoning,
            includes_logprobs: self.includes_logprobs,
            completes_at_length: self.options.is_codex,
        }
    }
}
