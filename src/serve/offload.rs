//! Runs work of the control port on blocking threads, so that it does not delay agents.
//!
//! Long work is divided into steps. Each step runs on a blocking thread and ends after a bounded amount of output. The next step begins
//! when the client has read that output. So a slow client holds no thread, and a reply of any size takes the memory of one step.

use std::collections::VecDeque;
use std::num::NonZero;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Bytes of output after which a step ends.
const STEP: usize = 256 << 10;

/// Permits for concurrent export steps: half of the processors, so that the runtime keeps the other half. At least two, because the first
/// step of an export grows with its sessions and must not block every other export.
static EXPORTS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| permits(2));

/// Permits for concurrent short calls, such as a listing. They are separate so that no call waits for an export.
static CALLS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| permits(4));

fn permits(share: usize) -> Arc<Semaphore> {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    Arc::new(Semaphore::new((processors / share).max(2)))
}

/// Runs a short call on a blocking thread.
///
/// # Panics
/// When the work panics.
pub(crate) async fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    run(&CALLS, work).await
}

/// Runs a step of an export, or of another long reply, on a blocking thread.
///
/// # Panics
/// When the work panics.
pub(crate) async fn offload_export<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    run(&EXPORTS, work).await
}

async fn run<T: Send + 'static>(permits: &Arc<Semaphore>, work: impl FnOnce() -> T + Send + 'static) -> T {
    let permit = Arc::clone(permits).acquire_owned().await.expect("the semaphore is never closed");
    let step = spawn_blocking(move || {
        let result = work();
        drop(permit);
        result
    });
    match step.await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // the runtime is shutting down and drops this future
        Err(_) => std::future::pending().await,
    }
}

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
    #[must_use]
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

    #[tokio::test]
    async fn short_call_does_not_wait_for_exports() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(std::sync::Mutex::new(held));
        // more than the number of permits
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let exports: Vec<_> = (0..processors + 2)
            .map(|_| {
                let held = Arc::clone(&held);
                tokio::spawn(offload_export(move || held.lock().unwrap().recv().unwrap_err()))
            })
            .collect();
        while EXPORTS.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let call = tokio::time::timeout(std::time::Duration::from_secs(60), offload(|| "listed"));
        let answer = call.await;
        drop(release);
        for export in exports {
            export.await.unwrap();
        }
        assert_eq!(answer, Ok("listed"), "a call does not wait for exports");
    }

    #[tokio::test]
    #[should_panic(expected = "the work")]
    async fn panic_of_the_work_reaches_the_caller() {
        offload(|| panic!("the work")).await;
    }
}
