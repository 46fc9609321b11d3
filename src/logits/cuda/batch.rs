//! What waits to be measured together.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvError, Sender, select, unbounded};

use super::abi::{TopKIn, TopKOut};
use crate::logits::slices::{Entry, SLOT_BYTES};

/// Rows of a batch.
pub(super) const MOST_ROWS: usize = 4096;
/// Values of a batch of top-k rows.
pub(super) const MOST_VALUES: usize = 1 << 20;
/// Bytes of a batch of whole rows: agents wait for top-k rows, and those wait for the batches that are on their way, of which there are two.
const MOST_BYTES: usize = 8 * SLOT_BYTES;

/// At most [`MOST_ROWS`] rows of at most [`MOST_VALUES`] values, and the thread that waits for them.
#[derive(Debug)]
pub(super) struct TopKJob {
    pub(super) values: Vec<f32>,
    pub(super) ins: Vec<TopKIn>,
    pub(super) since: Instant,
    /// Closed without an answer if there are no numbers.
    pub(super) reply: Sender<Vec<TopKOut>>,
}

/// Where jobs are handed in. What is handed in has a slot, or a thread that waits: that bounds it.
#[derive(Debug)]
pub(super) struct JobSender {
    rows: Sender<Entry>,
    top_k: Sender<TopKJob>,
}

impl JobSender {
    /// Whole rows, at most [`MOST_ROWS`]; returns them if the worker has stopped.
    pub(super) fn submit(&self, entry: Entry) -> Option<Entry> {
        self.rows.send(entry).err().map(|error| error.0)
    }

    /// Top-k rows; false if the worker has stopped.
    pub(super) fn submit_top_k(&self, job: TopKJob) -> bool {
        self.top_k.send(job).is_ok()
    }
}

/// JobSender for one launch, all of one kind.
#[derive(Debug)]
pub(super) enum Batch {
    Rows(Vec<Entry>),
    TopK(Vec<TopKJob>),
}

impl Batch {
    /// Rows of it.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Rows(entries) => entries.iter().map(BatchJob::rows).sum(),
            Self::TopK(jobs) => jobs.iter().map(BatchJob::rows).sum(),
        }
    }

    /// What metrics call it.
    pub(super) fn work(&self) -> &'static str {
        match self {
            Self::Rows(_) => "rows",
            Self::TopK(_) => "top_k",
        }
    }

    /// When each of its jobs was handed in.
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

/// A job, as far as it fills a batch.
trait BatchJob {
    /// Of one batch.
    const MOST_BYTES: usize;

    fn rows(&self) -> usize;
    fn bytes(&self) -> usize;
    /// The caller has gone.
    fn is_cancelled(&self) -> bool;
}

impl BatchJob for Entry {
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

    /// Its thread waits for it.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// JobSender of one kind in the order in which they came.
#[derive(Debug)]
struct Queue<T> {
    jobs: Receiver<T>,
    /// What did not fit the batch before.
    left: Option<T>,
}

impl<T: BatchJob> Queue<T> {
    fn is_empty(&self) -> bool {
        self.left.is_none() && self.jobs.is_empty()
    }

    /// `first` and what comes after it until a batch is full or it is `until`.
    fn batch(&mut self, first: Option<T>, until: Instant) -> Vec<T> {
        let (mut batch, mut rows, mut bytes) = (Vec::new(), 0, 0);
        let mut next = self.left.take().or(first);
        while rows < MOST_ROWS && bytes < T::MOST_BYTES {
            let Some(job) = next.take().or_else(|| self.jobs.recv_deadline(until).ok()) else { break };
            if job.is_cancelled() {
                continue;
            }
            if !batch.is_empty() && (rows + job.rows() > MOST_ROWS || bytes + job.bytes() > T::MOST_BYTES) {
                self.left = Some(job);
                break;
            }
            (rows, bytes) = (rows + job.rows(), bytes + job.bytes());
            batch.push(job);
        }
        batch
    }
}

/// Makes batches of what comes in.
#[derive(Debug)]
pub(super) struct Collector {
    rows: Queue<Entry>,
    top_k: Queue<TopKJob>,
    /// How long the first job of a batch waits for others.
    deadline: Duration,
    /// Where both wait, they take turns.
    rows_next: bool,
}

impl Collector {
    /// One whose batches wait so long for company, and where its jobs are handed in.
    pub(super) fn new(deadline: Duration) -> (JobSender, Self) {
        let ((rows, row_jobs), (top_k, top_k_jobs)) = (unbounded(), unbounded());
        let collector = Self {
            rows: Queue { jobs: row_jobs, left: None },
            top_k: Queue { jobs: top_k_jobs, left: None },
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
            // of what there was all callers have left, or what is left is the other kind's
            if !(self.rows.is_empty() && self.top_k.is_empty()) {
                continue;
            }
            if let Some(batch) = self.first().ok()?.filled() {
                return Some(batch);
            }
        }
    }

    /// What is there now, if anything is.
    pub(super) fn now(&mut self) -> Option<Batch> {
        self.next(Duration::ZERO)
    }

    /// What is there, and what comes within `patience`.
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
