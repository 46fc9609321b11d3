// SPDX-License-Identifier: Apache-2.0
//! OpenAI's Chat Completions API.

mod message;
mod reply;
pub mod request;
mod stream;
mod tools;

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{Request, StatusCode};
use tokio::sync::watch;

use super::engine_chat::ClientChat;
use super::generate_request::{GenerateInputs, sampling_sources};
use super::openai::error::OpenAiError;
use super::openai::seconds_since_1970;
use super::{Api, ApiError, ApiGeneration, ApiPlan, ApiRequest};
use crate::budget::Work;
use crate::chat::forwarded::ForwardedChat;
use crate::chat::reply_reader::ReplyReader;
use crate::chat::{ChatService, RequestError, RequestSession};
use crate::engine::capabilities::Capabilities;
use crate::engine::sglang::request::SessionNames;
use crate::engine::sglang::routes::Route;
use crate::engine::sglang::sglext::SglextOptions;
use crate::generation::request::EngineChat;
use crate::session::{Dialect, Labels, Session, fill_label};
use reply::{PromptIds, ReplyContext};
use request::ChatRequest;
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

    fn not_served(&self) -> Option<String> {
        self.chats.not_served()
    }

    fn decode(&self, request: &Request<Bytes>) -> Result<Box<dyn ApiRequest>, RequestError> {
        let chat = ChatRequest::parse(request.body().clone())?;
        let engine = &self.upstream.borrow().chat;
        let sglext = SglextOptions::decode(&chat.body.bytes, &chat.body.object, request.headers(), engine);
        Ok(Box::new(DecodedChat { api: self.clone(), chat, sglext }))
    }

    fn error(&self, status: StatusCode, message: String) -> ApiError {
        OpenAiError::new(status, message).into()
    }
}

impl ApiRequest for DecodedChat {
    fn session_names(&self) -> SessionNames {
        self.chat.body.session_names()
    }

    fn add_labels(&self, labels: &mut Labels) {
        if let Ok(Some(effort)) = self.chat.body.text("reasoning_effort") {
            fill_label(&mut labels.effort, &effort);
        }
    }

    fn is_long(&self, session: Option<&Session>) -> bool {
        self.api.chats.is_long(session)
    }

    fn plan(&self, session: RequestSession<'_>, work: &Work) -> Result<ApiPlan, RequestError> {
        let Self { api, chat, sglext } = self;
        let model = api.chats.model(&chat.conversation)?;
        chat.body.check_fields(&[])?;
        let mut prompt = api.chats.prompt(&model, &chat.conversation, session, work)?;
        // an engine that renders the chat itself may serve others
        chat.check_modalities()?;
        let engine = Arc::clone(&api.upstream.borrow());
        let inputs = GenerateInputs::new(&model, &prompt, &chat.conversation, &engine);
        let needs_prompt = chat.extras.includes_prompt_ids() || sglext.input;
        let request = chat.generate_request(inputs, needs_prompt, work)?;
        prompt.chat.sampling_sources = Some(sampling_sources(&model.defaults, &chat.body.fields(), false));
        let context = ReplyContext {
            reader: ReplyReader {
                renderer: Arc::clone(&model.renderer),
                options: prompt.chat.reading.clone(),
                stops: chat.stops.clone(),
            },
            model: chat.model.clone(),
            created: seconds_since_1970(),
            prompt: needs_prompt.then_some(match prompt.images.is_empty() {
                true => PromptIds::Sent(prompt.ids),
                false => PromptIds::Echoed(OnceLock::new()),
            }),
            logprobs: chat.logprobs.then_some(chat.token_names),
            extras: chat.extras,
            custom_tools: Arc::clone(&chat.custom_tools),
            sglext: *sglext,
            n: chat.n,
        };
        let encoder = Box::new(ChatEncoder::new(context, chat.options));
        Ok(ApiPlan::Generation(ApiGeneration { request, chat: Some(Box::new(prompt.chat)), encoder }))
    }

    fn forwarded_chat(&self, session: RequestSession<'_>, work: &Work) -> Option<ForwardedChat> {
        self.api.chats.forwarded_chat(&self.chat.conversation, session, work)
    }

    fn client_chat(
        &self,
        route: Route,
        session: RequestSession<'_>,
        work: &Work,
        engine: &Capabilities,
    ) -> Option<EngineChat> {
        let ChatRequest { body, model, n, .. } = &self.chat;
        let client = ClientChat { body, model, n: *n, sglext: self.sglext };
        Some(client.into_engine_chat(route, self.forwarded_chat(session, work), engine))
    }
}
