// SPDX-License-Identifier: Apache-2.0
//! Deletions of sessions.
//!
//! A deletion is by name and time: it removes the turns that were recorded before it, also those of a process without a connection that began
//! another session under the name. Later turns belong to a new session. The ledger remembers deletions. After the ledger has lost its data,
//! the processes that made them write them again, before any process appends lost sessions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::background::ROUND;
use super::list_cache::{CachedEntry, ListCache};
use super::missing::Missing;
use super::{Line, Sharing};
use crate::session::Uid;
use crate::session::ledger::{Deletion, LedgerError, PARTITIONS, partition_of};

/// Deletions that a process remembers at most. Older ones are forgotten.
const REMEMBERED: usize = 1 << 16;

/// Deletions of a partition that are written again at the same time.
const AT_ONCE: usize = 4;

/// The sessions that this process has deleted.
#[derive(Debug)]
pub(super) struct Deletions {
    count: AtomicU64,
    /// The latest ones, in order: the name, the birth and the time.
    // locked for one access, never across an await
    latest: Mutex<VecDeque<(Arc<str>, Uid, Instant)>>,
    /// For each partition, the number of losses of the ledger after which all were written again.
    restored: Box<[AtomicU64]>,
    /// Until then other processes may write their deletions again.
    recovering_until: Mutex<Option<Instant>>,
}

impl Deletions {
    pub(super) fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
            latest: Mutex::default(),
            restored: (0..PARTITIONS).map(|_| AtomicU64::new(0)).collect(),
            recovering_until: Mutex::default(),
        }
    }
}

impl Sharing {
    /// The number of sessions that this process has deleted.
    pub(in crate::session) fn deletions(&self) -> u64 {
        self.deletions.count.load(Ordering::Relaxed)
    }

    /// Notes that this process deletes a session. `at` is the earliest time at which the ledger can have done it. The deletion is remembered
    /// for `ttl`, as in the ledger.
    pub(super) fn note_deletion(&self, line: &Line, birth: Uid, at: Instant, ttl: Duration) {
        let number = self.deletions.count.fetch_add(1, Ordering::Relaxed) + 1;
        line.deletion.store(number, Ordering::Relaxed);
        let mut latest = self.deletions.latest.lock();
        while latest.front().is_some_and(|(.., at)| at.elapsed() >= ttl) || latest.len() >= REMEMBERED {
            latest.pop_front();
        }
        latest.push_back((Arc::clone(&line.name), birth, at));
    }

    /// The ledger has lost all data. Lost sessions are not appended until all processes had time to write their deletions again.
    pub(super) fn begin_recovery(&self) {
        self.losses.fetch_add(1, Ordering::Relaxed);
        self.await_deletions();
    }

    /// Other processes may write deletions again for some time from now on.
    pub(super) fn await_deletions(&self) {
        let until = Instant::now() + 3 * ROUND + 2 * self.limits.timeout;
        *self.deletions.recovering_until.lock() = Some(until);
    }

    /// Writes the deletions of this process to a ledger that has lost all data. Partitions that fail are tried again in the next round.
    pub(super) async fn restore_deletions(&self) {
        let losses = self.losses.load(Ordering::Relaxed);
        let is_due = |partition: u16| {
            let restored = self.deletions.restored[usize::from(partition)].load(Ordering::Relaxed);
            restored != losses && !self.is_partition_down(partition)
        };
        let mut due: BTreeMap<u16, Vec<_>> =
            (0..PARTITIONS).filter(|partition| is_due(*partition)).map(|partition| (partition, Vec::new())).collect();
        if due.is_empty() {
            return;
        }
        let latest = self.deletions.latest.lock().clone();
        for deletion in latest {
            if let Some(deletions) = due.get_mut(&partition_of(&deletion.0)) {
                deletions.push(deletion);
            }
        }
        let restore = async |(partition, deletions): (u16, Vec<(Arc<str>, Uid, Instant)>)| {
            let now_ms = match deletions.is_empty() {
                true => Ok(0),
                false => self.within_timeout(Some(partition), self.ledger.now_ms(partition)).await,
            };
            let Ok(now_ms) = now_ms else { return };
            let answered = Instant::now();
            for some in deletions.chunks(AT_ONCE) {
                let restore = |(name, birth, at): &(Arc<str>, Uid, Instant)| {
                    // the clock was read before the answer, so this is the earliest time
                    let ago_ms = u64::try_from((answered - *at).as_millis()).unwrap_or(u64::MAX);
                    let restored = self.ledger.restore_deletion(name, *birth, now_ms.saturating_sub(ago_ms));
                    self.within_timeout(Some(partition), restored)
                };
                if futures_util::future::join_all(some.iter().map(restore)).await.iter().any(Result::is_err) {
                    return;
                }
            }
            self.deletions.restored[usize::from(partition)].store(losses, Ordering::Relaxed);
        };
        futures_util::future::join_all(due.into_iter().map(restore)).await;
    }

    /// The birth of the session of this name that was deleted last, and when that was, at the earliest.
    pub(super) async fn deletion(&self, line: &Line) -> Result<Option<(Uid, Instant)>, LedgerError> {
        // if the primary that has the id failed in the last round, another one need not have lost its data
        if !(self.is_fleet_unknown.load(Ordering::Relaxed) && self.ledger.partitions_by_primary().len() > 1) {
            self.check_fleet().await.map_err(super::fleet_unknown)?;
        }
        let until = *self.deletions.recovering_until.lock();
        if until.is_some_and(|until| Instant::now() < until) {
            return Err(LedgerError::Recovering);
        }
        let asked = Instant::now();
        let deletion = self.ledger.deletion(&line.name).await?;
        // one that is older than the clock is older than all changes
        Ok(deletion.and_then(|Deletion { birth, ago }| Some((birth, asked.checked_sub(ago)?))))
    }

    /// Drops the changes from before the deletion of the session. Later ones are missing then. Returns whether the session in
    /// memory was deleted. `is_gone` tells that the ledger has refused to begin it.
    pub(super) async fn forget_deleted(
        &self,
        line: &Line,
        known: &mut ListCache,
        is_gone: bool,
    ) -> Result<bool, LedgerError> {
        let Some((birth, deleted)) = self.deletion(line).await? else { return Ok(false) };
        known.missing.retain(|missing| missing.at > deleted);
        let confirmed = known.confirmed();
        // a list that was read after the deletion is that of another session
        let last = known.log.get(confirmed.saturating_sub(1));
        let is_deleted = is_gone || last.is_some_and(|last| last.at <= deleted || known.log[0].uid == birth);
        if !is_deleted {
            return Ok(false);
        }
        let later = |logged: &&CachedEntry| logged.at > deleted;
        let session = known.session.clone();
        let missing = |logged: &CachedEntry| {
            let change = self.missing_change(session.as_ref()?, &logged.change)?;
            Some(Missing::new(logged.uid, logged.at, change, &self.store.missing_bytes))
        };
        let later: Vec<_> = known.log.iter().skip(confirmed.max(1)).filter(later).filter_map(missing).collect();
        let mut kept = std::mem::take(&mut known.missing);
        kept.extend(later);
        if kept.is_empty() {
            self.discard(line, known);
        } else {
            // the local log has them, too; its turns from before the deletion are dropped again after a restart
            self.remove_from_memory(line, known);
            known.missing = kept;
            self.mark_unsettled(line, known);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::ledger::memory::MemoryLedger;
    use crate::session::ledger::{Change, LedgerError, Record};
    use crate::session::tests::draft;
    use crate::session::{Call, Sessions};

    fn shared(ledger: &Arc<MemoryLedger>) -> Arc<Sessions> {
        crate::session::tests::shared(ledger, Duration::MAX)
    }

    async fn commit(store: &Arc<Sessions>, response: u32) -> bool {
        Call::new(Arc::clone(store), "s".into()).commit(draft(&[1], &[response])).1.await.is_ok()
    }

    /// Records a turn in a process that cannot reach the ledger.
    async fn commit_cut_off(ledger: &MemoryLedger, store: &Arc<Sessions>, response: u32) {
        ledger.failing.lock().insert(partition_of("s"), LedgerError::Unavailable("it is cut off".into()));
        assert!(!commit(store, response).await, "it is detached");
        ledger.failing.lock().clear();
        store.sharing().probe_primaries().await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    async fn delete(store: &Arc<Sessions>) -> bool {
        let deleted = store.sharing().delete(&"s".into()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        deleted
    }

    /// The responses of the turns of each list.
    fn listed(ledger: &MemoryLedger) -> Vec<Vec<u32>> {
        let response =
            |entry: &crate::session::ledger::Entry| match Record::decode(&entry.body).map(|record| record.change) {
                Some(Change::Turn(turn)) => Some(turn.response[0]),
                _ => None,
            };
        ledger.state().lists.values().map(|list| list.iter().filter_map(response).collect()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn session_that_a_cut_off_process_began_is_deleted_by_name_and_time() {
        for is_known in [true, false] {
            let ledger = Arc::new(MemoryLedger::new());
            let [reached, cut_off] = [shared(&ledger), shared(&ledger)];
            if is_known {
                assert!(commit(&reached, 2).await);
            }
            commit_cut_off(&ledger, &cut_off, 3).await;
            assert_eq!(delete(&reached).await, is_known);
            commit_cut_off(&ledger, &cut_off, 4).await;
            cut_off.settle().await;
            assert_eq!(listed(&ledger), [[4]], "the turn after the deletion is in a new session");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn later_turns_of_a_session_in_memory_survive_its_deletion() {
        let ledger = Arc::new(MemoryLedger::new());
        let [reached, cut_off] = [shared(&ledger), shared(&ledger)];
        assert!(commit(&cut_off, 2).await);
        commit_cut_off(&ledger, &cut_off, 3).await;
        assert!(delete(&reached).await);
        commit_cut_off(&ledger, &cut_off, 4).await;
        cut_off.settle().await;
        assert_eq!(listed(&ledger), [[4]]);
        assert!(commit(&reached, 5).await);
        cut_off.refresh(["s"]).await.unwrap();
        assert_eq!(listed(&ledger), [[4, 5]]);
    }

    #[tokio::test(start_paused = true)]
    async fn deleted_session_stays_deleted_when_the_ledger_loses_all_data() {
        let ledger = Arc::new(MemoryLedger::new());
        let [deleting, other] = [shared(&ledger), shared(&ledger)];
        let running = [&deleting, &other].map(|store| tokio::spawn(Arc::clone(store).run()));
        assert!(commit(&deleting, 2).await);
        other.refresh(["s"]).await.unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(delete(&deleting).await);
        {
            let mut state = ledger.state();
            (state.lists, state.deleted) = Default::default();
            state.fleet += 1;
        }
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(listed(&ledger), Vec::<Vec<u32>>::new());
        assert_eq!(other.size().0, 0);
        assert!(commit(&other, 3).await, "the name can be used again");
        running.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test(start_paused = true)]
    async fn partition_that_fails_does_not_stop_the_restoration_of_deletions() {
        let (ledger, works) = (Arc::new(MemoryLedger::new()), partition_of("s"));
        let store = shared(&ledger);
        let sharing = store.sharing();
        for at in 0..1000 {
            sharing.delete(&format!("a{at}").into()).await.unwrap();
        }
        assert!(!delete(&store).await);
        ledger.state().deleted.clear();
        let failing = (0..PARTITIONS).filter(|partition| *partition != works);
        ledger.failing.lock().extend(failing.map(|partition| (partition, LedgerError::Refused("it is full".into()))));
        sharing.begin_recovery();
        sharing.restore_deletions().await;
        assert!(ledger.state().deleted.contains_key("s"));
        ledger.failing.lock().clear();
        sharing.restore_deletions().await;
        assert_eq!(ledger.state().deleted.len(), 1001);
    }

    #[tokio::test(start_paused = true)]
    async fn detached_turns_do_not_wait_for_another_primary_that_has_the_fleet() {
        let ledger = Arc::new(MemoryLedger::new());
        let store = shared(&ledger);
        let sharing = store.sharing();
        sharing.probe_primaries().await;
        let other = (0..PARTITIONS).find(|partition| *partition != partition_of("s")).unwrap();
        commit_cut_off(&ledger, &store, 3).await;
        ledger.failing.lock().insert(other, LedgerError::Unavailable("it is down".into()));
        ledger.is_fleet_down.store(true, Ordering::Relaxed);
        sharing.probe_primaries().await;
        store.settle().await;
        assert_eq!(listed(&ledger), [[3]]);
    }
}
