//! Slices of whole rows of logits, measured away from the threads that serve sockets.
//!
//! An edge opens an [`Intake`], pushes the bytes in as they come, and takes the numbers out in order. Rows wait in slots, of which there
//! is a fixed number: who finds none waits, and so does whoever sends the bytes.

mod entry;
mod intake;
mod pool;
mod slot;

use std::sync::Arc;

use crate::entropy::Cpu;
use crate::metrics::Metrics;

pub(super) use entry::Entry;
pub use entry::Unmeasured;
pub use intake::{Intake, Misshapen, Rows, Side};
use pool::Pool;
pub(super) use slot::Home;
pub use slot::{SLOT_BYTES, Slot};

/// The widest row: more than any model has.
pub const MAX_VOCAB: usize = 1 << 20;

/// The most rows of one slice: their numbers are held until the last is known.
pub const MAX_ROWS: usize = 1 << 20;

/// Where rows are brought to be measured.
#[derive(Debug)]
pub struct Slices {
    heap: Arc<Home>,
    pool: Pool,
}

impl Slices {
    /// Rows in `bytes` of memory, measured by `threads` threads.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(bytes: u64, threads: usize, cpu: Cpu, metrics: &Arc<Metrics>) -> std::io::Result<Self> {
        Ok(Self { heap: Arc::new(Home::heap(bytes)), pool: Pool::start(threads, cpu, metrics)? })
    }

    /// Where the slots of these rows come from.
    fn home(&self, _rows: Rows) -> &Arc<Home> {
        &self.heap
    }

    fn put(&self, entry: Entry) {
        self.pool.put(entry);
    }
}
