//! OpenAI's Chat Completions API.

mod generate_request;
mod members;
mod message;
pub(crate) mod reply;
pub mod request;
pub(crate) mod stream;
mod tools;

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode};
use tokio::sync::watch;

use super::body::RequestBody;
use super::generate_request::sampling_sources;
use super::openai::error::OpenAiError;
use super::openai::seconds_since_1970;
use super::{Api, ApiError, ApiGeneration, ApiRequest};
use crate::budget::Work;
use crate::chat::forwarded::ForwardedChat;
use crate::chat::reply_reader::ReplyReader;
use crate::chat::{ChatPrompt, ChatService, RequestError, RequestSession};
use crate::engine::capabilities::Capabilities;
use crate::engine::sglang::request::SessionNames;
use crate::engine::sglang::sglext::SglextOptions;
use crate::json::Value;
use crate::session::{Dialect, Labels, Session, fill_label};
pub use generate_request::GenerateInputs;
use reply::ReplyContext;
pub use request::ChatRequest;
use stream::ChatEncoder;

/// `POST /v1/chat/completions`. Cheap to clone.
#[derive(Debug, Clone)]
pub struct OpenAiChat {
    /// Prepares the prompts.
    pub chats: Arc<ChatService>,
    /// The capabilities of the engine.
    pub upstream: watch::Receiver<Arc<Capabilities>>,
}

/// A decoded request.
#[derive(Debug)]
struct DecodedChat {
    api: OpenAiChat,
    chat: ChatRequest,
    /// The ids that the client asks for in `sglext`.
    sglext: SglextOptions,
}

impl Api for OpenAiChat {
    fn dialect(&self) -> Option<Dialect> {
        Some(Dialect::Chat)
    }

    fn is_served(&self) -> bool {
        self.chats.is_served()
    }

    fn decode(&self, request: &Request<Bytes>) -> Result<Box<dyn ApiRequest>, RequestError> {
        let chat = ChatRequest::parse(request.body().clone())?;
        let engine = &self.upstream.borrow().chat;
        let sglext = SglextOptions::decode(&chat.bytes, &chat.object, request.headers(), engine);
        Ok(Box::new(DecodedChat { api: self.clone(), chat, sglext }))
    }

    fn error(&self, status: StatusCode, message: String) -> ApiError {
        OpenAiError::new(status, message).into()
    }

    fn engine_error(&self, status: StatusCode, body: &[u8]) -> ApiError {
        OpenAiError::from_engine(status, body).into()
    }

    fn event_error(&self, error: &str) -> ApiError {
        OpenAiError::from_event(error).into()
    }
}

impl ApiRequest for DecodedChat {
    fn session_names(&self) -> SessionNames {
        SessionNames::decode(&self.chat.bytes, &self.chat.object)
    }

    fn add_labels(&self, labels: &mut Labels) {
        let body = RequestBody { bytes: &self.chat.bytes, object: &self.chat.object };
        if let Some(effort) = body.value("reasoning_effort").ok().flatten().as_ref().and_then(Value::as_str) {
            fill_label(&mut labels.effort, effort);
        }
    }

    fn is_long(&self, session: Option<&Session>) -> bool {
        self.api.chats.is_long(session)
    }

    fn generation(&self, session: RequestSession<'_>, work: &Work) -> Result<ApiGeneration, RequestError> {
        let Self { api, chat, sglext } = self;
        let model = api.chats.model(&chat.conversation)?;
        chat.check_fields()?;
        let ChatPrompt { ids, chat: mut recorded } = api.chats.prompt(&model, &chat.conversation, session, work)?;
        // an engine that renders the chat itself may serve others
        chat.check_modalities()?;
        let upstream = Arc::clone(&api.upstream.borrow());
        let options = recorded.reading.clone();
        let inputs = GenerateInputs {
            ids: &ids,
            defaults: &model.defaults,
            skip_special: options.skip_special,
            require_reasoning: model.has_reasoning_parser && !chat.conversation.disables_thinking(),
            served_model: &upstream.model,
            loses_ids: upstream.loses_ids(),
        };
        let body = RequestBody { bytes: &chat.bytes, object: &chat.object };
        recorded.sampling_sources = Some(sampling_sources(&model.defaults, |name| body.has(name), false));
        let request = chat.generate_request(inputs, work)?;
        let needs_prompt = chat.extras.includes_prompt_ids() || sglext.input;
        let context = ReplyContext {
            reader: ReplyReader { renderer: Arc::clone(&model.renderer), options, stops: chat.stops.clone() },
            model: chat.model.clone(),
            created: seconds_since_1970(),
            prompt: needs_prompt.then_some(ids),
            logprobs: chat.logprobs,
            extras: chat.extras,
            custom_tools: Arc::clone(&chat.custom_tools),
            sglext: *sglext,
            n: chat.n,
        };
        let encoder = Box::new(ChatEncoder::new(context, chat.options));
        Ok(ApiGeneration { request, chat: Some(Box::new(recorded)), encoder })
    }

    fn forwarded_chat(&self, session: RequestSession<'_>, work: &Work) -> Option<ForwardedChat> {
        self.api.chats.forwarded_chat(&self.chat.conversation, session, work)
    }
}
