//! Work of a process that shares sessions which no request asks for: it appends detached changes, compares lists after a disruption, and
//! finishes idle sessions.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::{Line, Sharing};
use crate::session::ledger::{LedgerError, PARTITIONS};
use crate::session::state::SessionError;
use crate::session::store::Store;

/// The time between two rounds.
const ROUND: Duration = Duration::from_secs(1);

/// Idle sessions that are finished in one round of a partition.
const IDLE: usize = 256;

/// Sessions that are renewed in one command.
const RENEWED: usize = 512;

/// Failures after which a settlement ends, such as those of a ledger without memory. The others would fail as well.
const MOST_FAILURES: usize = 8;

impl Sharing {
    /// Runs until it is dropped. A slow settlement or sweep does not delay the other work.
    pub(crate) async fn run(self: Arc<Self>, store: Arc<Store>) {
        tokio::join!(self.watch(&store), self.keep_settled(&store), self.sweep(&store));
    }

    /// Finds out whether the ledger works, and marks sessions with running calls as used.
    async fn watch(&self, store: &Store) {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(ROUND).await;
            match self.within_timeout(self.check_fleet()).await {
                Ok(_) if self.is_down.swap(false, Ordering::Relaxed) => {
                    tracing::info!("the shared ledger works again");
                }
                Ok(_) => {}
                Err(error) => self.mark_down(&error),
            }
            if renewed.elapsed() >= self.limits.idle / 3 {
                renewed = Instant::now();
                self.renew(store).await;
            }
            self.remove_unused_lines(store).await;
        }
    }

    /// Appends detached changes, and compares all lists after a disruption.
    async fn keep_settled(&self, store: &Arc<Store>) {
        let mut settled = 0;
        loop {
            tokio::time::sleep(ROUND).await;
            let suspicion = self.suspicion();
            if std::mem::replace(&mut settled, suspicion) != suspicion {
                for partition in 0..PARTITIONS {
                    let names: Vec<Arc<str>> = self.lines(partition).keys().map(Arc::clone).collect();
                    self.unsettled().extend(names);
                }
            }
            self.settle_all(store).await;
        }
    }

    /// Finishes idle sessions, those of each partition within a tenth of the idle time.
    async fn sweep(&self, store: &Arc<Store>) {
        let rounds = (self.limits.idle.as_secs() / 10).clamp(1, u64::from(PARTITIONS));
        let count = PARTITIONS.div_ceil(u16::try_from(rounds).unwrap_or(PARTITIONS));
        let mut partition = 0;
        loop {
            tokio::time::sleep(ROUND).await;
            for _ in 0..count {
                if self.is_down() {
                    break;
                }
                self.finish_idle(store, partition).await;
                partition = (partition + 1) % PARTITIONS;
            }
        }
    }

    /// Reads the id of the fleet. Another one means that the ledger has lost all data.
    pub(super) async fn check_fleet(&self) -> Result<Arc<str>, LedgerError> {
        let fleet = self.ledger.fleet().await?;
        let before = self.fleet.lock().unwrap_or_else(std::sync::PoisonError::into_inner).replace(Arc::clone(&fleet));
        if before.is_some_and(|before| before != fleet) {
            tracing::error!("the shared ledger has lost its data: sessions in memory are appended again");
            self.losses.fetch_add(1, Ordering::Relaxed);
        }
        Ok(fleet)
    }

    /// Settles all sessions that are not settled. Stops when the ledger fails.
    pub(crate) async fn settle_all(&self, store: &Arc<Store>) {
        let names: Vec<Arc<str>> = self.unsettled().iter().map(Arc::clone).collect();
        let mut failures = 0;
        for name in names {
            if self.is_down() || failures >= MOST_FAILURES {
                return;
            }
            let line = self.line(&name);
            let settled = self.within_timeout(async {
                let mut known = line.known.lock().await;
                self.settle(store, &line, &mut known).await?;
                if known.is_unconfirmed {
                    self.load(store, &line, &mut known).await?;
                    let is_replicated = self.ledger.is_replicated(&name).await?;
                    // after a disruption, another primary may confirm entries that it does not have
                    known.is_unconfirmed &= !is_replicated || known.checked != self.suspicion();
                }
                if !known.is_detached() && !known.is_unconfirmed {
                    self.end_unsettled(store, &line, &known);
                }
                Ok(())
            });
            if let Err(error) = settled.await {
                // it is tried again in the next round
                failures += 1;
                tracing::warn!(%error, session = %name, "changes of a shared session are not in the ledger");
            }
        }
    }

    /// Marks sessions with running calls as used.
    async fn renew(&self, store: &Store) {
        for names in store.pending_names().chunks(RENEWED) {
            let _ = self.within_timeout(self.ledger.renew(names.to_vec())).await;
        }
    }

    /// Publishes the paths of the idle sessions of a partition. Stops at the first failure: the rest is idle in the next round as well.
    async fn finish_idle(&self, store: &Arc<Store>, partition: u16) {
        let Ok(idle) = self.within_timeout(self.ledger.idle(partition, self.limits.idle, IDLE)).await else { return };
        for session in idle {
            let name = Arc::clone(&session.session);
            if store.is_pending(&name) {
                continue;
            }
            match self.finish(store, &name).await {
                // a session that was removed in the meantime needs no end
                Ok(()) | Err(SessionError::EvictedSession) => {}
                Err(_) => return,
            }
            let _ = self.within_timeout(self.ledger.end_use(session)).await;
        }
    }

    /// Removes the lines of sessions that are not in memory. A line knows when its session was deleted, which running calls have to find.
    async fn remove_unused_lines(&self, store: &Store) {
        let mut unused = Vec::new();
        for partition in 0..PARTITIONS {
            let mut lines = self.lines(partition);
            // the map is locked, so no other reference can appear
            let is_unused = |name: &Arc<str>, line: &mut Arc<Line>| {
                Arc::strong_count(line) == 1
                    && (line.deletion.load(Ordering::Relaxed) == 0 || !store.is_pending(name))
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
