// SPDX-License-Identifier: Apache-2.0
//! Work that would block a runtime thread: parsing and comparing long bodies, and calls of the control port about many sessions or turns.

use std::num::NonZero;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, oneshot};
use tokio::task::JoinError;

/// Bytes of a request that may take a millisecond to parse: one that consists of the shortest members parses slowest.
const LONG_REQUEST: usize = 128 << 10;

/// Bytes of an engine's reply that take up to half a millisecond to parse, measure and record. A flat reply of 512 tokens with 20 logprobs
/// has 133 kB; moving the other tasks to another thread costs more than half of the work on it.
const LONG_REPLY: usize = 512 << 10;

/// Bytes that take up to a millisecond to copy, hash or compare.
const LONG_COPY: usize = 4 << 20;

/// Bytes of a body that takes some tens of milliseconds. Shorter bodies do not wait for such bodies.
const VERY_LONG: usize = 4 << 20;

/// How long a permit is offered to the first waiter. A waiter that does not take it in time queues again.
const OFFER: Duration = Duration::from_millis(250);

/// Permits for concurrent work on long bodies; each may take a thread.
static LONG_BODIES: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(4 * processors())));

/// Permits for concurrent work on very long bodies: half of the processors, so that the runtime keeps the other half.
static VERY_LONG_BODIES: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new((processors() / 2).max(1))));

/// Permits for concurrent export steps: half of the processors, so that the runtime keeps the other half. At least two, because the first
/// step of an export grows with its sessions and must not block every other export.
static EXPORTS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| permits(2));

/// Permits for concurrent short calls, such as a listing. They are separate so that no call waits for an export.
static CALLS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| permits(4));

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

fn permits(share: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new((processors() / share).max(2)))
}

/// The length of a body in bytes, by the kind of body.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BodyLength {
    /// The body of a client's request.
    Request(usize),
    /// The body of an engine's reply, or an event of it.
    Reply(usize),
    /// A body that is only copied, hashed or compared.
    Copy(usize),
}

impl BodyLength {
    /// Whether work on the body would delay other tasks.
    pub(crate) fn is_long(self) -> bool {
        match self {
            Self::Request(length) => length > LONG_REQUEST,
            Self::Reply(length) => length > LONG_REPLY,
            Self::Copy(length) => length > LONG_COPY,
        }
    }

    fn bytes(self) -> usize {
        let (Self::Request(length) | Self::Reply(length) | Self::Copy(length)) = self;
        length
    }
}

/// Waits until a body may be worked on. A short body does not wait. Other bodies wait until the permit is dropped. A waiter that is not
/// polled, because its client does not read, holds a permit for at most 250 ms. A waiter that is dropped holds none.
pub(crate) async fn permit(length: BodyLength) -> Option<OwnedSemaphorePermit> {
    if !length.is_long() {
        return None;
    }
    acquire(bodies(length.bytes())).await
}

fn bodies(length: usize) -> &'static Arc<Semaphore> {
    if length > VERY_LONG { &VERY_LONG_BODIES } else { &LONG_BODIES }
}

async fn acquire(bodies: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    loop {
        match Arc::clone(bodies).try_acquire_owned() {
            Ok(permit) => return Some(permit),
            // the semaphores are never closed
            Err(TryAcquireError::Closed) => return None,
            Err(TryAcquireError::NoPermits) => {}
        }
        // the semaphore gives a permit to the first in its queue at once, polled or not: so a task queues, which is always polled
        let slot = Slot::default();
        let (offer, offered) = oneshot::channel();
        tokio::spawn(queue(Arc::clone(bodies), Arc::downgrade(&slot), offer));
        offered.await.ok()?;
        let permit = slot.lock().take();
        if permit.is_some() {
            return permit;
        }
    }
}

/// A permit that its waiter takes, or that is taken back. The waiter owns it: a permit in it is given back when the waiter is dropped.
type Slot = Arc<Mutex<Option<OwnedSemaphorePermit>>>;

/// Waits in the queue for a waiter, and offers it the permit. Ends early when the waiter is dropped.
async fn queue(
    bodies: Arc<Semaphore>,
    slot: Weak<Mutex<Option<OwnedSemaphorePermit>>>,
    mut offer: oneshot::Sender<()>,
) {
    let permit = tokio::select! {
        permit = bodies.acquire_owned() => permit.ok(),
        () = offer.closed() => return,
    };
    let put = |permit| {
        let slot = slot.upgrade()?;
        std::mem::replace(&mut *slot.lock(), permit)
    };
    drop(put(permit));
    if offer.send(()).is_ok() {
        tokio::time::sleep(OFFER).await;
        drop(put(None));
    }
}

/// Works on a body once it has a permit.
pub(crate) async fn on_body<T>(length: BodyLength, work: impl FnOnce() -> T) -> T {
    let _permit = permit(length).await;
    in_place(length, work)
}

/// Works on a body of `length` bytes on a blocking thread once it has a permit. For work that takes long on short bodies too.
///
/// # Errors
/// When the work panics.
pub(crate) async fn on_thread<T: Send + 'static>(
    length: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let permit = acquire(bodies(length)).await;
    let worked = move || {
        let _permit = permit;
        work()
    };
    tokio::task::spawn_blocking(worked).await
}

/// Works on a body without waiting for a permit: the caller holds one, or the work takes much less time than parsing the body. Before work
/// on a long body the runtime moves the other tasks of this thread to another thread.
pub(crate) fn in_place<T>(length: BodyLength, work: impl FnOnce() -> T) -> T {
    let moves = || Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if length.is_long() && moves() { tokio::task::block_in_place(work) } else { work() }
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
    let step = tokio::task::spawn_blocking(move || {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::task::{Context, Waker};

    use super::*;

    /// The timeout of an event that should happen at once.
    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn others_are_served_while_a_long_body_is_worked_on() {
        let (served, is_served) = channel();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let long = tokio::spawn(on_body(BodyLength::Request(LONG_REQUEST + 1), move || {
            begun.send(()).unwrap();
            is_served.recv_timeout(PATIENCE)
        }));
        let other = tokio::spawn(async move {
            has_begun.await.unwrap();
            served.send(()).unwrap();
        });
        other.await.unwrap();
        assert_eq!(long.await.unwrap(), Ok(()), "the only worker thread has served another task meanwhile");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn few_very_long_bodies_are_worked_on_at_a_time_and_shorter_ones_do_not_wait_for_them() {
        static RUNNING: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        let (end, ended) = channel::<()>();
        let ended = Arc::new(parking_lot::Mutex::new(ended));
        let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
        let bodies: Vec<_> = (0..3 * processors())
            .map(|_| {
                let (ended, begun) = (Arc::clone(&ended), begun.clone());
                tokio::spawn(on_body(BodyLength::Reply(VERY_LONG + 1), move || {
                    MOST.fetch_max(RUNNING.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    begun.send(()).unwrap();
                    ended.lock().recv_timeout(PATIENCE).unwrap();
                    RUNNING.fetch_sub(1, Ordering::SeqCst);
                }))
            })
            .collect();
        for _ in 0..(processors() / 2).max(1) {
            has_begun.recv().await.unwrap();
        }
        assert_eq!(
            on_body(BodyLength::Request(VERY_LONG), || 7).await,
            7,
            "all permits of the very long ones are taken"
        );
        assert_eq!(on_body(BodyLength::Request(1), || 7).await, 7);
        bodies.iter().for_each(|_| end.send(()).unwrap());
        for body in bodies {
            body.await.unwrap();
        }
        assert_eq!(MOST.load(Ordering::SeqCst), (processors() / 2).max(1));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_permit_is_not_held_by_a_waiter_that_is_not_polled() {
        let bodies = Arc::new(Semaphore::new(2));
        let held = [acquire(&bodies).await, acquire(&bodies).await];
        let mut waiters = [Box::pin(acquire(&bodies)), Box::pin(acquire(&bodies))];
        for waiter in &mut waiters {
            assert!(waiter.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        drop(held);
        let other = tokio::time::timeout(PATIENCE, acquire(&bodies)).await;
        assert!(other.is_ok(), "those that came first are polled no more");
        drop(other);
        for waiter in waiters {
            let polled = tokio::time::timeout(PATIENCE, waiter).await;
            assert!(polled.is_ok(), "one that is polled again waits anew");
        }
    }

    #[tokio::test]
    async fn a_waiter_that_is_dropped_gives_its_permit_back_at_once() {
        let bodies = Arc::new(Semaphore::new(1));
        let held = acquire(&bodies).await;
        let mut waiter = Box::pin(acquire(&bodies));
        assert!(waiter.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        // the task that queues for the waiter begins to wait, and then offers it the permit
        tokio::task::yield_now().await;
        drop(held);
        tokio::task::yield_now().await;
        assert_eq!(bodies.available_permits(), 0, "it is offered");
        drop(waiter);
        assert_eq!(bodies.available_permits(), 1);
    }

    #[tokio::test]
    async fn short_call_does_not_wait_for_exports() {
        let (release, held) = channel::<()>();
        let held = Arc::new(parking_lot::Mutex::new(held));
        // more than the number of permits
        let exports: Vec<_> = (0..processors() + 2)
            .map(|_| {
                let held = Arc::clone(&held);
                tokio::spawn(offload_export(move || held.lock().recv().unwrap_err()))
            })
            .collect();
        while EXPORTS.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let call = tokio::time::timeout(PATIENCE, offload(|| "listed"));
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
