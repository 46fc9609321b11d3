//! What is running at the moment: where somebody who knows no request id begins.

use std::collections::HashSet;
use std::sync::Arc;

use super::{EntropyStore, Entry, locked};

/// A sequence that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunningSequence {
    /// A name of its request.
    pub rid: String,
    /// Which of the request's sequences.
    pub index: usize,
    /// The session it belongs to; `None` where it is not recorded.
    pub session: Option<Arc<str>>,
    /// Tokens so far.
    pub tokens: usize,
}

impl EntropyStore {
    /// The sequences that are running, of all sessions or of one, by the names of their requests; at most `limit`.
    #[must_use]
    pub fn running(&self, session: Option<&str>, limit: usize) -> Vec<RunningSequence> {
        // nothing is locked behind the map's own locks
        let named: Vec<(String, Arc<Entry>, usize)> = self
            .names
            .iter()
            .filter(|named| named.value().0.ended.get().is_none())
            .filter(|named| session.is_none_or(|id| named.value().0.session.get().is_some_and(|own| **own == *id)))
            .map(|named| (named.key().clone(), Arc::clone(&named.value().0), named.value().1))
            .collect();
        let mut found: Vec<(RunningSequence, *const Entry)> = Vec::new();
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
        // a sequence may have several names
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
    async fn only_what_has_not_ended_is_running_once_and_by_its_session() {
        let store = EntropyStore::new(StoreLimits { ttl: Duration::from_secs(10), entries: 10, bytes: 1 << 20 });
        let (first, second, nameless) = (store.begin(), store.begin(), store.begin());
        first.belong("a".into());
        first.name("r", 0);
        first.name("r-0", 0);
        first.name("r-1", 1);
        first.append(1, [0.5, 0.25], &[7, 8]);
        second.name("s", 0);
        let shown = |session: Option<&str>| -> Vec<(String, usize, usize)> {
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
    fn tokens_that_are_not_one_an_entropy_are_not_told() {
        let store = EntropyStore::new(StoreLimits { ttl: Duration::from_secs(10), entries: 10, bytes: 1 << 20 });
        let ticket = store.begin();
        ticket.name("r", 0);
        ticket.append(0, [0.5, 0.25], &[7]);
        assert_eq!(store.read("r", None, 0).unwrap().1.ids, [0; 0]);
    }
}
