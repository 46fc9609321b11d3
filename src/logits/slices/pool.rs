// SPDX-License-Identifier: Apache-2.0
//! The CPU threads that measure rows.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::job::SlotJob;
use crate::entropy::Cpu;
use crate::metrics::Metrics;

/// Threads that measure entries in order of submission. Drop waits until the queued entries are measured.
#[derive(Debug)]
pub(super) struct Pool {
    // unbounded, but each entry holds a slot
    queue: Option<Sender<SlotJob>>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// # Errors
    /// If a thread cannot be started.
    pub(super) fn start(threads: usize, cpu: Cpu, metrics: &Arc<Metrics>) -> std::io::Result<Self> {
        let (queue, entries) = unbounded();
        let start = |index: usize| {
            let (entries, metrics) = (Receiver::clone(&entries), Arc::clone(metrics));
            std::thread::Builder::new().name(format!("rows-{index}")).spawn(move || work(&entries, cpu, &metrics))
        };
        let threads = (0..threads.max(1)).map(start).collect::<Result<_, _>>()?;
        Ok(Self { queue: Some(queue), threads })
    }

    /// Submits an entry.
    pub(super) fn submit(&self, entry: SlotJob) {
        let queue = self.queue.as_ref().expect("it is taken only in drop");
        // the threads run until the queue is dropped
        let _ = queue.send(entry);
    }
}

fn work(entries: &Receiver<SlotJob>, cpu: Cpu, metrics: &Metrics) {
    for entry in entries {
        if !entry.is_cancelled() {
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::sync::oneshot;

    use super::*;
    use crate::entropy::Dtype;
    use crate::logits::slices::job::SlotLayout;
    use crate::logits::slices::{MAX_VOCAB, SLOT_BYTES, Slot, SlotPool};

    #[tokio::test]
    async fn submitted_rows_are_answered_before_the_pool_is_dropped() {
        let metrics = Arc::new(Metrics::new("cpu"));
        let pool = Pool::start(2, Cpu::new(), &metrics).unwrap();
        let slot_pool = Arc::new(SlotPool::heap(12 * SLOT_BYTES as u64));
        // rows of the greatest widths take long, and each width has a different entropy
        let submit = |(mut slot, vocab): (Slot, usize)| {
            slot.push(&vec![0; 4 * vocab], SLOT_BYTES);
            let shape = SlotLayout { dtype: Dtype::F32, vocab, temperature: Vec::new(), chosen: Vec::new() };
            let (reply, numbers) = oneshot::channel();
            pool.submit(SlotJob { slot, shape, since: Instant::now(), reply });
            (vocab, numbers)
        };
        let submitted: Vec<_> =
            slot_pool.take(12).await.into_iter().zip(MAX_VOCAB - 11..=MAX_VOCAB).map(submit).collect();
        drop(pool);
        for (vocab, mut numbers) in submitted {
            let stats = numbers.try_recv().expect("it is answered").unwrap();
            assert!((stats[0].entropy - (vocab as f64).ln()).abs() < 1e-9, "uniform over {vocab}: {stats:?}");
        }
        assert_eq!(Arc::strong_count(&metrics), 1, "each thread has dropped its reference");
    }

    #[tokio::test]
    async fn rows_of_cancelled_callers_are_skipped() {
        let metrics = Arc::new(Metrics::new("cpu"));
        let pool = Pool::start(1, Cpu::new(), &metrics).unwrap();
        let slot_pool = Arc::new(SlotPool::heap(2 * SLOT_BYTES as u64));
        let mut slots = slot_pool.take(2).await;
        for cancelled in [true, false] {
            let mut slot = slots.pop().unwrap();
            slot.push(&[0; 40], SLOT_BYTES);
            let shape = SlotLayout { dtype: Dtype::F32, vocab: 5, temperature: Vec::new(), chosen: Vec::new() };
            let (reply, numbers) = oneshot::channel();
            let numbers = (!cancelled).then_some(numbers);
            pool.submit(SlotJob { slot, shape, since: Instant::now(), reply });
            if let Some(numbers) = numbers {
                assert_eq!(numbers.await.unwrap().unwrap().len(), 2);
            }
        }
        assert_eq!(metrics.slices.rows.with_label_values(&[Cpu::new().name()]).get(), 2);
    }
}
