//! `POST /v1/chat/completions`: a conversation becomes tokens.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Call, Native, now};
use crate::api::openai_chat::Addition;
use crate::api::openai_chat::reply::Making;
use crate::api::openai_chat::request::ChatRequest;
use crate::api::openai_chat::sglext::Wanted;
use crate::api::openai_chat::stream::Speaker;
use crate::api::voice::Voice;
use crate::chat::RequestError;
use crate::chat::drift::Drift;
use crate::chat::limits;
use crate::chat::model::{ChatModel, Chats};
use crate::chat::prompt::Preparation;
use crate::chat::remembered::Remembered;
use crate::http::Parts;
use crate::trajectory::Session;

/// Compares a prompt with what the template makes of the whole conversation, on a thread of its own; one at a time, and nobody waits.
fn audit(
    parts: &Arc<Parts>,
    model: &Arc<ChatModel>,
    chat: Arc<ChatRequest>,
    session: Option<Arc<Session>>,
    turn: u32,
    sent: Arc<[u32]>,
) {
    let Some(session) = session else { return };
    let Ok(turnstile) = Arc::clone(&parts.drift.turnstile).try_acquire_owned() else { return };
    let (parts, model) = (Arc::clone(parts), Arc::clone(model));
    tokio::task::spawn_blocking(move || {
        let preparation = Preparation::anew(&model);
        let Ok(rendered) = preparation.rendering(&chat.conversation) else { return };
        let drift = Drift::between(&sent, &session.mask(turn), &rendered, model.renderer.tokenizer().special());
        parts.metrics.chat.drift.with_label_values(&[drift.name()]).inc();
        tracing::debug!(session = %session.id, turn, drift = drift.name(), "a chat was rendered anew to be compared");
        drop(turnstile);
    });
}

/// The native call that a chat becomes. Where the engine's own endpoint has to serve it, the call gets what its turn remembers.
pub(super) fn native(parts: &Arc<Parts>, call: &mut Call, chat: &Arc<ChatRequest>) -> Result<Native, RequestError> {
    let chats = Arc::clone(&parts.chats.borrow());
    let model = match &*chats {
        Chats::Rendered(model) => model,
        Chats::Forwarded(reason) => return Err(RequestError::Unsupported(reason.clone())),
    };
    let known = call.known_session(parts);
    let native = rendered(parts, call, chat, model, known.clone());
    if let (Err(RequestError::Unsupported(_)), Some(_)) = (&native, call.named()) {
        call.remembered = Some(Remembered::of(&chat.conversation, model, known.as_deref()));
    }
    native
}

/// The native call of a chat whose prompt is rendered.
fn rendered(
    parts: &Arc<Parts>,
    call: &Call,
    chat: &Arc<ChatRequest>,
    model: &Arc<ChatModel>,
    known: Option<Arc<Session>>,
) -> Result<Native, RequestError> {
    limits::check(&chat.conversation.messages, &parts.config.chat)?;
    chat.check_fields()?;
    let preparation = Preparation {
        renderer: &model.renderer,
        session: known.as_deref(),
        earlier_thinking: parts.config.chat.earlier_thinking,
        told: model.told.clone(),
    };
    let prepared = preparation.prepare(&chat.conversation)?;
    parts.metrics.chat.prompts.with_label_values(&[prepared.how()]).inc();
    let is_lost = prepared.chat.foreign_text && call.named().is_none() || prepared.chat.retokenised;
    if is_lost && !parts.retokenised.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "what an assistant said went into a prompt as text and was tokenised anew; in a session (/sessions/ID/v1, or X-Session-Id) it is kept as it was sampled"
        );
    }
    let reading = prepared.chat.reading.clone();
    let upstream = Arc::clone(&parts.upstream.borrow());
    let ids: Arc<[u32]> = prepared.ids.into();
    let addition = Addition {
        ids: &ids,
        defaults: &model.defaults,
        skip_special: reading.skip_special,
        thinks: model.thinks && !chat.conversation.is_thoughtless(),
        served_model: &upstream.model,
        loses_ids: upstream.loses_ids(),
    };
    let request = chat.native(addition, |body| parts.budget.hold(body))?;
    let sglext = Wanted::of(&chat.bytes, &chat.object, call.request.headers(), &upstream.chat);
    let wants_prompt = chat.wants.prompt() || sglext.input;
    let making = Making {
        renderer: Arc::clone(&model.renderer),
        reading,
        stops: chat.stops.clone(),
        model: chat.model.clone(),
        created: now(),
        prompt: wants_prompt.then(|| Arc::clone(&ids)),
        logprobs: chat.logprobs,
        wants: chat.wants,
        sglext,
        n: chat.n,
    };
    let voice = match chat.stream {
        true => Voice::ChatStream(Speaker::new(making, chat.options)),
        false => Voice::Chat(making),
    };
    if let Some(turn) = prepared.continues.filter(|_| parts.drift.is_due(parts.config.chat.drift_sample)) {
        audit(parts, model, Arc::clone(chat), known, turn, ids);
    }
    Ok(Native { request, chat: Some(Box::new(prepared.chat)), voice })
}
