// SPDX-License-Identifier: Apache-2.0
//! Fixed-size buffers for rows, and their pool.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::MAX_VOCAB;
#[cfg(feature = "cuda")]
use crate::logits::cuda::Pinned;

/// Bytes of a slot: the widest allowed row, in 32 bits.
pub const SLOT_BYTES: usize = 4 * MAX_VOCAB;

/// A buffer of [`SLOT_BYTES`] bytes for rows; it returns to its pool when it is dropped.
#[derive(Debug)]
pub struct Slot {
    memory: Option<Memory>,
    len: usize,
    slot_pool: Arc<SlotPool>,
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
pub(crate) enum Memory {
    /// Ordinary memory.
    Heap(Box<[u8]>),
    /// Pinned memory, which the device copies from by DMA, with a buffer of the same size on the device.
    #[cfg(feature = "cuda")]
    Pinned(Pinned),
}

/// The slots of one kind of memory, a fixed number.
#[derive(Debug)]
pub(crate) struct SlotPool {
    free: Mutex<Vec<Memory>>,
    permits: Arc<Semaphore>,
    /// Limits the slots that all senders together hold for rows not yet received, so that other senders make progress.
    reserve: Arc<Semaphore>,
    total: usize,
}

/// Slots, with a permit if their rows have not been received.
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
    /// A pool of `bytes` of heap memory, at least one slot. Each slot is allocated on first use.
    pub(crate) fn heap(bytes: u64) -> Self {
        let total = usize::try_from(bytes).unwrap_or(usize::MAX) / SLOT_BYTES;
        Self::new(Vec::new(), total.clamp(1, 1 << 16))
    }

    /// A pool of these slots.
    #[cfg(feature = "cuda")]
    pub(crate) fn pinned(memory: Vec<Pinned>) -> Self {
        let total = memory.len();
        Self::new(memory.into_iter().map(Memory::Pinned).collect(), total)
    }

    fn new(free: Vec<Memory>, total: usize) -> Self {
        let reserve = Arc::new(Semaphore::new((total / 2).max(1)));
        Self { free: Mutex::new(free), permits: Arc::new(Semaphore::new(total)), reserve, total }
    }

    /// The number of slots.
    #[cfg(feature = "cuda")]
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// The most slots that all senders together may reserve for rows not yet received.
    pub(super) fn most_reserved(&self) -> usize {
        (self.total / 2).max(1)
    }

    /// Waits for `count` slots; `ahead` means that their rows have not been received.
    pub(super) async fn acquire(self: Arc<Self>, count: usize, ahead: bool) -> Reserved {
        if ahead { self.reserve(count).await } else { Reserved { slots: self.take(count).await, _permit: None } }
    }

    /// Waits for `count` slots for rows not yet received, at most [`SlotPool::most_reserved`]. They count as reserved until
    /// the [`Reserved`] is dropped.
    pub(super) async fn reserve(self: &Arc<Self>, count: usize) -> Reserved {
        let permits = u32::try_from(count.min(self.most_reserved())).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.reserve).acquire_many_owned(permits).await.ok();
        Reserved { slots: self.take(count).await, _permit: permit }
    }

    /// Waits for `count` slots, at most [`SlotPool::total`], in order of the requests. All are taken together, so that two callers that
    /// need several slots never deadlock.
    pub(super) async fn take(self: &Arc<Self>, count: usize) -> Vec<Slot> {
        let count = u32::try_from(count.min(self.total)).unwrap_or(u32::MAX);
        let permits = Arc::clone(&self.permits).acquire_many_owned(count).await;
        self.slots(permits.expect("the semaphore is never closed"))
    }

    /// The same without waiting; `None` if fewer slots are free.
    #[cfg(feature = "cuda")]
    pub(crate) fn try_take(self: &Arc<Self>, count: usize) -> Option<Vec<Slot>> {
        let permits = Arc::clone(&self.permits).try_acquire_many_owned(u32::try_from(count).ok()?);
        permits.ok().map(|permits| self.slots(permits))
    }

    fn slots(self: &Arc<Self>, mut permits: OwnedSemaphorePermit) -> Vec<Slot> {
        let count = permits.num_permits();
        let one = |_| {
            let permit = permits.split(1).expect("count permits were acquired");
            let free = self.free.lock().pop();
            let memory = free.unwrap_or_else(|| Memory::Heap(vec![0; SLOT_BYTES].into_boxed_slice()));
            Slot { memory: Some(memory), len: 0, slot_pool: Arc::clone(self), _permit: permit }
        };
        (0..count).map(one).collect()
    }
}

impl Slot {
    /// Appends the first bytes of `bytes` until the slot has `limit` bytes; returns how many were copied.
    pub fn push(&mut self, bytes: &[u8], limit: usize) -> usize {
        let room = limit.min(SLOT_BYTES).saturating_sub(self.len);
        let taken = room.min(bytes.len());
        let at = self.len;
        self.bytes_mut()[at..at + taken].copy_from_slice(&bytes[..taken]);
        self.len += taken;
        taken
    }

    /// The bytes written so far.
    #[must_use]
    pub fn filled(&self) -> &[u8] {
        match self.memory() {
            Memory::Heap(bytes) => &bytes[..self.len],
            #[cfg(feature = "cuda")]
            Memory::Pinned(pinned) => &pinned.bytes()[..self.len],
        }
    }

    /// The pool that it belongs to.
    pub(super) fn slot_pool(&self) -> &Arc<SlotPool> {
        &self.slot_pool
    }

    pub(crate) fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("it is taken only in drop")
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self.memory.as_mut().expect("it is taken only in drop") {
            Memory::Heap(bytes) => bytes,
            #[cfg(feature = "cuda")]
            Memory::Pinned(pinned) => pinned.bytes_mut(),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // before the permit is released, so that its next holder finds the memory
        self.slot_pool.free.lock().extend(self.memory.take());
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
        let first = ready(slot_pool.reserve(3)).expect("three of the four reservable slots");
        assert!(ready(slot_pool.reserve(2)).is_none(), "only one more can be reserved");
        let second = ready(slot_pool.reserve(1)).expect("one more can be reserved");
        let others = ready(slot_pool.take(4)).expect("half of the slots cannot be reserved");
        assert!(ready(slot_pool.take(1)).is_none());
        drop((first, others));
        assert!(ready(slot_pool.reserve(3)).is_some());
        drop(second);
    }
}
