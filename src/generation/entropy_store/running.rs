// SPDX-License-Identifier: Apache-2.0
//! Lists the running sequences, for a client that does not know any request id.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::{EntropyStore, RequestEntry};

#[derive(Debug, Clone, PartialEq)]
pub struct RunningSequence {
    /// A request id that names it.
    pub rid: Arc<str>,
    /// Its index in the request.
    pub index: usize,
    /// The session it belongs to; `None` if it is not recorded.
    pub session: Option<Arc<str>>,
    /// Tokens so far.
    pub tokens: usize,
    /// The time since its request was sent to the engine.
    pub age: Duration,
    /// The policy epoch when its request came; `None` if it is not recorded.
    pub epoch: Option<u64>,
    /// The entropies of its newest tokens, in nats, NaN where a row is missing. The last one is the newest.
    pub recent: Vec<f32>,
}

/// Which running sequences are listed.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunningQuery<'a> {
    /// Only those of this session.
    pub session: Option<&'a str>,
    /// The largest number of sequences.
    pub limit: usize,
    /// The largest number of entropies of a sequence.
    pub recent: usize,
}

impl EntropyStore {
    /// Returns the running sequences, sorted by request id, and how many there are without the limit.
    #[must_use]
    pub fn running(&self, query: RunningQuery<'_>) -> (Vec<RunningSequence>, usize) {
        let RunningQuery { session, limit, recent } = query;
        // the map's own locks are released before an entry is locked
        let named: Vec<(Arc<str>, Arc<RequestEntry>, usize)> = self
            .names
            .iter()
            .filter(|named| named.value().0.ended.get().is_none())
            .filter(|named| session.is_none_or(|id| named.value().0.session.get().is_some_and(|own| **own == *id)))
            .map(|named| (named.key().clone(), Arc::clone(&named.value().0), named.value().1))
            .collect();
        let mut found: Vec<(Arc<str>, Arc<RequestEntry>, usize)> = named
            .into_iter()
            .filter(|(_, entry, index)| !entry.sequences.lock().get(*index).is_some_and(|progress| progress.finished))
            .collect();
        found.sort_by(|(rid, _, index), (other, _, other_index)| (rid, index).cmp(&(other, other_index)));
        // a sequence may have several ids
        let mut seen = HashSet::new();
        found.retain(|(_, entry, index)| seen.insert((Arc::as_ptr(entry), *index)));
        let total = found.len();
        let listed = found.into_iter().take(limit).map(|(rid, entry, index)| entry.describe(rid, index, recent));
        (listed.collect(), total)
    }
}

impl RequestEntry {
    /// The state of sequence `index`, with its newest `recent` entropies.
    fn describe(&self, rid: Arc<str>, index: usize, recent: usize) -> RunningSequence {
        let (session, epoch, age) = (self.session.get().cloned(), self.epoch.get().copied(), self.begun.elapsed());
        let sequences = self.sequences.lock();
        let entropy = sequences.get(index).map_or(&[][..], |progress| &progress.entropy);
        let newest = &entropy[entropy.len().saturating_sub(recent)..];
        RunningSequence { rid, index, session, tokens: entropy.len(), age, epoch, recent: newest.to_vec() }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::super::EntropyStoreLimits;
    use super::*;

    #[tokio::test]
    async fn running_lists_each_unfinished_sequence_once_and_filters_by_session() {
        let store = EntropyStore::new(EntropyStoreLimits { ttl: Duration::from_secs(10), entries: 10, bytes: 1 << 20 });
        let (first, second, nameless) =
            (store.begin(Instant::now()), store.begin(Instant::now()), store.begin(Instant::now()));
        first.set_session("a".into(), 3);
        first.name(&"r".into(), 0);
        first.name(&"r-0".into(), 0);
        first.name(&"r-1".into(), 1);
        first.append(1, [0.5, 0.25], &[7, 8]);
        second.name(&"s".into(), 0);
        let shown = |session: Option<&str>| -> Vec<(Arc<str>, usize, usize)> {
            let (found, _) = store.running(RunningQuery { session, limit: 10, recent: 0 });
            found.into_iter().map(|found| (found.rid, found.index, found.tokens)).collect()
        };
        assert_eq!(shown(None), [("r".into(), 0, 0), ("r-1".into(), 1, 2), ("s".into(), 0, 0)]);
        assert_eq!(shown(Some("a")), [("r".into(), 0, 0), ("r-1".into(), 1, 2)]);
        let (one, total) = store.running(RunningQuery { session: None, limit: 1, recent: 0 });
        assert_eq!((shown(Some("b")), one.len(), total), (vec![], 1, 3));
        let (both, _) = store.running(RunningQuery { session: Some("a"), limit: 9, recent: 1 });
        let recent: Vec<_> = both.iter().map(|found| (found.epoch, &*found.recent)).collect();
        assert_eq!(recent, [(Some(3), &[][..]), (Some(3), &[0.25][..])]);
        assert_eq!(store.read("r-1", None, 1).unwrap().1.ids, [8]);
        first.finish(1, "stop".into());
        assert_eq!(shown(Some("a")), [("r".into(), 0, 0)]);
        assert_eq!(store.read("r-1", None, 0).unwrap().1.ids, [0; 0], "its tokens are in the session");
        drop((first, second, nameless));
        assert_eq!(shown(None), []);
    }

    #[test]
    fn ids_are_empty_unless_there_is_one_per_entropy() {
        let store = EntropyStore::new(EntropyStoreLimits { ttl: Duration::from_secs(10), entries: 10, bytes: 1 << 20 });
        let writer = store.begin(Instant::now());
        writer.name(&"r".into(), 0);
        writer.append(0, [0.5, 0.25], &[7]);
        assert_eq!(store.read("r", None, 0).unwrap().1.ids, [0; 0]);
    }
}
