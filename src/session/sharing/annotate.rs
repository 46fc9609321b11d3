// SPDX-License-Identifier: Apache-2.0
//! Changes of shared sessions that add no turn. Each is decided on the entries that this process has read, and appended only if the list
//! still ends there; otherwise the list is read, and the change is decided again.

use std::sync::Arc;

use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Sharing;
use super::list_cache::{ListCache, entry};
use crate::session::error::SessionError;
use crate::session::ledger::{Ack, AppendError, BYTES_PER_SECOND, Change, Position, Record, partition_of};
use crate::session::state::{Frozen, Session};
use crate::session::view::published_leaves;
use crate::session::{RewardTarget, Tags, Turn, TurnScores, Uid};

/// Paths that one append finishes.
const PATHS: usize = 256;

/// The records of a change, the finished paths among them, and its result.
struct ChangePlan<T> {
    records: Vec<Record>,
    finished: Vec<Uid>,
    result: T,
}

/// How many paths of a session were published.
enum FinishOutcome {
    All,
    /// As many as one change has.
    Some,
    /// Pictures are not settled.
    Nothing,
}

impl Sharing {
    /// Freezes the open version and publishes its paths.
    ///
    /// # Errors
    /// [`SessionError::EvictedSession`], [`SessionError::Unconfirmed`].
    pub(in crate::session) async fn freeze(&self, name: &Arc<str>) -> Result<Frozen, SessionError> {
        let plan = |session: &Arc<Session>, _: &mut ListCache| {
            let state = session.state();
            if state.is_frozen() {
                return Ok(ChangePlan { records: Vec::new(), finished: Vec::new(), result: state.last_frozen() });
            }
            let result = Frozen { version: state.open_version(), turns: state.forest.next_id() };
            let records = vec![session.record(Change::Freeze { turns: result.turns })];
            Ok(ChangePlan { records, finished: Vec::new(), result })
        };
        let frozen = self.change(name, true, plan).await?;
        self.finish(name).await?;
        Ok(frozen)
    }

    /// Attaches a reward. `generation` is that of the numbers of turns, if the caller knows it.
    ///
    /// # Errors
    /// When the session is frozen, has no such turn or was removed, or the ledger did not confirm the reward.
    pub(in crate::session) async fn reward(
        &self,
        name: &Arc<str>,
        RewardTarget { scope, generation }: RewardTarget,
        value: Value,
    ) -> Result<(), SessionError> {
        let reward = Arc::new(value);
        let plan = |session: &Arc<Session>, _: &mut ListCache| {
            let state = session.state();
            if scope.turn().is_some() && generation.unwrap_or(0) != state.generation {
                return Err(SessionError::OtherGeneration(state.generation));
            }
            let (reward, version) = (Arc::clone(&reward), state.rewarded_version(scope)?);
            let records = vec![session.record(Change::Reward { scope, reward, version })];
            Ok(ChangePlan { records, finished: Vec::new(), result: () })
        };
        self.change(name, true, plan).await
    }

    /// Replaces the tags.
    ///
    /// # Errors
    /// [`SessionError::TagsFrozen`], [`SessionError::EvictedSession`], [`SessionError::Unconfirmed`].
    pub(in crate::session) async fn set_tags(&self, name: &Arc<str>, tags: &Tags) -> Result<(), SessionError> {
        let plan = |session: &Arc<Session>, _: &mut ListCache| {
            let changes = session.state().changes_tags(tags)?;
            let record = changes.then(|| session.record(Change::Tags(tags.clone())));
            Ok(ChangePlan { records: record.into_iter().collect(), finished: Vec::new(), result: () })
        };
        self.change(name, true, plan).await
    }

    /// The bytes of a change that the ledger is expected to confirm in time, as one append.
    pub(in crate::session) fn most_bytes(&self) -> u64 {
        let seconds = self.limits.timeout.as_secs_f64();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let bytes = (seconds * BYTES_PER_SECOND) as u64;
        bytes
    }

    /// Adds the scores of turns by a teacher, in one append. Changes with scores are appended one after the other: together they might all
    /// take longer than the time limit, and the turns of agents would wait for all.
    ///
    /// # Errors
    /// When the session was removed or lacks a turn, stored scores have further columns, or the ledger did not confirm the scores.
    pub(in crate::session) async fn score(&self, name: &Arc<str>, scores: &TurnScores) -> Result<(), SessionError> {
        let plan = |session: &Arc<Session>, _: &mut ListCache| {
            let state = session.state();
            let numbered = scores.numbered(state.forest.turns(), &state.scores)?;
            let record = |scores| session.record(Change::Scored(Arc::new(scores)));
            let records = numbered.into_iter().map(record).collect();
            Ok(ChangePlan { records, finished: Vec::new(), result: () })
        };
        let _turn = self.scoring.lock().await;
        self.change(name, true, plan).await
    }

    /// Deletes the stored response of a turn. The ack resolves when the ledger has confirmed it.
    pub(in crate::session) fn delete_response(self: &Arc<Self>, name: &Arc<str>, turn: Uid) -> Ack {
        let Ok(runtime) = Handle::try_current() else { return Ack::failed(AppendError::Closed) };
        let (answer, awaited) = oneshot::channel();
        let (sharing, name) = (Arc::clone(self), Arc::clone(name));
        runtime.spawn(async move {
            let deleted = sharing.delete_response_of(&name, turn).await;
            // fails if the reply does not wait
            let _ = answer.send(deleted.map_err(|_| AppendError::Detached));
        });
        Ack::awaited(awaited)
    }

    async fn delete_response_of(&self, name: &Arc<str>, turn: Uid) -> Result<(), SessionError> {
        let plan = |session: &Arc<Session>, _: &mut ListCache| {
            let state = session.state();
            let found = state.forest.turns().iter().find(|known| known.about.uid == turn);
            let found = found.map(|turn| turn.id).filter(|turn| !state.deleted_responses.contains(turn));
            let records = found.map(|turn| session.record(Change::ResponseDeleted { turn }));
            Ok(ChangePlan { records: records.into_iter().collect(), finished: Vec::new(), result: () })
        };
        self.change(name, true, plan).await
    }

    /// Deletes a session. Returns whether it existed. Turns that a process without a connection has recorded by now are deleted in any case.
    ///
    /// # Errors
    /// [`SessionError::Unconfirmed`].
    pub(in crate::session) async fn delete(&self, name: &Arc<str>) -> Result<bool, SessionError> {
        let line = self.line(name);
        let mut released = None;
        let deleted = self.within_timeout(Some(partition_of(name)), async {
            let mut known = line.known.lock().await;
            self.load(&line, &mut known).await?;
            let birth = known.session.as_ref().map(|session| session.birth);
            let is_only_here = birth.is_some() && known.position.is_none();
            let suspicion = self.suspicion();
            // the id of no session, if none is known
            let birth = birth.unwrap_or_else(Uid::unique);
            let asked = Instant::now();
            let deleted = self.ledger.delete(name, birth).await?;
            // from now on, even if replicas do not confirm it in time
            self.note_deletion(&line, birth, asked, self.store.limits.ttl);
            released = Some((birth, known.image_keys()));
            self.discard(&line, &mut known);
            self.replicated(&line, suspicion).await?;
            Ok(deleted || is_only_here)
        });
        let deleted = deleted.await.map_err(|_| SessionError::Unconfirmed);
        // also if replicas do not confirm the deletion: no later one knows the pictures
        if let Some((birth, images)) = released {
            self.release_images(Some(birth), &images).await;
        }
        deleted
    }

    /// Publishes the paths of a session that no process has published. The session counts as unused then. If the ledger lacks pictures of
    /// it, the background publishes the paths after these, and the result is false.
    ///
    /// # Errors
    /// When the session was removed, or the ledger did not confirm it.
    pub(in crate::session) async fn finish(&self, name: &Arc<str>) -> Result<bool, SessionError> {
        self.finish_before(name, None).await
    }

    /// The same for the paths of the turns before a number. The session may have gone on since they were to be finished, so it counts as used:
    /// the sweep publishes the other paths.
    pub(super) async fn finish_before(&self, name: &Arc<str>, turns: Option<u32>) -> Result<bool, SessionError> {
        loop {
            let plan = |session: &Arc<Session>, known: &mut ListCache| {
                let all = session.state().forest.next_id();
                let count = turns.map_or(all, |turns| turns.min(all));
                if !known.images.is_settled() {
                    known.images.finish_due = known.images.finish_due.max(Some(count));
                    return Ok(ChangePlan {
                        records: Vec::new(),
                        finished: Vec::new(),
                        result: FinishOutcome::Nothing,
                    });
                }
                let length = known.confirmed() as u64;
                let (turns, leaves) = session.unpublished(count, PATHS);
                let count = u32::try_from(turns.len()).unwrap_or(u32::MAX);
                let record = |(at, leaf): (usize, &u32)| {
                    session.record(Change::Finished { leaf: *leaf, turns: count, number: length + at as u64 })
                };
                let records: Vec<Record> = leaves.iter().enumerate().map(record).collect();
                let finished = leaves.iter().map(|leaf| turns[*leaf as usize].about.uid).collect();
                let result = if records.len() < PATHS { FinishOutcome::All } else { FinishOutcome::Some };
                Ok(ChangePlan { result, records, finished })
            };
            match self.change(name, turns.is_some(), plan).await? {
                FinishOutcome::All => return Ok(true),
                FinishOutcome::Some => {}
                FinishOutcome::Nothing => {
                    if !self.settle_images(name).await {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// Makes a change that `plan` decides on.
    async fn change<T>(
        &self,
        name: &Arc<str>,
        in_use: bool,
        plan: impl FnMut(&Arc<Session>, &mut ListCache) -> Result<ChangePlan<T>, SessionError>,
    ) -> Result<T, SessionError> {
        let line = self.line(name);
        let mut refused = None;
        let changed = self.within_timeout(Some(partition_of(name)), async {
            let mut plan = plan;
            let mut known = line.known.lock().await;
            // at first, the change is planned on the entries that this process has: an append shows whether the list has others
            let mut is_read = false;
            loop {
                self.settle(&line, &mut known).await?;
                self.note_images(&line, &known);
                if is_read || known.position.is_none() {
                    self.load(&line, &mut known).await?;
                    is_read = true;
                }
                self.check_spilled(name)?;
                let is_removed = |session: &Arc<Session>| session.state().removed;
                if known.is_detached() || known.session.as_ref().is_some_and(is_removed) {
                    continue;
                }
                let session = known.session.clone().filter(|_| known.position.is_some());
                let planned = session.ok_or(SessionError::EvictedSession);
                let planned = planned.and_then(|session| plan(&session, &mut known));
                let is_change = planned.as_ref().is_ok_and(|planned| !planned.records.is_empty());
                if !is_change && !is_read {
                    // other entries may lead to another plan
                    is_read = true;
                    continue;
                }
                let planned = match planned {
                    Ok(planned) => planned,
                    Err(refusal) => {
                        refused = Some(refusal);
                        return Ok(None);
                    }
                };
                if planned.records.is_empty() {
                    return Ok(Some(planned.result));
                }
                let records: Vec<(Uid, Record)> =
                    planned.records.into_iter().map(|record| (Uid::unique(), record)).collect();
                let entries: Vec<_> =
                    records.iter().map(|(uid, record)| entry(*uid, record)).collect::<Result<_, _>>()?;
                let suspicion = self.suspicion();
                match self.append(&line, &known, &entries, planned.finished, in_use).await? {
                    Ok(replicated) => {
                        for (uid, record) in records {
                            self.apply(&line, &mut known, uid, record)?;
                        }
                        known.position = Position::after(known.position, &entries);
                        if !replicated {
                            self.replicated(&line, suspicion).await?;
                        }
                        return Ok(Some(planned.result));
                    }
                    Err(_outdated) => is_read = true,
                }
            }
        });
        match changed.await {
            Ok(Some(result)) => Ok(result),
            Ok(None) => Err(refused.expect("a change without a result was refused")),
            Err(_) => Err(SessionError::Unconfirmed),
        }
    }
}

impl Session {
    /// The first turns, and the first leaves among them whose paths were not published, at most `limit`.
    fn unpublished(&self, count: u32, limit: usize) -> (Vec<Arc<Turn>>, Vec<u32>) {
        // also of a session that was evicted since it was loaded: its turns stay
        let turns = self.turns(count);
        let mut leaves = published_leaves(&turns);
        let publication = self.publication.lock();
        leaves.retain(|leaf| !publication.has(*leaf));
        leaves.truncate(limit);
        (turns, leaves)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::session::ledger::memory::MemoryLedger;
    use crate::session::ledger::{LedgerError, PARTITIONS};
    use crate::session::tests::{draft, shared};
    use crate::session::{Call, ScoredTurn};

    /// Eight rows of one request may be ready at the same time.
    #[tokio::test(start_paused = true)]
    async fn scores_wait_for_the_append_of_others_and_not_within_the_time_limit() {
        let store = shared(&Arc::new(MemoryLedger::new()), Duration::MAX);
        Call::new(Arc::clone(&store), "s".into()).commit(draft(&[1], &[2])).1.await.expect("it is confirmed");
        let name: Arc<str> = "s".into();
        let session = store.session("s").expect("it has a turn");
        let uid = session.turn(0).expect("it has a turn").about.uid;
        let scored = ScoredTurn { turn: 0, uid, weights: None, logprobs: [-1.0].into(), columns: Vec::new() };
        let scores = TurnScores { teacher: "t".into(), turns: vec![scored], again: false };
        let sharing = store.sharing();
        let other = sharing.scoring.lock().await;
        let scoring = sharing.score(&name, &scores);
        tokio::pin!(scoring);
        let waits = tokio::time::timeout(10 * sharing.limits.timeout, &mut scoring).await;
        assert!(waits.is_err(), "another append of scores is running: {waits:?}");
        drop(other);
        assert_eq!(scoring.await, Ok(()));
        assert_eq!(store.session("s").expect("it has a turn").scores("t", 1).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn tags_of_a_call_are_refused_if_another_process_froze_the_session() {
        let ledger = Arc::new(MemoryLedger::new());
        let [first, second] = [(); 2].map(|()| shared(&ledger, Duration::MAX));
        let tags = |text: &str| Tags::parse_list(text.as_bytes()).expect("they are valid");
        let mut call = Call::new(Arc::clone(&first), "s".into());
        call.set_tags(tags("step=1"));
        call.commit(draft(&[1], &[2])).1.await.expect("it is confirmed");
        assert_eq!(second.check_call_tags("s", &tags("task=a")).await, Ok(()), "it is read, and open");
        first.freeze("s").await.expect("it has a turn");
        assert_eq!(second.check_call_tags("s", &tags("task=a")).await, Err(SessionError::TagsFrozen));
        assert_eq!(second.check_call_tags("s", &tags("step=1")).await, Ok(()), "it has the tag");
        let down = || LedgerError::Unavailable("it is down".into());
        ledger.failing.lock().extend((0..PARTITIONS).map(|partition| (partition, down())));
        assert_eq!(second.check_call_tags("t", &tags("task=a")).await, Ok(()), "no call fails because the ledger does");
    }

    #[test]
    fn bytes_of_a_change_are_those_of_the_time_limit() {
        let store = shared(&Arc::new(MemoryLedger::new()), Duration::MAX);
        assert_eq!(store.most_score_bytes(), Some(16 << 20), "two seconds");
    }
}
