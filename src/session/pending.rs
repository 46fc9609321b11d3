//! Calls that began before their session was there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many there are, by the name of the session: one that comes into being meanwhile is in use.
#[derive(Debug, Default)]
pub(super) struct Early {
    // the last lock that is taken, for one look
    calls: Mutex<HashMap<Arc<str>, u32>>,
}

impl Early {
    fn calls(&self) -> MutexGuard<'_, HashMap<Arc<str>, u32>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, id: &Arc<str>) {
        *self.calls().entry(Arc::clone(id)).or_default() += 1;
    }

    /// One of them has found its session, or has ended without one.
    pub(super) fn remove(&self, id: &str) {
        let mut calls = self.calls();
        if let Some(count) = calls.get_mut(id) {
            *count -= 1;
            if *count == 0 {
                calls.remove(id);
            }
        }
    }

    pub(super) fn has(&self, id: &str) -> bool {
        self.calls().contains_key(id)
    }
}
