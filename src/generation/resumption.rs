// SPDX-License-Identifier: Apache-2.0
//! A generation that is continued after a trainer aborted it, so that the client sees one reply and the session one turn.
//!
//! It works below the capture of the reply, which parses, measures and records objects that were joined already.

use std::sync::Arc;
use std::time::Duration;

use super::context::GenerationContext;
use super::interruptions::Interruption;
use super::request::RequestHead;
use crate::engine::rid;
use crate::engine::sglang::resume::{JoinedObject, JoinedReply, ObjectKind, ResumableRequest, ResumeObstacle};
use crate::engine::transport::client::UpstreamCall;
use crate::metrics::Metrics;
use crate::session::Policy;

/// The most attempts of a generation: the first one, and eight continuations.
const MOST_ATTEMPTS: u32 = 9;

/// How long a continuation waits for the end of a pause, unless `--pause-wait` is longer.
const PAUSE_WAIT: Duration = Duration::from_secs(600);

/// A generation that may be continued.
#[derive(Debug)]
pub(crate) struct Resumption {
    /// The reply so far, or why it cannot be continued.
    reply: Result<JoinedReply, ResumeObstacle>,
    head: RequestHead,
    policy: Arc<Policy>,
}

/// The outcome of joining an object of a reply to the earlier ones.
pub(super) enum JoinOutcome {
    /// The reply goes on, or ends, with this object; `None` if it is the engine's.
    Object(Option<Vec<u8>>),
    /// An error of the engine.
    Error,
    /// The trainer aborted the generation, which can be continued.
    Aborted(JoinedObject, Box<Continuation>),
    /// It cannot be joined.
    Unreadable,
}

/// The request for the rest of a generation.
pub(super) struct Continuation {
    pub(super) rid: Arc<str>,
    pub(super) call: UpstreamCall,
}

impl Resumption {
    /// The resumption of `request`. `repeats` says whether the objects of its reply list all tokens so far; `None` if that is not known.
    pub(super) fn new(
        request: Result<ResumableRequest, ResumeObstacle>,
        repeats: Option<bool>,
        head: RequestHead,
        policy: Arc<Policy>,
    ) -> Self {
        let repeats = repeats.ok_or(ResumeObstacle::Unreadable);
        Self { reply: request.and_then(|request| Ok(JoinedReply::new(request, repeats?))), head, policy }
    }

    /// Prevents a continuation: the engine did not get the request as planned.
    pub(super) fn prevent(&mut self, obstacle: ResumeObstacle) {
        self.reply = Err(obstacle);
    }

    /// Joins an object of the reply. `interrupted_by` says what a trainer may have aborted the generation with.
    pub(super) fn join(
        &mut self,
        json: &[u8],
        interrupted_by: impl FnOnce() -> Option<Interruption>,
        context: &GenerationContext,
    ) -> JoinOutcome {
        let metrics = &context.metrics;
        let reply = match &mut self.reply {
            Ok(reply) => reply,
            Err(obstacle) => {
                let obstacle = *obstacle;
                if JoinedReply::is_requested_abort(json) && interrupted_by().is_some() {
                    count_passed(metrics, obstacle);
                }
                return JoinOutcome::Object(None);
            }
        };
        let has_continued = reply.attempts() > 1;
        let Ok(object) = reply.join(json) else {
            if has_continued {
                count_passed(metrics, ResumeObstacle::Unreadable);
            }
            return JoinOutcome::Unreadable;
        };
        match object.kind {
            ObjectKind::Tokens => {}
            ObjectKind::Error => return JoinOutcome::Error,
            ObjectKind::Ended if has_continued => metrics.interrupted.with_label_values(&["resumed"]).inc(),
            ObjectKind::Ended => {}
            ObjectKind::Aborted => {
                let continuation = match interrupted_by() {
                    None => return JoinOutcome::Object(object.json),
                    Some(Interruption::Abort) => Err(ResumeObstacle::NoPause),
                    Some(Interruption::Pause) => self.continuation(context),
                };
                match continuation {
                    Ok(continuation) => return JoinOutcome::Aborted(object, continuation),
                    Err(obstacle) => count_passed(metrics, obstacle),
                }
            }
        }
        JoinOutcome::Object(object.json)
    }

    /// Whether an earlier attempt has been joined.
    pub(super) fn has_continued(&self) -> bool {
        self.reply.as_ref().is_ok_and(|reply| reply.attempts() > 1)
    }

    fn continuation(&self, context: &GenerationContext) -> Result<Box<Continuation>, ResumeObstacle> {
        let reply = self.reply.as_ref().map_err(|obstacle| *obstacle)?;
        if reply.attempts() >= MOST_ATTEMPTS {
            return Err(ResumeObstacle::Attempts);
        }
        let rid = rid::fresh();
        let body = reply.continuation(&rid)?;
        Ok(Box::new(Continuation { rid, call: self.head.call(context.budget.hold(body)) }))
    }

    /// Waits while a trainer has paused the engine, which would not abort a request that it has not begun. Resolves to false if the pause does
    /// not end in time, or tokentap ends, which is counted.
    pub(super) fn wait_continued(&self, context: &Arc<GenerationContext>) -> impl Future<Output = bool> + Send + use<> {
        let (policy, context) = (Arc::clone(&self.policy), Arc::clone(context));
        let limit = context.settings.pause_wait.max(PAUSE_WAIT);
        async move {
            if !policy.is_paused() {
                return true;
            }
            let waited = context.interruptions.wait_while_paused(&policy, limit, &context.metrics).await;
            if waited.is_err() {
                count_passed(&context.metrics, ResumeObstacle::Paused);
            }
            waited.is_ok()
        }
    }

    /// Begins the reply to the continuation. Returns whether it can be joined.
    pub(super) fn begin_attempt(&mut self) -> bool {
        self.reply.as_mut().is_ok_and(|reply| reply.begin_continuation().is_ok())
    }
}

/// Counts a generation that is passed instead.
pub(super) fn count_passed(metrics: &Metrics, obstacle: ResumeObstacle) {
    metrics.interrupted.with_label_values(&["passed"]).inc();
    metrics.resume_obstacles.with_label_values(&[obstacle.name()]).inc();
}
