// SPDX-License-Identifier: Apache-2.0
//! Anthropic's Messages API.

mod blocks;
mod client_tools;
mod encoder;
mod error;
mod request;
mod tools;

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode};
use tokio::sync::watch;

use super::body::SkippedParts;
use super::client_headers::{add_attribution, session_in_user_id};
use super::generate_request::{ClientParams, GenerateInputs, ReplyLength, sampling_sources};
use super::{Api, ApiError, ApiGeneration, ApiPlan, ApiRequest};
use crate::budget::Work;
use crate::chat::forwarded::ForwardedChat;
use crate::chat::reply_reader::ReplyReader;
use crate::chat::{ChatService, RequestError, RequestSession};
use crate::engine::capabilities::Capabilities;
use crate::engine::rid;
use crate::engine::sglang::request::{SessionName, SessionNames};
use crate::session::{Dialect, Labels, Session, fill_label};
use encoder::{MessageContext, MessageEncoder};
use request::MessagesRequest;

/// `POST /v1/messages` and `POST /v1/messages/count_tokens`. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AnthropicMessages {
    /// Prepares the prompts.
    pub chats: Arc<ChatService>,
    /// The capabilities of the engine.
    pub upstream: watch::Receiver<Arc<Capabilities>>,
    /// Requests are answered with the number of tokens of their prompt.
    pub counts_tokens: bool,
}

/// A decoded request.
#[derive(Debug)]
struct DecodedMessages {
    api: AnthropicMessages,
    request: MessagesRequest,
}

impl Api for AnthropicMessages {
    fn dialect(&self) -> Option<Dialect> {
        Some(Dialect::Messages)
    }

    fn not_served(&self) -> Option<String> {
        self.chats.not_served()
    }

    fn generates(&self) -> bool {
        !self.counts_tokens
    }

    fn decode(&self, request: &Request<Bytes>) -> Result<Box<dyn ApiRequest>, RequestError> {
        let skipped = SkippedParts::new(self.chats.is_strict());
        let shows_system_messages = self.chats.template_features().shows_system_messages;
        let body = request.body().clone();
        let request = MessagesRequest::parse(body, self.counts_tokens, shows_system_messages, skipped)?;
        self.chats.report_skipped(&request.skipped.kinds);
        Ok(Box::new(DecodedMessages { api: self.clone(), request }))
    }

    fn error(&self, status: StatusCode, message: String) -> ApiError {
        error::error(status, &message)
    }

    fn prompt_too_long(&self, tokens: usize, context: u64) -> String {
        error::prompt_too_long(tokens, context)
    }
}

impl ApiRequest for DecodedMessages {
    fn session_names(&self) -> SessionNames {
        self.request.body.session_names()
    }

    fn add_labels(&self, labels: &mut Labels) {
        if let Some(attribution) = &self.request.attribution {
            add_attribution(labels, attribution);
        }
        if let Some(effort) = &self.request.effort {
            fill_label(&mut labels.effort, effort);
        }
        if let Some(SessionName::Text(user_id)) = self.session_names().user_id
            && let Some(session) = session_in_user_id(&user_id)
        {
            fill_label(&mut labels.thread, &session);
        }
    }

    fn is_long(&self, session: Option<&Session>) -> bool {
        self.api.chats.is_long(session)
    }

    fn plan(&self, session: RequestSession<'_>, work: &Work) -> Result<ApiPlan, RequestError> {
        let Self { api, request } = self;
        let model = api.chats.model(&request.conversation)?;
        if api.counts_tokens {
            let tokens = api.chats.count_tokens(&model, &request.conversation, session, work)?;
            return Ok(Ok(format!("{{\"input_tokens\":{tokens}}}")).into());
        }
        let mut prompt = api.chats.prompt(&model, &request.conversation, session, work)?;
        let engine = Arc::clone(&api.upstream.borrow());
        let constraint = request.constraint()?;
        let length = ReplyLength::of_reply(&engine, &prompt, request.max_tokens)?;
        let fields = request.fields();
        let max_new_tokens = length.json();
        prompt.chat.sampling_sources = Some(sampling_sources(&model.defaults, &fields, length.is_limited_by_context));
        let client = ClientParams {
            max_new_tokens: max_new_tokens.as_bytes(),
            constraint,
            fields,
            adapter: None,
            stream: request.stream,
            echoes_prompt: false,
            top_logprobs: None,
        };
        let inputs = GenerateInputs::new(&model, &prompt, &request.conversation, &engine);
        let generation = inputs.build(client, work)?;
        let context = MessageContext {
            reader: ReplyReader {
                renderer: Arc::clone(&model.renderer),
                options: prompt.chat.reading.clone(),
                stops: request.stops.clone(),
            },
            model: request.model.clone(),
            id: format!("msg_{}", rid::fresh()),
            prompt_tokens: prompt.least_tokens as u64,
            is_limited_by_context: length.is_limited_by_context,
        };
        let encoder = Box::new(MessageEncoder::new(context));
        Ok(ApiPlan::Generation(ApiGeneration { request: generation, chat: Some(Box::new(prompt.chat)), encoder }))
    }

    fn forwarded_chat(&self, session: RequestSession<'_>, work: &Work) -> Option<ForwardedChat> {
        self.api.chats.forwarded_chat(&self.request.conversation, session, work)
    }
}
