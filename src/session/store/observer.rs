//! The changes that a store reports to metrics.

use std::fmt::Debug;

use crate::session::Turn;

/// Receives changes of a store. Its methods run under a lock of the store and must return quickly.
pub trait StoreObserver: Debug + Send + Sync {
    /// A turn was added.
    fn turn_committed(&self, turn: &Turn);

    /// A turn was not added, because its session was deleted while it ran.
    fn turn_dropped(&self);

    /// A session was evicted; the reason is `bytes` or `ttl`.
    fn session_evicted(&self, reason: &'static str);
}

/// Ignores all changes.
#[derive(Debug, Clone, Copy)]
pub struct NoObserver;

impl StoreObserver for NoObserver {
    fn turn_committed(&self, _turn: &Turn) {}

    fn turn_dropped(&self) {}

    fn session_evicted(&self, _reason: &'static str) {}
}
