// SPDX-License-Identifier: Apache-2.0
//! Sessions that several processes share through a ledger.
//!
//! A session in memory is the fold of its list in the ledger, and a cache of it. A turn is placed after the entries that this process has
//! read, and appended if the list still ends there; otherwise the new entries are read first, and the turn is placed again. A turn that
//! the ledger does not confirm in time is *detached*: it is in this process and in the local log, and is appended later.

mod annotate;
mod background;
mod deletions;
mod detached;
mod image_sync;
mod images;
mod import;
mod list_cache;
mod listing;
mod merge;
mod missing;
#[cfg(test)]
mod simulation;
mod spill;
mod stream;
mod turns;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::Uid;
use super::ledger::{Append, Appended, Entry, Ledger, LedgerError, PARTITIONS, partition_of};
use super::store::Store;
use deletions::Deletions;
use images::ImagesFailing;
pub use import::{Imported, Importer, SkipReason};
use list_cache::ListCache;
pub(super) use listing::{FleetPage, FleetQuery, LastUseCursor};
use spill::SpilledTurns;
pub use stream::Consumer;
pub(super) use stream::{FleetCursor, LoadedPath};
use turns::Queue;

/// How long replies do not wait for replicas that did not confirm in time.
const UNREPLICATED_PAUSE: Duration = Duration::from_secs(10);

/// Limits of sharing.
#[derive(Debug, Clone, Copy)]
pub struct SharingLimits {
    /// The longest time that a reply waits for the ledger.
    pub timeout: Duration,
    /// A session that no process used for this long has finished.
    pub idle: Duration,
}

/// A ledger that processes share, and how this one uses it.
#[derive(Debug, Clone)]
pub struct SharedLedger {
    /// The ledger.
    pub ledger: Arc<dyn Ledger>,
    /// The limits.
    pub limits: SharingLimits,
}

/// Counts since the start of the process.
#[derive(Debug, Default)]
pub struct SharingCounts {
    /// Turns that the ledger confirmed in time.
    pub confirmed: AtomicU64,
    /// Turns that were detached.
    pub detached: AtomicU64,
    /// Turns that were appended after they had been detached.
    pub joined: AtomicU64,
    /// Detached turns that are in the local log only, because the memory was full of them.
    pub spilled: AtomicU64,
    /// Detached turns that were lost, because the memory was full of them, and there was no local log or it is damaged.
    pub left_out: AtomicU64,
    /// Appends that were repeated, because another process had appended.
    pub behind: AtomicU64,
    /// Records that the ledger had lost and that were appended again.
    pub healed: AtomicU64,
    /// Frozen versions and rewards that the ledger had lost and that could not be appended again.
    pub unhealed: AtomicU64,
    /// Pictures that this process stored in the ledger.
    pub images_stored: AtomicU64,
    /// Pictures that had no room in the ledger.
    pub images_refused: AtomicU64,
    /// Operations on pictures that failed.
    pub images_failed: AtomicU64,
    /// Pictures that this process read from the ledger.
    pub images_read: AtomicU64,
    /// Pictures of which the ledger had only references when this process asked for them.
    pub images_absent: AtomicU64,
    /// Times that the ledger could not be used.
    pub failures: AtomicU64,
}

/// The lines of one partition, by session.
type Lines = HashMap<Arc<str>, Arc<Line>>;

/// The sessions of a process that shares them with others.
#[derive(Debug)]
pub(super) struct Sharing {
    /// The sessions in memory. The ledger has all of them that may be evicted.
    pub(super) store: Arc<Store>,
    pub(super) ledger: Arc<dyn Ledger>,
    limits: SharingLimits,
    // one map for each partition; locked for one access, never across an await
    lines: Box<[Mutex<Lines>]>,
    /// The sessions with changes that are not in the ledger; ordered, so that a test with a fixed seed repeats.
    unsettled: Mutex<BTreeSet<Arc<str>>>,
    /// The first of them that the next settlement tries, if the one before ended early.
    settle_from: Mutex<Option<Arc<str>>>,
    /// The sessions with turns that are in the local log only.
    spilled: Mutex<BTreeMap<Arc<str>, SpilledTurns>>,
    /// The partitions that failed lately. Replies do not wait for them then. Those of a cluster fail on their own.
    down: Box<[AtomicBool]>,
    /// Whether the id of the fleet could not be read.
    is_fleet_unknown: AtomicBool,
    /// Until then replies do not wait for replicas, because these did not confirm in time.
    unreplicated_until: Mutex<Option<Instant>>,
    /// The sessions whose pictures are to be stored or marked as used.
    due_images: Mutex<BTreeSet<Arc<str>>>,
    /// Since when pictures fail, and when they are tried again.
    images_failing: Mutex<Option<ImagesFailing>>,
    /// The last session of [`Self::due_images`] that was tried.
    last_due_images: Mutex<Option<Arc<str>>>,
    /// Locked while scores are appended.
    scoring: tokio::sync::Mutex<()>,
    /// Sessions that this process has deleted.
    deletions: Deletions,
    /// Incremented when the ledger has lost all data.
    losses: AtomicU64,
    /// Changes when the ledger may have lost entries.
    disruptions: watch::Receiver<u64>,
    /// The fleet of the ledger, once it is known.
    fleet: Mutex<Option<Arc<str>>>,
    pub(super) counts: SharingCounts,
}

/// Serializes the operations on one session name.
#[derive(Debug)]
struct Line {
    name: Arc<str>,
    known: tokio::sync::Mutex<ListCache>,
    // locked for one access, never across an await
    queue: Mutex<Queue>,
    /// The number of the last deletion of the session by this process; 0 if it has not deleted it.
    deletion: AtomicU64,
}

/// A text that is not a cursor of shared sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InvalidCursor;

/// A list that did not end where an append expected it.
struct Outdated;

/// The error of an operation of a partition that needs the id of the fleet, which may be on another primary.
fn fleet_unknown(error: LedgerError) -> LedgerError {
    LedgerError::FleetUnknown(error.to_string().into())
}

impl Sharing {
    pub(super) fn new(store: Arc<Store>, SharedLedger { ledger, limits }: SharedLedger) -> Self {
        Self {
            store,
            disruptions: ledger.disruptions(),
            ledger,
            limits,
            lines: (0..PARTITIONS).map(|_| Mutex::default()).collect(),
            unsettled: Mutex::default(),
            settle_from: Mutex::default(),
            spilled: Mutex::default(),
            down: (0..PARTITIONS).map(|_| AtomicBool::new(false)).collect(),
            is_fleet_unknown: AtomicBool::new(false),
            unreplicated_until: Mutex::default(),
            due_images: Mutex::default(),
            images_failing: Mutex::default(),
            last_due_images: Mutex::default(),
            scoring: tokio::sync::Mutex::default(),
            deletions: Deletions::new(),
            losses: AtomicU64::new(0),
            fleet: Mutex::default(),
            counts: SharingCounts::default(),
        }
    }

    /// A number that changes when the ledger may have lost entries.
    fn suspicion(&self) -> u64 {
        self.losses.load(Ordering::Relaxed) + *self.disruptions.borrow()
    }

    /// The lines of the sessions of one partition.
    fn lines(&self, partition: u16) -> MutexGuard<'_, Lines> {
        self.lines[usize::from(partition)].lock()
    }

    fn line(&self, name: &Arc<str>) -> Arc<Line> {
        let mut lines = self.lines(partition_of(name));
        let line = lines.entry(Arc::clone(name)).or_insert_with(|| {
            let (known, queue) = (tokio::sync::Mutex::default(), Mutex::default());
            Arc::new(Line { name: Arc::clone(name), known, queue, deletion: AtomicU64::new(0) })
        });
        Arc::clone(line)
    }

    /// Reads the entries that other processes have appended to a session, and loads the session if it is not in memory.
    ///
    /// # Errors
    /// When the ledger fails. The session in memory may be outdated then.
    pub(super) async fn refresh(&self, name: &Arc<str>) -> Result<(), LedgerError> {
        match self.refresh_entries(name).await? {
            Some(line) => self.read_images(&line).await,
            None => Ok(()),
        }
    }

    /// The same for a call of an agent, which waits for pictures no longer than for entries.
    pub(super) async fn refresh_for_call(&self, name: &Arc<str>) -> Result<(), LedgerError> {
        let Some(line) = self.refresh_entries(name).await? else { return Ok(()) };
        self.within_timeout(None, self.read_images(&line)).await
    }

    /// The same without the pictures.
    pub(super) async fn refresh_turns(&self, name: &Arc<str>) -> Result<(), LedgerError> {
        self.refresh_entries(name).await.map(drop)
    }

    /// The same. Returns the line of a session that has pictures to be read.
    async fn refresh_entries(&self, name: &Arc<str>) -> Result<Option<Arc<Line>>, LedgerError> {
        if self.is_down(name) {
            return Err(LedgerError::Unavailable("it failed a moment ago".into()));
        }
        let line = self.line(name);
        let has_unread = self.within_timeout(Some(partition_of(name)), async {
            let mut known = line.known.lock().await;
            // the rest is in memory
            self.settle_available(&line, &mut known, true).await?;
            self.load(&line, &mut known).await?;
            Ok(known.images.has_unread())
        });
        Ok(has_unread.await?.then_some(line))
    }

    /// Runs an operation within the time limit, and notes whether the partition fails, if it is an operation of one.
    async fn within_timeout<T>(
        &self,
        partition: Option<u16>,
        operation: impl Future<Output = Result<T, LedgerError>>,
    ) -> Result<T, LedgerError> {
        let timeout = self.limits.timeout;
        let result = timeout_at(Instant::now() + timeout, operation).await;
        let result = result.unwrap_or(Err(LedgerError::Timeout(timeout)));
        // the ledger works if pictures are awaited
        if let Some(error) = result.as_ref().err().filter(|error| !matches!(error, LedgerError::AwaitsImages)) {
            self.counts.failures.fetch_add(1, Ordering::Relaxed);
            // other errors can be those of one session
            if let (LedgerError::Unavailable(_), Some(partition)) = (error, partition) {
                self.mark_down(&[partition], error);
            }
        }
        result
    }

    /// Whether the partition of a session failed lately.
    fn is_down(&self, session: &str) -> bool {
        self.is_partition_down(partition_of(session))
    }

    fn is_partition_down(&self, partition: u16) -> bool {
        self.down[usize::from(partition)].load(Ordering::Relaxed)
    }

    fn is_any_partition_down(&self) -> bool {
        self.down.iter().any(|is_down| is_down.load(Ordering::Relaxed))
    }

    /// Whether any partition failed lately, or the id of the fleet could not be read.
    pub(super) fn is_any_down(&self) -> bool {
        self.is_fleet_unknown.load(Ordering::Relaxed) || self.is_any_partition_down()
    }

    fn mark_down(&self, partitions: &[u16], error: &LedgerError) {
        let was_any_down = self.is_any_partition_down();
        for partition in partitions {
            self.down[usize::from(*partition)].store(true, Ordering::Relaxed);
        }
        if !was_any_down {
            let all = partitions.len() == usize::from(PARTITIONS);
            tracing::error!(%error, all, "partitions of the shared ledger fail: their turns are not shared until it works again");
        }
    }

    /// Appends entries after the confirmed ones. The caller applies them if the result is `Ok(Ok(_))`, which tells whether replicas have
    /// confirmed them.
    async fn append(
        &self,
        line: &Line,
        known: &ListCache,
        entries: &[Entry],
        finished: Vec<Uid>,
        in_use: bool,
    ) -> Result<Result<bool, Outdated>, LedgerError> {
        if self.fleet.lock().is_none() {
            // otherwise a loss of all data before the first round would not be noticed
            self.check_fleet().await.map_err(fleet_unknown)?;
        }
        let session = Arc::clone(&line.name);
        let begun_ago = known.log.first().map_or(Duration::ZERO, |begin| begin.at.elapsed());
        let append = Append { session, after: known.position, entries: entries.to_vec(), finished, in_use, begun_ago };
        match self.ledger.append(append).await? {
            Appended::Stored { replicated } => Ok(Ok(replicated)),
            Appended::Behind | Appended::Gone => {
                self.counts.behind.fetch_add(1, Ordering::Relaxed);
                Ok(Err(Outdated))
            }
        }
    }

    /// Waits until replicas have confirmed all appends of this process to the session. `before` is the suspicion before the last one.
    ///
    /// # Errors
    /// [`LedgerError::Unconfirmed`] after a disruption, because another primary confirms entries that it does not have, and after three
    /// quarters of the time limit. Replies do not wait for replicas for some time then.
    async fn replicated(&self, line: &Line, before: u64) -> Result<(), LedgerError> {
        let until = |sharing: &Self| *sharing.unreplicated_until.lock();
        let deadline = Instant::now() + self.limits.timeout * 3 / 4;
        loop {
            let is_paused = until(self).is_some_and(|until| Instant::now() < until);
            let is_replicated = self.ledger.is_replicated(&line.name).await?;
            if self.suspicion() != before {
                return Err(LedgerError::Unconfirmed);
            }
            if is_replicated {
                return Ok(());
            }
            if is_paused || Instant::now() >= deadline {
                if !is_paused {
                    let next = Some(Instant::now() + UNREPLICATED_PAUSE);
                    *self.unreplicated_until.lock() = next;
                    tracing::error!("replicas of the shared ledger do not confirm turns in time");
                }
                return Err(LedgerError::Unconfirmed);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
