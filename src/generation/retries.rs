//! A call of a named session that the client may send again: joined while it runs, replayed where its reply did not arrive.
//!
//! A reply has arrived when its last byte was handed to the server's connection; what is then lost in the buffers of that connection
//! and of the system is not noticed.

mod buffered_bytes;
mod reader;
mod registry;
mod replay_buffer;
mod shared_reply;
mod wakers;

use std::hash::BuildHasher;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use foldhash::quality::RandomState;
use http::{HeaderValue, Method};

pub use reader::Reader;
pub use registry::{Bounds, Entered, Retries};
pub use shared_reply::Pending;

use super::request::RequestId;
use crate::generation::event::Reads;
use crate::session::Turns;
use buffered_bytes::BufferedBytes;
use replay_buffer::ReplayBuffer;
use shared_reply::Reply;
use wakers::Wakers;

/// What two calls have in common that are the same.
#[derive(Debug, Clone)]
pub struct Key {
    /// The session, which the client has named.
    pub session: Arc<str>,
    /// The method.
    pub method: Method,
    /// Path and query, as they go upstream.
    pub target: String,
    /// `Authorization` and `X-Api-Key`: a reply is not given to a client with other credentials.
    pub authorization: [Option<HeaderValue>; 2],
    /// The client's id, where a header has it.
    pub rid: Option<HeaderValue>,
    /// The body, byte for byte. Calls that are the same share its memory.
    pub body: Bytes,
    /// What is read of the events.
    pub reads: Reads,
    /// The digest of the body.
    pub digest: Digest,
}

/// A keyed hash of a body: bodies with different hashes differ. Its key is random, so that a client cannot choose many bodies that have to be
/// compared because they have one hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// The digest of these bytes. Takes time in proportion to their number.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        Self(KEY.hash_one(bytes))
    }
}

impl Key {
    /// Whether all but the bytes of the body is equal, and they have the same digest.
    fn is_like(&self, other: &Self) -> bool {
        // each member by its name, so that a new one has to be thought of here
        let Self { session, method, target, authorization, rid, body, reads, digest } = self;
        *session == other.session
            && *method == other.method
            && *target == other.target
            && *authorization == other.authorization
            && *rid == other.rid
            && *reads == other.reads
            && body.len() == other.body.len()
            && *digest == other.digest
    }
}

/// What ties an attempt to its session and to its log line.
#[derive(Debug, Clone, Default)]
pub struct AttemptContext {
    /// The turns that it leaves.
    pub turns: Turns,
    /// Those of an attempt whose reply did not arrive, in whose place they stand.
    pub before: Option<Turns>,
    /// There was such an attempt, whether or not it left any: its ids may still be being aborted.
    pub again: bool,
    /// The request's id, once it is known.
    pub rid: RequestId,
}

/// One attempt.
struct Attempt {
    key: Key,
    context: AttemptContext,
    wakers: Arc<Wakers>,
    /// Somebody reads it; changes with `reply` locked.
    live: AtomicBool,
    /// No call like it ran at any time with it; changes with the list of attempts locked.
    alone: AtomicBool,
    /// Its number among those that did not arrive, zero where it is not one of them; changes with the list of attempts locked.
    left: AtomicU64,
    // held for one step of the reply, never across an await; the list of attempts may be locked before it, never behind it
    reply: Mutex<Reply>,
}

impl std::fmt::Debug for Attempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attempt").field("session", &self.key.session).field("live", &self.live).finish_non_exhaustive()
    }
}

impl Attempt {
    fn new(key: Key, context: AttemptContext, reply: Reply) -> Self {
        let (live, alone) = (AtomicBool::new(false), AtomicBool::new(true));
        Self { key, context, wakers: Arc::default(), live, alone, left: AtomicU64::new(0), reply: Mutex::new(reply) }
    }

    fn reply(&self) -> MutexGuard<'_, Reply> {
        self.reply.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a step of the reply for all who wait.
    fn pull(&self, reply: &mut Reply, reader: u64, cx: &Context<'_>) -> Poll<()> {
        self.wakers.add(reader, cx.waker());
        if reply.is_stalled() {
            return Poll::Pending;
        }
        reply.pull(&mut Context::from_waker(&Waker::from(Arc::clone(&self.wakers))))
    }

    fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Relaxed)
    }

    /// Another call like it runs.
    fn has_company(&self) {
        self.alone.store(false, Ordering::Relaxed);
    }

    /// Its number among those that did not arrive.
    fn left(&self) -> Option<NonZero<u64>> {
        NonZero::new(self.left.load(Ordering::Relaxed))
    }

    /// A reader at the beginning, where that is still to be had.
    fn join(&self) -> Option<u64> {
        let mut reply = self.reply();
        let reader = reply.join()?;
        self.live.store(true, Ordering::Release);
        Some(reader)
    }

    /// The reader goes; says whether it was the last.
    fn leave(&self, reader: u64) -> bool {
        let mut reply = self.reply();
        let last = reply.leave(reader);
        if last {
            self.live.store(false, Ordering::Release);
        }
        drop(reply);
        self.wakers.wake_others(reader);
        last
    }

    /// The turns of a reply that did not arrive.
    fn lost(&self) -> Option<Turns> {
        if self.context.turns.is_empty() {
            // an answer without turns, such as a refusal, replaces none
            return self.context.before.clone();
        }
        (!self.reply().is_delivered()).then(|| self.context.turns.clone())
    }

    /// Whether it is over and nothing of it is left to do.
    fn is_done(&self) -> bool {
        let delivered = self.reply().is_delivered();
        delivered && self.lost().is_none()
    }
}
