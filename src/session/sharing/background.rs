//! Work of a process that shares sessions which no request asks for: it appends detached changes, compares lists after a disruption, and
//! finishes idle sessions.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Sharing;
use crate::session::ledger::{LedgerError, PARTITIONS};
use crate::session::store::Store;

/// The time between two rounds.
const ROUND: Duration = Duration::from_secs(1);

/// Idle sessions that are finished in one round of a partition.
const IDLE: usize = 256;

/// Sessions that are renewed in one command.
const RENEWED: usize = 512;

impl Sharing {
    /// Runs until it is dropped.
    pub(crate) async fn run(self: Arc<Self>, store: Arc<Store>) {
        let (mut renewed, mut partition, mut settled) = (Instant::now(), 0, 0);
        let share = self.limits.idle / 3;
        loop {
            tokio::time::sleep(ROUND).await;
            if let Err(error) = self.within_timeout(self.check_fleet()).await {
                tracing::debug!(%error, "the shared ledger fails");
                continue;
            }
            if self.is_down.swap(false, Ordering::Relaxed) {
                tracing::info!("the shared ledger works again");
            }
            let suspicion = self.suspicion();
            if std::mem::replace(&mut settled, suspicion) != suspicion {
                let names: Vec<Arc<str>> = self.lines().keys().map(Arc::clone).collect();
                self.unsettled().extend(names);
            }
            self.settle_all(&store).await;
            if renewed.elapsed() >= share {
                renewed = Instant::now();
                self.renew(&store).await;
                self.remove_unused_lines();
            }
            // all partitions within a tenth of the idle time
            let rounds = (self.limits.idle.as_secs() / 10).clamp(1, u64::from(PARTITIONS));
            let count = PARTITIONS.div_ceil(u16::try_from(rounds).unwrap_or(PARTITIONS));
            for _ in 0..count {
                self.finish_idle(&store, partition).await;
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

    /// Settles all sessions that are not settled. Stops at the first failure.
    async fn settle_all(&self, store: &Arc<Store>) {
        let names: Vec<Arc<str>> = self.unsettled().iter().map(Arc::clone).collect();
        for name in names {
            let line = self.line(&name);
            let settled = self.within_timeout(async {
                let mut known = line.known.lock().await;
                self.settle(store, &line, &mut known).await?;
                if !known.is_detached() {
                    self.unsettled().remove(&name);
                }
                Ok(())
            });
            match settled.await {
                Ok(()) => {}
                Err(error @ LedgerError::Unreadable(_)) => {
                    tracing::error!(%error, session = %name, "a shared session cannot be read");
                    self.unsettled().remove(&name);
                }
                Err(_) => return,
            }
        }
    }

    /// Marks sessions with running calls as used.
    async fn renew(&self, store: &Store) {
        for names in store.pending_names().chunks(RENEWED) {
            let _ = self.within_timeout(self.ledger.renew(names.to_vec())).await;
        }
    }

    /// Publishes the paths of the idle sessions of a partition.
    async fn finish_idle(&self, store: &Arc<Store>, partition: u16) {
        let Ok(idle) = self.within_timeout(self.ledger.idle(partition, self.limits.idle, IDLE)).await else { return };
        for session in idle {
            let name = Arc::clone(&session.session);
            if store.is_pending(&name) {
                continue;
            }
            // a session that was removed in the meantime needs no end
            let _ = self.finish(store, &name).await;
            let _ = self.within_timeout(self.ledger.end_use(session)).await;
        }
    }

    /// Removes the lines of sessions that are not in memory.
    fn remove_unused_lines(&self) {
        let unsettled = self.unsettled().clone();
        self.lines().retain(|name, line| {
            // the map is locked, so no other reference can appear
            let is_shared = Arc::strong_count(line) > 1 || unsettled.contains(name);
            is_shared
                || line.known.try_lock().is_ok_and(|mut known| {
                    known.forget_removed();
                    known.session.is_some()
                })
        });
    }
}
