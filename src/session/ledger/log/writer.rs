// SPDX-License-Identifier: Apache-2.0
//! The thread that owns the log's files.
//!
//! It takes all waiting records, writes them as one group, syncs, and acknowledges. While the disk is busy the next group grows, so that a
//! slow disk gets fewer and larger writes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::oneshot;

use super::Fsync;
use super::frame::Marker;
use super::health::{Shared, add};
use super::tail::Tail;
use crate::session::ledger::{AppendError, Health, LogRecord};

/// The limit of [`Writer::group_bytes`]. The first record of a group should not wait for all later ones.
const GROUP: usize = 4 << 20;

/// A record to write.
pub(super) struct Job {
    /// `None` is a barrier: it is acknowledged after all earlier records.
    pub(super) record: Option<LogRecord>,
    /// Its share of [`Shared::waiting`].
    pub(super) bytes: u64,
    pub(super) answer: oneshot::Sender<Result<(), AppendError>>,
}

/// The owner of the files.
pub(super) struct Writer {
    pub(super) jobs: Receiver<Job>,
    pub(super) tail: Tail,
    /// That of the files.
    pub(super) marker: Marker,
    pub(super) shared: Arc<Shared>,
    pub(super) fsync: Fsync,
    /// A group is written when it has this many bytes, even if more records wait.
    pub(super) group_bytes: usize,
    /// The delay before the next write after a failure.
    pub(super) retry: Duration,
    /// Set after a failure: the time of the next attempt.
    pub(super) failed: Option<Instant>,
    /// The time of the next sync.
    pub(super) due: Option<Instant>,
}

enum Next {
    Job(Job),
    Due,
    Closed,
}

impl Writer {
    /// The size of the groups of a log whose files have `segment_bytes`.
    pub(super) fn group_bytes(segment_bytes: u64) -> usize {
        usize::try_from(segment_bytes).map_or(GROUP, |bytes| bytes.min(GROUP))
    }

    /// Opens the first file. If that fails, the first records try again.
    pub(super) fn begin(&mut self) {
        if let Err(error) = self.tail.begin() {
            self.degrade(&error);
        }
    }

    /// Writes records until all senders are dropped.
    pub(super) fn run(mut self) {
        let mut frames = Vec::new();
        loop {
            match self.next() {
                Next::Job(job) => self.group(job, &mut frames),
                Next::Due => self.sync(),
                Next::Closed => break,
            }
        }
        self.sync();
    }

    fn next(&self) -> Next {
        let Some(due) = self.due else { return self.jobs.recv().map_or(Next::Closed, Next::Job) };
        match due.checked_duration_since(Instant::now()).map(|left| self.jobs.recv_timeout(left)) {
            Some(Ok(job)) => Next::Job(job),
            Some(Err(RecvTimeoutError::Disconnected)) => Next::Closed,
            Some(Err(RecvTimeoutError::Timeout)) | None => Next::Due,
        }
    }

    /// Writes `first` and the jobs that wait after it, then acknowledges them.
    fn group(&mut self, first: Job, frames: &mut Vec<u8>) {
        frames.clear();
        frames.shrink_to(2 * GROUP);
        let mut answers = Vec::new();
        let mut next = Some(first);
        let mut barriers = Vec::new();
        while let Some(Job { record, bytes, answer }) = next {
            let encoded = record.map(|record| self.encode(&record, frames));
            if encoded.is_some() {
                self.shared.remove_waiting(bytes);
            }
            match encoded {
                Some(Ok(())) => answers.push(answer),
                Some(Err(error)) => self.refuse([answer], &error),
                None => barriers.push(answer),
            }
            next = if frames.len() < self.group_bytes { self.jobs.try_recv().ok() } else { None };
        }
        if frames.len() < self.group_bytes {
            self.shared.overrun.store(false, Ordering::Relaxed);
        }
        if !answers.is_empty() {
            self.commit(frames, answers);
        }
        for barrier in barriers {
            _ = barrier.send(Ok(()));
        }
    }

    fn encode(&mut self, record: &LogRecord, frames: &mut Vec<u8>) -> Result<(), AppendError> {
        if self.failed.is_some_and(|until| Instant::now() < until) {
            return Err(AppendError::Degraded);
        }
        self.marker.push(record, frames).map_err(|error| AppendError::Encode(Arc::new(error)))
    }

    fn commit(&mut self, frames: &[u8], answers: Vec<oneshot::Sender<Result<(), AppendError>>>) {
        if let Err(error) = self.tail.append(frames, answers.len() as u64) {
            self.degrade(&error);
            return self.refuse(answers, &AppendError::Write(Arc::new(error)));
        }
        self.recover();
        add(&self.shared.stats.records, answers.len() as u64);
        for answer in answers {
            // fails if no caller waits
            _ = answer.send(Ok(()));
        }
        if let (Fsync::Interval(interval), None) = (self.fsync, self.due) {
            // an interval beyond the range of the clock: only closing syncs
            self.due = Instant::now().checked_add(interval);
        }
    }

    fn refuse(&self, answers: impl IntoIterator<Item = oneshot::Sender<Result<(), AppendError>>>, error: &AppendError) {
        for answer in answers {
            add(&self.shared.stats.failed, 1);
            _ = answer.send(Err(error.clone()));
        }
    }

    fn sync(&mut self) {
        self.due = None;
        if let Err(error) = self.tail.sync() {
            self.degrade(&error);
        }
    }

    fn degrade(&mut self, error: &io::Error) {
        self.failed = Some(Instant::now() + self.retry);
        let message = error.to_string();
        let since = match self.shared.health() {
            Health::Degraded { since, .. } => since,
            Health::Ok => {
                tracing::error!(%error, "the log cannot be written: a crash loses the records from now on until it can");
                SystemTime::now()
            }
        };
        self.shared.set_health(Health::Degraded { since, message });
    }

    fn recover(&mut self) {
        if self.failed.take().is_some() {
            self.shared.set_health(Health::Ok);
            let lost = self.shared.stats.failed.load(Ordering::Relaxed);
            tracing::info!(lost, "the log is written again; lost is the number of all records that are not in it");
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // a log without a writer must not report good health
        if std::thread::panicking() {
            self.degrade(&io::Error::other("the log's writer has panicked; restart tokentap"));
        }
    }
}
