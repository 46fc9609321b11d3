//! The work on one request: the memory that it takes, and whether its result is still wanted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Budget, Share};

/// The work on one request. Its parts take their memory from the budget before they begin, and check in between whether to go on. Cheap to
/// clone.
#[derive(Debug, Clone)]
pub struct Work {
    budget: Budget,
    is_abandoned: Arc<AtomicBool>,
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
    /// The client has disconnected.
    #[error("the client has disconnected")]
    Abandoned,
}

impl Work {
    /// Work on a request, which takes memory from this budget.
    #[must_use]
    pub fn new(budget: &Budget) -> Self {
        Self { budget: budget.clone(), is_abandoned: Arc::default() }
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

    /// Takes `bytes` for the next part, until the share is dropped.
    ///
    /// # Errors
    /// [`Stopped`]; then nothing is taken.
    pub fn take(&self, bytes: usize) -> Result<Share, Stopped> {
        self.check()?;
        let mut share = self.budget.request();
        match share.grow(bytes) {
            Ok(()) => Ok(share),
            Err(_) => {
                share.shed();
                Err(Stopped::NoRoom(bytes))
            }
        }
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
        if self.is_abandoned.load(Ordering::Relaxed) { Err(Stopped::Abandoned) } else { Ok(()) }
    }

    /// Ends the work when the guard is dropped.
    #[must_use]
    pub(crate) fn until_dropped(&self) -> WorkGuard {
        WorkGuard(Arc::clone(&self.is_abandoned))
    }
}

/// Abandons its work when it is dropped.
#[derive(Debug)]
pub(crate) struct WorkGuard(Arc<AtomicBool>);

impl Drop for WorkGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_from_the_budget_until_it_is_abandoned() {
        let budget = Budget::new(100);
        let work = Work::new(&budget);
        let share = work.take(70).unwrap();
        assert_eq!((work.take(6).unwrap_err(), budget.shed(), budget.taken()), (Stopped::NoRoom(6), 1, 70));
        drop(share);
        let guard = work.until_dropped();
        assert_eq!((work.check(), budget.taken()), (Ok(()), 0));
        drop(guard);
        assert_eq!((work.check(), work.take(1).unwrap_err()), (Err(Stopped::Abandoned), Stopped::Abandoned));
    }
}
