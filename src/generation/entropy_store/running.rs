//! Lists the running sequences, for a client that does not know any request id.

use std::collections::HashSet;
use std::sync::Arc;

use super::{EntropyStore, RequestEntry, locked};

/// A running sequence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunningSequence {
    /// A request id that names it.
    pub rid: Arc<str>,
    /// Its index in the request.
    pub index: usize,
    /// The session it belongs to; `None` if it is not recorded.
    pub session: Option<Arc<str>>,
    /// Tokens so far.
    pub tokens: usize,
}

impl EntropyStore {
    /// Returns at most `limit` running sequences, of all sessions or of one, sorted by request id.
    #[must_use]
    pub fn running(&self, session: Option<&str>, limit: usize) -> Vec<RunningSequence> {
        // the map's own locks are released before an entry is locked
        let named: Vec<(Arc<str>, Arc<RequestEntry>, usize)> = self
            .names
            .iter()
            .filter(|named| named.value().0.ended.get().is_none())
            .filter(|named| session.is_none_or(|id| named.value().0.session.get().is_some_and(|own| **own == *id)))
            .map(|named| (named.key().clone(), Arc::clone(&named.value().0), named.value().1))
            .collect();
        let mut found: Vec<(RunningSequence, *const RequestEntry)> = Vec::new();
        for (rid, entry, index) in named {
            let (tokens, finished) = {
                let sequences = locked(&entry.sequences);
                sequences.get(index).map_or((0, false), |progress| (progress.entropy.len(), progress.finished))
            };
            if !finished {
                let session = entry.session.get().cloned();
                found.push((RunningSequence { rid, index, session, tokens }, Arc::as_ptr(&entry)));
            }
        }
        found.sort();
        // a sequence may have several ids
        let mut seen = HashSet::new();
        found.retain(|(sequence, entry)| seen.insert((*entry, sequence.index)));
        found.into_iter().map(|(sequence, _)| sequence).take(limit).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::StoreLimits;
    use super::*;

    #[tokio::test]
    async fn running_lists_each_unfinished_sequence_once_and_filters_by_session() {
        let store = EntropyStore::new(StoreLimits { ttl: Duration::from_secs(10), entries: 10, bytes: 1 << 20 });
        let (first, second, nameless) = (store.begin(), store.begin(), store.begin());
        first.set_session("a".into());
        first.name(&"r".into(), 0);
        first.name(&"r-0".into(), 0);
        first.name(&"r-1".into(), 1);
        first.append(1, [0.5, 0.25], &[7, 8]);
        second.name(&"s".into(), 0);
        let shown = |session: Option<&str>| -> Vec<(Arc<str>, usize, usize)> {
            store.running(session, 10).into_iter().map(|found| (found.rid, found.index, found.tokens)).collect()
        };
        assert_eq!(shown(None), [("r".into(), 0, 0), ("r-1".into(), 1, 2), ("s".into(), 0, 0)]);
        assert_eq!(shown(Some("a")), [("r".into(), 0, 0), ("r-1".into(), 1, 2)]);
        assert_eq!((shown(Some("b")), store.running(None, 1).len()), (vec![], 1));
        assert_eq!(store.read("r-1", None, 1).unwrap().1.ids, [8]);
        first.finish(1, "stop");
        assert_eq!(shown(Some("a")), [("r".into(), 0, 0)]);
        assert_eq!(store.read("r-1", None, 0).unwrap().1.ids, [0; 0], "its tokens are in the session");
        drop((first, second, nameless));
        assert_eq!(shown(None), []);
    }

    #[test]
    fn ids_are_empty_unless_there_is_one_per_entropy() {
        let store = EntropyStore::new(StoreLimits { ttl: Duration::from_secs(10), entries: 10, bytes: 1 << 20 });
        let writer = store.begin();
        writer.name(&"r".into(), 0);
        writer.append(0, [0.5, 0.25], &[7]);
        assert_eq!(store.read("r", None, 0).unwrap().1.ids, [0; 0]);
    }
}
