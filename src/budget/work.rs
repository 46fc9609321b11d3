// SPDX-License-Identifier: Apache-2.0
//! The work on one request: the memory that it takes, and whether its result is still wanted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Budget, Share};

/// The work on one request. Its parts take their memory from the budget before they begin, and check in between whether to go on. Cheap to
/// clone.
#[derive(Debug, Clone)]
pub struct Work {
    budget: Budget,
    state: Arc<WorkState>,
}

/// The state that the parts of one work share.
#[derive(Debug, Default)]
pub(super) struct WorkState {
    /// The bytes of its shares.
    pub(super) taken: AtomicU64,
    is_abandoned: AtomicBool,
}

/// Why work does not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// The budget has no room for the next part. The client may retry.
    #[error(
        "the byte budget for requests is used up: this request needs {} MiB more to be read, rendered and encoded; try again, or raise --max-bytes-in-flight",
        .0.div_ceil(1 << 20)
    )]
    NoRoom(usize),
    /// The work takes more than requests may use of the budget, also when nothing else is in it.
    #[error(
        "this request takes {bytes} bytes or more to be read, rendered and encoded, and requests may use {most}, three quarters of --max-bytes-in-flight: send less text, or raise the limit"
    )]
    TooLarge {
        /// The bytes of the parts so far and of the next one.
        bytes: u64,
        /// The bytes that requests may use.
        most: u64,
    },
    /// The client has disconnected.
    #[error("the client has disconnected")]
    Abandoned,
}

impl Work {
    /// Work on a request, which takes memory from this budget.
    #[must_use]
    pub fn new(budget: &Budget) -> Self {
        Self { budget: budget.clone(), state: Arc::default() }
    }

    /// Work that follows this one and goes on if this one is abandoned. It counts the bytes in use now.
    #[must_use]
    pub(crate) fn following(&self) -> Self {
        let taken = AtomicU64::new(self.state.taken.load(Ordering::Relaxed));
        let state = WorkState { taken, ..WorkState::default() };
        Self { budget: self.budget.clone(), state: Arc::new(state) }
    }

    /// Work without limits.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::new(&Budget::new(u64::MAX))
    }

    /// Work that goes on when the client disconnects, with memory from the same budget.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self::new(&self.budget)
    }

    /// An empty share for a part.
    #[must_use]
    pub(crate) fn share(&self) -> Share {
        let mut share = self.budget.request();
        share.work = Some(Arc::clone(&self.state));
        share
    }

    /// Takes `bytes` for the next part, until the share is dropped.
    ///
    /// # Errors
    /// [`Stopped`]; then nothing is taken.
    pub fn take(&self, bytes: usize) -> Result<Share, Stopped> {
        self.check()?;
        let mut share = self.share();
        if share.grow(bytes).is_ok() {
            return Ok(share);
        }
        let (whole, most) =
            (self.state.taken.load(Ordering::Relaxed).saturating_add(bytes as u64), self.budget.most_of_requests());
        if whole > most {
            return Err(Stopped::TooLarge { bytes: whole, most });
        }
        share.shed();
        Err(Stopped::NoRoom(bytes))
    }

    /// Takes `bytes` more for a share.
    ///
    /// # Errors
    /// [`Stopped`]; then the share keeps its size.
    pub fn add(&self, share: &mut Share, bytes: usize) -> Result<(), Stopped> {
        share.join(self.take(bytes)?);
        Ok(())
    }

    /// Checks that the result is still wanted.
    ///
    /// # Errors
    /// [`Stopped::Abandoned`].
    pub fn check(&self) -> Result<(), Stopped> {
        if self.state.is_abandoned.load(Ordering::Relaxed) { Err(Stopped::Abandoned) } else { Ok(()) }
    }

    /// Ends the work when the guard is dropped.
    #[must_use]
    pub(crate) fn until_dropped(&self) -> WorkGuard {
        WorkGuard(Arc::clone(&self.state))
    }
}

/// Abandons its work when it is dropped.
#[derive(Debug)]
pub(crate) struct WorkGuard(Arc<WorkState>);

impl Drop for WorkGuard {
    fn drop(&mut self) {
        self.0.is_abandoned.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_never_has_room_is_too_large() {
        let budget = Budget::new(100);
        let (work, other) = (Work::new(&budget), Work::new(&budget));
        let mut body = work.share();
        body.grow(20).unwrap();
        let others = other.take(30).unwrap();
        assert_eq!(work.take(55).unwrap_err(), Stopped::NoRoom(55), "without the other work there is room");
        assert_eq!(work.take(56).unwrap_err(), Stopped::TooLarge { bytes: 76, most: 75 });
        drop(others);
        let mut share = work.take(25).unwrap();
        work.add(&mut share, 30).unwrap();
        assert_eq!(work.take(1).unwrap_err(), Stopped::TooLarge { bytes: 76, most: 75 });
        drop(share);
        assert!(work.take(55).is_ok(), "a part that has ended does not count");
        body.resize(10).unwrap();
        let bytes = body.hold(vec![0; 10]);
        assert_eq!(work.take(66).unwrap_err(), Stopped::TooLarge { bytes: 76, most: 75 });
        drop(bytes);
        assert!(work.take(66).is_ok());
        body = work.share();
        body.grow(70).unwrap();
        let following = work.following();
        drop(work.until_dropped());
        assert_eq!((following.take(6).unwrap_err(), budget.taken()), (Stopped::TooLarge { bytes: 76, most: 75 }, 70));
        assert_eq!(budget.shed(), 1, "only a request that may be sent again is shed");
    }

    #[test]
    fn work_takes_from_the_budget_until_it_is_abandoned() {
        let budget = Budget::new(100);
        let work = Work::new(&budget);
        let share = Work::new(&budget).take(70).unwrap();
        assert_eq!((work.take(6).unwrap_err(), budget.shed(), budget.taken()), (Stopped::NoRoom(6), 1, 70));
        drop(share);
        let guard = work.until_dropped();
        assert_eq!((work.check(), budget.taken()), (Ok(()), 0));
        drop(guard);
        assert_eq!((work.check(), work.take(1).unwrap_err()), (Err(Stopped::Abandoned), Stopped::Abandoned));
    }
}
