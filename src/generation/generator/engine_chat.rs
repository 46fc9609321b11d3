//! Runs chats of the engine's own endpoint, which renders what tokentap cannot.

use std::sync::Arc;

use http::StatusCode;

use super::super::active::ActiveGeneration;
use super::super::capture::{Capture, ChatCapture};
use super::super::event::EventKind;
use super::super::events::{Events, Generation};
use super::super::recorder::RecordContext;
use super::super::request::{ChatKind, EngineChat, GenerationRequest, RequestId};
use super::super::retries::AttemptContext;
use super::Generator;
use crate::engine::plan::Plan;
use crate::error::Error;

impl Generator {
    /// Sends a chat and records its reply. The head of a stream whose events all come at the end does not wait for the engine.
    pub(super) async fn perform_chat(
        self: &Arc<Self>,
        request: GenerationRequest,
        mut chat: EngineChat,
        attempt: Option<AttemptContext>,
        known: &RequestId,
    ) -> Result<Generation, Error> {
        // an id that tokentap assigns is never used twice
        let may_be_held = attempt.as_ref().is_some_and(|attempt| attempt.is_repeat) && chat.rid.is_some();
        chat.assign_rid();
        if let Some(rid) = &chat.rid {
            // never set before: an attempt has one chat
            let _ = known.set(Arc::clone(rid));
        }
        if !chat.is_deferred() {
            return self.ask_chat(&request, chat, attempt, may_be_held).await;
        }
        let generator = Arc::clone(self);
        let pending = async move { generator.ask_chat(&request, chat, attempt, may_be_held).await };
        Ok(Generation::deferred(pending, self.context.budget.reply()))
    }

    /// `may_be_held` says whether the engine may still hold the chat's request id.
    async fn ask_chat(
        &self,
        request: &GenerationRequest,
        chat: EngineChat,
        attempt: Option<AttemptContext>,
        may_be_held: bool,
    ) -> Result<Generation, Error> {
        let upstream = Arc::clone(&self.upstream.borrow());
        let plan = Plan::of_chat(upstream.product_or_sglang(), chat.body.clone(), chat.n, chat.rid.clone());
        let mut flight = self.reserve_rids(&plan, may_be_held).await?;
        if plan.rids.len() < plan.n {
            flight.add_unknown_rids(true);
        }
        let context = RecordContext::of_chat(&chat, &upstream, Arc::clone(&self.policy));
        let recorder = self.recorder(request, context, attempt);
        let (route, kind) = (chat.route, chat.kind);
        let uncaptured = self.uncaptured.begin(route.endpoint, Some(Arc::clone(&request.session)));
        let capture = Capture::new(plan, flight, Some(recorder), Arc::clone(&self.context), &upstream);
        let capture = capture.with_chat(ChatCapture::new(chat, uncaptured));
        let mut active = ActiveGeneration::new(capture, request.authorization.clone());
        let reply = self.send_to_engine((route, &request.head), &mut active, may_be_held).await?;
        let generation = self.finish(reply, active, request.reads).await?;
        let needs_ids = kind != ChatKind::PassedThrough && generation.head.status == StatusCode::OK;
        match &generation.events {
            Events::Whole { event: Some(event), .. } if !needs_ids || has_ids(&event.kind) => Ok(generation),
            _ if needs_ids => Err(Error::NoTokenIds),
            _ => Ok(generation),
        }
    }
}

/// Whether a consumer of fields can read the ids of a reply, or its error.
fn has_ids(event: &EventKind) -> bool {
    match event {
        EventKind::Outputs(outputs) => outputs.iter().any(|output| output.chunk.meta.is_some()),
        EventKind::Failed(_) => true,
        EventKind::Done | EventKind::Unparsed(_) | EventKind::Trailers(_) | EventKind::Refused(_) => false,
    }
}
