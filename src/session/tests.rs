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

use super::row::ExcludedLeaf;
use super::{Call, Draft, Path, Row, Store, StoreLimits, TurnMetadata};

/// Limits without eviction. An unused session is idle at once.
pub(super) const BOUNDLESS: StoreLimits =
    StoreLimits { bytes: u64::MAX, ttl: Duration::from_secs(1 << 32), idle: Duration::ZERO };

pub(super) fn store(limits: StoreLimits) -> Arc<Store> {
    Arc::new(Store::new(limits))
}

fn call(store: &Arc<Store>, id: &str) -> Call {
    Call::new(Arc::clone(store), id.into())
}

pub(super) fn draft(prompt: &[u32], response: &[u32]) -> Draft {
    let logprobs = response.iter().map(|id| -(*id as f32) - 0.5).collect();
    let entropy = response.iter().map(|id| *id as f32).collect();
    let about = TurnMetadata { finish: Some("stop".into()), ..TurnMetadata::default() };
    Draft { prompt: Some(prompt.into()), response: response.to_vec(), logprobs, entropy, about, ..Draft::default() }
}

/// Commits one call with one turn.
pub(super) fn turn(store: &Arc<Store>, id: &str, prompt: &[u32], response: &[u32]) -> u32 {
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
fn bytes(store: &Store) -> u64 {
    let sessions = store.page(0, usize::MAX);
    sessions.iter().map(|(_, session)| session.summary().bytes + super::order_index::SESSION_OVERHEAD).sum()
}
