//! Continues a generation that a trainer aborted, so that the client sees one reply and the session one turn.
//!
//! It works below the capture of the reply, which parses, measures and records objects that were joined already.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use tokio::time::Instant;

use super::active::ActiveGeneration;
use super::buffered::{BufferedReply, collect};
use super::context::GenerationContext;
use super::request::RequestHead;
use crate::engine::sglang::resume::{JoinedObject, JoinedReply, ResumableRequest, ResumeObstacle};
use crate::engine::sglang::routes;
use crate::engine::transport::client::{Reply, ReplyBody, UpstreamCall};
use crate::engine::transport::headers;
use crate::engine::upstream::send;

/// The most attempts of a generation: the first one, and eight continuations.
const MOST_ATTEMPTS: u32 = 9;

/// A generation that may be continued.
#[derive(Debug)]
pub(crate) struct Resumption {
    /// The reply so far, or why it cannot be continued.
    reply: Result<JoinedReply, ResumeObstacle>,
    head: RequestHead,
}

/// The reply to a continuation, once its head has arrived.
pub(super) type Reopened = Pin<Box<dyn Future<Output = Option<ReplyBody>> + Send>>;

/// An object of a reply, joined to the earlier ones.
pub(super) enum Joined {
    /// The reply goes on, or ends.
    Object(Option<Vec<u8>>),
    /// The trainer aborted the generation.
    Aborted(JoinedObject),
    /// It cannot be joined.
    Unreadable,
}

impl Resumption {
    /// The resumption of `request`. `repeats` says whether the objects of its reply list all tokens so far; `None` if that is not known.
    pub(super) fn new(
        request: Result<ResumableRequest, ResumeObstacle>,
        repeats: Option<bool>,
        head: RequestHead,
    ) -> Self {
        let repeats = repeats.ok_or(ResumeObstacle::Unreadable);
        Self { reply: request.and_then(|request| Ok(JoinedReply::new(request, repeats?))), head }
    }

    /// Prevents a continuation: the engine did not get the request as planned.
    pub(super) fn prevent(&mut self, obstacle: ResumeObstacle) {
        self.reply = Err(obstacle);
    }

    /// Joins an object of the reply. `active` says who aborted the generation.
    pub(super) fn join(&mut self, json: &[u8], active: &ActiveGeneration) -> Joined {
        let metrics = &active.context().metrics;
        match &mut self.reply {
            Ok(reply) => match reply.join(json) {
                Ok(object) if object.is_aborted && active.is_interrupted() => Joined::Aborted(object),
                Ok(object) => {
                    if object.is_end && reply.attempts() > 1 {
                        metrics.interrupted.with_label_values(&["resumed"]).inc();
                    }
                    Joined::Object(object.json)
                }
                Err(_) => {
                    if reply.attempts() > 1 {
                        count_passed(active.context(), ResumeObstacle::Unreadable);
                    }
                    Joined::Unreadable
                }
            },
            Err(obstacle) => {
                let obstacle = *obstacle;
                if active.is_interrupted() && JoinedReply::is_requested_abort(json) {
                    count_passed(active.context(), obstacle);
                }
                Joined::Object(None)
            }
        }
    }

    /// Whether an earlier attempt has been joined.
    pub(super) fn has_continued(&self) -> bool {
        self.reply.as_ref().is_ok_and(|reply| reply.attempts() > 1)
    }

    /// The call for the rest of an aborted generation; `None` if there is none, which is counted.
    pub(super) fn continuation(&self, active: &mut ActiveGeneration) -> Option<UpstreamCall> {
        let body = match &self.reply {
            Ok(reply) if reply.attempts() >= MOST_ATTEMPTS => Err(ResumeObstacle::Attempts),
            Ok(reply) => reply.continuation(),
            Err(obstacle) => Err(*obstacle),
        };
        let body = body.inspect_err(|obstacle| count_passed(active.context(), *obstacle)).ok()?;
        active.begin_continuation();
        Some(self.head.call(active.context().budget.hold(body)))
    }

    /// Begins the reply to the continuation. Returns whether it can be joined.
    pub(super) fn begin_continuation(&mut self) -> bool {
        self.reply.as_mut().is_ok_and(|reply| reply.begin_continuation().is_ok())
    }

    /// Sends the call for the rest of a stream. Resolves to `None` if the engine does not stream a reply.
    pub(super) fn reopen(&self, active: &mut ActiveGeneration) -> Option<Reopened> {
        let call = self.continuation(active)?;
        let context = Arc::clone(active.capture().context());
        Some(Box::pin(async move {
            let reply = send_continuation(&context, call).await?;
            let (head, body) = reply.into_parts();
            let streams = headers::is_event_stream(&head.headers);
            if !streams {
                count_passed(&context, ResumeObstacle::Refused);
            }
            streams.then_some(body)
        }))
    }

    /// Completes a reply that does not stream. If it cannot be continued, it is the one of the last attempt.
    pub(super) async fn complete(mut self, mut reply: Bytes, active: &mut ActiveGeneration, limit: u64) -> Bytes {
        // the reply up to the last abort
        let mut aborted = None;
        loop {
            let joined = match self.join(&reply, active) {
                Joined::Unreadable => return aborted.unwrap_or(reply),
                Joined::Object(json) => return json.map_or(reply, Bytes::from),
                Joined::Aborted(object) => object.json.map_or(reply, Bytes::from),
            };
            let Some(call) = self.continuation(active) else { return joined };
            let context = Arc::clone(active.capture().context());
            let Some(rest) = send_continuation(&context, call).await else { return joined };
            let body = collect(rest.into_parts().1, limit, context.budget.reply()).await;
            active.mark_ended();
            let Some(BufferedReply::All(body)) = body.ok().filter(|_| self.begin_continuation()) else {
                count_passed(&context, ResumeObstacle::Unreadable);
                return joined;
            };
            (reply, aborted) = (body, Some(joined));
        }
    }
}

/// Sends the call for the rest of a generation. `None` if the engine does not accept it, which is counted.
async fn send_continuation(context: &GenerationContext, call: UpstreamCall) -> Option<Reply> {
    let sent = send(context.engines.upstream(), &context.metrics, routes::GENERATE, call, Instant::now()).await;
    let reply = sent.ok().filter(|reply| reply.status() == StatusCode::OK);
    if reply.is_none() {
        count_passed(context, ResumeObstacle::Refused);
    }
    reply
}

fn count_passed(context: &GenerationContext, obstacle: ResumeObstacle) {
    context.metrics.interrupted.with_label_values(&["passed"]).inc();
    context.metrics.resume_obstacles.with_label_values(&[obstacle.name()]).inc();
}
