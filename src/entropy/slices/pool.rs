//! The processor's share: a few threads away from those that serve sockets.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::entry::Entry;
use crate::entropy::Cpu;
use crate::metrics::Metrics;

/// Threads that measure entries in the order they came. Dropping it measures what is left, and waits for that.
#[derive(Debug)]
pub(super) struct Pool {
    // as long as there are slots: that bounds it
    queue: Option<Sender<Entry>>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn start(threads: usize, cpu: Cpu, metrics: &Arc<Metrics>) -> std::io::Result<Self> {
        let (queue, entries) = unbounded();
        let start = |index: usize| {
            let (entries, metrics) = (Receiver::clone(&entries), Arc::clone(metrics));
            std::thread::Builder::new().name(format!("rows-{index}")).spawn(move || work(&entries, cpu, &metrics))
        };
        let threads = (0..threads.max(1)).map(start).collect::<Result<_, _>>()?;
        Ok(Self { queue: Some(queue), threads })
    }

    /// Hands an entry in.
    pub(super) fn put(&self, entry: Entry) {
        let queue = self.queue.as_ref().expect("only drop takes it");
        // a thread goes only when the queue does
        let _ = queue.send(entry);
    }
}

fn work(entries: &Receiver<Entry>, cpu: Cpu, metrics: &Metrics) {
    for entry in entries {
        if !entry.is_left() {
            entry.measure(&cpu, &metrics.slices);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queue = None;
        for thread in self.threads.drain(..) {
            // a panic of an entry is caught where it happens
            let _ = thread.join();
        }
    }
}
