//! Entropies by request id, readable while the request runs and for a while after: a controller polls them to branch or to stop.

mod running;

pub use running::RunningSequence;

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Bytes that an entry costs besides its numbers and names.
const ENTRY_OVERHEAD: u64 = 256;

/// Bounds of the store.
#[derive(Debug, Clone, Copy)]
pub struct StoreLimits {
    /// How long an ended request stays.
    pub ttl: Duration,
    /// Requests.
    pub entries: usize,
    /// Bytes.
    pub bytes: u64,
}

/// What is known of one sequence.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// Entropies in nats, NaN where a row is missing.
    pub entropy: Vec<f32>,
    /// The tokens, one an entropy, while the sequence runs; empty where they are not known, and afterwards.
    pub ids: Vec<u32>,
    /// No more will come.
    pub finished: bool,
    /// Why it ended; `abort` too where the client left.
    pub finish_reason: Option<String>,
    /// How many tokens there are: from where to read on.
    pub next: usize,
}

/// How many requests left the store, and why.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Their time was over.
    pub ttl: u64,
    /// There were too many.
    pub entries: u64,
    /// They were too large.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct Entry {
    // held for the length of a copy, never across an await
    sequences: Mutex<Vec<Progress>>,
    names: Mutex<HashSet<String>>,
    /// The session it belongs to, where that is known.
    session: OnceLock<Arc<str>>,
    /// The request has ended, and how the sequences have that nothing was heard of.
    ended: OnceLock<&'static str>,
    /// Told of every change.
    changed: Notify,
}

impl Entry {
    /// What is known of sequence `index` from token `since` on.
    fn read(&self, index: usize, since: usize) -> Progress {
        let sequences = locked(&self.sequences);
        let Some(progress) = sequences.get(index) else {
            // nothing has come of it yet, or ever will
            let end = self.ended.get();
            let finish_reason = end.map(|end| (*end).to_owned());
            return Progress { finished: end.is_some(), finish_reason, ..Progress::default() };
        };
        let entropy = progress.entropy.get(since..).unwrap_or_default().to_vec();
        let aligned = progress.ids.len() == progress.entropy.len();
        let ids = progress.ids.get(since..).filter(|_| aligned).unwrap_or_default().to_vec();
        let (next, finish_reason) = (progress.entropy.len(), progress.finish_reason.clone());
        Progress { entropy, ids, finished: progress.finished, finish_reason, next }
    }
}

/// A sequence that somebody follows. It stays readable, whatever becomes of its name.
#[derive(Debug)]
pub struct Followed {
    entry: Arc<Entry>,
    /// The sequence.
    pub index: usize,
}

impl Followed {
    /// Waits until there is more than `since` tokens, or the sequence has ended; what is known then from token `since` on.
    pub async fn more(&self, since: usize) -> Progress {
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

/// Entries that have ended, the oldest first, and what all entries cost.
#[derive(Debug, Default)]
struct Ended {
    order: VecDeque<(Instant, u64, Arc<Entry>)>,
    bytes: u64,
    evicted: Evicted,
}

/// The store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EntropyStore {
    names: Arc<DashMap<String, (Arc<Entry>, usize)>>,
    // held while entries are moved, never across an await
    ended: Arc<Mutex<Ended>>,
    limits: StoreLimits,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EntropyStore {
    /// An empty store.
    #[must_use]
    pub fn new(limits: StoreLimits) -> Self {
        Self { names: Arc::default(), ended: Arc::default(), limits }
    }

    /// A place for one request. It can be read under each name that it is given.
    #[must_use]
    pub fn begin(&self) -> Ticket {
        Ticket { store: self.clone(), entry: Arc::default(), end: "abort" }
    }

    /// What is known of a sequence from token `since` on, and the next `since`; `index` is the one the name stands for unless given.
    #[must_use]
    pub fn read(&self, rid: &str, index: Option<usize>, since: usize) -> Option<(usize, Progress)> {
        let Followed { entry, index } = self.follow(rid, index)?;
        Some((index, entry.read(index, since)))
    }

    /// A sequence to be followed; `index` is the one the name stands for unless given.
    #[must_use]
    pub fn follow(&self, rid: &str, index: Option<usize>) -> Option<Followed> {
        // the map's guard is dropped before the entry is locked
        let (entry, named) = self.names.get(rid).map(|found| found.value().clone())?;
        let index = index.unwrap_or(named);
        let known = index == named || index < locked(&entry.sequences).len();
        known.then_some(Followed { entry, index })
    }

    /// Requests and bytes held, ended ones only: what runs belongs to its request.
    #[must_use]
    pub fn size(&self) -> (usize, u64) {
        let ended = locked(&self.ended);
        (ended.order.len(), ended.bytes)
    }

    /// How many requests have left the store since this was last asked; lets go of what is over its time first.
    #[must_use]
    pub fn take_evicted(&self) -> Evicted {
        self.evict();
        std::mem::take(&mut locked(&self.ended).evicted)
    }

    /// Lets go of what is over its time or over the bounds.
    fn evict(&self) {
        let now = Instant::now();
        loop {
            let gone = {
                let mut ended = locked(&self.ended);
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
            let Some((_, _, entry)) = gone else { break };
            let names = std::mem::take(&mut *locked(&entry.names));
            for name in names {
                // a later request may have taken the name over
                self.names.remove_if(&name, |_, (named, _)| Arc::ptr_eq(named, &entry));
            }
        }
    }
}

/// The right to write one request's entropies; the request has ended when it is dropped.
#[derive(Debug)]
pub struct Ticket {
    store: EntropyStore,
    entry: Arc<Entry>,
    /// How sequences have ended that did not end themselves.
    end: &'static str,
}

impl Ticket {
    /// Makes the request readable under `rid`, which stands for sequence `index`.
    pub fn name(&self, rid: &str, index: usize) {
        if locked(&self.entry.names).insert(rid.to_owned()) {
            self.store.names.insert(rid.to_owned(), (Arc::clone(&self.entry), index));
        }
    }

    /// Says whose request it is; once.
    pub fn belong(&self, session: Arc<str>) {
        // a second session would be the first again
        let _ = self.entry.session.set(session);
    }

    /// Adds entropies to a sequence, and the tokens that they are of, as far as these are known: both at once, so that nobody reads the
    /// one without the other.
    pub fn append(&self, index: usize, entropy: impl IntoIterator<Item = f32>, ids: &[u32]) {
        self.with(index, |progress| {
            progress.entropy.extend(entropy);
            progress.ids.extend_from_slice(ids);
        });
    }

    /// Ends a sequence.
    pub fn finish(&self, index: usize, reason: &str) {
        self.with(index, |progress| {
            progress.finished = true;
            progress.finish_reason = Some(reason.to_owned());
            // from here on they are in the session
            progress.ids = Vec::new();
        });
    }

    /// The engine refused the request.
    pub fn fail(&mut self) {
        self.end = "error";
        self.with(0, |_| {});
    }

    /// Sequences come into being when they are first heard of: a request may ask for a million samples.
    fn with(&self, index: usize, change: impl FnOnce(&mut Progress)) {
        let mut sequences = locked(&self.entry.sequences);
        if sequences.len() <= index {
            sequences.resize(index + 1, Progress::default());
        }
        change(&mut sequences[index]);
        drop(sequences);
        self.entry.changed.notify_waiters();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut bytes = ENTRY_OVERHEAD;
        // set once: a ticket is dropped once
        let _ = self.entry.ended.set(self.end);
        self.with(0, |_| {});
        for progress in locked(&self.entry.sequences).iter_mut() {
            if !progress.finished {
                progress.finished = true;
                progress.finish_reason = Some(self.end.to_owned());
            }
            progress.ids = Vec::new();
            progress.entropy.shrink_to_fit();
            bytes += 64 + 4 * progress.entropy.len() as u64;
        }
        self.entry.changed.notify_waiters();
        let names = locked(&self.entry.names);
        bytes += names.iter().map(|name| 2 * name.len() as u64 + 64).sum::<u64>();
        if names.is_empty() {
            return; // nobody could ever read it
        }
        drop(names);
        let mut ended = locked(&self.store.ended);
        ended.bytes += bytes;
        ended.order.push_back((Instant::now(), bytes, Arc::clone(&self.entry)));
        drop(ended);
        self.store.evict();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(entries: usize, bytes: u64) -> EntropyStore {
        EntropyStore::new(StoreLimits { ttl: Duration::from_secs(10), entries, bytes })
    }

    #[tokio::test(start_paused = true)]
    async fn entropies_are_read_while_the_request_runs_and_for_a_while_after() {
        let store = store(10, 1 << 20);
        let ticket = store.begin();
        ticket.name("R", 0);
        ticket.name("R_1", 1);
        assert_eq!(store.read("R_1", None, 0).unwrap().1, Progress::default(), "known, though nothing has come yet");
        ticket.append(1, [0.5, 0.25], &[7, 8]);
        assert_eq!(store.read("R_1", None, 1).unwrap().1.entropy, [0.25]);
        assert_eq!(store.read("R", Some(1), 0).unwrap().1.entropy, [0.5, 0.25]);
        assert!(store.read("R", Some(2), 0).is_none() && store.read("unknown", None, 0).is_none());
        assert!(!store.read("R", None, 0).unwrap().1.finished);
        ticket.finish(1, "length");
        drop(ticket);
        assert_eq!(store.read("R_1", None, 9).unwrap().1.finish_reason.as_deref(), Some("length"));
        assert_eq!(store.read("R", None, 0).unwrap().1.finish_reason.as_deref(), Some("abort"));
        assert_eq!(store.take_evicted(), Evicted::default());
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(store.take_evicted().ttl, 1);
        assert!(store.read("R", None, 0).is_none() && store.names.is_empty());
        assert_eq!(store.size(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_follows_learns_of_each_change_and_of_the_end() {
        let store = store(10, 1 << 20);
        let ticket = store.begin();
        ticket.name("R", 0);
        ticket.name("R_3", 3);
        let first = store.follow("R", None).unwrap();
        let never = store.follow("R_3", None).unwrap();
        assert!(store.follow("R", Some(1)).is_none() && store.follow("unknown", None).is_none());
        let waiting = tokio::spawn(async move { (first.more(0).await, first.more(1).await) });
        // the clock stands still, so this is over when everybody waits
        tokio::time::sleep(Duration::from_secs(1)).await;
        ticket.append(0, [0.5], &[7]);
        tokio::time::sleep(Duration::from_secs(1)).await;
        ticket.finish(0, "stop");
        let (some, end) = waiting.await.unwrap();
        assert_eq!((some.entropy, some.next, some.finished), (vec![0.5], 1, false));
        assert_eq!((end.entropy, end.next, end.finish_reason.as_deref()), (vec![], 1, Some("stop")));
        let waiting = tokio::spawn(async move { never.more(0).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!waiting.is_finished(), "nothing has come of it");
        drop(ticket);
        let end = waiting.await.unwrap();
        assert_eq!((end.finished, end.finish_reason.as_deref()), (true, Some("abort")));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_leave_first_and_a_name_taken_over_stays() {
        let store = store(2, 1 << 20);
        for at in 0..4 {
            let ticket = store.begin();
            ticket.name("same", 0);
            ticket.name(&format!("own-{at}"), 0);
            ticket.append(0, [at as f32], &[]);
        }
        assert_eq!(store.take_evicted().entries, 2);
        assert!(store.read("own-1", None, 0).is_none());
        assert_eq!(store.read("own-2", None, 0).unwrap().1.entropy, [2.0]);
        assert_eq!(store.read("same", None, 0).unwrap().1.entropy, [3.0]);
        let small = EntropyStore::new(StoreLimits { ttl: Duration::from_secs(10), entries: 10, bytes: 1000 });
        for at in 0..3 {
            small.begin().name(&format!("{at}"), 0);
        }
        assert!(small.take_evicted().bytes >= 1 && small.size().1 <= 1000);
    }
}
