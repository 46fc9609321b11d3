// SPDX-License-Identifier: Apache-2.0
//! The background work of a process that shares sessions: it appends detached changes, compares lists after a disruption, and finishes idle
//! sessions.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::{Line, Sharing};
use crate::session::error::SessionError;
use crate::session::ledger::{LedgerError, PARTITIONS, partition_of};

/// The time between two rounds.
pub(super) const ROUND: Duration = Duration::from_secs(1);

/// Idle sessions that are finished in one round of a partition.
const IDLE: usize = 256;

/// Sessions that are renewed in one command.
const RENEWED: usize = 512;

/// Failures after which a settlement ends, such as those of a ledger without memory. The others would fail as well.
const MOST_FAILURES: usize = 8;

impl Sharing {
    /// Runs until it is dropped. A slow settlement or sweep does not delay the other work.
    pub(in crate::session) async fn run(&self) {
        tokio::join!(self.watch(), self.keep_settled(), self.keep_images(), self.sweep());
    }

    /// Probes the primaries, and renews the sessions with running calls.
    async fn watch(&self) {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(ROUND).await;
            self.probe_primaries().await;
            self.restore_deletions().await;
            if renewed.elapsed() >= self.limits.idle / 3 {
                renewed = Instant::now();
                self.renew().await;
            }
            self.remove_unused_lines().await;
        }
    }

    /// Probes one partition of each primary for writes. The id of the fleet is on one primary of a cluster, so reading it does not show
    /// whether the others work.
    pub(super) async fn probe_primaries(&self) {
        let was_any_down = self.is_any_down();
        let fleet = self.within_timeout(None, self.check_fleet()).await;
        self.is_fleet_unknown.store(fleet.is_err(), Ordering::Relaxed);
        if let Err(error @ (LedgerError::OtherSchema(_) | LedgerError::Unreadable(_))) = &fleet {
            // another build has described it anew: a write would mix two formats
            let all: Vec<u16> = (0..PARTITIONS).collect();
            return self.mark_down(&all, error);
        }
        let probe = async |partitions: Vec<u16>| {
            let Some(first) = partitions.first() else { return };
            let answer = self.within_timeout(None, self.ledger.probe(*first)).await;
            match &answer {
                Ok(()) => {
                    for partition in partitions {
                        self.down[usize::from(partition)].store(false, Ordering::Relaxed);
                    }
                }
                // also one that refuses writes: its data may be outdated
                Err(error) => self.mark_down(&partitions, error),
            }
        };
        futures_util::future::join_all(self.ledger.partitions_by_primary().into_iter().map(probe)).await;
        match (was_any_down, self.is_any_down(), fleet) {
            (true, false, _) => tracing::info!("the shared ledger works again"),
            (false, true, Err(error)) => tracing::error!(%error, "the id of the fleet cannot be read"),
            _ => {}
        }
    }

    /// Appends detached changes, and compares all lists after a disruption.
    async fn keep_settled(&self) {
        let mut settled = 0;
        loop {
            tokio::time::sleep(ROUND).await;
            let suspicion = self.suspicion();
            if std::mem::replace(&mut settled, suspicion) != suspicion {
                for partition in 0..PARTITIONS {
                    let names: Vec<Arc<str>> = self.lines(partition).keys().map(Arc::clone).collect();
                    self.unsettled.lock().extend(names);
                }
            }
            self.settle_all(true).await;
            self.recall().await;
        }
    }

    /// Stores pictures that turns did not wait for.
    async fn keep_images(&self) {
        loop {
            tokio::time::sleep(ROUND).await;
            self.share_due_images().await;
        }
    }

    /// Finishes idle sessions, those of each partition within a tenth of the idle time.
    async fn sweep(&self) {
        let rounds = (self.limits.idle.as_secs() / 10).clamp(1, u64::from(PARTITIONS));
        let count = PARTITIONS.div_ceil(u16::try_from(rounds).unwrap_or(PARTITIONS));
        let mut partition = 0;
        loop {
            tokio::time::sleep(ROUND).await;
            for _ in 0..count {
                if !self.is_partition_down(partition) {
                    self.finish_idle(partition).await;
                }
                partition = (partition + 1) % PARTITIONS;
            }
        }
    }

    /// Reads the id of the fleet. Another one means that the ledger has lost all data.
    pub(super) async fn check_fleet(&self) -> Result<Arc<str>, LedgerError> {
        let fleet = self.ledger.fleet().await?;
        let before = self.fleet.lock().replace(Arc::clone(&fleet));
        match before {
            Some(before) if before != fleet => {
                tracing::error!("the shared ledger has lost its data: sessions in memory are appended again");
                self.begin_recovery();
            }
            // it may have lost its data since the first detached change
            None if !self.unsettled.lock().is_empty() => self.await_deletions(),
            _ => {}
        }
        Ok(fleet)
    }

    /// Settles all unsettled sessions, except those of partitions that failed. Unless it `waits`, also finished paths whose pictures the ledger
    /// lacks are appended.
    pub(in crate::session) async fn settle_all(&self, waits: bool) {
        let mut names: Vec<Arc<str>> = self.unsettled.lock().iter().map(Arc::clone).collect();
        let settle_from = || self.settle_from.lock();
        // sessions that fail each time must not keep those after them from being settled
        if let Some(next) = settle_from().take() {
            let first = names.partition_point(|name| *name < next);
            names.rotate_left(first);
        }
        let mut failures = 0;
        for name in names {
            if self.is_down(&name) {
                continue;
            }
            if failures >= MOST_FAILURES {
                *settle_from() = Some(name);
                return;
            }
            let line = self.line(&name);
            let settled = self.within_timeout(Some(partition_of(&name)), async {
                let mut known = line.known.lock().await;
                let is_appended = self.settle_available(&line, &mut known, waits).await?;
                if known.is_unconfirmed {
                    self.load(&line, &mut known).await?;
                    let is_replicated = self.ledger.is_replicated(&name).await?;
                    // after a disruption, another primary may confirm entries that it does not have
                    known.is_unconfirmed &= !is_replicated || known.checked != self.suspicion();
                }
                if is_appended && !known.is_unconfirmed && !known.images.is_failed {
                    self.end_unsettled(&line, &known);
                }
                Ok(is_appended)
            });
            match settled.await {
                Ok(true) => {}
                // another process may have stored the pictures, or this one stores them
                Ok(false) => drop(self.due_images.lock().insert(name)),
                Err(error) => {
                    // it is tried again in the next round
                    failures += 1;
                    tracing::warn!(%error, session = %name, "changes of a shared session are not in the ledger");
                }
            }
        }
    }

    /// Settles all unsettled sessions for the last time. Returns how many have changes that the ledger lacks after that, and how many have
    /// only pictures.
    pub(in crate::session) async fn settle_rest(&self) -> [usize; 2] {
        let _ = tokio::time::timeout(self.limits.timeout, self.settle_all(false)).await;
        let [mut changes, mut images] = [0; 2];
        let names: Vec<Arc<str>> = self.unsettled.lock().iter().map(Arc::clone).collect();
        for name in names {
            match self.line(&name).known.try_lock() {
                Ok(known) if !known.is_detached() => images += usize::from(known.images.is_failed),
                // a locked session is not settled
                _ => changes += 1,
            }
        }
        [changes, images]
    }

    /// Marks sessions with running calls as used.
    async fn renew(&self) {
        let mut names: Vec<_> =
            self.store.pending.names().into_iter().map(|name| (partition_of(&name), name)).collect();
        names.sort_unstable();
        // a partition that fails must not keep those after it from being renewed
        for names in names.chunk_by(|a, b| a.0 == b.0).filter(|names| !self.is_partition_down(names[0].0)) {
            for chunk in names.chunks(RENEWED) {
                let lines: Vec<_> = chunk.iter().map(|(_, name)| self.line(name)).collect();
                let chunk = chunk.iter().map(|(_, name)| Arc::clone(name)).collect();
                let _ = self.within_timeout(Some(names[0].0), self.ledger.renew(chunk)).await;
                for line in lines {
                    // a line that is locked is used, and notes its pictures itself
                    if let Ok(known) = line.known.try_lock() {
                        self.note_images(&line, &known);
                    }
                }
            }
        }
    }

    /// Publishes the paths of the idle sessions of a partition. Stops at the first failure: the rest is idle in the next round as well.
    async fn finish_idle(&self, partition: u16) {
        let idle = self.within_timeout(Some(partition), self.ledger.idle(partition, self.limits.idle, IDLE));
        let Ok(idle) = idle.await else { return };
        for session in idle {
            let name = Arc::clone(&session.session);
            if self.store.pending.has(&name) || self.is_spilled(&name) {
                continue;
            }
            // the settlement appends its changes, and knows how long a path waits for pictures
            if self.line(&name).known.try_lock().is_ok_and(|known| known.is_detached()) {
                continue;
            }
            match self.finish(&name).await {
                Ok(false) => continue,
                // a session that was removed in the meantime needs no end
                Ok(true) | Err(SessionError::EvictedSession) => {}
                Err(_) => return,
            }
            let _ = self.within_timeout(Some(partition), self.ledger.end_use(session)).await;
        }
    }

    /// Removes the lines of sessions that are not in memory. A line knows when its session was deleted, which running calls have to find.
    async fn remove_unused_lines(&self) {
        let mut unused = Vec::new();
        for partition in 0..PARTITIONS {
            let mut lines = self.lines(partition);
            // the map is locked, so no other reference can appear
            let is_unused = |name: &Arc<str>, line: &mut Arc<Line>| {
                Arc::strong_count(line) == 1
                    && (line.deletion.load(Ordering::Relaxed) == 0 || !self.store.pending.has(name))
                    && line.known.try_lock().is_ok_and(|known| {
                        let is_in_memory = known.session.as_ref().is_some_and(|session| !session.state().removed);
                        !is_in_memory && known.missing.is_empty()
                    })
            };
            unused.extend(lines.extract_if(is_unused));
        }
        if !unused.is_empty() {
            // they may hold the last references to large sessions
            let _ = tokio::task::spawn_blocking(move || drop(unused)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Call;
    use crate::session::ledger::ListOrder;
    use crate::session::ledger::memory::MemoryLedger;
    use crate::session::sharing::FleetQuery;
    use crate::session::tests::{draft, shared};

    #[tokio::test(start_paused = true)]
    async fn sessions_that_fail_each_time_do_not_stop_later_ones() {
        let ledger = Arc::new(MemoryLedger::new());
        let store = shared(&ledger, Duration::from_secs(3600));
        let refused = || LedgerError::Refused("it is out of memory".into());
        ledger.failing.lock().extend((0..PARTITIONS).map(|partition| (partition, refused())));
        let works = partition_of("z");
        let names = (0..40).map(|at| format!("a{at}")).filter(|name| partition_of(name) != works);
        for name in names.chain(["z".into()]) {
            assert!(Call::new(Arc::clone(&store), name.into()).commit(draft(&[1], &[2])).1.await.is_err());
        }
        ledger.failing.lock().remove(&works);
        for _ in 0..6 {
            store.settle().await;
        }
        assert!(ledger.state().lists.contains_key("z"));
    }

    #[tokio::test(start_paused = true)]
    async fn ledger_that_another_build_describes_anew_gets_no_entries() {
        let ledger = Arc::new(MemoryLedger::new());
        let store = shared(&ledger, Duration::from_secs(3600));
        let sharing = Arc::clone(store.sharing());
        let commit = async |name: &str| Call::new(Arc::clone(&store), name.into()).commit(draft(&[1], &[2])).1.await;
        assert!(commit("a").await.is_ok());
        ledger.has_other_schema.store(true, Ordering::Relaxed);
        sharing.probe_primaries().await;
        assert!(commit("b").await.is_err(), "it is detached");
        store.settle().await;
        assert!(!ledger.state().lists.contains_key("b"));
        ledger.has_other_schema.store(false, Ordering::Relaxed);
        sharing.probe_primaries().await;
        store.settle().await;
        assert!(ledger.state().lists.contains_key("b"));
    }

    #[tokio::test(start_paused = true)]
    async fn partition_that_fails_affects_no_other_one() {
        let ledger = Arc::new(MemoryLedger::new());
        let store = shared(&ledger, Duration::from_secs(3600));
        let (failed, other): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        assert_ne!(partition_of(&failed), partition_of(&other));
        let sharing = Arc::clone(store.sharing());
        let background = tokio::spawn(Arc::clone(&store).run());
        let counts = || {
            let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
            (count(&sharing.counts.confirmed), count(&sharing.counts.detached), count(&sharing.counts.joined))
        };

        ledger.failing.lock().insert(partition_of(&failed), LedgerError::Unavailable("it is down".into()));
        for name in [&failed, &other, &failed, &other] {
            let mut call = Call::new(Arc::clone(&store), Arc::clone(name));
            // an error says that the turn is detached
            let _ = call.commit(draft(&[1], &[2])).1.await;
        }
        assert_eq!(counts(), (2, 2, 0));
        assert!(sharing.is_any_down() && sharing.is_down(&failed) && !sharing.is_down(&other));
        assert!(sharing.refresh(&other).await.is_ok());
        assert!(sharing.refresh(&failed).await.is_err(), "its entries cannot be read");
        tokio::time::sleep(ROUND * 3).await;
        assert_eq!(counts(), (2, 2, 0));
        assert!(sharing.is_down(&failed), "other partitions do not show that this one works");

        ledger.failing.lock().clear();
        tokio::time::sleep(ROUND * 3).await;
        assert_eq!(counts(), (2, 2, 2));
        assert!(!sharing.is_any_down());

        // a primary that refuses writes may be one that was replaced, so its entries are not read either
        ledger.failing.lock().insert(partition_of(&failed), LedgerError::Refused("too few replicas".into()));
        tokio::time::sleep(ROUND * 2).await;
        assert!(sharing.refresh(&failed).await.is_err() && sharing.refresh(&other).await.is_ok());
        ledger.failing.lock().clear();

        // the id of the fleet may be on another primary than the sessions
        ledger.is_fleet_down.store(true, Ordering::Relaxed);
        tokio::time::sleep(ROUND * 2).await;
        assert!(sharing.is_any_down() && !sharing.is_down(&failed) && !sharing.is_down(&other));
        assert!(sharing.refresh(&other).await.is_ok());
        let query = FleetQuery { order: ListOrder::Newest, after: None, limit: 9, part: String::new() };
        assert_eq!(sharing.list(query).await.map(|page| page.sessions.len()), Ok(2));
        ledger.is_fleet_down.store(false, Ordering::Relaxed);
        tokio::time::sleep(ROUND * 2).await;
        assert!(!sharing.is_any_down());
        background.abort();
    }
}
