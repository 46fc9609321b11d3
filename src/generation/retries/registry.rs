// SPDX-License-Identifier: Apache-2.0
//! The registry of attempts by session, with the limits of undelivered ones.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::{Attempt, AttemptContext, BufferedBytes, PendingReply, Reader, ReplayBuffer, RetryKey, SharedReply};
use crate::long_work::{BodyLength, in_place};

/// Limits of the buffered replies.
#[derive(Debug, Clone, Copy)]
pub struct ReplayLimits {
    /// Undelivered attempts per session.
    pub undelivered: usize,
    /// Bytes of one reply.
    pub reply: usize,
    /// Bytes of all replies, running ones included, and of the requests of undelivered attempts.
    pub all: usize,
}

impl Default for ReplayLimits {
    fn default() -> Self {
        Self { undelivered: 16, reply: 16 << 20, all: 64 << 20 }
    }
}

/// Approximate bytes that an undelivered attempt uses besides its request and reply.
const OVERHEAD: usize = 1024;

/// Bodies up to this many bytes are compared while the list is locked, which takes less than a microsecond.
const SHORT: usize = 4 << 10;

/// The registry of attempts. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Retries(Arc<Registry>);

#[derive(Debug, Default)]
struct Registry {
    limits: ReplayLimits,
    /// Buffered bytes of all attempts.
    bytes: Arc<AtomicUsize>,
    // held to look up a call or to record its end, never across an await
    list: Mutex<AttemptList>,
}

#[derive(Debug, Default)]
struct AttemptList {
    /// Running and undelivered attempts, in the order in which they began.
    sessions: HashMap<Arc<str>, Vec<Arc<Attempt>>>,
    /// Undelivered attempts by a number that increases in the order in which they ended.
    undelivered: BTreeMap<NonZero<u64>, Undelivered>,
    /// The number of the latest undelivered attempt.
    last: u64,
}

/// An attempt that has ended and whose reply was not delivered.
#[derive(Debug)]
struct Undelivered {
    since: Instant,
    attempt: Arc<Attempt>,
}

/// How a call relates to earlier attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryOutcome {
    /// A new call, or one more sample of an equal call.
    New,
    /// The call is sent again, and its turns replace those of an undelivered attempt.
    Superseding,
    /// It joins a running attempt.
    Joined,
    /// It replays the reply of an ended attempt.
    Replayed,
}

impl RetryOutcome {
    /// The metric's label; `None` for new calls, which are not counted.
    #[must_use]
    pub fn label(self) -> Option<&'static str> {
        match self {
            Self::New => None,
            Self::Superseding => Some("superseded"),
            Self::Joined => Some("joined"),
            Self::Replayed => Some("replayed"),
        }
    }
}

impl Retries {
    /// Creates a registry with these limits.
    #[must_use]
    pub fn new(limits: ReplayLimits) -> Self {
        Self(Arc::new(Registry { limits, ..Registry::default() }))
    }

    /// Returns the locked list and its attempts of the same call. Bodies longer than [`SHORT`] are compared while the list is unlocked,
    /// each once, because equal calls share their body.
    fn find_same(&self, key: &RetryKey, idle: Duration) -> (MutexGuard<'_, AttemptList>, Vec<Arc<Attempt>>) {
        let mut compared: Vec<(Bytes, bool)> = Vec::new();
        loop {
            let mut list = self.0.list.lock();
            list.expire(idle);
            let (mut same, mut unknown) = (Vec::new(), Vec::<Bytes>::new());
            for attempt in list.candidates(key) {
                let body = &attempt.key.body;
                let known = compared.iter().find(|(other, _)| is_shared(other, body)).map(|(_, equal)| *equal);
                match known.or_else(|| (body.len() <= SHORT).then(|| *body == key.body)) {
                    Some(true) => same.push(Arc::clone(attempt)),
                    Some(false) => {}
                    None if unknown.iter().any(|other| is_shared(other, body)) => {}
                    None => unknown.push(body.clone()),
                }
            }
            if unknown.is_empty() {
                return (list, same);
            }
            drop(list);
            for body in unknown {
                let equal = in_place(BodyLength::Copy(key.body.len()), || body == key.body);
                compared.push((body, equal));
            }
        }
    }

    /// Registers a call. If the client `marked` it as a retry, it gets the reply of the earlier attempt. Otherwise, or if that reply is not
    /// available, `begin` starts a new attempt. Undelivered attempts are kept for `idle`.
    pub fn enter(
        &self,
        mut key: RetryKey,
        marked: bool,
        idle: Duration,
        begin: impl FnOnce(AttemptContext) -> PendingReply,
    ) -> (Reader, RetryOutcome) {
        let (mut list, same) = self.find_same(&key, idle);
        if marked && let Some((reader, outcome)) = self.join_earlier(&same) {
            list.remove_undelivered(&reader.attempt);
            return (reader, outcome);
        }
        if let Some(other) = same.first() {
            key.body = other.key.body.clone();
        }
        // each call replaces one undelivered attempt: several undelivered samples are repeated by as many calls
        let previous = same.iter().find(|attempt| !attempt.is_live());
        previous.iter().for_each(|attempt| list.forget(attempt));
        let context = AttemptContext {
            is_repeat: previous.is_some(),
            superseded: previous.and_then(|attempt| attempt.undelivered_turns()).filter(|turns| !turns.is_empty()),
            ..AttemptContext::default()
        };
        let outcome = if context.superseded.is_some() { RetryOutcome::Superseding } else { RetryOutcome::New };
        let buffer = ReplayBuffer::new(self.0.limits.reply, BufferedBytes::new(Arc::clone(&self.0.bytes)));
        let reply = SharedReply::new(begin(context.clone()), buffer);
        let attempt = Arc::new(Attempt::new(key, context, reply));
        let others = same.iter().filter(|other| other.is_live());
        others.flat_map(|other| [other, &attempt]).for_each(|one| one.mark_duplicate());
        let reader = attempt.join(self).expect("a reply that has not begun can be read from its beginning");
        list.sessions.entry(Arc::clone(&attempt.key.session)).or_default().push(attempt);
        (reader, outcome)
    }

    /// Joins the attempt that a retry refers to: an undelivered one, otherwise the only one. If several equal calls run, or ran, the choice
    /// would be ambiguous, and two clients must not share one sample.
    fn join_earlier(&self, same: &[Arc<Attempt>]) -> Option<(Reader, RetryOutcome)> {
        let mut undelivered = same.iter().filter(|attempt| !attempt.is_live());
        if let Some(reader) = undelivered.find_map(|attempt| attempt.join(self)) {
            return Some((reader, RetryOutcome::Replayed));
        }
        match same {
            [only] if only.is_only_call() => Some((only.join(self)?, RetryOutcome::Joined)),
            _ => None,
        }
    }

    /// Removes undelivered attempts that are older than `idle`.
    pub fn sweep(&self, idle: Duration) {
        self.0.list.lock().expire(idle);
    }

    /// Keeps or removes an attempt that has lost its last reader.
    pub(super) fn settle(&self, attempt: &Arc<Attempt>) {
        let mut list = self.0.list.lock();
        if attempt.is_live() || !list.contains(attempt) {
            return; // it is being read again, or another one has taken its place
        }
        if attempt.is_done() {
            list.forget(attempt);
            return;
        }
        attempt.reply.lock().count_request(OVERHEAD + attempt.key.body.len());
        list.add_undelivered(attempt);
        list.limit_session(&attempt.key.session, self.0.limits.undelivered);
        self.evict(&mut list);
    }

    /// Whether the buffered bytes are within the limit, after evicting undelivered attempts if necessary.
    pub(super) fn has_room(&self) -> bool {
        !self.is_over() || {
            self.evict(&mut self.0.list.lock());
            !self.is_over()
        }
    }

    fn is_over(&self) -> bool {
        self.0.bytes.load(Ordering::Relaxed) > self.0.limits.all
    }

    fn evict(&self, list: &mut AttemptList) {
        while self.is_over() {
            let Some((_, oldest)) = list.undelivered.first_key_value() else { return };
            list.forget(&Arc::clone(&oldest.attempt));
        }
    }
}

/// Whether both refer to the same memory.
fn is_shared(one: &Bytes, other: &Bytes) -> bool {
    one.as_ptr() == other.as_ptr() && one.len() == other.len()
}

impl AttemptList {
    /// Attempts whose keys are equal except for the body, of which only the digest is compared.
    fn candidates(&self, key: &RetryKey) -> impl Iterator<Item = &Arc<Attempt>> {
        self.sessions.get(&key.session).into_iter().flatten().filter(|attempt| attempt.key.is_like(key))
    }

    fn contains(&self, attempt: &Arc<Attempt>) -> bool {
        let session = self.sessions.get(&attempt.key.session);
        attempt.undelivered().is_none() && session.is_some_and(|all| all.iter().any(|one| Arc::ptr_eq(one, attempt)))
    }

    /// Adds an attempt to the undelivered ones.
    fn add_undelivered(&mut self, attempt: &Arc<Attempt>) {
        let number = NonZero::<u64>::MIN.saturating_add(self.last);
        self.last = number.get();
        attempt.undelivered.store(number.get(), Ordering::Relaxed);
        self.undelivered.insert(number, Undelivered { since: Instant::now(), attempt: Arc::clone(attempt) });
    }

    /// Removes an attempt from the undelivered ones.
    fn remove_undelivered(&mut self, attempt: &Arc<Attempt>) {
        attempt.undelivered().iter().for_each(|number| drop(self.undelivered.remove(number)));
        attempt.undelivered.store(0, Ordering::Relaxed);
    }

    fn forget(&mut self, attempt: &Arc<Attempt>) {
        self.remove_undelivered(attempt);
        let Some(all) = self.sessions.get_mut(&attempt.key.session) else { return };
        all.retain(|one| !Arc::ptr_eq(one, attempt));
        if all.is_empty() {
            self.sessions.remove(&attempt.key.session);
        }
    }

    /// Removes undelivered attempts that are older than `idle`.
    fn expire(&mut self, idle: Duration) {
        let now = Instant::now();
        while let Some((_, oldest)) = self.undelivered.first_key_value()
            && now.duration_since(oldest.since) >= idle
        {
            self.forget(&Arc::clone(&oldest.attempt));
        }
    }

    /// Removes the oldest undelivered attempts of a session beyond `most`.
    fn limit_session(&mut self, session: &Arc<str>, most: usize) {
        let of_session = self.sessions.get(session).into_iter().flatten();
        let mut all: Vec<Arc<Attempt>> =
            of_session.filter(|attempt| attempt.undelivered().is_some()).cloned().collect();
        all.sort_unstable_by_key(|attempt| attempt.undelivered());
        all[..all.len().saturating_sub(most)].iter().for_each(|attempt| self.forget(attempt));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use http::{Method, Response, StatusCode, response};
    use http_body::Body as _;
    use http_body_util::BodyExt;

    use super::*;
    use crate::engine::sglang::sglext::SglextOptions;
    use crate::generation::event::{EventAccess, GenerationEvent, UnparsedReason};
    use crate::generation::events::{Events, Generation};
    use crate::generation::request::BodyDigest;
    use crate::serve::body::Body;
    use crate::serve::data::generation;

    const IDLE: Duration = Duration::from_secs(300);
    const PIECE: usize = 64 * 1024;

    fn key(session: &str, body: &str) -> RetryKey {
        RetryKey {
            session: session.into(),
            method: Method::POST,
            target: "/generate".into(),
            authorization: [None, None],
            rid: None,
            body: Bytes::copy_from_slice(body.as_bytes()),
            reads: EventAccess::Bytes,
            sglext: SglextOptions::default(),
            digest: BodyDigest::new(body.as_bytes()),
        }
    }

    /// A reply of `count` pieces, each filled with another letter.
    fn pieces(count: usize) -> Bytes {
        (0..count).flat_map(|at| vec![b'a' + at as u8; PIECE]).collect::<Vec<u8>>().into()
    }

    fn head() -> response::Parts {
        Response::new(()).into_parts().0
    }

    fn event(bytes: Bytes) -> Arc<GenerationEvent> {
        Arc::new(GenerationEvent::unparsed(bytes, UnparsedReason::Piece))
    }

    /// The memory of `count` events that have a piece each.
    fn events_of_a_piece(count: usize) -> usize {
        count * event(pieces(1)).size()
    }

    fn answer(bytes: Bytes) -> Generation {
        Generation { head: head(), events: Events::Whole { event: Some(event(bytes)), observed: None } }
    }

    fn whole(bytes: Bytes) -> impl FnOnce(AttemptContext) -> PendingReply {
        move |_| Box::pin(async move { answer(bytes) })
    }

    /// The same, as a stream of pieces.
    fn flowing(count: usize) -> impl FnOnce(AttemptContext) -> PendingReply {
        let all = pieces(count);
        let events = (0..count).map(|at| event(all.slice(at * PIECE..(at + 1) * PIECE))).collect();
        move |_| Box::pin(async move { Generation { head: head(), events: Events::Scripted(events) } })
    }

    fn never(_: AttemptContext) -> PendingReply {
        Box::pin(std::future::pending())
    }

    fn none(_: AttemptContext) -> PendingReply {
        panic!("the call must not be sent again")
    }

    fn context() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    /// Polls a reader once, acknowledges the event and returns its first letter.
    fn next(reader: &mut Reader) -> Poll<Option<Option<u8>>> {
        let polled = reader.poll_next(&mut context());
        reader.acknowledge();
        polled.map(|event| event.map(|event| event.ok().and_then(|event| event.native().first().copied())))
    }

    fn bytes(attempts: &Retries) -> usize {
        attempts.0.bytes.load(Ordering::Relaxed)
    }

    async fn body(mut reader: Reader) -> Body {
        let head = reader.head().await;
        assert_eq!(head.status, StatusCode::OK);
        generation::raw_response(Generation { head, events: Events::Shared(reader) }).into_body()
    }

    async fn all(reader: Reader) -> Bytes {
        body(reader).await.collect().await.unwrap().to_bytes()
    }

    /// Enters a call whose reply is generated but not delivered.
    async fn lose(attempts: &Retries, key: RetryKey, bytes: Bytes) {
        let (mut reader, _) = attempts.enter(key, false, IDLE, whole(bytes));
        reader.head().await;
        assert!(reader.take_whole().is_some());
    }

    #[tokio::test]
    async fn reply_is_delivered_with_its_last_piece() {
        let attempts = Retries::default();
        lose(&attempts, key("s", "b"), pieces(3)).await;
        assert_eq!(bytes(&attempts), event(pieces(3)).size() + OVERHEAD + 1, "the reply and the request");
        let (reader, outcome) = attempts.enter(key("s", "b"), true, IDLE, none);
        assert_eq!(outcome, RetryOutcome::Replayed);
        let mut body = body(reader).await;
        for remaining in [3, 2, 1] {
            assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(remaining * PIECE as u64), false));
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), PIECE);
        }
        assert!(body.is_end_stream(), "known without another poll");
        drop(body);
        assert_eq!(bytes(&attempts), 0, "a delivered reply is not kept");
        assert!(attempts.0.list.lock().sessions.is_empty() && attempts.0.list.lock().undelivered.is_empty());
        let (_, outcome) = attempts.enter(key("s", "b"), true, IDLE, never);
        assert_eq!(outcome, RetryOutcome::New);
    }

    #[tokio::test]
    async fn delivered_reply_is_not_joined() {
        let attempts = Retries::default();
        let (mut first, _) = attempts.enter(key("s", "b"), false, IDLE, whole(pieces(1)));
        first.head().await;
        assert!(next(&mut first).is_ready() && first.is_end_stream());
        let (_second, outcome) = attempts.enter(key("s", "b"), true, IDLE, never);
        assert_eq!(outcome, RetryOutcome::New, "although the first still holds it");
    }

    #[tokio::test]
    async fn oversize_reply_is_read_by_current_readers_only() {
        let attempts = Retries::new(ReplayLimits { reply: events_of_a_piece(2), ..ReplayLimits::default() });
        let (mut first, _) = attempts.enter(key("s", "b"), false, IDLE, flowing(8));
        first.head().await;
        assert_eq!(next(&mut first), Poll::Ready(Some(Some(b'a'))));
        let (mut second, outcome) = attempts.enter(key("s", "b"), true, IDLE, none);
        assert_eq!(outcome, RetryOutcome::Joined);
        second.head().await;
        // the newest reader is waited for
        assert_eq!(next(&mut first), Poll::Ready(Some(Some(b'b'))));
        assert_eq!(next(&mut first), Poll::Ready(Some(Some(b'c'))));
        assert_eq!(bytes(&attempts), 0, "dropped events are not counted");
        assert_eq!(next(&mut first), Poll::Pending);
        assert_eq!(next(&mut second), Poll::Ready(Some(Some(b'a'))));
        assert_eq!(next(&mut first), Poll::Ready(Some(Some(b'd'))));
        let (third, outcome) = attempts.enter(key("s", "b"), true, IDLE, never);
        assert_eq!(outcome, RetryOutcome::New, "the first event was dropped");
        drop(third);
        // the oldest reader is not
        for letter in b"bcdefgh" {
            assert_eq!(next(&mut second), Poll::Ready(Some(Some(*letter))));
        }
        assert_eq!(next(&mut second), Poll::Ready(None));
        assert_eq!(next(&mut first), Poll::Ready(Some(None)), "its next event was dropped");
    }

    #[tokio::test]
    async fn oversize_reply_is_not_replayed() {
        let attempts = Retries::new(ReplayLimits { reply: PIECE, ..ReplayLimits::default() });
        lose(&attempts, key("s", "b"), pieces(2)).await;
        assert_eq!(bytes(&attempts), OVERHEAD + 1, "the request is kept");
        let (_, outcome) = attempts.enter(key("s", "b"), true, IDLE, never);
        assert_eq!(outcome, RetryOutcome::New);
    }

    #[tokio::test]
    async fn oldest_undelivered_attempts_are_evicted_first() {
        let attempts = Retries::new(ReplayLimits { undelivered: 2, reply: 16 * PIECE, all: events_of_a_piece(10) });
        let replayable = |session: &str, body: &str| {
            let (_list, same) = attempts.find_same(&key(session, body), IDLE);
            same.len() == 1
        };
        for body in ["1", "2", "3"] {
            lose(&attempts, key("s", body), pieces(2)).await;
        }
        assert!(!replayable("s", "1") && replayable("s", "2") && replayable("s", "3"), "two per session");
        lose(&attempts, key("t", "4"), pieces(7)).await;
        assert!(!replayable("s", "2") && replayable("s", "3") && replayable("t", "4"), "within the byte limit");
        // running attempts count too
        let (mut running, _) = attempts.enter(key("u", "5"), false, IDLE, flowing(12));
        running.head().await;
        for _ in 0..10 {
            assert!(next(&mut running).is_ready());
        }
        assert!(!replayable("s", "3") && !replayable("t", "4"), "evicted for a running attempt");
        assert_eq!(bytes(&attempts), events_of_a_piece(10));
        assert!(next(&mut running).is_ready());
        assert_eq!(bytes(&attempts), 0, "an oversize reply is not kept");
        assert_eq!((next(&mut running), next(&mut running)), (Poll::Ready(Some(Some(b'l'))), Poll::Ready(None)));
    }

    #[tokio::test(start_paused = true)]
    async fn undelivered_attempt_expires() {
        let attempts = Retries::default();
        lose(&attempts, key("s", "b"), pieces(2)).await;
        tokio::time::advance(IDLE).await;
        let (other, _) = attempts.enter(key("t", "other"), false, IDLE, never);
        assert_eq!((bytes(&attempts), attempts.0.list.lock().undelivered.len()), (0, 0));
        drop(other);
        let (_, outcome) = attempts.enter(key("s", "b"), true, IDLE, never);
        assert_eq!(outcome, RetryOutcome::New);
    }

    /// Loses `count` attempts of as many sessions, lets them expire together, and returns the elapsed time.
    async fn lost_and_forgotten(count: usize) -> Duration {
        let attempts = Retries::default();
        let begun = std::time::Instant::now();
        for session in 0..count {
            drop(attempts.enter(key(&session.to_string(), "b"), false, IDLE, never));
        }
        assert_eq!(attempts.0.list.lock().undelivered.len(), count);
        tokio::time::advance(IDLE).await;
        attempts.sweep(IDLE);
        let list = attempts.0.list.lock();
        assert_eq!((bytes(&attempts), list.undelivered.len(), list.sessions.len()), (0, 0, 0));
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn expiry_is_linear_in_the_number_of_attempts() {
        let (mut few, mut many) = (Duration::MAX, Duration::MAX);
        for _ in 0..3 {
            few = few.min(lost_and_forgotten(2_000).await);
            many = many.min(lost_and_forgotten(32_000).await);
        }
        assert!(many < 80 * few, "sixteen times as many take {many:?}, not {few:?}");
    }

    #[tokio::test]
    async fn long_bodies_are_compared_byte_for_byte() {
        let attempts = Retries::default();
        let body = |last: char| format!("{}{last}", "x".repeat(1 << 20));
        lose(&attempts, key("s", &body('a')), pieces(2)).await;
        let (other, outcome) = attempts.enter(key("s", &body('b')), true, IDLE, never);
        assert_eq!(outcome, RetryOutcome::New);
        let (_, outcome) = attempts.enter(key("s", &body('a')), true, IDLE, none);
        assert_eq!(outcome, RetryOutcome::Replayed);
        drop(other);
    }

    #[tokio::test]
    async fn bodies_of_equal_length_with_other_digests_are_not_compared() {
        for length in [8, 64 << 10, 1 << 20] {
            let attempts = Retries::default();
            let live: Vec<_> = ["a", "b", "c", "c"]
                .map(|last| attempts.enter(key("s", &format!("{}{last}", "x".repeat(length))), false, IDLE, never))
                .into();
            let list = attempts.0.list.lock();
            let compared = |at: usize| list.candidates(&live[at].0.attempt.key).count();
            assert_eq!((compared(0), compared(1), compared(2)), (1, 1, 2), "of four calls that run, {length} bytes");
        }
    }

    #[tokio::test]
    async fn equal_calls_share_their_body() {
        for length in [8, SHORT + 1, 1 << 20] {
            let attempts = Retries::default();
            let body = "x".repeat(length);
            let live: Vec<_> = (0..3).map(|_| attempts.enter(key("s", &body), false, IDLE, never).0).collect();
            let bodies: Vec<&Bytes> = live.iter().map(|reader| &reader.attempt.key.body).collect();
            assert!(bodies.iter().all(|body| is_shared(body, bodies[0])), "{length} bytes");
        }
    }

    #[tokio::test]
    async fn undelivered_samples_are_repeated_one_by_one() {
        let attempts = Retries::default();
        let (first, second) =
            (attempts.enter(key("s", "b"), false, IDLE, never).0, attempts.enter(key("s", "b"), false, IDLE, never).0);
        drop((first, second));
        let again = |context: AttemptContext| {
            assert!(context.is_repeat, "the ids of the earlier attempt may still be reserved");
            never(context)
        };
        let (third, outcome) = attempts.enter(key("s", "b"), true, IDLE, again);
        assert_eq!(outcome, RetryOutcome::New, "the earlier attempt has no turns");
        let (fourth, outcome) = attempts.enter(key("s", "b"), true, IDLE, again);
        assert_eq!(outcome, RetryOutcome::New, "a separate sample, not another reader of the third");
        assert!(!Arc::ptr_eq(&third.attempt, &fourth.attempt));
    }

    #[tokio::test]
    async fn waiting_reader_is_woken_when_another_reads_or_is_dropped() {
        let attempts = Retries::default();
        let (answer, answered) = tokio::sync::oneshot::channel::<Bytes>();
        let begin = |_| -> PendingReply { Box::pin(async move { self::answer(answered.await.unwrap_or_default()) }) };
        let (mut first, _) = attempts.enter(key("s", "b"), false, IDLE, begin);
        let (second, _) = attempts.enter(key("s", "b"), true, IDLE, none);
        let second = tokio::spawn(all(second));
        {
            // polls last, so without the shared wakers the reply would wake only this reader
            tokio::task::yield_now().await;
            let head = pin!(first.head());
            assert!(head.poll(&mut context()).is_pending());
        }
        drop(first);
        answer.send(pieces(3)).unwrap();
        assert_eq!(second.await.unwrap(), pieces(3));
    }
}
