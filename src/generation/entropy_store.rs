// SPDX-License-Identifier: Apache-2.0
//! Entropies by request id, readable while the request runs and for `ttl` after it: a controller polls them to branch or to stop.

mod running;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dashmap::DashMap;
use foldhash::quality::RandomState;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::Instant;

pub(crate) use running::{RunningQuery, RunningSequence};

/// Bytes that an entry costs besides its numbers and names.
const ENTRY_OVERHEAD: u64 = 256;

/// Bounds of the store.
#[derive(Debug, Clone, Copy)]
pub struct EntropyStoreLimits {
    /// How long an ended request is kept.
    pub ttl: Duration,
    /// The largest number of ended requests.
    pub entries: usize,
    /// The largest total size of ended requests, in bytes.
    pub bytes: u64,
}

/// The state of one sequence.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SequenceProgress {
    /// Entropies in nats, NaN where a row is missing.
    pub entropy: Vec<f32>,
    /// The tokens, one per entropy, while the sequence runs. Empty if they are unknown, and after the sequence has ended.
    pub ids: Vec<u32>,
    /// The sequence has ended.
    pub finished: bool,
    /// Why it ended; also `abort` if the client disconnected.
    pub finish_reason: Option<Cow<'static, str>>,
    /// The number of tokens so far: the next `since`.
    pub next: usize,
}

/// How many requests were evicted, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EvictionCounts {
    /// Their time to live had expired.
    pub ttl: u64,
    /// The store held too many requests.
    pub entries: u64,
    /// The store held too many bytes.
    pub bytes: u64,
}

#[derive(Debug)]
struct RequestEntry {
    begun: Instant,
    // held for the length of a copy, never across an await
    sequences: Mutex<SmallVec<[SequenceProgress; 1]>>,
    names: Mutex<SmallVec<[Arc<str>; 1]>>,
    /// The session it belongs to, if known.
    session: OnceLock<Arc<str>>,
    /// The policy epoch when the request came, if it is recorded.
    epoch: OnceLock<u64>,
    /// Set when the request has ended: the finish reason of sequences without an entry.
    ended: OnceLock<&'static str>,
    /// Notified of every change.
    changed: Notify,
}

impl RequestEntry {
    fn new(begun: Instant) -> Self {
        Self {
            begun,
            sequences: Mutex::default(),
            names: Mutex::default(),
            session: OnceLock::new(),
            epoch: OnceLock::new(),
            ended: OnceLock::new(),
            changed: Notify::new(),
        }
    }

    /// Returns the state of sequence `index` from token `since` on.
    fn read(&self, index: usize, since: usize) -> SequenceProgress {
        let sequences = self.sequences.lock();
        let Some(progress) = sequences.get(index) else {
            // no token has arrived, or the request ended without one
            let end = self.ended.get();
            let finish_reason = end.map(|end| Cow::Borrowed(*end));
            return SequenceProgress { finished: end.is_some(), finish_reason, ..SequenceProgress::default() };
        };
        let entropy = progress.entropy.get(since..).unwrap_or_default().to_vec();
        let aligned = progress.ids.len() == progress.entropy.len();
        let ids = progress.ids.get(since..).filter(|_| aligned).unwrap_or_default().to_vec();
        let (next, finish_reason) = (progress.entropy.len(), progress.finish_reason.clone());
        SequenceProgress { entropy, ids, finished: progress.finished, finish_reason, next }
    }
}

/// Follows a sequence. It stays readable even if its name is evicted or reused.
#[derive(Debug)]
pub struct SequenceFollower {
    entry: Arc<RequestEntry>,
    pub index: usize,
}

impl SequenceFollower {
    /// Waits until the sequence has more than `since` tokens or has ended, and returns its state from token `since` on.
    pub async fn more(&self, since: usize) -> SequenceProgress {
        loop {
            let mut changed = std::pin::pin!(self.entry.changed.notified());
            // from here on no change is missed
            changed.as_mut().enable();
            let progress = self.entry.read(self.index, since);
            if progress.finished || progress.next > since {
                return progress;
            }
            changed.await;
        }
    }
}

/// Ended entries, oldest first, and their total size.
#[derive(Debug, Default)]
struct EndedEntries {
    order: VecDeque<(Instant, u64, Arc<RequestEntry>)>,
    bytes: u64,
    evicted: EvictionCounts,
}

/// A request, and the index of the sequence that a name refers to.
type NamedSequence = (Arc<RequestEntry>, usize);

/// The store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EntropyStore {
    names: Arc<DashMap<Arc<str>, NamedSequence, RandomState>>,
    // held while entries are moved, never across an await
    ended: Arc<Mutex<EndedEntries>>,
    limits: EntropyStoreLimits,
}

impl EntropyStore {
    /// An empty store.
    #[must_use]
    pub fn new(limits: EntropyStoreLimits) -> Self {
        Self { names: Arc::default(), ended: Arc::default(), limits }
    }

    /// Creates the entry of a request that is sent `now`. It can be read by each name that is added to it.
    #[must_use]
    pub fn begin(&self, now: Instant) -> EntropyWriter {
        EntropyWriter { store: self.clone(), entry: Arc::new(RequestEntry::new(now)), end: "abort" }
    }

    /// Returns the index of a sequence and its state from token `since` on. Without `index` it is the sequence that `rid` names. `None` if
    /// it is unknown.
    #[must_use]
    pub fn read(&self, rid: &str, index: Option<usize>, since: usize) -> Option<(usize, SequenceProgress)> {
        let SequenceFollower { entry, index } = self.follow(rid, index)?;
        Some((index, entry.read(index, since)))
    }

    /// Follows a sequence. Without `index` it is the sequence that `rid` names. `None` if it is unknown.
    #[must_use]
    pub fn follow(&self, rid: &str, index: Option<usize>) -> Option<SequenceFollower> {
        // the map's guard is dropped before the entry is locked
        let (entry, named) = self.names.get(rid).map(|found| found.value().clone())?;
        let index = index.unwrap_or(named);
        let known = index == named || index < entry.sequences.lock().len();
        known.then_some(SequenceFollower { entry, index })
    }

    /// The number and the total bytes of ended requests. Running ones are not counted.
    #[must_use]
    pub fn size(&self) -> (usize, u64) {
        let ended = self.ended.lock();
        (ended.order.len(), ended.bytes)
    }

    /// Evicts expired requests and returns how many were evicted since the last call.
    #[must_use]
    pub fn take_evicted(&self) -> EvictionCounts {
        self.evict(Instant::now());
        std::mem::take(&mut self.ended.lock().evicted)
    }

    /// Evicts requests that have expired or exceed the limits.
    fn evict(&self, now: Instant) {
        loop {
            let oldest = {
                let mut ended = self.ended.lock();
                let Some((at, bytes, _)) = ended.order.front() else { break };
                let (at, bytes) = (*at, *bytes);
                if now.duration_since(at) >= self.limits.ttl {
                    ended.evicted.ttl += 1;
                } else if ended.order.len() > self.limits.entries {
                    ended.evicted.entries += 1;
                } else if ended.bytes > self.limits.bytes {
                    ended.evicted.bytes += 1;
                } else {
                    break;
                }
                ended.bytes -= bytes;
                ended.order.pop_front()
            };
            let Some((_, _, entry)) = oldest else { break };
            let names = std::mem::take(&mut *entry.names.lock());
            for name in names {
                // a later request may have reused the name
                self.names.remove_if(&name, |_, (named, _)| Arc::ptr_eq(named, &entry));
            }
        }
    }
}

/// Writes one request's entropies. Dropping it ends the request.
#[derive(Debug)]
pub struct EntropyWriter {
    store: EntropyStore,
    entry: Arc<RequestEntry>,
    /// The finish reason of sequences that have not finished when the request ends.
    end: &'static str,
}

impl EntropyWriter {
    /// Removes the name `rid`.
    pub fn remove_name(&self, rid: &str) {
        // the map's lock is not held while the entry is locked
        self.store.names.remove_if(rid, |_, (named, _)| Arc::ptr_eq(named, &self.entry));
        self.entry.names.lock().retain(|name| **name != *rid);
    }

    /// Makes the request readable by `rid`, which names sequence `index`.
    pub fn name(&self, rid: &Arc<str>, index: usize) {
        let is_ours = self.store.names.get(&**rid).map(|named| Arc::ptr_eq(&named.0, &self.entry));
        match is_ours {
            Some(true) => return,
            // a later request reuses the name, and keeps it
            Some(false) if self.entry.names.lock().iter().any(|name| name == rid) => return,
            Some(false) | None => {}
        }
        self.entry.names.lock().push(Arc::clone(rid));
        self.store.names.insert(Arc::clone(rid), (Arc::clone(&self.entry), index));
    }

    /// Sets the session of the request, and the policy epoch when it came. Later calls have no effect.
    pub fn set_session(&self, session: Arc<str>, epoch: u64) {
        // a second call would set the same session
        let _ = self.entry.session.set(session);
        let _ = self.entry.epoch.set(epoch);
    }

    /// Appends entropies and their tokens, if known, to a sequence. Both change under one lock. The last event of a sequence appends
    /// no tokens, because the sequence ends with it; a reader then gets entropies without tokens.
    pub fn append(&self, index: usize, entropy: impl IntoIterator<Item = f32>, ids: &[u32]) {
        self.with(index, |progress| {
            progress.entropy.extend(entropy);
            progress.ids.extend_from_slice(ids);
        });
    }

    /// Ends a sequence.
    pub fn finish(&self, index: usize, reason: Cow<'static, str>) {
        self.with(index, |progress| {
            progress.finished = true;
            progress.finish_reason = Some(reason);
            // from now on the session has them
            progress.ids = Vec::new();
        });
    }

    /// Records that the engine refused the request.
    pub fn fail(&mut self) {
        self.end = "error";
        self.with(0, |_| {});
    }

    /// Changes a sequence, which is allocated on first use: a request may ask for a million samples.
    fn with(&self, index: usize, change: impl FnOnce(&mut SequenceProgress)) {
        let mut sequences = self.entry.sequences.lock();
        if sequences.len() <= index {
            sequences.resize(index + 1, SequenceProgress::default());
        }
        change(&mut sequences[index]);
        drop(sequences);
        self.entry.changed.notify_waiters();
    }
}

impl Drop for EntropyWriter {
    fn drop(&mut self) {
        let mut bytes = ENTRY_OVERHEAD;
        // never set before: a writer is dropped once
        let _ = self.entry.ended.set(self.end);
        self.with(0, |_| {});
        for progress in self.entry.sequences.lock().iter_mut() {
            if !progress.finished {
                progress.finished = true;
                progress.finish_reason = Some(self.end.into());
            }
            progress.ids = Vec::new();
            progress.entropy.shrink_to_fit();
            bytes += 64 + 4 * progress.entropy.len() as u64;
        }
        self.entry.changed.notify_waiters();
        let names = self.entry.names.lock();
        bytes += names.iter().map(|name| 2 * name.len() as u64 + 64).sum::<u64>();
        if names.is_empty() {
            return; // without a name it cannot be read
        }
        drop(names);
        let now = Instant::now();
        let mut ended = self.store.ended.lock();
        ended.bytes += bytes;
        ended.order.push_back((now, bytes, Arc::clone(&self.entry)));
        drop(ended);
        self.store.evict(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(entries: usize, bytes: u64) -> EntropyStore {
        EntropyStore::new(EntropyStoreLimits { ttl: Duration::from_secs(10), entries, bytes })
    }

    #[tokio::test(start_paused = true)]
    async fn entropies_are_readable_while_the_request_runs_and_until_the_ttl() {
        let store = store(10, 1 << 20);
        let writer = store.begin(Instant::now());
        writer.name(&"R".into(), 0);
        writer.name(&"R_1".into(), 1);
        assert_eq!(store.read("R_1", None, 0).unwrap().1, SequenceProgress::default(), "known before its first token");
        writer.append(1, [0.5, 0.25], &[7, 8]);
        assert_eq!(store.read("R_1", None, 1).unwrap().1.entropy, [0.25]);
        assert_eq!(store.read("R", Some(1), 0).unwrap().1.entropy, [0.5, 0.25]);
        assert!(store.read("R", Some(2), 0).is_none() && store.read("unknown", None, 0).is_none());
        assert!(!store.read("R", None, 0).unwrap().1.finished);
        writer.finish(1, "length".into());
        drop(writer);
        assert_eq!(store.read("R_1", None, 9).unwrap().1.finish_reason.as_deref(), Some("length"));
        assert_eq!(store.read("R", None, 0).unwrap().1.finish_reason.as_deref(), Some("abort"));
        assert_eq!(store.take_evicted(), EvictionCounts::default());
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(store.take_evicted().ttl, 1);
        assert!(store.read("R", None, 0).is_none() && store.names.is_empty());
        assert_eq!(store.size(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn follower_is_notified_of_each_change_and_of_the_end() {
        let store = store(10, 1 << 20);
        let writer = store.begin(Instant::now());
        writer.name(&"R".into(), 0);
        writer.name(&"R_3".into(), 3);
        let first = store.follow("R", None).unwrap();
        let never = store.follow("R_3", None).unwrap();
        assert!(store.follow("R", Some(1)).is_none() && store.follow("unknown", None).is_none());
        let waiting = tokio::spawn(async move { (first.more(0).await, first.more(1).await) });
        // time is paused, so this sleep ends once all tasks wait
        tokio::time::sleep(Duration::from_secs(1)).await;
        writer.append(0, [0.5], &[7]);
        tokio::time::sleep(Duration::from_secs(1)).await;
        writer.finish(0, "stop".into());
        let (some, end) = waiting.await.unwrap();
        assert_eq!((some.entropy, some.next, some.finished), (vec![0.5], 1, false));
        assert_eq!((end.entropy, end.next, end.finish_reason.as_deref()), (vec![], 1, Some("stop")));
        let waiting = tokio::spawn(async move { never.more(0).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!waiting.is_finished(), "it has no token");
        drop(writer);
        let end = waiting.await.unwrap();
        assert_eq!((end.finished, end.finish_reason.as_deref()), (true, Some("abort")));
    }

    #[tokio::test(start_paused = true)]
    async fn oldest_entries_are_evicted_first_and_a_reused_name_stays() {
        let store = store(2, 1 << 20);
        for at in 0..4 {
            let writer = store.begin(Instant::now());
            writer.name(&"same".into(), 0);
            writer.name(&format!("own-{at}").into(), 0);
            writer.append(0, [at as f32], &[]);
        }
        assert_eq!(store.take_evicted().entries, 2);
        assert!(store.read("own-1", None, 0).is_none());
        assert_eq!(store.read("own-2", None, 0).unwrap().1.entropy, [2.0]);
        assert_eq!(store.read("same", None, 0).unwrap().1.entropy, [3.0]);
        let small = EntropyStore::new(EntropyStoreLimits { ttl: Duration::from_secs(10), entries: 10, bytes: 1000 });
        for at in 0..3 {
            small.begin(Instant::now()).name(&format!("{at}").into(), 0);
        }
        assert!(small.take_evicted().bytes >= 1 && small.size().1 <= 1000);
    }

    #[test]
    fn repeated_name_of_an_earlier_request_does_not_replace_a_later_one() {
        let store = store(10, 1 << 20);
        let (earlier, later) = (store.begin(Instant::now()), store.begin(Instant::now()));
        earlier.name(&"same".into(), 0);
        later.name(&"same".into(), 1);
        earlier.name(&"same".into(), 0);
        assert_eq!(store.follow("same", None).unwrap().index, 1);
        assert_eq!(earlier.entry.names.lock().len(), 1);
    }

    #[test]
    fn removed_name_no_longer_lists_the_request() {
        let store = store(10, 1 << 20);
        let (writer, other) = (store.begin(Instant::now()), store.begin(Instant::now()));
        writer.name(&"a-refused".into(), 0);
        writer.name(&"b-accepted".into(), 0);
        writer.remove_name("a-refused");
        let query = RunningQuery { session: None, limit: 10, recent: 0 };
        let listed = store.running(query).0;
        assert_eq!(listed.iter().map(|running| &*running.rid).collect::<Vec<_>>(), ["b-accepted"]);
        other.remove_name("b-accepted");
        assert!(store.read("b-accepted", None, 0).is_some(), "a request removes only its own names");
    }
}
