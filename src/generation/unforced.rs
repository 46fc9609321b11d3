//! Requests a stream again without what tokentap forced, if its first event refuses the request.
//!
//! A refusal before the stream has a status, and `generator::send` sends the request again.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::StatusCode;
use tokio::time::Instant;

use super::active::ActiveGeneration;
use super::context::GenerationContext;
use super::request::RequestHead;
use crate::engine::reason::Reason;
use crate::engine::sglang::refusal::refuses;
use crate::engine::sglang::routes;
use crate::engine::transport::client::{ReplyBody, UpstreamCall};
use crate::engine::transport::headers;
use crate::engine::transport::sse::SseEvent;
use crate::engine::upstream::send;

/// The status of the refused reply in `tokentap_unforced_retries_total`.
const STREAMED: &str = "200";

/// A stream that was refused, and the request without anything forced.
pub(super) struct UnforcedRetry {
    /// The event that refused it.
    refusal: SseEvent,
    /// An engine may keep the id of a request that it has refused (SGLang 0.5.12), and a second refusal is then about the id.
    keeps_id: bool,
    /// The reply to the second request, until its head arrives.
    reply: Option<Pin<Box<dyn Future<Output = Option<ReplyBody>> + Send>>>,
}

impl UnforcedRetry {
    /// Sends the request again if `event`, the first of its stream, refuses it. Returns the event otherwise.
    pub(super) fn try_new(
        head: &RequestHead,
        event: SseEvent,
        active: &mut ActiveGeneration,
    ) -> Result<Self, SseEvent> {
        let refused = active.capture().plan().unforced.is_some() && event.data().is_some_and(refuses);
        if !refused {
            active.capture_mut().plan_mut().drop_bodies();
            return Err(event);
        }
        let context = Arc::clone(active.capture().context());
        context.metrics.unforced_retries.with_label_values(&[STREAMED]).inc();
        let is_renamed = active.capture_mut().give_up(Reason::Refused);
        let plan = active.capture_mut().plan_mut();
        let keeps_id = !is_renamed && !plan.rids.is_empty();
        let body = context.budget.hold(std::mem::take(&mut plan.body));
        let reply: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(send_stream(context, head.call(body)));
        Ok(Self { refusal: event, keeps_id, reply: Some(reply) })
    }

    /// Whether the head of the second reply has not arrived.
    pub(super) fn is_waiting(&self) -> bool {
        self.reply.is_some()
    }

    /// Resolves to the body of the second reply, or to `None` if the engine does not accept the request or does not stream.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<ReplyBody>> {
        let Some(reply) = &mut self.reply else { return Poll::Ready(None) };
        let body = ready!(reply.as_mut().poll(cx));
        self.reply = None;
        Poll::Ready(body)
    }

    /// The event that refused the first request.
    pub(super) fn into_refusal(self) -> SseEvent {
        self.refusal
    }

    /// What the client gets of the first event of the second reply: the first refusal, if the second one may be about the id.
    pub(super) fn first_event(self, event: SseEvent) -> SseEvent {
        if self.keeps_id && event.data().is_some_and(refuses) { self.refusal } else { event }
    }
}

async fn send_stream(context: Arc<GenerationContext>, call: UpstreamCall) -> Option<ReplyBody> {
    let sent = send(context.engines.upstream(), &context.metrics, routes::GENERATE, call, Instant::now()).await;
    let (head, body) = sent.ok()?.into_parts();
    (head.status == StatusCode::OK && headers::is_event_stream(&head.headers)).then_some(body)
}
