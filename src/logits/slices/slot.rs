//! Room for rows on their way to be measured.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::MAX_VOCAB;
#[cfg(feature = "cuda")]
use crate::logits::cuda::Pinned;

/// Bytes of a slot: the widest row there may be, in 32 bits.
pub const SLOT_BYTES: usize = 4 * MAX_VOCAB;

/// [`SLOT_BYTES`] bytes to be filled with rows; they go back to where they came from.
#[derive(Debug)]
pub struct Slot {
    memory: Option<Memory>,
    len: usize,
    slot_pool: Arc<SlotPool>,
    _permit: OwnedSemaphorePermit,
}

/// Where the bytes are.
#[derive(Debug)]
pub(crate) enum Memory {
    /// Anywhere.
    Heap(Box<[u8]>),
    /// Where a device copies from without help, with room for the copy on the device.
    #[cfg(feature = "cuda")]
    Pinned(Pinned),
}

/// The slots of one kind of memory, and how many there may be.
#[derive(Debug)]
pub(crate) struct SlotPool {
    free: Mutex<Vec<Memory>>,
    permits: Arc<Semaphore>,
    /// Of those, so many may be held for rows that have not come, by all senders together: others go on.
    reserve: Arc<Semaphore>,
    total: usize,
}

/// Slots; with a permit where their rows have not come.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    slots: Vec<Slot>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Reserved {
    pub(super) fn pop(&mut self) -> Option<Slot> {
        self.slots.pop()
    }
}

impl SlotPool {
    /// `bytes` of heap, at least one slot; each is allocated when it is first needed.
    pub(crate) fn heap(bytes: u64) -> Self {
        let total = usize::try_from(bytes).unwrap_or(usize::MAX) / SLOT_BYTES;
        Self::of(Vec::new(), total.clamp(1, 1 << 16))
    }

    /// These slots and no more.
    #[cfg(feature = "cuda")]
    pub(crate) fn pinned(memory: Vec<Pinned>) -> Self {
        let total = memory.len();
        Self::of(memory.into_iter().map(Memory::Pinned).collect(), total)
    }

    fn of(free: Vec<Memory>, total: usize) -> Self {
        let reserve = Arc::new(Semaphore::new((total / 2).max(1)));
        Self { free: Mutex::new(free), permits: Arc::new(Semaphore::new(total)), reserve, total }
    }

    /// How many slots there are.
    #[cfg(feature = "cuda")]
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// How many slots all senders together may hold for what has not come yet.
    pub(super) fn most_reserved(&self) -> usize {
        (self.total / 2).max(1)
    }

    /// Waits for `count` slots, `ahead` of rows that have not come or for those that are here.
    pub(super) async fn acquire(self: Arc<Self>, count: usize, ahead: bool) -> Reserved {
        if ahead { self.reserve(count).await } else { Reserved { slots: self.take(count).await, _permit: None } }
    }

    /// Waits for `count` slots for rows that have not come, at most [`SlotPool::most_reserved`] of them; they are reserved until all that came
    /// with them is dropped.
    pub(super) async fn reserve(self: &Arc<Self>, count: usize) -> Reserved {
        let permits = u32::try_from(count.min(self.most_reserved())).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.reserve).acquire_many_owned(permits).await.ok();
        Reserved { slots: self.take(count).await, _permit: permit }
    }

    /// Waits for `count` slots at once, at most [`SlotPool::total`] of them. In order of the requests, so that each gets its turn; at once,
    /// so that two who need several never wait for each other.
    pub(super) async fn take(self: &Arc<Self>, count: usize) -> Vec<Slot> {
        let count = u32::try_from(count.min(self.total)).unwrap_or(u32::MAX);
        let permits = Arc::clone(&self.permits).acquire_many_owned(count).await;
        self.slots(permits.expect("the semaphore is never closed"))
    }

    /// The same without waiting; `None` where there are not so many at the moment.
    #[cfg(feature = "cuda")]
    pub(crate) fn try_take(self: &Arc<Self>, count: usize) -> Option<Vec<Slot>> {
        let permits = Arc::clone(&self.permits).try_acquire_many_owned(u32::try_from(count).ok()?);
        permits.ok().map(|permits| self.slots(permits))
    }

    fn slots(self: &Arc<Self>, mut permits: OwnedSemaphorePermit) -> Vec<Slot> {
        let count = permits.num_permits();
        let one = |_| {
            let permit = permits.split(1).expect("as many were acquired");
            let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let memory = free.unwrap_or_else(|| Memory::Heap(vec![0; SLOT_BYTES].into_boxed_slice()));
            Slot { memory: Some(memory), len: 0, slot_pool: Arc::clone(self), _permit: permit }
        };
        (0..count).map(one).collect()
    }
}

impl Slot {
    /// Copies the beginning of `bytes` in, up to `limit` bytes in the slot, and says how many were taken.
    pub fn push(&mut self, bytes: &[u8], limit: usize) -> usize {
        let room = limit.min(SLOT_BYTES).saturating_sub(self.len);
        let taken = room.min(bytes.len());
        let at = self.len;
        self.bytes_mut()[at..at + taken].copy_from_slice(&bytes[..taken]);
        self.len += taken;
        taken
    }

    /// What has been filled.
    #[must_use]
    pub fn filled(&self) -> &[u8] {
        match self.memory() {
            Memory::Heap(bytes) => &bytes[..self.len],
            #[cfg(feature = "cuda")]
            Memory::Pinned(pinned) => &pinned.bytes()[..self.len],
        }
    }

    /// Where it goes back to.
    pub(super) fn slot_pool(&self) -> &Arc<SlotPool> {
        &self.slot_pool
    }

    pub(crate) fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("only drop takes it")
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self.memory.as_mut().expect("only drop takes it") {
            Memory::Heap(bytes) => bytes,
            #[cfg(feature = "cuda")]
            Memory::Pinned(pinned) => pinned.bytes_mut(),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // before the permit is released, so that its next holder finds the memory
        self.slot_pool.free.lock().unwrap_or_else(PoisonError::into_inner).extend(self.memory.take());
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn reservations_take_at_most_half() {
        let slot_pool = Arc::new(SlotPool::heap(8 * SLOT_BYTES as u64));
        let first = ready(slot_pool.reserve(3)).expect("there is room");
        assert!(ready(slot_pool.reserve(2)).is_none(), "for two more there is none");
        let second = ready(slot_pool.reserve(1)).expect("for one there is");
        let others = ready(slot_pool.take(4)).expect("half is for those whose rows are measured as they come");
        assert!(ready(slot_pool.take(1)).is_none());
        drop((first, others));
        assert!(ready(slot_pool.reserve(3)).is_some());
        drop(second);
    }
}
