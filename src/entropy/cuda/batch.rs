//! What waits to be measured together.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};

use super::abi::{TopKIn, TopKOut};
use crate::entropy::slices::Entry;

/// Rows of a batch, whole ones and top-k ones counted apart.
pub(super) const MOST_ROWS: usize = 4096;
/// Values of the top-k rows of a batch.
pub(super) const MOST_VALUES: usize = 1 << 20;

/// What is handed in.
#[derive(Debug)]
pub(super) enum Job {
    /// Whole rows, at most [`MOST_ROWS`].
    Rows(Entry),
    /// Top-k rows.
    TopK(TopKJob),
}

/// At most [`MOST_ROWS`] rows of at most [`MOST_VALUES`] values, and the thread that waits for them.
#[derive(Debug)]
pub(super) struct TopKJob {
    pub(super) values: Vec<f32>,
    pub(super) ins: Vec<TopKIn>,
    pub(super) since: Instant,
    /// Closed without an answer where there is none.
    pub(super) reply: Sender<Vec<TopKOut>>,
}

/// Jobs for one launch.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) rows: Vec<Entry>,
    pub(super) top_k: Vec<TopKJob>,
    row_count: usize,
    top_k_count: usize,
    values: usize,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.top_k.is_empty()
    }

    pub(super) fn row_count(&self) -> usize {
        self.row_count
    }

    pub(super) fn top_k_count(&self) -> usize {
        self.top_k_count
    }

    /// Takes a job in, unless whoever handed it in has gone; gives it back when it is one too many.
    fn add(&mut self, job: Job) -> Option<Job> {
        match job {
            Job::Rows(entry) if entry.is_left() => None,
            Job::Rows(entry) => {
                if self.row_count + entry.rows() > MOST_ROWS {
                    return Some(Job::Rows(entry));
                }
                self.row_count += entry.rows();
                self.rows.push(entry);
                None
            }
            Job::TopK(job) => {
                if self.top_k_count + job.ins.len() > MOST_ROWS || self.values + job.values.len() > MOST_VALUES {
                    return Some(Job::TopK(job));
                }
                self.top_k_count += job.ins.len();
                self.values += job.values.len();
                self.top_k.push(job);
                None
            }
        }
    }
}

/// Makes batches of what comes in.
#[derive(Debug)]
pub(super) struct Collector {
    jobs: Receiver<Job>,
    /// How long the first job of a batch waits for others.
    deadline: Duration,
    /// What did not fit the batch before.
    left: Option<Job>,
}

impl Collector {
    pub(super) fn new(jobs: Receiver<Job>, deadline: Duration) -> Self {
        Self { jobs, deadline, left: None }
    }

    /// Waits for a job, then for others until the batch is full or the deadline is reached; `None` when nobody can hand in any more.
    pub(super) fn wait(&mut self) -> Option<Batch> {
        let mut batch = Batch::default();
        while batch.is_empty() {
            let job = match self.left.take() {
                Some(job) => job,
                None => self.jobs.recv().ok()?,
            };
            self.left = batch.add(job);
        }
        let until = Instant::now() + self.deadline;
        while self.left.is_none() {
            match self.jobs.recv_deadline(until) {
                Ok(job) => self.left = batch.add(job),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        Some(batch)
    }

    /// What is there now, which may be nothing.
    pub(super) fn now(&mut self) -> Batch {
        let mut batch = Batch::default();
        self.left = self.left.take().and_then(|job| batch.add(job));
        while self.left.is_none() {
            match self.jobs.try_recv() {
                Ok(job) => self.left = batch.add(job),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        batch
    }
}
