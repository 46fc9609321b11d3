// SPDX-License-Identifier: Apache-2.0
//! Requests the rest of a generation that a trainer aborted, once the trainer has continued the engine.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::StatusCode;
use tokio::time::Instant;

use super::active::ActiveGeneration;
use super::buffered::{BufferedReply, collect};
use super::context::GenerationContext;
use super::resumption::{Continuation, JoinOutcome, Resumption, count_passed};
use crate::engine::sglang::resume::ResumeObstacle;
use crate::engine::sglang::routes;
use crate::engine::transport::client::{Reply, ReplyBody, UpstreamCall};
use crate::engine::transport::headers;
use crate::engine::upstream::send;
use crate::long_work::{BodyLength, in_place};

/// The request for the rest of a stream, until the head of its reply arrives.
pub(super) enum StreamContinuation {
    /// Waits for the end of the pause.
    Waiting(Pin<Box<dyn Future<Output = bool> + Send>>, Option<Box<Continuation>>),
    /// Waits for the head of the reply.
    Sent(Pin<Box<dyn Future<Output = Option<ReplyBody>> + Send>>),
}

impl StreamContinuation {
    pub(super) fn new(resumption: &Resumption, continuation: Box<Continuation>, active: &ActiveGeneration) -> Self {
        Self::Waiting(Box::pin(resumption.wait_continued(active.capture().context())), Some(continuation))
    }

    /// Resolves to the body of the reply, or to `None` if the pause does not end, a client has aborted the generation, or the engine refuses
    /// the request or does not stream.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, active: &mut ActiveGeneration) -> Poll<Option<ReplyBody>> {
        if let Self::Waiting(wait, continuation) = self {
            let is_continued = ready!(wait.as_mut().poll(cx));
            let continuation = continuation.take().filter(|_| is_continued && !active.capture().is_aborted_by_client());
            let Some(Continuation { rid, call }) = continuation.map(|continuation| *continuation) else {
                return Poll::Ready(None);
            };
            active.begin_continuation(&rid);
            *self = Self::Sent(Box::pin(send_stream(Arc::clone(active.capture().context()), call)));
        }
        match self {
            Self::Sent(sent) => sent.as_mut().poll(cx),
            Self::Waiting(..) => Poll::Ready(None),
        }
    }
}

async fn send_stream(context: Arc<GenerationContext>, call: UpstreamCall) -> Option<ReplyBody> {
    let (head, body) = send_continuation(&context, call).await?.into_parts();
    let streams = headers::is_event_stream(&head.headers);
    if !streams {
        count_passed(&context.metrics, ResumeObstacle::Refused);
    }
    streams.then_some(body)
}

/// Completes a reply that does not stream. If it cannot be continued, it is the one of the last attempt.
pub(super) async fn complete(resumption: Resumption, reply: Bytes, active: &mut ActiveGeneration, limit: u64) -> Bytes {
    let reply = join_rest(resumption, reply, active, limit).await;
    active.set_aborted_reply(None);
    reply
}

async fn join_rest(mut resumption: Resumption, mut reply: Bytes, active: &mut ActiveGeneration, limit: u64) -> Bytes {
    let context = Arc::clone(active.capture().context());
    let held = |json: Option<Vec<u8>>, reply: Bytes| json.map_or(reply, |json| context.budget.hold(json));
    // the reply up to the last abort
    let mut aborted = None;
    loop {
        let join = || resumption.join(&reply, || active.interrupted_by(), &context);
        let (joined, new_tokens, continuation) = match in_place(BodyLength::Reply(reply.len()), join) {
            JoinOutcome::Error if aborted.is_some() => {
                count_passed(&context.metrics, ResumeObstacle::Refused);
                return aborted.unwrap_or(reply);
            }
            JoinOutcome::Unreadable | JoinOutcome::Error => return aborted.unwrap_or(reply),
            JoinOutcome::Object(json) => return held(json, reply),
            JoinOutcome::Aborted(object, continuation) => (held(object.json, reply), object.new_tokens, continuation),
        };
        active.capture_mut().mark_epoch(new_tokens);
        active.set_aborted_reply(Some(joined.clone()));
        if !resumption.wait_continued(&context).await || active.capture().is_aborted_by_client() {
            return joined;
        }
        active.begin_continuation(&continuation.rid);
        let Some(rest) = send_continuation(&context, continuation.call).await else {
            active.mark_ended();
            return joined;
        };
        let rest = collect(rest.into_parts().1, limit, context.budget.reply()).await;
        active.mark_ended();
        let obstacle = match rest {
            Ok(BufferedReply::All(body)) if resumption.begin_attempt() => {
                (reply, aborted) = (body, Some(joined));
                continue;
            }
            Ok(_) => ResumeObstacle::Unreadable,
            Err(_) => ResumeObstacle::Broken,
        };
        count_passed(&context.metrics, obstacle);
        return joined;
    }
}

/// Sends the call for the rest of a generation. `None` if the engine does not accept it, which is counted.
async fn send_continuation(context: &GenerationContext, call: UpstreamCall) -> Option<Reply> {
    let sent = send(context.engines.upstream(), &context.metrics, routes::GENERATE, call, Instant::now()).await;
    let reply = sent.ok().filter(|reply| reply.status() == StatusCode::OK);
    if reply.is_none() {
        count_passed(&context.metrics, ResumeObstacle::Refused);
    }
    reply
}
