// SPDX-License-Identifier: Apache-2.0
//! The task that archives finished paths.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::batch::{Batch, EncodedBatch, encode};
use super::chain::{AddOutcome, Chain};
use super::{ArchiveError, FinishedSource, Storage};
use crate::export::Annotate;
use crate::metrics::Metrics;

/// The pause after a wake-up, in which more paths finish. Without it each path of a busy store would be a read.
const COALESCE: Duration = Duration::from_millis(200);

/// The first pause after a failure. It doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause after a failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Attempts to read a source that fails, once the archiver is stopping.
const FINAL_ATTEMPTS: u32 = 3;

/// How often the age of the oldest path is updated.
const AGE_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the function that computes the columns about thinking; it depends on the tokenizer, which is loaded later.
pub type CurrentAnnotate = Arc<dyn Fn() -> Annotate + Send + Sync>;

/// When a batch is archived.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// A path is archived at most this long after it finished.
    pub interval: Duration,
    /// Bytes of paths in memory, of all partitions, that are archived at once.
    pub bytes: u64,
}

/// Archives the finished paths of a source.
pub struct Archiver<S> {
    storage: Storage,
    source: S,
    options: Options,
    annotate: CurrentAnnotate,
    metrics: Arc<Metrics>,
}

/// An archiver that runs as a task.
#[derive(Debug)]
pub struct RunningArchive {
    stop: watch::Sender<bool>,
    /// Returns whether all paths that have finished are archived.
    task: JoinHandle<bool>,
}

impl RunningArchive {
    /// Runs this as a task until the receiver has `true`. It returns whether all paths that have finished are archived.
    pub(crate) fn spawn<F: Future<Output = bool> + Send + 'static>(
        run: impl FnOnce(watch::Receiver<bool>) -> F,
    ) -> Self {
        let (stop, stopped) = watch::channel(false);
        Self { stop, task: tokio::spawn(run(stopped)) }
    }

    /// Ends the task where it is, as a crash does.
    #[cfg(test)]
    pub(super) fn kill(self) {
        self.task.abort();
    }

    /// Archives the paths that have finished by now, and ends the task. Returns whether all were archived in this time.
    pub async fn finish(self, within: Duration) -> bool {
        self.stop.send_replace(true);
        let mut task = self.task;
        let ended = timeout(within, &mut task).await;
        task.abort();
        matches!(ended, Ok(Ok(true)))
    }
}

impl<S: FinishedSource> Archiver<S> {
    /// An archiver that has not begun.
    #[must_use]
    pub fn new(
        storage: Storage,
        source: S,
        options: Options,
        annotate: CurrentAnnotate,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { storage, source, options, annotate, metrics }
    }

    /// Where the paths come from.
    pub(crate) fn source(&self) -> &S {
        &self.source
    }

    /// Runs as a task.
    #[must_use]
    pub fn spawn(self) -> RunningArchive {
        RunningArchive::spawn(|stop| async move { self.run(stop).await })
    }

    /// Archives paths until `stop` is true and all paths that have finished are archived. Returns `false` if the source then fails.
    pub async fn run(&self, stop: watch::Receiver<bool>) -> bool {
        let partitions = self.source.partitions();
        let ages: Vec<Age> = (0..partitions).map(|_| Age::default()).collect();
        let bytes = (self.options.bytes / u64::from(partitions.max(1))).max(1);
        let workers: Vec<_> = (0..partitions).map(|partition| Worker { archiver: self, partition, bytes }).collect();
        let working = join_all(workers.iter().zip(&ages).map(|(worker, age)| worker.run(age, stop.clone())));
        let complete = tokio::select! {
            complete = working => complete,
            never = self.watch_age(&ages) => match never {},
        };
        let is_complete = complete.into_iter().all(|is_complete| is_complete);
        if is_complete {
            self.metrics.archive.oldest.set(0.0);
        }
        is_complete
    }

    /// Sets the age of the oldest path in the metrics. Never ends.
    async fn watch_age(&self, ages: &[Age]) -> Infallible {
        loop {
            let oldest = ages.iter().filter_map(Age::since).min();
            self.metrics.archive.oldest.set(oldest.map_or(0.0, |since| since.elapsed().as_secs_f64()));
            sleep(AGE_INTERVAL).await;
        }
    }
}

/// The earliest time at which the oldest unarchived path of a partition can have finished.
#[derive(Debug, Default)]
struct Age(Mutex<Option<Instant>>);

impl Age {
    fn since(&self) -> Option<Instant> {
        *self.0.lock()
    }

    fn set(&self, since: Option<Instant>) {
        *self.0.lock() = since;
    }
}

/// Archives one partition.
struct Worker<'a, S> {
    archiver: &'a Archiver<S>,
    partition: u32,
    /// The bytes of a full batch.
    bytes: u64,
}

impl<S: FinishedSource> Worker<'_, S> {
    /// Returns whether all paths that have finished are archived.
    async fn run(&self, age: &Age, mut stop: watch::Receiver<bool>) -> bool {
        let Archiver { source, storage, options, .. } = self.archiver;
        // until it is known what is archived
        age.set(Some(Instant::now()));
        let opened = self.retry("open", &mut stop, || Chain::open(storage, source, self.partition)).await;
        let Some(mut chain) = opened else { return false };
        let mut batch = Batch::default();
        // all paths that finished before are archived or in the batch
        let mut complete = Instant::now();
        loop {
            let begun = Instant::now();
            let is_stopping = *stop.borrow();
            let Some(all) = self.retry("read", &mut stop, || self.read(&chain, &batch)).await else { return false };
            if !all.is_empty() {
                batch.since.get_or_insert(complete);
            }
            let is_more = all.len() >= source.page();
            batch.add(all, self.bytes);
            let is_full = batch.is_full(self.bytes);
            if !is_more && !is_full {
                complete = begun;
            }
            age.set(batch.since);
            let deadline = batch.since.map(|since| since + options.interval);
            let is_due = is_full || is_stopping || deadline.is_some_and(|deadline| deadline <= Instant::now());
            if !batch.is_empty() && (is_full || (is_due && !is_more)) {
                let is_written = self.write(&mut chain, std::mem::take(&mut batch), &mut stop).await.is_some();
                if is_written {
                    age.set(None);
                }
                // other processes of a fleet may go on without an end
                if is_stopping && !(is_full && is_written) {
                    return is_written;
                }
                continue;
            }
            if is_more {
                continue;
            }
            if is_stopping {
                return true;
            }
            let after = batch.end().unwrap_or(&chain.position).clone();
            tokio::select! {
                () = source.changed(self.partition, &after) => {
                    if batch.is_empty() {
                        // nothing had finished until now
                        complete = Instant::now();
                        self.catch_up(&mut chain, &mut stop).await;
                    }
                    tokio::select! {
                        () = sleep(COALESCE) => {}
                        _ = stop.changed() => {}
                    }
                }
                () = wait_until(deadline) => {}
                // an error means that the sender is gone, so no stop can follow
                Ok(()) = stop.changed() => {}
            }
        }
    }

    /// Advances the chain past the manifests of other archivers.
    async fn catch_up(&self, chain: &mut Chain, stop: &mut watch::Receiver<bool>) {
        let storage = &self.archiver.storage;
        let own = chain.clone();
        let advanced = || {
            let mut chain = own.clone();
            async move {
                if chain.next(storage).await?.is_some() {
                    chain.follow(storage).await?;
                }
                Ok(chain)
            }
        };
        if let Some(advanced) = self.retry("open", stop, advanced).await {
            *chain = advanced;
        }
    }

    /// The entries after the batch.
    async fn read(&self, chain: &Chain, batch: &Batch) -> Result<Vec<super::Entry>, ArchiveError> {
        let after = batch.end().unwrap_or(&chain.position);
        let source = &self.archiver.source;
        source.next(self.partition, after, source.page()).await
    }

    /// Archives a batch: the data files, then the manifest. If another archiver has added a manifest in its place, the chain continues
    /// after that one, and the source has the paths that it does not cover. `None` if the batch is not archived.
    async fn write(&self, chain: &mut Chain, mut batch: Batch, stop: &mut watch::Receiver<bool>) -> Option<()> {
        let Archiver { source, storage, annotate, metrics, .. } = self.archiver;
        let length = batch.len();
        let present = self.retry("read", stop, || source.next(self.partition, &chain.position, length)).await?;
        batch.refresh(present);
        let (annotate, end) = (annotate(), chain.clone());
        let encoded = tokio::task::spawn_blocking(move || encode(batch, &end, &annotate)).await;
        let EncodedBatch { manifest, objects } = match encoded {
            Ok(Some(encoded)) => encoded,
            Ok(None) => return Some(()),
            // the process is ending, or a path cannot be encoded: then its batch is tried again, and the log says why
            Err(error) => {
                metrics.archive.failures.with_label_values(&["encode"]).inc();
                tracing::error!(%error, "finished paths cannot be encoded for the archive");
                sleep(LONGEST_PAUSE).await;
                return None;
            }
        };
        let size: u64 = objects.iter().map(|(_, content)| content.len() as u64).sum();
        for (name, content) in objects {
            self.retry("data", stop, || storage.put(&name, content.clone())).await?;
        }
        match self.retry("manifest", stop, || Chain::add(storage, &manifest)).await? {
            AddOutcome::Own => {
                let archive = &metrics.archive;
                archive.rows.inc_by(manifest.rows);
                archive.bytes.inc_by(size);
                for missed in &manifest.missed {
                    archive.missed.with_label_values(&[&missed.reason]).inc_by(missed.count.unwrap_or(1));
                }
                if !manifest.missed.is_empty() {
                    tracing::warn!(
                        missed = manifest.missed_paths(),
                        manifest = manifest.name(),
                        "finished paths were gone before they were archived"
                    );
                }
                tracing::debug!(rows = manifest.rows, bytes = size, manifest = manifest.name(), "archived");
                chain.pass(&manifest);
            }
            AddOutcome::Other(other) => {
                tracing::debug!(manifest = other.name(), "another archiver has archived these paths");
                chain.pass(&other);
            }
        }
        Some(())
    }

    /// Repeats an operation until it succeeds, with pauses that grow. Each failure is counted; the first one and every tenth are logged. Once
    /// it is stopping, a source that fails [`FINAL_ATTEMPTS`] times ends it with `None`: the source keeps the paths, and any process archives
    /// them later. So does a manifest of another version, after which this build writes nothing.
    async fn retry<T, F: Future<Output = Result<T, ArchiveError>>>(
        &self,
        step: &'static str,
        stop: &mut watch::Receiver<bool>,
        mut operation: impl FnMut() -> F,
    ) -> Option<T> {
        let (mut failures, mut final_attempts) = (0_u32, 0);
        loop {
            let error = match operation().await {
                Ok(done) => return Some(done),
                Err(error) => error,
            };
            self.archiver.metrics.archive.failures.with_label_values(&[step]).inc();
            if failures.is_multiple_of(10) {
                tracing::warn!(step, %error, failures, "the archive cannot be written or read");
            }
            let pause = (FIRST_PAUSE * (1 << failures.min(6))).min(LONGEST_PAUSE);
            failures += 1;
            if *stop.borrow() && matches!(error, ArchiveError::Source(_) | ArchiveError::OtherVersion { .. }) {
                final_attempts += 1;
                if final_attempts == FINAL_ATTEMPTS {
                    return None;
                }
            }
            // a drain does not wait for the whole pause
            let pause = if *stop.borrow() { FIRST_PAUSE.min(pause) } else { pause };
            tokio::select! {
                () = sleep(pause) => {}
                Ok(()) = stop.changed() => {}
            }
        }
    }
}

async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

impl<S> std::fmt::Debug for Archiver<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Archiver")
            .field("storage", &self.storage)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
