// SPDX-License-Identifier: Apache-2.0
//! Makes batches of the rows that are submitted to the device.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::logits::slices::{SLOT_BYTES, SlotJob};

/// The most rows of a batch.
pub(super) const MOST_ROWS: usize = 4096;
/// The most bytes of a batch. Batches of this size use 96 % of the bus; larger ones would only delay their replies.
const MOST_BYTES: usize = 8 * SLOT_BYTES;

/// Collects submitted rows into batches, in order of submission.
#[derive(Debug)]
pub(super) struct Collector {
    // unbounded, but each job holds a slot
    jobs: Receiver<SlotJob>,
    /// The job that did not fit in the last batch.
    deferred: Option<SlotJob>,
    /// How long the first job of a batch waits for others.
    deadline: Duration,
}

impl Collector {
    /// A collector whose batches wait for `deadline` to fill, and the sender of its jobs, each of at most [`MOST_ROWS`] rows.
    pub(super) fn new(deadline: Duration) -> (Sender<SlotJob>, Self) {
        let (sender, jobs) = unbounded();
        (sender, Self { jobs, deferred: None, deadline })
    }

    /// Waits for a job, then for others until the batch is full or the deadline is reached; `None` when all senders are dropped.
    pub(super) fn wait(&mut self) -> Option<Vec<SlotJob>> {
        loop {
            let first = match self.deferred.take() {
                Some(deferred) => deferred,
                None => self.jobs.recv().ok()?,
            };
            let batch = self.batch(first, self.deadline);
            // empty if all its jobs were cancelled
            if !batch.is_empty() {
                return Some(batch);
            }
        }
    }

    /// A batch of the jobs that are queued now, if any.
    pub(super) fn now(&mut self) -> Option<Vec<SlotJob>> {
        let first = self.deferred.take().or_else(|| self.jobs.try_recv().ok())?;
        Some(self.batch(first, Duration::ZERO)).filter(|batch| !batch.is_empty())
    }

    /// A batch of `first` and the jobs that follow it within `patience`, until it is full.
    fn batch(&mut self, first: SlotJob, patience: Duration) -> Vec<SlotJob> {
        let until = Instant::now() + patience;
        let (mut batch, mut rows, mut bytes) = (Vec::new(), 0, 0);
        let mut next = Some(first);
        while rows < MOST_ROWS && bytes < MOST_BYTES {
            let Some(job) = next.take().or_else(|| self.jobs.recv_deadline(until).ok()) else { break };
            if job.is_cancelled() {
                continue;
            }
            let (more_rows, more_bytes) = (job.rows(), job.slot.filled().len());
            if !batch.is_empty() && (rows + more_rows > MOST_ROWS || bytes + more_bytes > MOST_BYTES) {
                self.deferred = Some(job);
                break;
            }
            (rows, bytes) = (rows + more_rows, bytes + more_bytes);
            batch.push(job);
        }
        batch
    }
}

#[cfg(test)]
mod tests;
