//! What waits to be measured together.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};

use super::abi::{TopKIn, TopKOut};
use crate::entropy::slices::{Entry, SLOT_BYTES};

/// Rows of a batch, whole ones and top-k ones counted apart.
pub(super) const MOST_ROWS: usize = 4096;
/// Values of the top-k rows of a batch.
pub(super) const MOST_VALUES: usize = 1 << 20;

/// Bytes of its whole rows, unless it has one entry: top-k rows, for which an agent waits, wait behind no more than two such batches.
const MOST_BYTES: usize = 8 * SLOT_BYTES;

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
    row_bytes: usize,
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
    pub(super) fn add(&mut self, job: Job) -> Option<Job> {
        match job {
            Job::Rows(entry) if entry.is_left() => None,
            Job::Rows(entry) => {
                let bytes = self.row_bytes + entry.slot.filled().len();
                if self.row_count + entry.rows() > MOST_ROWS || (bytes > MOST_BYTES && !self.rows.is_empty()) {
                    return Some(Job::Rows(entry));
                }
                self.row_count += entry.rows();
                self.row_bytes = bytes;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crossbeam_channel::{bounded, unbounded};
    use tokio::sync::oneshot;

    use super::*;
    use crate::entropy::Dtype;
    use crate::entropy::slices::{Home, Measured, Shape};

    const FOR_EVER: Duration = Duration::from_secs(3600);

    /// Rows of one value, and who waits for their numbers.
    fn rows(home: &Arc<Home>, count: usize) -> (Job, oneshot::Receiver<Measured>) {
        wide(home, count, 1)
    }

    fn wide(home: &Arc<Home>, count: usize, vocab: usize) -> (Job, oneshot::Receiver<Measured>) {
        let mut slot = home.try_take(1).unwrap().pop().unwrap();
        slot.push(&vec![0; count * vocab * 4], SLOT_BYTES);
        let shape = Shape { dtype: Dtype::F32, vocab, temperature: Vec::new(), chosen: Vec::new() };
        let (reply, numbers) = oneshot::channel();
        (Job::Rows(Entry { slot, shape, since: Instant::now(), reply }), numbers)
    }

    fn top_k(rows: usize, values: usize) -> Job {
        let ins = vec![TopKIn { start: 0, k: 1, chosen: f32::NAN, vocab: 0 }; rows];
        Job::TopK(TopKJob { values: vec![0.0; values], ins, since: Instant::now(), reply: bounded(1).0 })
    }

    #[test]
    fn a_batch_is_full_at_its_most_rows_and_nothing_is_left_behind() {
        let home = Arc::new(Home::heap(8 * SLOT_BYTES as u64));
        let (sender, jobs) = unbounded();
        let mut collector = Collector::new(jobs, FOR_EVER);
        let waiting: Vec<_> = (0..5)
            .map(|_| {
                let (job, numbers) = rows(&home, 1000);
                sender.send(job).unwrap();
                numbers
            })
            .collect();
        // without the deadline, which is an hour away
        let batch = collector.wait().unwrap();
        assert_eq!((batch.rows.len(), batch.row_count()), (4, 4000));
        let rest = collector.now();
        assert_eq!((rest.rows.len(), rest.row_count()), (1, 1000));
        assert!(collector.now().is_empty());
        drop((batch, rest));
        assert_eq!(waiting.len(), 5);
        assert!(home.try_take(8).is_some(), "their slots are free again");
    }

    #[test]
    fn top_k_rows_do_not_wait_behind_every_slot_there_is() {
        let home = Arc::new(Home::heap(12 * SLOT_BYTES as u64));
        let (sender, jobs) = unbounded();
        let mut collector = Collector::new(jobs, FOR_EVER);
        let _waiting: Vec<_> = (0..9)
            .map(|_| {
                let (job, numbers) = wide(&home, 1, SLOT_BYTES / 4);
                sender.send(job).unwrap();
                numbers
            })
            .collect();
        sender.send(top_k(1, 1)).unwrap();
        let batch = collector.wait().unwrap();
        assert_eq!((batch.row_count(), batch.top_k_count()), (8, 0));
        let next = collector.now();
        assert_eq!((next.row_count(), next.top_k_count()), (1, 1));
    }

    #[test]
    fn whole_rows_and_top_k_rows_are_counted_apart() {
        let home = Arc::new(Home::heap(8 * SLOT_BYTES as u64));
        let (sender, jobs) = unbounded();
        let mut collector = Collector::new(jobs, FOR_EVER);
        let (job, _numbers) = rows(&home, MOST_ROWS);
        for job in [job, top_k(MOST_ROWS - 1, 10), top_k(1, MOST_VALUES - 10), top_k(1, 1)] {
            sender.send(job).unwrap();
        }
        let batch = collector.wait().unwrap();
        assert_eq!((batch.row_count(), batch.top_k_count(), batch.top_k.len()), (MOST_ROWS, MOST_ROWS, 2));
        assert_eq!(collector.now().top_k_count(), 1, "one row too many goes with the next");
    }

    #[test]
    fn a_batch_does_not_wait_longer_than_its_deadline() {
        let home = Arc::new(Home::heap(0));
        let (sender, jobs) = unbounded();
        let (job, _numbers) = rows(&home, 1);
        sender.send(job).unwrap();
        let batch = Collector::new(jobs, Duration::from_micros(200)).wait().unwrap();
        assert_eq!(batch.row_count(), 1, "though others may still come");
    }

    #[test]
    fn callers_that_left_are_passed_over_and_the_end_is_known() {
        let home = Arc::new(Home::heap(8 * SLOT_BYTES as u64));
        let (sender, jobs) = unbounded();
        let mut collector = Collector::new(jobs, FOR_EVER);
        for _ in 0..3 {
            let (job, numbers) = rows(&home, 10);
            drop(numbers);
            sender.send(job).unwrap();
        }
        let (job, _numbers) = rows(&home, 7);
        sender.send(job).unwrap();
        drop(sender);
        assert_eq!(collector.wait().unwrap().row_count(), 7);
        assert!(collector.wait().is_none());
    }
}
