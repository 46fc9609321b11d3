//! Restores sessions from the records of the log.

use std::ops::ControlFlow;
use std::sync::Arc;

use tokio::sync::watch;

use super::ledger::log::{Directory, OpenError, ReplaySummary};
use super::ledger::{Record, SessionKey};
use super::sessions::Sessions;
use super::state::FinishedPath;
use super::state::{Reward, Session, State};
use super::store::Store;
use super::{Cause, Fault, Policy, RestoreProgress, Turn, TurnMetadata};

/// Names of damaged sessions that are logged. Others are only counted.
const NAMED: usize = 20;

/// Sessions that lack turns.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MissingTurns {
    /// The names of the first ones.
    pub names: Vec<Arc<str>>,
    /// The number of such sessions.
    pub sessions: usize,
}

impl Sessions {
    /// Announces a restoration from a log of this many bytes. Nothing may be recorded until it has ended.
    pub fn begin_restore(&self, bytes: u64) {
        self.memory().restoration.begin(bytes);
    }

    /// The progress of the restoration; `None` if none runs.
    #[must_use]
    pub fn restore_progress(&self) -> Option<RestoreProgress> {
        self.memory().restoration.progress()
    }

    /// Watches whether a restoration runs.
    #[must_use]
    pub fn watch_restoring(&self) -> watch::Receiver<bool> {
        self.memory().restoration.watch()
    }

    /// Cancels the restoration. The log stays unchanged.
    pub fn cancel_restore(&self) {
        self.memory().restoration.cancel();
    }

    /// Restores sessions and `policy` from the log in `directory`, and then opens it for appending. Blocks while the log is read, and
    /// calls `progress` with the number of bytes read so far. Returns `None` if it was cancelled.
    ///
    /// # Errors
    /// When the log cannot be opened for writing.
    pub fn restore_from(
        &self,
        directory: Directory,
        policy: &Policy,
        progress: impl Fn(u64),
    ) -> Result<Option<ReplaySummary>, OpenError> {
        let store = self.memory();
        let opened = directory.open(&mut |read, record| {
            if let Some(record) = record {
                policy.restore_record(&record);
                self.restore(record);
            }
            store.restoration.advance(read);
            progress(read);
            if store.restoration.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let Some((log, replayed)) = opened else { return Ok(None) };
        // the engine may have changed while tokentap was down
        policy.restore(policy.epoch() + 1, None);
        store.log.set(log);
        if store.is_cache {
            // the turns of this epoch are in the shared ledger, so the next start would not find it in the log, and use it again
            store.log.append_unacknowledged(Record::Policy { epoch: policy.epoch(), version: None });
        }
        store.sweep();
        store.restoration.end();
        Ok(Some(replayed))
    }

    /// Sessions with missing turns: the log was damaged, could not be written, or was at its size limit.
    #[must_use]
    pub fn missing_turns(&self) -> MissingTurns {
        let lacks = |session: &Session| session.state().forest.counts().has(Fault::Lost);
        let mut missing = MissingTurns::default();
        for session in self.in_memory().into_iter().filter(|session| lacks(session)) {
            missing.sessions += 1;
            if missing.names.len() < NAMED {
                missing.names.push(Arc::clone(&session.id));
            }
        }
        missing
    }
}

impl Store {
    /// Applies one record. Records come in the order in which they were written; some may be missing.
    pub(super) fn restore(&self, record: Record) {
        // epochs are restored by Policy::restore_record
        let Some(key) = record.session().cloned() else { return };
        if matches!(record, Record::Deleted { .. } | Record::Evicted { .. }) {
            return self.restore_deleted(&key.name);
        }
        let (turn, finished) = match &record {
            Record::Turn { turn, .. } => (Some(turn), None),
            Record::Finished { number, .. } => (None, Some(*number)),
            _ => (None, None),
        };
        // records without births: a contradiction means another session
        let contradicts = |known: Arc<Session>| turn.is_some_and(|turn| known.state().contradicts(turn));
        if self.session(&key.name).is_some_and(contradicts) {
            self.restore_deleted(&key.name);
        }
        let is_turn = turn.is_some();
        let bytes = self.restored_session(&key).apply(record);
        self.order().change(bytes);
        if is_turn {
            self.evict();
        }
        if let Some(number) = finished {
            self.restore_finished(number, key.name);
        }
    }

    /// The session of a record, which is created if it does not exist.
    fn restored_session(&self, key: &SessionKey) -> Arc<Session> {
        // another session of this name: the record of the earlier one's end is missing
        let differs = |known: Arc<Session>| known.birth.zip(key.birth).is_some_and(|(known, birth)| known != birth);
        if self.session(&key.name).is_some_and(differs) {
            self.restore_deleted(&key.name);
        }
        self.session_of(key)
    }
}

impl Session {
    /// Applies a record of the session, which follows the records that were applied before; some may be missing. Returns the bytes by
    /// which the session grows.
    pub(super) fn apply(&self, record: Record) -> i64 {
        // locked before the state
        let mut publication = matches!(record, Record::Finished { .. }).then(|| self.publication());
        let mut state = self.state();
        match record {
            Record::Begin { created_ms, .. } => state.created_ms = created_ms,
            Record::Healed { .. } => state.generation += 1,
            Record::Turn { turn, .. } => return i64::try_from(state.restore(turn)).unwrap_or(i64::MAX),
            Record::Reward { leaf, reward, version, .. } => {
                return state.reward(Reward { version, leaf, value: reward });
            }
            Record::Freeze { turns, .. } => {
                state.fill(turns);
                // concurrent freezes may be in the log in the reverse order
                let at = state.frozen.partition_point(|before| *before < turns);
                state.frozen.insert(at, turns);
            }
            Record::Incomplete { .. } => {
                let version = state.open_version();
                // a frozen version does not change
                state.incomplete.get_or_insert(version);
            }
            Record::ResponseDeleted { turn, .. } => {
                state.deleted_responses.insert(turn);
            }
            Record::Finished { leaf, turns, number, .. } => {
                state.fill(turns);
                let publication = publication.as_mut().expect("it is locked for this record");
                state.finish(publication, FinishedPath { number, leaf, turns, trained_from: 0 });
            }
            Record::Deleted { .. } | Record::Evicted { .. } | Record::Policy { .. } => {}
        }
        0
    }
}

impl State {
    /// Adds a turn under its old number and returns the bytes that it takes. A turn that continues a missing turn has lost the beginning of
    /// its prompt, and is not trained.
    fn restore(&mut self, turn: Arc<Turn>) -> u64 {
        if turn.id < self.forest.next_id() {
            return 0; // restored before
        }
        let before = self.bytes;
        if self.forest.turns().is_empty() {
            self.created_ms = turn.about.started_ms;
        }
        self.fill(turn.id);
        let lost = turn.parent.is_some_and(|parent| parent >= turn.id || self.lacks_beginning(parent));
        let turn = if lost {
            let mut turn = Arc::unwrap_or_clone(turn);
            turn.parent = None;
            (turn.about.fault, turn.about.cause) = (Some(Fault::PromptUnknown), Cause::Unplaced);
            Arc::new(turn)
        } else if let Some(prompt) = self.forest.shared(turn.parent, &turn.prompt) {
            Arc::new(Turn { prompt, ..Arc::unwrap_or_clone(turn) })
        } else {
            turn
        };
        self.bytes += turn.bytes();
        self.forest.push(turn);
        self.bytes - before
    }

    /// Whether the session already has another turn with this number.
    fn contradicts(&self, turn: &Turn) -> bool {
        let known = self.forest.turns().get(turn.id as usize).filter(|known| known.about.fault != Some(Fault::Lost));
        let same = |known: &Turn| {
            known.response == turn.response
                && known.about.rid == turn.about.rid
                && known.about.started_ms == turn.about.started_ms
        };
        known.is_some_and(|known| !same(known))
    }

    /// Adds a placeholder for each missing turn below `until`, so that the numbers of later turns stay the same.
    fn fill(&mut self, until: u32) {
        while self.forest.next_id() < until {
            let id = self.forest.next_id();
            let about = TurnMetadata { fault: Some(Fault::Lost), cause: Cause::Unplaced, ..TurnMetadata::default() };
            let none = (Arc::default(), Box::default(), Box::default(), Box::default());
            let (prompt, response, logprobs, entropy) = none;
            self.forest.push(Arc::new(Turn { id, parent: None, prompt, response, logprobs, entropy, about }));
        }
    }

    /// Whether the tokens up to this turn are unknown: it or an ancestor is missing. A restored turn without its beginning is
    /// [`Cause::Unplaced`] itself, so checking one turn covers its ancestors.
    fn lacks_beginning(&self, id: u32) -> bool {
        self.forest.turns().get(id as usize).is_none_or(|turn| turn.about.cause == Cause::Unplaced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::StoreLimits;
    use crate::session::Uid;

    fn turn(id: u32, parent: Option<u32>, prompt: &[u32], response: &[u32], started_ms: u64) -> Record {
        let about = TurnMetadata { finish: Some("stop".into()), started_ms, ..TurnMetadata::default() };
        let (logprobs, entropy) = (vec![-1.0; response.len()].into(), vec![0.5; response.len()].into());
        let turn = Turn { id, parent, prompt: prompt.into(), response: response.into(), logprobs, entropy, about };
        Record::Turn { session: "s".into(), turn: Arc::new(turn) }
    }

    fn restored(records: Vec<Record>) -> Sessions {
        let limits = StoreLimits { bytes: 1 << 30, ttl: std::time::Duration::MAX, idle: std::time::Duration::MAX };
        let store = Sessions::new(limits);
        records.into_iter().for_each(|record| store.restore(record));
        store
    }

    #[tokio::test(start_paused = true)]
    async fn two_sessions_of_one_name_are_not_merged() {
        let store = restored(vec![
            turn(0, None, &[1], &[2], 5),
            turn(1, Some(0), &[3], &[4], 6),
            // the end of that session is not in the log
            turn(0, None, &[1], &[7], 9),
            turn(0, None, &[1], &[7], 9),
        ]);
        let rows = store.session("s").unwrap().snapshot(None).unwrap().paths(true).0;
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].leaf().response.to_vec(), rows[0].steps.len()), (vec![7], 1));
        assert_eq!(store.session("s").unwrap().summary().created_ms, 9);
    }

    #[tokio::test(start_paused = true)]
    async fn births_tell_sessions_of_one_name_apart() {
        let (first, second) = (Uid::unique(), Uid::unique());
        let born = |birth, record| match record {
            Record::Turn { session, turn } => {
                Record::Turn { session: SessionKey { birth: Some(birth), ..session }, turn }
            }
            other => other,
        };
        let root = || turn(0, None, &[1], &[2], 5);
        let store = restored(vec![
            born(first, root()),
            born(first, turn(1, Some(0), &[3], &[4], 6)),
            // the end of that session is not in the log, and the next one begins with an equal turn
            born(second, root()),
        ]);
        let session = store.session("s").unwrap();
        assert_eq!((session.birth, session.summary().turns), (Some(second), 1));
        let unborn = restored(vec![root(), turn(1, Some(0), &[3], &[4], 6)]).session("s").unwrap();
        assert_eq!((unborn.birth, unborn.summary().turns), (None, 2), "a log of a version without births");
    }

    #[tokio::test(start_paused = true)]
    async fn turns_after_a_missing_turn_are_not_trained() {
        let store = restored(vec![
            turn(0, None, &[1], &[2], 5),
            turn(2, Some(1), &[3], &[4], 6),
            turn(3, Some(0), &[3], &[5], 7),
        ]);
        let (rows, refused) = store.session("s").unwrap().snapshot(None).unwrap().paths(true);
        assert_eq!(rows.iter().map(|row| row.leaf().id).collect::<Vec<_>>(), [3]);
        let reasons: Vec<_> = refused.iter().map(|refused| (refused.leaf, refused.reason)).collect();
        assert_eq!(reasons, [(1, "lost"), (2, "prompt_unknown")]);
    }

    #[tokio::test(start_paused = true)]
    async fn descendants_of_a_missing_turn_are_not_trained_at_any_depth() {
        let store = restored(vec![
            turn(0, None, &[1], &[2], 5),
            turn(2, Some(1), &[3], &[4], 6),
            turn(3, Some(2), &[5], &[6], 7),
            turn(4, Some(3), &[7], &[8], 8),
        ]);
        let (rows, _) = store.session("s").unwrap().snapshot(None).unwrap().paths(true);
        assert_eq!(rows.iter().map(|row| row.leaf().id).collect::<Vec<_>>(), [0], "their prompts lack their beginning");
    }

    #[test]
    fn freezes_in_any_order_restore_sorted_versions() {
        let limits = StoreLimits { bytes: 1 << 20, ttl: std::time::Duration::MAX, idle: std::time::Duration::MAX };
        let store = Sessions::new(limits);
        for turns in [5, 3] {
            store.restore(Record::Freeze { session: "s".into(), turns });
        }
        let session = store.session("s").expect("it is restored");
        let turns = |version| session.snapshot(Some(version)).map(|snapshot| snapshot.turns().len());
        assert_eq!((turns(1), turns(2)), (Ok(3), Ok(5)));
    }
}
