//! Those who wait for one reply. Whoever polls it does so for all of them: the one that polled last may leave, or read no further.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// The wakers of the readers that found nothing to read. As a waker itself it wakes all of them.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    // held to add or to take wakers, never while they are woken
    wakers: Mutex<Vec<(u64, Waker)>>,
}

impl Wakers {
    fn wakers(&self) -> MutexGuard<'_, Vec<(u64, Waker)>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This reader waits.
    pub(super) fn add(&self, reader: u64, waker: &Waker) {
        let mut wakers = self.wakers();
        match wakers.iter_mut().find(|(id, _)| *id == reader) {
            Some((_, known)) => known.clone_from(waker),
            None => wakers.push((reader, waker.clone())),
        }
    }

    /// This reader has moved: it waits no more, and the others look again.
    pub(super) fn wake_others(&self, reader: u64) {
        let mut wakers = std::mem::take(&mut *self.wakers());
        wakers.retain(|(id, _)| *id != reader);
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let wakers = std::mem::take(&mut *self.wakers());
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }
}
