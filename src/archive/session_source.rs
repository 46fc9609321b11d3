// SPDX-License-Identifier: Apache-2.0
//! The finished paths of the sessions: of this process, or of all processes that share a ledger.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep};

use super::{ArchiveError, Content, Entry, FinishedSource, Position};
use crate::generation::log_wait::LogWait;
use crate::session::{
    Classes, FinishedCursor, FinishedItem, FinishedLimits, FinishedPartitions, ListedPath, NoPath, Sessions, Uid,
};

/// How long a claim of a partition lasts. A process that ends leaves its partitions unclaimed for this time.
const LEASE: Duration = Duration::from_secs(15);

/// The time between two claims of a partition that this process has.
const RENEWAL: Duration = Duration::from_secs(5);

/// The time between two attempts to claim a partition that another process has.
const ATTEMPT: Duration = Duration::from_secs(5);

/// The interval of the checks for new paths of a claimed partition.
const POLL: Duration = Duration::from_secs(1);

/// How long a path waits whose session this version cannot read. A process of a later version may take over the partition and archive it.
const UNREADABLE: Duration = Duration::from_secs(3600);

/// How long this process does not claim a partition with an unreadable path, so that another one can.
const RELEASE: Duration = Duration::from_secs(60);

/// Entries that are read at once, in all partitions, and of one partition at least. Each may need a session that is not in memory.
const PAGE: usize = 512;
const LEAST_PAGE: usize = 16;

/// The claim of this process on a partition.
#[derive(Debug, Default)]
struct Claim {
    /// When it was last claimed; `None` if another process has it.
    at: Option<Instant>,
    /// It is not claimed before.
    released_until: Option<Instant>,
    /// The first path that cannot be read, and when it was found.
    unreadable: Option<(FinishedCursor, Instant)>,
}

/// The finished paths of the sessions. If there are several partitions, this process reads those that it has claimed, so that processes
/// divide the work.
#[derive(Debug)]
pub struct SessionSource {
    sessions: Arc<Sessions>,
    log_wait: Arc<LogWait>,
    partitions: FinishedPartitions,
    owner: Uid,
    claims: Box<[Mutex<Claim>]>,
    /// The last claim failed.
    claims_fail: AtomicBool,
}

impl SessionSource {
    /// The finished paths. Call it when the sessions have been restored.
    ///
    /// # Errors
    /// When the ledger fails.
    pub async fn open(sessions: &Arc<Sessions>, log_wait: &Arc<LogWait>) -> Result<Self, ArchiveError> {
        let partitions = sessions.finished_partitions().await.map_err(failed)?;
        Ok(Self {
            sessions: Arc::clone(sessions),
            log_wait: Arc::clone(log_wait),
            owner: Uid::unique(),
            claims: (0..partitions.count).map(|_| Mutex::default()).collect(),
            claims_fail: AtomicBool::new(false),
            partitions,
        })
    }

    /// Waits until the positions of this source have no meaning any more: the ledger is known to have lost all data.
    pub async fn lost(&self) {
        self.sessions.lost(&self.partitions.start, POLL).await;
    }

    fn state(&self, partition: u16) -> MutexGuard<'_, Claim> {
        self.claims[usize::from(partition)].lock()
    }

    /// Whether this process has the partition. A single one needs no claim.
    fn has(&self, partition: u16) -> bool {
        self.partitions.count == 1 || self.state(partition).at.is_some()
    }

    /// Whether this process has the partition. A claim that is due is renewed.
    async fn claim(&self, partition: u16) -> bool {
        if self.partitions.count == 1 {
            return true;
        }
        let now = Instant::now();
        let (at, released_until) = {
            let state = self.state(partition);
            (state.at, state.released_until)
        };
        if at.is_some_and(|at| now - at < RENEWAL) {
            return true;
        }
        let is_released = at.is_none() && released_until.is_some_and(|until| now < until);
        if is_released {
            return false;
        }
        let claimed = self.sessions.claim(partition, self.owner, LEASE).await;
        match &claimed {
            Ok(_) => self.claims_fail.store(false, Ordering::Relaxed),
            Err(error) if !self.claims_fail.swap(true, Ordering::Relaxed) => {
                tracing::error!(%error, "partitions of the shared ledger cannot be claimed: their paths are not archived");
            }
            Err(_) => {}
        }
        let is_own = matches!(claimed, Ok(true));
        self.state(partition).at = is_own.then_some(now);
        is_own
    }

    /// The items before the first path that cannot be read; all, if that one has waited long enough.
    ///
    /// # Errors
    /// [`ArchiveError::Source`] when the first path cannot be read. Other processes can claim the partition for a minute then.
    fn readable(&self, partition: u16, mut items: Vec<FinishedItem>) -> Result<Vec<FinishedItem>, ArchiveError> {
        let unreadable = |item: &FinishedItem| match item {
            FinishedItem::Path(path) if path.is_unreadable() => Some((path.cursor.clone(), Arc::clone(&path.session))),
            _ => None,
        };
        let found = items.iter().enumerate().find_map(|(at, item)| Some((at, unreadable(item)?)));
        let Some((at, (cursor, session))) = found else { return Ok(items) };
        let (mut state, now) = (self.state(partition), Instant::now());
        let known = state.unreadable.as_ref().filter(|(known, _)| *known == cursor);
        let since = known.map_or(now, |(_, since)| *since);
        state.unreadable = Some((cursor, since));
        if now - since >= UNREADABLE {
            return Ok(items);
        }
        items.truncate(at);
        if !items.iter().any(|item| matches!(item, FinishedItem::Path(_))) {
            (state.at, state.released_until) = (None, Some(now + RELEASE));
            return Err(ArchiveError::Source(format!(
                "entries of session {session:?} are damaged or of a later version of tokentap"
            )));
        }
        Ok(items)
    }

    /// The partition and the cursor of a position.
    fn place(&self, partition: u32, position: &Position) -> Option<(u16, FinishedCursor)> {
        let partition = u16::try_from(partition).ok().filter(|partition| *partition < self.partitions.count)?;
        Some((partition, self.partitions.start.at(partition, position.as_str())?))
    }
}

/// The pause before the first attempt to claim a partition. It is random, so that processes that begin together divide the partitions.
fn first_pause() -> Duration {
    let random = RandomState::new().hash_one(0);
    Duration::from_millis(random % u64::try_from(ATTEMPT.as_millis()).unwrap_or(1))
}

impl FinishedSource for SessionSource {
    fn store_id(&self) -> String {
        self.partitions.start.store_id()
    }

    fn partitions(&self) -> u32 {
        u32::from(self.partitions.count)
    }

    fn start(&self) -> Position {
        position(&self.partitions.start, 0)
    }

    fn recovered(&self, partition: u32) -> Option<Position> {
        let recovered = self.partitions.recovered.as_ref()?;
        Some(position(recovered, u16::try_from(partition).ok()?))
    }

    fn page(&self) -> usize {
        (PAGE / usize::from(self.partitions.count)).max(LEAST_PAGE)
    }

    async fn changed(&self, partition: u32, after: &Position) {
        let Some((partition, after)) = self.place(partition, after) else { return std::future::pending().await };
        if !self.has(partition) {
            sleep(first_pause()).await;
        }
        let consumer = self.partitions.consumer(partition);
        loop {
            if !self.claim(partition).await {
                sleep(ATTEMPT).await;
                continue;
            }
            match self.sessions.has_finished(&after, consumer).await {
                Ok(true) => return,
                _ => self.sessions.wait_finished(&after, POLL).await,
            }
        }
    }

    async fn next(&self, partition: u32, after: &Position, limit: usize) -> Result<Vec<Entry>, ArchiveError> {
        let Some((partition, after)) = self.place(partition, after) else {
            return Err(ArchiveError::Source(format!("{after} is not a position of these sessions")));
        };
        if !self.has(partition) {
            return Ok(Vec::new());
        }
        let limits = FinishedLimits { consumer: self.partitions.consumer(partition), paths: Some(limit) };
        let list = self.sessions.finished(&after, limits).await.map_err(failed)?;
        let items = self.readable(partition, list.items)?;
        let read = move || items.into_iter().map(|item| entry(item, partition)).collect();
        let entries = tokio::task::spawn_blocking(read).await;
        let entries = entries.map_err(|error| ArchiveError::Source(error.to_string()))?;
        // a position must refer to the same path after a crash
        self.log_wait.wait(vec![list.written]).await;
        Ok(entries)
    }
}

/// The entry of an item.
fn entry(item: FinishedItem, partition: u16) -> Entry {
    let (cursor, content) = match item {
        FinishedItem::Missed { count, cursor } => {
            (cursor, Content::Missed { count, reason: "unlisted", session: None })
        }
        FinishedItem::Path(listed) => {
            let content = match listed.path(Classes::default()) {
                Ok(path) => Content::Path(path),
                Err(NoPath::Excluded(excluded)) => Content::Excluded(excluded.reason),
                Err(NoPath::Gone(reason)) => {
                    Content::Missed { count: Some(1), reason, session: Some(Arc::clone(&listed.session)) }
                }
            };
            let ListedPath { cursor, .. } = listed;
            (cursor, content)
        }
    };
    Entry { position: position(&cursor, partition), content }
}

fn position(cursor: &FinishedCursor, partition: u16) -> Position {
    Position::parse(&cursor.position(partition)).expect("it has digits and a hyphen")
}

fn failed(error: impl std::fmt::Display) -> ArchiveError {
    ArchiveError::Source(error.to_string())
}
