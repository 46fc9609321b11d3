//! Work on bodies that would keep the other requests of a worker waiting.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Bytes that take about a millisecond to parse.
const LONG: usize = 128 << 10;

/// Works on a body of `length` bytes. Before long work the runtime moves the other tasks of this thread to another one, which costs some
/// microseconds; short work is done at once.
pub(super) fn on_body<T>(length: usize, work: impl FnOnce() -> T) -> T {
    let moves = || Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if length > LONG && moves() { tokio::task::block_in_place(work) } else { work() }
}
