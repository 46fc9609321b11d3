//! OpenAI's Chat Completions.

mod generate_request;
mod logprobs;
mod members;
mod message;
pub(crate) mod passthrough;
pub(crate) mod reply;
pub mod request;
mod sampling;
pub(crate) mod sglext;
pub(crate) mod stream;
mod tool_choice;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{Request, StatusCode};
use tokio::sync::watch;

use super::openai::problem::Problem;
use super::openai::seconds_since_1970;
use super::{Api, ApiError, ApiGeneration, ApiRequest, RequestSession};
use crate::budget::Budget;
use crate::chat::drift::Drift;
use crate::chat::model::{ChatModel, Chats};
use crate::chat::prompt::{Preparation, Prepared};
use crate::chat::remembered::Remembered;
use crate::chat::{RequestError, limits};
use crate::config::Config;
use crate::engine::probe::Capabilities;
use crate::engine::request::SessionNames;
use crate::metrics::Metrics;
use crate::session::Session;
pub use generate_request::Addition;
use reply::ReplyContext;
pub use request::ChatRequest;
use sampling::Sampling;
use sglext::Wanted;
use stream::ChatEncoder;

/// Replies of a session that are read at once; more keep a thread busy for too long. After a restart none have been read.
const READ_AT_ONCE: usize = 8;

/// `POST /v1/chat/completions`. Cheap to clone.
#[derive(Debug, Clone)]
pub struct OpenAiChat(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    config: Arc<Config>,
    metrics: Arc<Metrics>,
    budget: Budget,
    chats: watch::Receiver<Arc<Chats>>,
    upstream: watch::Receiver<Arc<Capabilities>>,
    /// Which chats are rendered anew to be compared.
    drift: Sampling,
    /// It has been logged that text of an assistant was tokenised anew.
    has_warned: AtomicBool,
}

/// A decoded request.
#[derive(Debug)]
struct Decoded {
    api: OpenAiChat,
    chat: Arc<ChatRequest>,
    /// What of the ids the client asks for in `sglext`.
    sglext: Wanted,
}

impl OpenAiChat {
    /// The API, which renders chats by `chats` for the engine of `upstream`.
    #[must_use]
    pub fn new(
        config: Arc<Config>,
        metrics: Arc<Metrics>,
        budget: Budget,
        chats: watch::Receiver<Arc<Chats>>,
        upstream: watch::Receiver<Arc<Capabilities>>,
    ) -> Self {
        let (drift, has_warned) = (Sampling::default(), AtomicBool::new(false));
        Self(Arc::new(Shared { config, metrics, budget, chats, upstream, drift, has_warned }))
    }
}

impl Api for OpenAiChat {
    fn is_served(&self) -> bool {
        matches!(&**self.0.chats.borrow(), Chats::Rendered(_))
    }

    fn reads_passthrough(&self) -> bool {
        true
    }

    fn decode(&self, request: &Request<Bytes>) -> Result<Box<dyn ApiRequest>, RequestError> {
        let chat = Arc::new(ChatRequest::parse(request.body().clone())?);
        let engine = &self.0.upstream.borrow().chat;
        let sglext = Wanted::of(&chat.bytes, &chat.object, request.headers(), engine);
        Ok(Box::new(Decoded { api: self.clone(), chat, sglext }))
    }

    fn error(&self, status: StatusCode, message: String) -> ApiError {
        Problem::new(status, message).into()
    }

    fn engine_error(&self, status: StatusCode, body: &[u8]) -> ApiError {
        Problem::from_engine(status, body).into()
    }

    fn event_error(&self, error: &str) -> ApiError {
        Problem::from_event(error).into()
    }
}

impl ApiRequest for Decoded {
    fn session_names(&self) -> SessionNames {
        SessionNames::of(&self.chat.bytes, &self.chat.object)
    }

    fn is_long(&self, session: Option<&Session>) -> bool {
        session.is_some_and(|session| session.unread_replies() > READ_AT_ONCE)
    }

    fn generation(&self, session: RequestSession<'_>) -> Result<ApiGeneration, RequestError> {
        let Self { api, chat, sglext } = self;
        let Shared { config, metrics, budget, chats, upstream, drift, has_warned } = &*api.0;
        let chats = Arc::clone(&chats.borrow());
        let model = match &*chats {
            Chats::Rendered(model) => model,
            Chats::Forwarded(reason) => return Err(RequestError::Unsupported(reason.clone())),
        };
        limits::check(&chat.conversation.messages, &config.chat.chat_limits)?;
        chat.check_fields()?;
        let preparation = Preparation {
            renderer: &model.renderer,
            session: session.existing.map(|session| &**session),
            earlier_thinking: config.chat.earlier_thinking,
            parser: model.parser.clone(),
        };
        let prepared = preparation.prepare(&chat.conversation)?;
        metrics.chat.prompts.with_label_values(&[prepared.how()]).inc();
        let is_lost = prepared.chat.retokenised || prepared.chat.foreign_text && !session.is_named;
        if is_lost && !has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "what an assistant said went into a prompt as text and was tokenised anew; in a session (/sessions/ID/v1, or X-Session-Id) it is kept as it was sampled"
            );
        }
        let Prepared { ids, chat: remembered, continues, .. } = prepared;
        let reading = remembered.reading.clone();
        let upstream = Arc::clone(&upstream.borrow());
        let ids: Arc<[u32]> = ids.into();
        let addition = Addition {
            ids: &ids,
            defaults: &model.defaults,
            skip_special: reading.skip_special,
            thinks: model.thinks && !chat.conversation.is_thoughtless(),
            served_model: &upstream.model,
            loses_ids: upstream.loses_ids(),
        };
        let request = chat.native(addition, |body| budget.hold(body))?;
        let wants_prompt = chat.wants.prompt() || sglext.input;
        let context = ReplyContext {
            renderer: Arc::clone(&model.renderer),
            reading,
            stops: chat.stops.clone(),
            model: chat.model.clone(),
            created: seconds_since_1970(),
            prompt: wants_prompt.then(|| Arc::clone(&ids)),
            logprobs: chat.logprobs,
            wants: chat.wants,
            sglext: *sglext,
            n: chat.n,
        };
        if let (Some(turn), Some(session)) = (continues, session.existing)
            && drift.is_due(config.chat.drift_sample)
        {
            api.compare(model, Arc::clone(chat), Arc::clone(session), turn, ids);
        }
        let encoder = Box::new(ChatEncoder::new(context, chat.options));
        Ok(ApiGeneration { request, chat: Some(Box::new(remembered)), encoder })
    }

    fn remembered(&self, session: Option<&Session>) -> Option<Remembered> {
        match &**self.api.0.chats.borrow() {
            Chats::Rendered(model) => Some(Remembered::of(&self.chat.conversation, model, session)),
            Chats::Forwarded(_) => None,
        }
    }
}

impl OpenAiChat {
    /// Compares a prompt with what the template makes of the whole conversation, on a blocking thread. One is compared at a time, and no request
    /// waits for it.
    fn compare(
        &self,
        model: &Arc<ChatModel>,
        chat: Arc<ChatRequest>,
        session: Arc<Session>,
        turn: u32,
        sent: Arc<[u32]>,
    ) {
        let Ok(turnstile) = Arc::clone(&self.0.drift.turnstile).try_acquire_owned() else { return };
        let (metrics, model) = (Arc::clone(&self.0.metrics), Arc::clone(model));
        tokio::task::spawn_blocking(move || {
            let Ok(rendered) = Preparation::anew(&model).rendering(&chat.conversation) else { return };
            let drift = Drift::between(&sent, &session.mask(turn), &rendered, model.renderer.tokenizer().special());
            metrics.chat.drift.with_label_values(&[drift.name()]).inc();
            tracing::debug!(session = %session.id, turn, drift = drift.name(), "a chat was rendered anew to be compared");
            drop(turnstile);
        });
    }
}
