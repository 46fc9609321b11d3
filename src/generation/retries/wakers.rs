//! The readers that wait for one reply. The reply is polled with a waker that wakes all of them, because the reader that polled last may be
//! dropped or stop reading.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// The wakers of the waiting readers. As a [`Wake`] it wakes all of them.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    // held to add or to take wakers, never while waking them
    wakers: Mutex<Vec<(u64, Waker)>>,
}

impl Wakers {
    fn wakers(&self) -> MutexGuard<'_, Vec<(u64, Waker)>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a waiting reader.
    pub(super) fn add(&self, reader: u64, waker: &Waker) {
        let mut wakers = self.wakers();
        match wakers.iter_mut().find(|(id, _)| *id == reader) {
            Some((_, known)) => known.clone_from(waker),
            None => wakers.push((reader, waker.clone())),
        }
    }

    /// Wakes all readers except this one, which has made progress and is no longer waiting.
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
