// SPDX-License-Identifier: Apache-2.0
//! Retries of a call in a named session: a retry joins the call while it runs, or replays a reply that was not delivered.
//!
//! A reply counts as delivered when its last byte was passed to the server's connection. Bytes that are lost later, in the buffers of the
//! connection or the system, are not detected.

mod reader;
mod registry;
mod replay_buffer;
mod shared_reply;

use std::borrow::Cow;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderValue, Method};
use parking_lot::Mutex;

pub(crate) use reader::Reader;
pub(crate) use registry::{ReplayLimits, Retries};
pub(crate) use shared_reply::PendingReply;

use super::request::{BodyDigest, GenerationRequest, RequestId};
use crate::engine::sglang::sglext::SglextOptions;
use crate::generation::event::EventAccess;
use crate::long_work::{BodyLength, in_place};
use crate::session::Turns;
use replay_buffer::{BufferedBytes, ReplayBuffer};
use shared_reply::{SharedReply, Wakers};

/// Identifies a call: two calls with equal keys are the same call.
#[derive(Debug, Clone)]
pub struct RetryKey {
    /// The session, which the client named.
    pub session: Arc<str>,
    pub method: Method,
    /// Path and query, as they go upstream.
    pub target: Cow<'static, str>,
    /// `Authorization` and `X-Api-Key`: a client with other credentials must not get the reply.
    pub authorization: [Option<HeaderValue>; 2],
    /// The request id from a client header.
    pub rid: Option<HeaderValue>,
    /// The body. Equal calls share its memory.
    pub body: Bytes,
    /// How the events are accessed.
    pub reads: EventAccess,
    /// The ids that the client gets in `sglext`, which it may ask for in headers.
    pub sglext: SglextOptions,
    /// The digest of the body.
    pub digest: BodyDigest,
}

impl RetryKey {
    /// The key of a call. Hashes the body.
    pub(super) fn new(request: &GenerationRequest) -> Self {
        let GenerationRequest { source, call } = request;
        let (body, headers) = (source.body().clone(), &call.head.headers);
        Self {
            session: Arc::clone(&call.session),
            method: call.head.method.clone(),
            target: call.head.target.clone(),
            authorization: [call.signals.authorization.clone(), headers.get("x-api-key").cloned()],
            rid: call.signals.rid.clone(),
            digest: in_place(BodyLength::Copy(body.len()), || BodyDigest::new(&body)),
            body,
            reads: call.reads,
            sglext: source.sglext(),
        }
    }

    /// Whether the keys are equal except that only the digests of the bodies are compared.
    fn is_like(&self, other: &Self) -> bool {
        // destructured, so that a new member cannot be forgotten here
        let Self { session, method, target, authorization, rid, body, reads, sglext, digest } = self;
        *session == other.session
            && *method == other.method
            && *target == other.target
            && *authorization == other.authorization
            && *rid == other.rid
            && *reads == other.reads
            && *sglext == other.sglext
            && body.len() == other.body.len()
            && *digest == other.digest
    }
}

/// Links an attempt to its session and its access log line.
#[derive(Debug, Clone, Default)]
pub struct AttemptContext {
    /// The turns that it commits.
    pub turns: Turns,
    /// The turns of an undelivered attempt that this one replaces.
    pub superseded: Option<Turns>,
    /// There was an undelivered attempt, with or without turns. Its ids may not be released yet.
    pub is_repeat: bool,
    /// The request's id, once it is known.
    pub rid: Arc<RequestId>,
}

struct Attempt {
    key: RetryKey,
    context: AttemptContext,
    wakers: Arc<Wakers>,
    /// It has a reader. Changes while `reply` is locked.
    live: AtomicBool,
    /// No equal call ran concurrently. Changes while the list of attempts is locked.
    only_call: AtomicBool,
    /// Its number among the undelivered attempts; zero for other attempts. Changes while the list of attempts is locked.
    undelivered: AtomicU64,
    // held for one step of the reply, never across an await; lock order: the list of attempts first, then this
    reply: Mutex<SharedReply>,
}

impl std::fmt::Debug for Attempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attempt").field("session", &self.key.session).field("live", &self.live).finish_non_exhaustive()
    }
}

impl Attempt {
    fn new(key: RetryKey, context: AttemptContext, reply: SharedReply) -> Self {
        Self {
            key,
            context,
            wakers: Arc::default(),
            live: AtomicBool::new(false),
            only_call: AtomicBool::new(true),
            undelivered: AtomicU64::new(0),
            reply: Mutex::new(reply),
        }
    }

    /// Polls the reply once, on behalf of all waiting readers.
    fn pull(&self, reply: &mut SharedReply, reader: u64, cx: &Context<'_>) -> Poll<()> {
        self.wakers.add(reader, cx.waker());
        if reply.is_stalled() {
            return Poll::Pending;
        }
        reply.pull(&mut Context::from_waker(&Waker::from(Arc::clone(&self.wakers))))
    }

    fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    fn is_only_call(&self) -> bool {
        self.only_call.load(Ordering::Relaxed)
    }

    /// Records that an equal call runs concurrently.
    fn mark_duplicate(&self) {
        self.only_call.store(false, Ordering::Relaxed);
    }

    /// Its number among the undelivered attempts.
    fn undelivered(&self) -> Option<NonZero<u64>> {
        NonZero::new(self.undelivered.load(Ordering::Relaxed))
    }

    /// Adds a reader at the first event; `None` if the reply can no longer be read from there.
    fn join(self: &Arc<Self>, retries: &Retries) -> Option<Reader> {
        let mut reply = self.reply.lock();
        let id = reply.join()?;
        self.live.store(true, Ordering::Release);
        drop(reply);
        Some(Reader { attempt: Arc::clone(self), retries: retries.clone(), id })
    }

    /// Removes a reader and returns whether it was the last.
    fn leave(&self, reader: u64) -> bool {
        let mut reply = self.reply.lock();
        let last = reply.leave(reader);
        if last {
            self.live.store(false, Ordering::Release);
        }
        drop(reply);
        self.wakers.wake_others(reader);
        last
    }

    /// The turns of an undelivered reply.
    fn undelivered_turns(&self) -> Option<Turns> {
        if self.context.turns.is_empty() {
            // an answer without turns, such as a refusal, does not replace the earlier turns
            return self.context.superseded.clone();
        }
        (!self.reply.lock().is_delivered()).then(|| self.context.turns.clone())
    }

    /// Whether the attempt can be forgotten: its reply was delivered, and no turns are left to replace.
    fn is_done(&self) -> bool {
        let delivered = self.reply.lock().is_delivered();
        delivered && self.undelivered_turns().is_none()
    }
}
