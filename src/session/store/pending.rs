// SPDX-License-Identifier: Apache-2.0
//! Calls that began before their session existed.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::quality::RandomState;
use parking_lot::Mutex;

/// The number of such calls by the name of the session. A session that is created while they run counts as used.
#[derive(Debug, Default)]
pub(in crate::session) struct PendingCalls {
    // locked for one access, and no other lock is taken while it is locked
    calls: Mutex<HashMap<Arc<str>, u32, RandomState>>,
}

impl PendingCalls {
    pub(in crate::session) fn add(&self, id: &Arc<str>) {
        *self.calls.lock().entry(Arc::clone(id)).or_default() += 1;
    }

    /// Removes a call that has entered its session, or has ended without one.
    pub(in crate::session) fn remove(&self, id: &str) {
        let mut calls = self.calls.lock();
        if let Some(count) = calls.get_mut(id) {
            *count -= 1;
            if *count == 0 {
                calls.remove(id);
            }
        }
    }

    /// The names of their sessions, in order.
    pub(in crate::session) fn names(&self) -> Vec<Arc<str>> {
        let mut names: Vec<_> = self.calls.lock().keys().map(Arc::clone).collect();
        names.sort();
        names
    }

    pub(in crate::session) fn has(&self, id: &str) -> bool {
        self.calls.lock().contains_key(id)
    }
}
