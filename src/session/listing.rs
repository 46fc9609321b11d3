//! Lists of a store's sessions and paths, copied in parts so that the order is locked briefly.

use std::sync::Arc;

use super::state::Session;
use super::store::Store;

/// Entries that are copied per lock of the order.
const LISTED: usize = 512;

impl Store {
    /// Sessions in the order of their creation, after the one with the number `after`.
    #[must_use]
    pub fn page(&self, mut after: u64, limit: usize) -> Vec<(u64, Arc<Session>)> {
        let mut found = Vec::new();
        while found.len() < limit {
            let some = self.order().page(after, LISTED.min(limit - found.len()));
            let Some((last, _)) = some.last() else { break };
            after = *last;
            found.extend(some);
        }
        found
    }

    /// Sessions whose names contain `part`, the latest first, before the one with the number `before`. Names are compared without a
    /// lock.
    #[must_use]
    pub fn page_back(&self, mut before: u64, limit: usize, part: &str) -> Vec<(u64, Arc<Session>)> {
        let mut found = Vec::new();
        while found.len() < limit {
            let some = self.order().page_back(before, LISTED);
            let Some((last, _)) = some.last() else { break };
            before = *last;
            found.extend(some.into_iter().filter(|(_, session)| session.id.contains(part)));
        }
        found.truncate(limit);
        found
    }

    /// Finished paths after the number `after`: their numbers and sessions, in order.
    #[must_use]
    pub fn finished_after(&self, mut after: u64, limit: usize) -> Vec<(u64, Arc<str>)> {
        let mut found = Vec::new();
        while found.len() < limit {
            let some = self.order().finished_after(after, LISTED.min(limit - found.len()));
            let Some((last, _)) = some.last() else { break };
            after = *last;
            found.extend(some);
        }
        found
    }
}
