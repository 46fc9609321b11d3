//! All attempts by session, and how long those stay that did not arrive.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::{Attempt, AttemptContext, BufferedBytes, Key, Pending, Reader, ReplayBuffer, Reply};
use crate::long_work::in_place;

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Retries of one session that did not arrive.
    pub left: usize,
    /// Bytes of one reply.
    pub reply: usize,
    /// Bytes of all replies, those that are running included, and of the requests of those that did not arrive.
    pub all: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { left: 16, reply: 16 << 20, all: 64 << 20 }
    }
}

/// Bytes that an attempt which did not arrive takes beside its request and its reply, about.
const OVERHEAD: usize = 1024;

/// Bodies of so many bytes are compared while the list is locked: it takes less than a microsecond.
const SHORT: usize = 4 << 10;

/// The attempts. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Retries(Arc<Registry>);

#[derive(Debug, Default)]
struct Registry {
    bounds: Bounds,
    /// Bytes kept.
    bytes: Arc<AtomicUsize>,
    // held to look for a call or to note its end, never across an await
    listed: Mutex<Listed>,
}

#[derive(Debug, Default)]
struct Listed {
    /// Those that run or did not arrive, in the order in which they began.
    sessions: HashMap<Arc<str>, Vec<Arc<Attempt>>>,
    /// Those that did not arrive, by a number that grows in the order in which they ended.
    left: BTreeMap<NonZero<u64>, (Instant, Arc<Attempt>)>,
    /// The number of the last one that did not arrive.
    last: u64,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entered {
    /// It is the first of its kind, or one of several samples.
    New,
    /// It is asked anew, and its turns stand in place of those that nobody got.
    Superseding,
    /// It reads the reply to one that is running.
    Joined,
    /// It reads the reply to one that has ended.
    Replayed,
}

impl Entered {
    /// The label in metrics; new calls are not counted.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::New => None,
            Self::Superseding => Some("superseded"),
            Self::Joined => Some("joined"),
            Self::Replayed => Some("replayed"),
        }
    }
}

impl Retries {
    /// Retries within bounds.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self(Arc::new(Registry { bounds, ..Registry::default() }))
    }

    fn listed(&self) -> MutexGuard<'_, Listed> {
        self.0.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The list, and the calls in it that are the same as this one. Bodies longer than [`SHORT`] are compared before the list is locked for
    /// the last time, and each once, because calls that are the same share theirs.
    fn same(&self, key: &Key, idle: Duration) -> (MutexGuard<'_, Listed>, Vec<Arc<Attempt>>) {
        let mut compared: Vec<(Bytes, bool)> = Vec::new();
        loop {
            let mut listed = self.listed();
            listed.expire(idle);
            let (mut same, mut unknown) = (Vec::new(), Vec::<Bytes>::new());
            for attempt in listed.like(key) {
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
                return (listed, same);
            }
            drop(listed);
            for body in unknown {
                let equal = in_place(key.body.len(), || body == key.body);
                compared.push((body, equal));
            }
        }
    }

    /// A call comes. With `marked` the client says that it came before: it then gets the reply to that. Without, or where that reply is
    /// not to be had, `begin` makes it an attempt of its own. What did not arrive is remembered for `idle`.
    pub fn enter(
        &self,
        mut key: Key,
        marked: bool,
        idle: Duration,
        begin: impl FnOnce(AttemptContext) -> Pending,
    ) -> (Reader, Entered) {
        let reader = |attempt, id| Reader { attempt, retries: self.clone(), id };
        let (mut listed, same) = self.same(&key, idle);
        if marked && let Some((attempt, id, entered)) = again(&same) {
            listed.take(&attempt);
            return (reader(attempt, id), entered);
        }
        if let Some(other) = same.first() {
            key.body = other.key.body.clone();
        }
        // one for one: of several samples that did not arrive each is asked anew by a call of its own
        let before = same.iter().find(|attempt| !attempt.is_live());
        before.iter().for_each(|attempt| listed.forget(attempt));
        let context = AttemptContext {
            again: before.is_some(),
            before: before.and_then(|attempt| attempt.lost()).filter(|turns| !turns.is_empty()),
            ..AttemptContext::default()
        };
        let entered = if context.before.is_some() { Entered::Superseding } else { Entered::New };
        let kept = ReplayBuffer::new(self.0.bounds.reply, BufferedBytes::new(Arc::clone(&self.0.bytes)));
        let reply = Reply::new(begin(context.clone()), kept);
        let attempt = Arc::new(Attempt::new(key, context, reply));
        let others = same.iter().filter(|other| other.is_live());
        others.flat_map(|other| [other, &attempt]).for_each(|one| one.has_company());
        let id = attempt.join().expect("a reply that has not begun can be read from its beginning");
        listed.sessions.entry(Arc::clone(&attempt.key.session)).or_default().push(Arc::clone(&attempt));
        (reader(attempt, id), entered)
    }

    /// Forgets what did not arrive and is older than `idle`, though nobody calls.
    pub fn sweep(&self, idle: Duration) {
        self.listed().expire(idle);
    }

    /// Nobody reads the attempt any more.
    pub(super) fn settle(&self, attempt: &Arc<Attempt>) {
        let mut listed = self.listed();
        if attempt.is_live() || !listed.holds(attempt) {
            return; // it is being read again, or another one has taken its place
        }
        if attempt.is_done() {
            listed.forget(attempt);
            return;
        }
        attempt.reply().weigh_request(OVERHEAD + attempt.key.body.len());
        listed.leave(attempt);
        listed.crop(&attempt.key.session, self.0.bounds.left);
        self.evict(&mut listed);
    }

    /// Whether the bytes kept are within bounds, if need be without those that nobody reads.
    pub(super) fn has_room(&self) -> bool {
        !self.is_over() || {
            self.evict(&mut self.listed());
            !self.is_over()
        }
    }

    fn is_over(&self) -> bool {
        self.0.bytes.load(Ordering::Relaxed) > self.0.bounds.all
    }

    fn evict(&self, listed: &mut Listed) {
        while self.is_over() {
            let Some((_, (_, oldest))) = listed.left.first_key_value() else { return };
            listed.forget(&Arc::clone(oldest));
        }
    }
}

/// The attempt that a call must have meant: one that did not arrive, or else the only one there is. Where several run, or ran, it cannot
/// be told which one it was, and the samples of two clients must not become one.
fn again(same: &[Arc<Attempt>]) -> Option<(Arc<Attempt>, u64, Entered)> {
    let left = same.iter().filter(|attempt| !attempt.is_live());
    let mut left = left.filter_map(|attempt| Some((Arc::clone(attempt), attempt.join()?, Entered::Replayed)));
    left.next().or_else(|| match same {
        [only] if only.is_alone() => Some((Arc::clone(only), only.join()?, Entered::Joined)),
        _ => None,
    })
}

/// Whether the two are the same memory.
fn is_shared(one: &Bytes, other: &Bytes) -> bool {
    one.as_ptr() == other.as_ptr() && one.len() == other.len()
}

impl Listed {
    /// Calls that are like this one, and whose bodies have the same digest.
    fn like(&self, key: &Key) -> impl Iterator<Item = &Arc<Attempt>> {
        self.sessions.get(&key.session).into_iter().flatten().filter(|attempt| attempt.key.is_like(key))
    }

    fn holds(&self, attempt: &Arc<Attempt>) -> bool {
        let session = self.sessions.get(&attempt.key.session);
        attempt.left().is_none() && session.is_some_and(|all| all.iter().any(|one| Arc::ptr_eq(one, attempt)))
    }

    /// Counts an attempt among those that did not arrive.
    fn leave(&mut self, attempt: &Arc<Attempt>) {
        let number = NonZero::<u64>::MIN.saturating_add(self.last);
        self.last = number.get();
        attempt.left.store(number.get(), Ordering::Relaxed);
        self.left.insert(number, (Instant::now(), Arc::clone(attempt)));
    }

    /// Counts it no more among them.
    fn take(&mut self, attempt: &Arc<Attempt>) {
        attempt.left().iter().for_each(|number| drop(self.left.remove(number)));
        attempt.left.store(0, Ordering::Relaxed);
    }

    fn forget(&mut self, attempt: &Arc<Attempt>) {
        self.take(attempt);
        let Some(all) = self.sessions.get_mut(&attempt.key.session) else { return };
        all.retain(|one| !Arc::ptr_eq(one, attempt));
        if all.is_empty() {
            self.sessions.remove(&attempt.key.session);
        }
    }

    /// Forgets what did not arrive and is older than this.
    fn expire(&mut self, idle: Duration) {
        let now = Instant::now();
        while let Some((_, (at, oldest))) = self.left.first_key_value()
            && now.duration_since(*at) >= idle
        {
            self.forget(&Arc::clone(oldest));
        }
    }

    /// Forgets the oldest of a session that are more than this.
    fn crop(&mut self, session: &Arc<str>, most: usize) {
        let of_session = self.sessions.get(session).into_iter().flatten();
        let mut all: Vec<Arc<Attempt>> = of_session.filter(|attempt| attempt.left().is_some()).cloned().collect();
        all.sort_unstable_by_key(|attempt| attempt.left());
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
    use crate::generation::event::{GenerationEvent, Reads, Unparsed};
    use crate::generation::events::{Events, Generation};
    use crate::generation::retries::Digest;
    use crate::serve::body::Body;
    use crate::serve::data::generate::native;

    const IDLE: Duration = Duration::from_secs(300);
    const PIECE: usize = 64 * 1024;

    fn key(session: &str, body: &str) -> Key {
        Key {
            session: session.into(),
            method: Method::POST,
            target: "/generate".into(),
            authorization: [None, None],
            rid: None,
            body: Bytes::copy_from_slice(body.as_bytes()),
            reads: Reads::Bytes,
            digest: Digest::of(body.as_bytes()),
        }
    }

    /// A reply of so many pieces, each with another letter.
    fn pieces(count: usize) -> Bytes {
        (0..count).flat_map(|at| vec![b'a' + at as u8; PIECE]).collect::<Vec<u8>>().into()
    }

    fn head() -> response::Parts {
        Response::new(()).into_parts().0
    }

    fn event(bytes: Bytes) -> Arc<GenerationEvent> {
        Arc::new(GenerationEvent::unparsed(bytes, Unparsed::Piece))
    }

    fn answer(bytes: Bytes) -> Generation {
        Generation { head: head(), events: Events::Whole { event: Some(event(bytes)), observed: None } }
    }

    fn whole(bytes: Bytes) -> impl FnOnce(AttemptContext) -> Pending {
        move |_| Box::pin(async move { answer(bytes) })
    }

    /// The same, coming piece by piece.
    fn flowing(count: usize) -> impl FnOnce(AttemptContext) -> Pending {
        let all = pieces(count);
        let events = (0..count).map(|at| event(all.slice(at * PIECE..(at + 1) * PIECE))).collect();
        move |_| Box::pin(async move { Generation { head: head(), events: Events::Scripted(events) } })
    }

    fn never(_: AttemptContext) -> Pending {
        Box::pin(std::future::pending())
    }

    fn none(_: AttemptContext) -> Pending {
        panic!("nothing is asked anew")
    }

    fn context() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    /// The first letter of what a reader gets when it asks once, and gives to its client.
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
        native(Generation { head, events: Events::Shared(reader) }).into_body()
    }

    async fn all(reader: Reader) -> Bytes {
        body(reader).await.collect().await.unwrap().to_bytes()
    }

    /// A call whose reply was generated and did not arrive.
    async fn lose(attempts: &Retries, key: Key, bytes: Bytes) {
        let (mut reader, _) = attempts.enter(key, false, IDLE, whole(bytes));
        reader.head().await;
        assert!(reader.take_whole().is_some());
    }

    #[tokio::test]
    async fn a_reply_is_given_in_pieces_and_arrives_with_the_last_of_them() {
        let attempts = Retries::default();
        lose(&attempts, key("s", "b"), pieces(3)).await;
        assert_eq!(bytes(&attempts), 3 * PIECE + OVERHEAD + 1, "the reply and the request");
        let (reader, entered) = attempts.enter(key("s", "b"), true, IDLE, none);
        assert_eq!(entered, Entered::Replayed);
        let mut body = body(reader).await;
        for left in [3, 2, 1] {
            assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(left * PIECE as u64), false));
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), PIECE);
        }
        assert!(body.is_end_stream(), "known without asking for more");
        drop(body);
        assert_eq!(bytes(&attempts), 0, "nothing is kept of what has arrived");
        assert!(attempts.listed().sessions.is_empty() && attempts.listed().left.is_empty());
        let (_, entered) = attempts.enter(key("s", "b"), true, IDLE, never);
        assert_eq!(entered, Entered::New);
    }

    #[tokio::test]
    async fn what_somebody_has_read_to_its_end_is_not_joined() {
        let attempts = Retries::default();
        let (mut first, _) = attempts.enter(key("s", "b"), false, IDLE, whole(pieces(1)));
        first.head().await;
        assert!(next(&mut first).is_ready() && first.is_end_stream());
        let (_second, entered) = attempts.enter(key("s", "b"), true, IDLE, never);
        assert_eq!(entered, Entered::New, "although the first still holds it");
    }

    #[tokio::test]
    async fn a_reply_too_large_to_keep_is_read_by_whoever_reads_already() {
        let attempts = Retries::new(Bounds { reply: 2 * PIECE, ..Bounds::default() });
        let (mut first, _) = attempts.enter(key("s", "b"), false, IDLE, flowing(8));
        first.head().await;
        assert_eq!(next(&mut first), Poll::Ready(Some(Some(b'a'))));
        let (mut second, entered) = attempts.enter(key("s", "b"), true, IDLE, none);
        assert_eq!(entered, Entered::Joined);
        second.head().await;
        // the one that came last is waited for
        assert_eq!(next(&mut first), Poll::Ready(Some(Some(b'b'))));
        assert_eq!(next(&mut first), Poll::Ready(Some(Some(b'c'))));
        assert_eq!(bytes(&attempts), 0, "what is no longer kept weighs nothing");
        assert_eq!(next(&mut first), Poll::Pending);
        assert_eq!(next(&mut second), Poll::Ready(Some(Some(b'a'))));
        assert_eq!(next(&mut first), Poll::Ready(Some(Some(b'd'))));
        let (third, entered) = attempts.enter(key("s", "b"), true, IDLE, never);
        assert_eq!(entered, Entered::New, "the beginning is gone");
        drop(third);
        // the one that came first is not
        for letter in b"bcdefgh" {
            assert_eq!(next(&mut second), Poll::Ready(Some(Some(*letter))));
        }
        assert_eq!(next(&mut second), Poll::Ready(None));
        assert_eq!(next(&mut first), Poll::Ready(Some(None)), "it has a hole before it");
    }

    #[tokio::test]
    async fn a_reply_too_large_to_keep_is_not_replayed() {
        let attempts = Retries::new(Bounds { reply: PIECE, ..Bounds::default() });
        lose(&attempts, key("s", "b"), pieces(2)).await;
        assert_eq!(bytes(&attempts), OVERHEAD + 1, "the request is remembered");
        let (_, entered) = attempts.enter(key("s", "b"), true, IDLE, never);
        assert_eq!(entered, Entered::New);
    }

    #[tokio::test]
    async fn the_oldest_go_first() {
        let attempts = Retries::new(Bounds { left: 2, reply: 16 * PIECE, all: 10 * PIECE });
        let replayable = |session: &str, body: &str| {
            let (_listed, same) = attempts.same(&key(session, body), IDLE);
            same.len() == 1
        };
        for body in ["1", "2", "3"] {
            lose(&attempts, key("s", body), pieces(2)).await;
        }
        assert!(!replayable("s", "1") && replayable("s", "2") && replayable("s", "3"), "two a session");
        lose(&attempts, key("t", "4"), pieces(7)).await;
        assert!(!replayable("s", "2") && replayable("s", "3") && replayable("t", "4"), "all within bytes");
        // what runs counts too
        let (mut running, _) = attempts.enter(key("u", "5"), false, IDLE, flowing(12));
        running.head().await;
        for _ in 0..10 {
            assert!(next(&mut running).is_ready());
        }
        assert!(!replayable("s", "3") && !replayable("t", "4"), "for the sake of one that runs");
        assert_eq!(bytes(&attempts), 10 * PIECE);
        assert!(next(&mut running).is_ready());
        assert_eq!(bytes(&attempts), 0, "and in the end that is not kept either");
        assert_eq!((next(&mut running), next(&mut running)), (Poll::Ready(Some(Some(b'l'))), Poll::Ready(None)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_did_not_arrive_is_forgotten_in_time() {
        let attempts = Retries::default();
        lose(&attempts, key("s", "b"), pieces(2)).await;
        tokio::time::advance(IDLE).await;
        let (other, _) = attempts.enter(key("t", "other"), false, IDLE, never);
        assert_eq!((bytes(&attempts), attempts.listed().left.len()), (0, 0));
        drop(other);
        let (_, entered) = attempts.enter(key("s", "b"), true, IDLE, never);
        assert_eq!(entered, Entered::New);
    }

    /// Loses so many attempts of as many sessions and lets them expire together; how long that took.
    async fn lost_and_forgotten(count: usize) -> Duration {
        let attempts = Retries::default();
        let begun = std::time::Instant::now();
        for session in 0..count {
            drop(attempts.enter(key(&session.to_string(), "b"), false, IDLE, never));
        }
        assert_eq!(attempts.listed().left.len(), count);
        tokio::time::advance(IDLE).await;
        attempts.sweep(IDLE);
        let listed = attempts.listed();
        assert_eq!((bytes(&attempts), listed.left.len(), listed.sessions.len()), (0, 0, 0));
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn losing_and_forgetting_is_linear_in_the_attempts() {
        let (mut few, mut many) = (Duration::MAX, Duration::MAX);
        for _ in 0..3 {
            few = few.min(lost_and_forgotten(2_000).await);
            many = many.min(lost_and_forgotten(32_000).await);
        }
        assert!(many < 80 * few, "sixteen times as many take {many:?}, not {few:?}");
    }

    #[tokio::test]
    async fn long_bodies_are_the_same_only_byte_for_byte() {
        let attempts = Retries::default();
        let body = |last: char| format!("{}{last}", "x".repeat(1 << 20));
        lose(&attempts, key("s", &body('a')), pieces(2)).await;
        let (other, entered) = attempts.enter(key("s", &body('b')), true, IDLE, never);
        assert_eq!(entered, Entered::New);
        let (_, entered) = attempts.enter(key("s", &body('a')), true, IDLE, none);
        assert_eq!(entered, Entered::Replayed);
        drop(other);
    }

    #[tokio::test]
    async fn bodies_of_equal_length_with_other_digests_are_not_compared() {
        for length in [8, 64 << 10, 1 << 20] {
            let attempts = Retries::default();
            let live: Vec<_> = ["a", "b", "c", "c"]
                .map(|last| attempts.enter(key("s", &format!("{}{last}", "x".repeat(length))), false, IDLE, never))
                .into();
            let listed = attempts.listed();
            let compared = |at: usize| listed.like(&live[at].0.attempt.key).count();
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
    async fn samples_that_did_not_arrive_are_asked_anew_one_by_one() {
        let attempts = Retries::default();
        let (first, second) =
            (attempts.enter(key("s", "b"), false, IDLE, never).0, attempts.enter(key("s", "b"), false, IDLE, never).0);
        drop((first, second));
        let again = |context: AttemptContext| {
            assert!(context.again, "the ids of another one may still be taken");
            never(context)
        };
        let (third, entered) = attempts.enter(key("s", "b"), true, IDLE, again);
        assert_eq!(entered, Entered::New, "it left no turns");
        let (fourth, entered) = attempts.enter(key("s", "b"), true, IDLE, again);
        assert_eq!(entered, Entered::New, "a sample of its own, not another reader of the third");
        assert!(!Arc::ptr_eq(&third.attempt, &fourth.attempt));
    }

    #[tokio::test]
    async fn whoever_waits_is_woken_by_whoever_reads_and_by_whoever_leaves() {
        let attempts = Retries::default();
        let (answer, answered) = tokio::sync::oneshot::channel::<Bytes>();
        let begin = |_| -> Pending { Box::pin(async move { self::answer(answered.await.unwrap_or_default()) }) };
        let (mut first, _) = attempts.enter(key("s", "b"), false, IDLE, begin);
        let (second, _) = attempts.enter(key("s", "b"), true, IDLE, none);
        let second = tokio::spawn(all(second));
        {
            // polls last, so the reply would wake it alone
            tokio::task::yield_now().await;
            let head = pin!(first.head());
            assert!(head.poll(&mut context()).is_pending());
        }
        drop(first);
        answer.send(pieces(3)).unwrap();
        assert_eq!(second.await.unwrap(), pieces(3));
    }
}
