// SPDX-License-Identifier: Apache-2.0
//! Tests of the module through its public interface: against a simple model, under a paused clock, and from many threads.

mod clock;
mod growth;
mod labelled;
mod look;
mod model;
mod operations;
mod property;
mod regressions;
mod threads;

use std::sync::Arc;
use std::time::Duration;

use super::ledger::SharedLog;
use super::ledger::memory::MemoryLedger;
use super::sessions::Backend;
use super::sharing::Sharing;
use super::snapshot::ExcludedLeaf;
use super::store::NoObserver;
use super::{Call, Draft, Path, Row, Sessions, SharedLedger, SharingLimits, StoreLimits, TurnMetadata};

/// Limits without eviction. An unused session is idle at once.
pub(super) const BOUNDLESS: StoreLimits =
    StoreLimits { bytes: u64::MAX, ttl: Duration::from_secs(1 << 32), idle: Duration::ZERO };

pub(super) fn store(limits: StoreLimits) -> Arc<Sessions> {
    Arc::new(Sessions::new(limits))
}

impl Sessions {
    /// One round of the background.
    pub(super) async fn settle(&self) {
        self.settle_entries().await;
        self.sharing().share_due_images().await;
    }
}

/// Sessions of a ledger, which are idle after this time.
pub(super) fn shared(ledger: &Arc<MemoryLedger>, idle: Duration) -> Arc<Sessions> {
    shared_with(ledger, SharedLog::default(), BOUNDLESS, idle)
}

/// The same with a log and limits.
pub(super) fn shared_with(
    ledger: &Arc<MemoryLedger>,
    log: SharedLog,
    limits: StoreLimits,
    idle: Duration,
) -> Arc<Sessions> {
    let sharing = SharingLimits { timeout: Duration::from_secs(2), idle };
    let ledger = SharedLedger { ledger: Arc::clone(ledger) as _, limits: sharing };
    Arc::new(Sessions::shared(limits, log, Arc::new(NoObserver), ledger))
}

impl Sessions {
    /// The side of the ledger.
    pub(super) fn sharing(&self) -> &Arc<Sharing> {
        match self.backend() {
            Backend::Shared(sharing) => sharing,
            Backend::Local(_) => panic!("they are not shared"),
        }
    }
}

fn call(store: &Arc<Sessions>, id: &str) -> Call {
    Call::new(Arc::clone(store), id.into())
}

pub(super) fn draft(prompt: &[u32], response: &[u32]) -> Draft {
    let logprobs = response.iter().map(|id| -(*id as f32) - 0.5).collect();
    let entropy = response.iter().map(|id| *id as f32).collect();
    let about = TurnMetadata { finish: Some("stop".into()), ..TurnMetadata::default() };
    Draft { prompt: Some(prompt.into()), response: response.to_vec(), logprobs, entropy, about, ..Draft::default() }
}

/// Commits one call with one turn.
pub(super) fn turn(store: &Arc<Sessions>, id: &str, prompt: &[u32], response: &[u32]) -> u32 {
    call(store, id).commit(draft(prompt, response)).0.expect("no other thread deletes it")
}

impl super::Snapshot {
    /// The rows as paths, with their turns listed.
    pub(crate) fn paths(self: &Arc<Self>, branches: bool) -> (Vec<Path>, Vec<ExcludedLeaf>) {
        let (rows, refused) = self.rows(branches);
        (rows.iter().map(Row::path).collect(), refused)
    }
}

fn tokens(path: &Path) -> Vec<u32> {
    path.segments().flat_map(|segment| segment.ids.iter().copied()).collect()
}

/// The bytes of all sessions, computed independently of the store's counter.
fn bytes(store: &Sessions) -> u64 {
    store.in_memory().iter().map(|session| session.summary().bytes + super::store::SESSION_OVERHEAD).sum()
}
