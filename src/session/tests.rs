//! The module through its own door: against a model that is too simple to be wrong, under a clock that tests move, and by many at once.

mod clock;
mod growth;
mod look;
mod model;
mod operations;
mod property;
mod regressions;
mod threads;

use std::sync::Arc;
use std::time::Duration;

use super::row::ExcludedLeaf;
use super::{About, Call, Draft, Path, Row, Store, StoreLimits};

/// Nothing is evicted by itself, and an unused session is idle at once.
pub(super) const BOUNDLESS: StoreLimits =
    StoreLimits { bytes: u64::MAX, ttl: Duration::from_secs(1 << 32), idle: Duration::ZERO };

pub(super) fn store(limits: StoreLimits) -> Arc<Store> {
    Arc::new(Store::new(limits))
}

fn call(store: &Arc<Store>, id: &str) -> Call {
    Call::new(Arc::clone(store), id.into())
}

fn draft(prompt: &[u32], response: &[u32]) -> Draft {
    let logprobs = response.iter().map(|id| -(*id as f32) - 0.5).collect();
    let entropy = response.iter().map(|id| *id as f32).collect();
    let about = About { finish: Some("stop".into()), ..About::default() };
    Draft { prompt: Some(prompt.into()), response: response.to_vec(), logprobs, entropy, about }
}

/// One call with one turn.
pub(super) fn turn(store: &Arc<Store>, id: &str, prompt: &[u32], response: &[u32]) -> u32 {
    call(store, id).commit(draft(prompt, response)).0.expect("nobody deletes it")
}

impl super::Snapshot {
    /// The rows with their turns listed.
    pub(crate) fn paths(self: &Arc<Self>, branches: bool) -> (Vec<Path>, Vec<ExcludedLeaf>) {
        let (rows, refused) = self.rows(branches);
        (rows.iter().map(Row::path).collect(), refused)
    }
}

fn tokens(path: &Path) -> Vec<u32> {
    path.segments().flat_map(|segment| segment.ids.iter().copied()).collect()
}

/// What the sessions that are there hold, counted from outside.
fn bytes(store: &Store) -> u64 {
    let sessions = store.page(0, usize::MAX);
    sessions.iter().map(|(_, session)| session.summary().bytes + super::order_index::SESSION_OVERHEAD).sum()
}
