//! Queues of jobs, and the batches that are made from them.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvError, Sender, select, unbounded};

use super::abi::{TopKIn, TopKOut};
use crate::logits::slices::{SLOT_BYTES, SlotJob};

/// The most rows of a batch.
pub(super) const MOST_ROWS: usize = 4096;
/// The most values of a batch of top-k rows.
pub(super) const MOST_VALUES: usize = 1 << 20;
/// The most bytes of a batch of whole rows. It is small because agents wait for top-k rows, which wait for up to two running batches.
const MOST_BYTES: usize = 8 * SLOT_BYTES;

/// At most [`MOST_ROWS`] rows of at most [`MOST_VALUES`] values in total, and the channel to the thread that waits for their numbers.
#[derive(Debug)]
pub(super) struct TopKJob {
    pub(super) values: Vec<f32>,
    pub(super) ins: Vec<TopKIn>,
    pub(super) since: Instant,
    /// Closed without an answer if there are no numbers.
    pub(super) reply: Sender<Vec<TopKOut>>,
}

/// Submits jobs. The queues are bounded, since each job holds a slot or blocks a thread.
#[derive(Debug)]
pub(super) struct JobSender {
    rows: Sender<SlotJob>,
    top_k: Sender<TopKJob>,
}

impl JobSender {
    /// Submits at most [`MOST_ROWS`] whole rows; returns them if the worker has stopped.
    pub(super) fn submit(&self, entry: SlotJob) -> Option<SlotJob> {
        self.rows.send(entry).err().map(|error| error.0)
    }

    /// Submits top-k rows; returns false if the worker has stopped.
    pub(super) fn submit_top_k(&self, job: TopKJob) -> bool {
        self.top_k.send(job).is_ok()
    }
}

/// The jobs of one launch, all of one kind.
#[derive(Debug)]
pub(super) enum Batch {
    Rows(Vec<SlotJob>),
    TopK(Vec<TopKJob>),
}

impl Batch {
    /// The number of rows.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Rows(entries) => entries.iter().map(BatchJob::rows).sum(),
            Self::TopK(jobs) => jobs.iter().map(BatchJob::rows).sum(),
        }
    }

    /// The value of the metrics' label `work`.
    pub(super) fn work(&self) -> &'static str {
        match self {
            Self::Rows(_) => "rows",
            Self::TopK(_) => "top_k",
        }
    }

    /// When each of its jobs was submitted.
    pub(super) fn since(&self) -> Vec<Instant> {
        match self {
            Self::Rows(entries) => entries.iter().map(|entry| entry.since).collect(),
            Self::TopK(jobs) => jobs.iter().map(|job| job.since).collect(),
        }
    }

    fn filled(self) -> Option<Self> {
        (self.count() > 0).then_some(self)
    }
}

/// The size of a job in a batch.
trait BatchJob {
    const MOST_BYTES: usize;

    fn rows(&self) -> usize;
    fn bytes(&self) -> usize;
    /// The caller has gone.
    fn is_cancelled(&self) -> bool;
}

impl BatchJob for SlotJob {
    const MOST_BYTES: usize = MOST_BYTES;

    fn rows(&self) -> usize {
        Self::rows(self)
    }

    fn bytes(&self) -> usize {
        self.slot.filled().len()
    }

    fn is_cancelled(&self) -> bool {
        Self::is_cancelled(self)
    }
}

impl BatchJob for TopKJob {
    const MOST_BYTES: usize = MOST_VALUES * size_of::<f32>();

    fn rows(&self) -> usize {
        self.ins.len()
    }

    fn bytes(&self) -> usize {
        size_of_val(self.values.as_slice())
    }

    /// Never: its thread blocks until the reply.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Jobs of one kind in order of submission.
#[derive(Debug)]
struct Queue<T> {
    jobs: Receiver<T>,
    /// The job that did not fit in the last batch.
    deferred: Option<T>,
}

impl<T: BatchJob> Queue<T> {
    fn is_empty(&self) -> bool {
        self.deferred.is_none() && self.jobs.is_empty()
    }

    /// A batch of `first` and later jobs, until it is full or `until` is reached.
    fn batch(&mut self, first: Option<T>, until: Instant) -> Vec<T> {
        let (mut batch, mut rows, mut bytes) = (Vec::new(), 0, 0);
        let mut next = self.deferred.take().or(first);
        while rows < MOST_ROWS && bytes < T::MOST_BYTES {
            let Some(job) = next.take().or_else(|| self.jobs.recv_deadline(until).ok()) else { break };
            if job.is_cancelled() {
                continue;
            }
            if !batch.is_empty() && (rows + job.rows() > MOST_ROWS || bytes + job.bytes() > T::MOST_BYTES) {
                self.deferred = Some(job);
                break;
            }
            (rows, bytes) = (rows + job.rows(), bytes + job.bytes());
            batch.push(job);
        }
        batch
    }
}

/// Collects submitted jobs into batches.
#[derive(Debug)]
pub(super) struct Collector {
    rows: Queue<SlotJob>,
    top_k: Queue<TopKJob>,
    /// How long the first job of a batch waits for others.
    deadline: Duration,
    /// If both queues have jobs, they take turns.
    rows_next: bool,
}

impl Collector {
    /// A collector whose batches wait for `deadline` to fill, and the sender of its jobs.
    pub(super) fn new(deadline: Duration) -> (JobSender, Self) {
        let ((rows, row_jobs), (top_k, top_k_jobs)) = (unbounded(), unbounded());
        let collector = Self {
            rows: Queue { jobs: row_jobs, deferred: None },
            top_k: Queue { jobs: top_k_jobs, deferred: None },
            deadline,
            rows_next: false,
        };
        (JobSender { rows, top_k }, collector)
    }

    /// Waits for a job, then for others until the batch is full or the deadline is reached; `None` when all senders are dropped.
    pub(super) fn wait(&mut self) -> Option<Batch> {
        loop {
            if let Some(batch) = self.next(self.deadline) {
                return Some(batch);
            }
            // all jobs of this kind were cancelled, or the remaining ones are of the other kind
            if !(self.rows.is_empty() && self.top_k.is_empty()) {
                continue;
            }
            if let Some(batch) = self.first().ok()?.filled() {
                return Some(batch);
            }
        }
    }

    /// A batch of the jobs that are queued now, if any.
    pub(super) fn now(&mut self) -> Option<Batch> {
        self.next(Duration::ZERO)
    }

    /// A batch of the queued jobs and those submitted within `patience`, if any is queued.
    fn next(&mut self, patience: Duration) -> Option<Batch> {
        let until = Instant::now() + patience;
        let rows = !self.rows.is_empty() && (self.rows_next || self.top_k.is_empty());
        let batch = match rows {
            true => Batch::Rows(self.rows.batch(None, until)),
            false if self.top_k.is_empty() => return None,
            false => Batch::TopK(self.top_k.batch(None, until)),
        };
        self.rows_next = !rows;
        batch.filled()
    }

    fn first(&mut self) -> Result<Batch, RecvError> {
        let (rows, top_k);
        select! {
            recv(self.rows.jobs) -> job => (rows, top_k) = (Some(job), None),
            recv(self.top_k.jobs) -> job => (rows, top_k) = (None, Some(job)),
        }
        // both senders are dropped together: the jobs left in the other queue are still measured
        let (rows, top_k) = match (rows, top_k) {
            (Some(Err(_)), _) => (None, Some(self.top_k.jobs.recv()?)),
            (_, Some(Err(_))) => (Some(self.rows.jobs.recv()?), None),
            (rows, top_k) => (rows.transpose()?, top_k.transpose()?),
        };
        let until = Instant::now() + self.deadline;
        Ok(match rows {
            Some(entry) => Batch::Rows(self.rows.batch(Some(entry), until)),
            None => Batch::TopK(self.top_k.batch(top_k, until)),
        })
    }
}

#[cfg(test)]
mod tests;
