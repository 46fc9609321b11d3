//! Continues a generation that a trainer aborted, so that the client sees one reply and the session one turn.
//!
//! It works below the capture of the reply, which parses, measures and records objects that were joined already.

use super::context::GenerationContext;
use super::request::RequestHead;
use crate::engine::sglang::resume::{JoinedObject, JoinedReply, ResumableRequest, ResumeObstacle};
use crate::engine::transport::client::UpstreamCall;
use crate::metrics::Metrics;

/// The most attempts of a generation: the first one, and eight continuations.
const MOST_ATTEMPTS: u32 = 9;

/// A generation that may be continued.
#[derive(Debug)]
pub(crate) struct Resumption {
    /// The reply so far, or why it cannot be continued.
    reply: Result<JoinedReply, ResumeObstacle>,
    head: RequestHead,
}

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

    /// Joins an object of the reply. `is_interrupted` says whether an abort is a trainer's.
    pub(super) fn join(&mut self, json: &[u8], is_interrupted: impl FnOnce() -> bool, metrics: &Metrics) -> Joined {
        match &mut self.reply {
            Ok(reply) => match reply.join(json) {
                Ok(object) if object.is_aborted && is_interrupted() => Joined::Aborted(object),
                Ok(object) => {
                    if object.is_end && reply.attempts() > 1 {
                        metrics.interrupted.with_label_values(&["resumed"]).inc();
                    }
                    Joined::Object(object.json)
                }
                Err(_) => {
                    if reply.attempts() > 1 {
                        count_passed(metrics, ResumeObstacle::Unreadable);
                    }
                    Joined::Unreadable
                }
            },
            Err(obstacle) => {
                let obstacle = *obstacle;
                if JoinedReply::is_requested_abort(json) && is_interrupted() {
                    count_passed(metrics, obstacle);
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
    pub(super) fn continuation(&self, context: &GenerationContext) -> Option<UpstreamCall> {
        let body = match &self.reply {
            Ok(reply) if reply.attempts() >= MOST_ATTEMPTS => Err(ResumeObstacle::Attempts),
            Ok(reply) => reply.continuation(),
            Err(obstacle) => Err(*obstacle),
        };
        let body = body.inspect_err(|obstacle| count_passed(&context.metrics, *obstacle)).ok()?;
        Some(self.head.call(context.budget.hold(body)))
    }

    /// Begins the reply to the continuation. Returns whether it can be joined.
    pub(super) fn begin_continuation(&mut self) -> bool {
        self.reply.as_mut().is_ok_and(|reply| reply.begin_continuation().is_ok())
    }
}

/// Counts a generation that is passed instead.
pub(super) fn count_passed(metrics: &Metrics, obstacle: ResumeObstacle) {
    metrics.interrupted.with_label_values(&["passed"]).inc();
    metrics.resume_obstacles.with_label_values(&[obstacle.name()]).inc();
}
