//! Anthropic's Messages API.

mod blocks;
mod client_tools;
mod encoder;
mod error;
mod reply;
mod request;
mod tools;

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode};
use tokio::sync::watch;

use super::client_headers::{add_attribution, session_in_user_id};
use super::generate_request::{reply_length, sampling_defaults, sampling_sources, unreadable};
use super::skipped_parts::SkippedParts;
use super::{Api, ApiError, ApiGeneration, ApiRequest, LocalReply};
use crate::budget::Work;
use crate::chat::forwarded::ForwardedChat;
use crate::chat::reply_reader::ReplyReader;
use crate::chat::{ChatPrompt, ChatService, RequestError, RequestSession};
use crate::engine::capabilities::Capabilities;
use crate::engine::rid;
use crate::engine::sglang::request::{RequestBuilder, SamplingParam, SessionName, SessionNames};
use crate::session::{Dialect, Labels, Session, fill_label};
use encoder::MessageEncoder;
use reply::ReplyContext;
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

    fn is_served(&self) -> bool {
        self.chats.is_served()
    }

    fn generates(&self) -> bool {
        !self.counts_tokens
    }

    fn decode(&self, request: &Request<Bytes>) -> Result<Box<dyn ApiRequest>, RequestError> {
        let skipped = SkippedParts::new(self.chats.is_strict());
        let shows_system_messages = self.chats.shows_system_messages();
        let body = request.body().clone();
        let request = MessagesRequest::parse(body, self.counts_tokens, shows_system_messages, skipped)?;
        self.chats.report_skipped(request.skipped.kinds());
        Ok(Box::new(DecodedMessages { api: self.clone(), request }))
    }

    fn error(&self, status: StatusCode, message: String) -> ApiError {
        error::error(status, &message)
    }

    fn prompt_too_long(&self, tokens: usize, context: u64) -> String {
        error::prompt_too_long(tokens, context)
    }

    fn engine_error(&self, status: StatusCode, body: &[u8]) -> ApiError {
        error::from_engine(status, body)
    }

    fn event_error(&self, text: &str) -> ApiError {
        error::from_event(text)
    }
}

impl ApiRequest for DecodedMessages {
    fn session_names(&self) -> SessionNames {
        SessionNames::decode(&self.request.bytes, &self.request.object)
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

    fn reply(&self, session: RequestSession<'_>, work: &Work) -> Option<Result<LocalReply, RequestError>> {
        self.api.counts_tokens.then(|| {
            let Self { api, request } = self;
            let model = api.chats.model(&request.conversation)?;
            let tokens = api.chats.count_tokens(&model, &request.conversation, session, work)?;
            Ok(Ok(format!("{{\"input_tokens\":{tokens}}}")).into())
        })
    }

    fn generation(&self, session: RequestSession<'_>, work: &Work) -> Result<ApiGeneration, RequestError> {
        let Self { api, request } = self;
        let model = api.chats.model(&request.conversation)?;
        let ChatPrompt { ids, mut chat } = api.chats.prompt(&model, &request.conversation, session, work)?;
        let constraint = request.constraint()?;
        let upstream = Arc::clone(&api.upstream.borrow());
        let length = reply_length(&upstream, ids.len(), request.max_tokens)
            .map_err(|context| RequestError::TooLong { tokens: ids.len(), context })?;
        let client = request.sampling();
        let mut generation = RequestBuilder::from_ids(&ids, work)?;
        generation.sampling(|sampling| {
            sampling.max_new_tokens(length.tokens);
            if !chat.reading.skip_special {
                sampling.keep_special_tokens();
            }
            if let Some(schema) = &constraint {
                sampling.set(SamplingParam::JsonSchema, schema.as_bytes());
            }
            for (param, value) in sampling_defaults(&model.defaults) {
                if !client.iter().any(|(known, _)| *known == param) {
                    sampling.set(param, value.as_bytes());
                }
            }
            client.iter().for_each(|(param, value)| sampling.set(*param, value));
        });
        if model.has_reasoning_parser && !request.conversation.disables_thinking() {
            generation.require_reasoning();
        }
        request.options().iter().for_each(|(option, value)| generation.option(*option, value));
        if request.stream {
            generation.stream();
            if upstream.loses_ids() {
                generation.logprobs();
            }
        }
        let is_set = |name: &str| client.iter().any(|(known, _)| known.name() == name);
        chat.sampling_sources = Some(sampling_sources(&model.defaults, is_set, length.is_limited_by_context));
        let generation = generation.finish().map_err(unreadable)?;
        let context = ReplyContext {
            reader: ReplyReader {
                renderer: Arc::clone(&model.renderer),
                options: chat.reading.clone(),
                stops: request.stops.clone(),
            },
            model: request.model.clone(),
            id: format!("msg_{}", rid::fresh()),
            prompt_tokens: ids.len() as u64,
            is_limited_by_context: length.is_limited_by_context,
        };
        let encoder = Box::new(MessageEncoder::new(context));
        Ok(ApiGeneration { request: generation, chat: Some(Box::new(chat)), encoder })
    }

    fn forwarded_chat(&self, session: RequestSession<'_>, work: &Work) -> Option<ForwardedChat> {
        self.api.chats.forwarded_chat(&self.request.conversation, session, work)
    }
}
