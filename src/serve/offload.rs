// SPDX-License-Identifier: Apache-2.0
//! Runs work of the control port on blocking threads, so that it does not delay agents.
//!
//! A long reply is produced in steps. Each step runs on a blocking thread and ends after a bounded amount of output. The next step starts
//! when the client has read that output. So a slow client holds no thread, and a reply of any size takes the memory of one step.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

use crate::long_work::offload_export;

/// Bytes of output after which a step ends.
const STEP: usize = 256 << 10;

/// An iterator that produces items lazily.
pub(crate) type Items<T> = Box<dyn Iterator<Item = T> + Send>;

/// The output of a step, and the remaining iterator unless it has ended.
type StepOutput<T> = (VecDeque<T>, Option<Items<T>>);

/// An iterator that runs on blocking threads, one step at a time.
pub(crate) struct OffloadedIter<T: Send + 'static> {
    /// Items of the last step that were not taken yet.
    ready: VecDeque<T>,
    state: StepState<T>,
    /// Returns the bytes of an item.
    size: fn(&T) -> usize,
}

enum StepState<T> {
    Waiting(Items<T>),
    Running(Pin<Box<dyn Future<Output = StepOutput<T>> + Send>>),
    Ended,
}

impl<T: Send + 'static> OffloadedIter<T> {
    /// Runs `items` in steps. `size` returns the bytes of an item.
    pub(crate) fn new(items: Items<T>, size: fn(&T) -> usize) -> Self {
        Self { ready: VecDeque::new(), state: StepState::Waiting(items), size }
    }

    /// The next item.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Poll::Ready(Some(item));
            }
            match std::mem::replace(&mut self.state, StepState::Ended) {
                StepState::Waiting(items) => {
                    let size = self.size;
                    self.state = StepState::Running(Box::pin(offload_export(move || step(items, size))));
                }
                StepState::Running(mut running) => match running.as_mut().poll(cx) {
                    Poll::Ready((ready, rest)) => {
                        self.ready = ready;
                        self.state = rest.map_or(StepState::Ended, StepState::Waiting);
                    }
                    Poll::Pending => {
                        self.state = StepState::Running(running);
                        return Poll::Pending;
                    }
                },
                StepState::Ended => return Poll::Ready(None),
            }
        }
    }
}

fn step<T>(mut items: Items<T>, size: fn(&T) -> usize) -> StepOutput<T> {
    let (mut output, mut bytes) = (VecDeque::new(), 0);
    while bytes < STEP {
        let Some(item) = items.next() else { return (output, None) };
        bytes += size(&item);
        output.push_back(item);
    }
    (output, Some(items))
}

impl<T: Send + 'static> std::fmt::Debug for OffloadedIter<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OffloadedIter").field("ready", &self.ready.len()).finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Drop for OffloadedIter<T> {
    fn drop(&mut self) {
        // the iterator may hold the last reference to a large session, whose drop takes long
        if let (StepState::Waiting(items), Ok(runtime)) =
            (std::mem::replace(&mut self.state, StepState::Ended), Handle::try_current())
        {
            drop(runtime.spawn_blocking(move || drop(items)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::ThreadId;

    use super::*;

    #[tokio::test]
    async fn items_are_produced_on_blocking_threads_one_step_ahead_of_the_reader() {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let items = (0..1000).map(|at| {
            MADE.fetch_add(1, Ordering::Relaxed);
            (at, std::thread::current().id())
        });
        let mut steps: OffloadedIter<(usize, ThreadId)> = OffloadedIter::new(Box::new(items), |_| STEP / 4);
        let first = poll_fn(|cx| steps.poll_next(cx)).await.unwrap();
        assert_eq!((first.0, MADE.load(Ordering::Relaxed)), (0, 4), "a step ends at its bytes");
        assert_ne!(first.1, std::thread::current().id());
        let mut next = 1;
        while let Some((at, thread)) = poll_fn(|cx| steps.poll_next(cx)).await {
            assert_eq!(at, next);
            assert_ne!(thread, std::thread::current().id());
            next += 1;
        }
        assert_eq!((next, MADE.load(Ordering::Relaxed)), (1000, 1000));
    }
}
