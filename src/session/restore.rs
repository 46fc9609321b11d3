// SPDX-License-Identifier: Apache-2.0
//! Restores sessions from the records of the log.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::ledger::log::{Directory, OpenError, ReplaySummary};
use super::ledger::{Change, LogRecord, ProcessRecord, Record};
use super::sessions::Sessions;
use super::state::{FinishedPath, Session, State};
use super::store::{ImageStore, Store};
use super::{Cause, Fault, Policy, Restoration, Reward, Turn, TurnMetadata, Uid};

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
    /// The state of the restoration from the log.
    #[must_use]
    pub fn restoration(&self) -> &Restoration {
        &self.memory().restoration
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
        policy.raise_adapter_epochs(policy.last_adapter_epoch() + 1);
        store.log.set(log);
        if store.is_cache {
            // the turns of this epoch are in the shared ledger, so the next start would not find it in the log, and use it again
            store.log.append_unacknowledged(ProcessRecord::Epoch { number: policy.epoch(), version: None });
            store.log.append_unacknowledged(ProcessRecord::AdapterEpoch { number: policy.last_adapter_epoch() });
        }
        store.sweep();
        store.restoration.end();
        Ok(Some(replayed))
    }

    /// Sessions with missing turns: the log was damaged, could not be written, or was at its size limit.
    #[must_use]
    pub fn missing_turns(&self) -> MissingTurns {
        let lacks = |session: &Session| session.state().forest.has(Fault::Lost);
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
    pub(super) fn restore(&self, record: impl Into<LogRecord>) {
        match record.into() {
            LogRecord::Session(record) => self.restore_change(record),
            LogRecord::Process(ProcessRecord::Settled { session }) => self.restore_deleted(&session),
            // restored by Policy::restore_record
            LogRecord::Process(ProcessRecord::Epoch { .. } | ProcessRecord::AdapterEpoch { .. }) => {}
        }
    }

    fn restore_change(&self, record: Record) {
        let Record { session: name, birth, mut change } = record;
        if matches!(change, Change::Deleted | Change::Evicted) {
            return self.restore_deleted(&name);
        }
        // another session of this name: the record of the earlier one's end is missing
        if self.session(&name).is_some_and(|known| known.birth != birth) {
            self.restore_deleted(&name);
        }
        let is_turn = matches!(change, Change::Turn(_));
        let finished = if let Change::Finished { number, .. } = change { Some(number) } else { None };
        let turn = if let Change::Turn(turn) = &mut change { Arc::get_mut(turn) } else { None };
        let shared = turn.map_or(0, |turn| self.common.lock().share(&mut turn.about));
        let bytes = self.session_of(&name, birth).apply(change, shared, &self.images);
        self.order().change(bytes);
        if is_turn {
            self.evict();
        }
        if let Some(number) = finished {
            self.order().restore_finished(number, name);
        }
    }
}

impl Session {
    /// Applies a change of the session, which follows those that were applied before; some may be missing. Returns the bytes by which the
    /// session grows. A turn takes `shared` bytes less, because other turns have the same values. `images` gets its pictures.
    pub(super) fn apply(&self, change: Change, shared: u64, images: &ImageStore) -> i64 {
        // locked before the state
        let mut publication = matches!(change, Change::Finished { .. }).then(|| self.publication.lock());
        let mut state = self.state();
        match change {
            Change::Begin { created_ms } => state.created_ms = created_ms,
            Change::Healed => state.generation += 1,
            Change::Turn(turn) => {
                return i64::try_from(state.restore(self.birth, turn, shared, images)).unwrap_or(i64::MAX);
            }
            Change::Reward { scope, reward, version } => {
                return state.reward(Reward { version, scope, value: reward });
            }
            Change::Scored(scores) => return state.score(scores),
            Change::Tags(tags) => return state.set_tags(tags),
            Change::Freeze { turns } => {
                state.fill(self.birth, turns);
                // concurrent freezes may be in the log in the reverse order
                let at = state.frozen.partition_point(|before| *before < turns);
                state.frozen.insert(at, turns);
            }
            Change::Incomplete => {
                let version = state.open_version();
                // a frozen version does not change
                state.incomplete.get_or_insert(version);
            }
            Change::ResponseDeleted { turn } => {
                state.deleted_responses.insert(turn);
            }
            Change::Finished { leaf, turns, number } => {
                state.fill(self.birth, turns);
                let publication = publication.as_mut().expect("it is locked for this change");
                state.finish(publication, FinishedPath { number, leaf, turns, trained_from: 0 });
            }
            Change::Deleted | Change::Evicted => {}
        }
        0
    }
}

impl State {
    /// Adds a turn under its old number and returns the bytes that it takes. A turn that continues a missing turn has lost the beginning of
    /// its prompt, and is not trained.
    fn restore(&mut self, birth: Uid, mut turn: Arc<Turn>, shared: u64, images: &ImageStore) -> u64 {
        if turn.id < self.forest.next_id() {
            return 0; // restored before
        }
        // those of a removed session were released
        if turn.about.images.is_some() && !self.removed {
            let pictures = Arc::make_mut(&mut turn).about.images.as_mut();
            images.hold(&mut self.images, pictures.expect("checked above"));
        }
        let before = self.bytes;
        if self.forest.turns().is_empty() {
            self.created_ms = turn.about.started_ms;
        }
        self.fill(birth, turn.id);
        let is_unplaced = turn.about.cause == Cause::Unplaced;
        let lost = turn.parent.is_some_and(|parent| is_unplaced || parent >= turn.id || self.lacks_beginning(parent));
        let turn = if lost {
            let mut turn = Arc::unwrap_or_clone(turn);
            turn.parent = None;
            (turn.about.fault, turn.about.cause) = (Some(Fault::PromptUnknown), Cause::Unplaced);
            Arc::new(turn)
        } else if let Some(same) = self.forest.shared(turn.parent, turn.prompt_keys()).map(Arc::clone) {
            let mut turn = Arc::unwrap_or_clone(turn);
            turn.share_prompt(&same);
            Arc::new(turn)
        } else {
            turn
        };
        self.push(turn, shared);
        self.bytes - before
    }

    /// Adds a placeholder for each missing turn below `until`, so that the numbers of later turns stay the same. Its uid is the same after each
    /// restoration.
    fn fill(&mut self, birth: Uid, until: u32) {
        while self.forest.next_id() < until {
            let id = self.forest.next_id();
            let uid = birth.derive(&[&id.to_be_bytes()]);
            let about =
                TurnMetadata { uid, fault: Some(Fault::Lost), cause: Cause::Unplaced, ..TurnMetadata::default() };
            let none = (Arc::default(), Box::default(), Box::default(), Box::default());
            let (prompt, response, logprobs, entropy) = none;
            let turn = Turn { id, parent: None, prompt, response, logprobs, entropy, about };
            self.totals.add(&turn);
            self.forest.push(Arc::new(turn));
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

    fn turn(id: u32, parent: Option<u32>, prompt: &[u32], response: &[u32], started_ms: u64) -> Record {
        let about = TurnMetadata { finish: Some("stop".into()), started_ms, ..TurnMetadata::default() };
        let (logprobs, entropy) = (vec![-1.0; response.len()].into(), vec![0.5; response.len()].into());
        let turn = Turn { id, parent, prompt: prompt.into(), response: response.into(), logprobs, entropy, about };
        Record::new("s", Uid::from_bytes([1; 16]), Change::Turn(Arc::new(turn)))
    }

    fn restored(records: Vec<Record>) -> Sessions {
        let limits = StoreLimits { bytes: 1 << 30, ttl: std::time::Duration::MAX, idle: std::time::Duration::MAX };
        let store = Sessions::new(limits);
        records.into_iter().for_each(|record| store.restore(record));
        store
    }

    #[tokio::test(start_paused = true)]
    async fn births_tell_sessions_of_one_name_apart() {
        let born = |birth, record| Record { birth: Uid::from_bytes([birth; 16]), ..record };
        let root = || turn(0, None, &[1], &[2], 5);
        let store = restored(vec![
            born(2, root()),
            born(2, turn(1, Some(0), &[3], &[4], 6)),
            // the end of that session is not in the log, and the next one begins with an equal turn
            born(3, root()),
            born(3, root()),
        ]);
        let session = store.session("s").unwrap();
        assert_eq!((session.birth, session.summary().turns), (Uid::from_bytes([3; 16]), 1));
        assert_eq!(session.summary().created_ms, 5);
        let rows = session.snapshot(None).unwrap().paths(true).0;
        assert_eq!((rows.len(), rows[0].leaf().response.to_vec(), rows[0].steps.len()), (1, vec![2], 1));
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
            store.restore(Record::new("s", Uid::from_bytes([1; 16]), Change::Freeze { turns }));
        }
        let session = store.session("s").expect("it is restored");
        let turns = |version| session.snapshot(Some(version)).map(|snapshot| snapshot.turns().len());
        assert_eq!((turns(1), turns(2)), (Ok(3), Ok(5)));
    }
}
