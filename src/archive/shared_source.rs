//! The finished paths of all processes that share a ledger.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{ArchiveError, Content, Entry, FinishedSource, Position};
use crate::session::ledger::{LedgerError, PARTITIONS, StreamId};
use crate::session::{Classes, PartitionPath, Sharing, Store, Uid};

/// How long a claim of a partition lasts. A process that ends leaves its partitions unclaimed for this time.
const LEASE: Duration = Duration::from_secs(15);

/// The time between two claims of a partition that this process has.
const RENEWAL: Duration = Duration::from_secs(5);

/// The time between two attempts to claim a partition that another process has.
const ATTEMPT: Duration = Duration::from_secs(5);

/// The time between two questions for new paths of a partition that this process has.
const POLL: Duration = Duration::from_secs(1);

/// How long paths wait whose sessions this version cannot read. A process of a later version may take the partition over and archive them.
const UNREADABLE: Duration = Duration::from_secs(3600);

/// How long a partition with such a path is left to other processes.
const RELEASE: Duration = Duration::from_secs(60);

/// What this process knows of its claim of a partition.
#[derive(Debug, Default)]
struct Claim {
    /// When it was last claimed; `None` if another process has it.
    at: Option<Instant>,
    /// It is not claimed before.
    released_until: Option<Instant>,
    /// The first path that cannot be read, and when it was found.
    unreadable: Option<(StreamId, Instant)>,
}

/// The finished paths of a fleet: one partition for each stream of the ledger, whose positions are the ids in it. This process reads the
/// partitions that it has claimed, so that processes divide the work.
#[derive(Debug)]
pub(crate) struct SharedSource {
    store: Arc<Store>,
    sharing: Arc<Sharing>,
    fleet: Arc<str>,
    owner: Uid,
    claims: Box<[Mutex<Claim>]>,
    /// The last claim failed.
    claims_fail: AtomicBool,
}

impl SharedSource {
    /// The finished paths of the fleet.
    ///
    /// # Errors
    /// When the ledger fails.
    pub(crate) async fn open(store: &Arc<Store>, sharing: &Arc<Sharing>) -> Result<Self, ArchiveError> {
        let fleet = sharing.fleet().await.map_err(failed)?;
        Ok(Self {
            store: Arc::clone(store),
            sharing: Arc::clone(sharing),
            fleet,
            owner: Uid::unique(),
            claims: (0..PARTITIONS).map(|_| Mutex::default()).collect(),
            claims_fail: AtomicBool::new(false),
        })
    }

    /// Waits until the ledger is known to have lost all data. The positions of this source have no meaning then.
    pub(crate) async fn lost(&self) {
        while self.sharing.last_fleet().is_none_or(|fleet| fleet == self.fleet) {
            sleep(POLL).await;
        }
    }

    fn state(&self, partition: u16) -> MutexGuard<'_, Claim> {
        self.claims[usize::from(partition)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process has the partition. A claim that is due is renewed.
    async fn claim(&self, partition: u16) -> bool {
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
        let claimed = self.sharing.claim(partition, self.owner, LEASE).await;
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

    /// The paths before the first one that cannot be read; all, if that one has waited long enough.
    ///
    /// # Errors
    /// [`ArchiveError::Source`] when the first path cannot be read. Other processes can claim the partition for a minute then.
    fn readable(&self, partition: u16, mut paths: Vec<PartitionPath>) -> Result<Vec<PartitionPath>, ArchiveError> {
        let unreadable = paths.iter().position(|path| matches!(path.found, Err("unreadable")));
        let mut state = self.state(partition);
        let Some(at) = unreadable else { return Ok(paths) };
        let (id, now) = (paths[at].id, Instant::now());
        let since = state.unreadable.filter(|(known, _)| *known == id).map_or(now, |(_, since)| since);
        state.unreadable = Some((id, since));
        if now - since >= UNREADABLE {
            return Ok(paths);
        }
        if at == 0 {
            (state.at, state.released_until) = (None, Some(now + RELEASE));
            let session = &paths[0].session;
            return Err(ArchiveError::Source(format!(
                "entries of session {session:?} are damaged or of a later version of tokentap"
            )));
        }
        paths.truncate(at);
        Ok(paths)
    }
}

/// The pause before the first attempt to claim a partition. It is random, so that processes that begin together divide the partitions.
fn first_pause() -> Duration {
    let random = RandomState::new().hash_one(0);
    Duration::from_millis(random % u64::try_from(ATTEMPT.as_millis()).unwrap_or(1))
}

impl FinishedSource for SharedSource {
    fn store_id(&self) -> String {
        self.fleet.to_string()
    }

    fn partitions(&self) -> u32 {
        u32::from(PARTITIONS)
    }

    fn start(&self) -> Position {
        Position::from(StreamId::default())
    }

    fn recovered(&self, _: u32) -> Option<Position> {
        // ids follow the clock of the ledger; see the decisions about one that is behind after a failover
        None
    }

    fn page(&self) -> usize {
        // each of them may need a session that is not in memory, and there are many partitions
        16
    }

    async fn changed(&self, partition: u32, after: &Position) {
        let Some((partition, after)) = place(partition, after) else { return std::future::pending().await };
        if self.state(partition).at.is_none() {
            sleep(first_pause()).await;
        }
        loop {
            if !self.claim(partition).await {
                sleep(ATTEMPT).await;
                continue;
            }
            match self.sharing.has_finished(partition, after).await {
                Ok(true) => return,
                _ => sleep(POLL).await,
            }
        }
    }

    async fn next(&self, partition: u32, after: &Position, limit: usize) -> Result<Vec<Entry>, ArchiveError> {
        let Some((partition, after)) = place(partition, after) else {
            return Err(ArchiveError::Source(format!("{after} is not a position of a shared ledger")));
        };
        if self.state(partition).at.is_none() {
            return Ok(Vec::new());
        }
        let page = self.sharing.finished_in(&self.store, partition, after, limit).await.map_err(failed)?;
        // the answer may be that of a ledger that has lost all data
        if self.sharing.fleet().await.map_err(failed)? != self.fleet {
            return Err(ArchiveError::Source("the shared ledger has lost its data".to_owned()));
        }
        let mut entries = Vec::with_capacity(page.paths.len() + 1);
        if page.trimmed
            && let Some(first) = page.paths.first()
        {
            let content = Content::Missed { count: None, reason: "unlisted", session: None };
            entries.push(Entry { position: Position::from(before(first.id)), content });
        }
        let paths = self.readable(partition, page.paths)?;
        let read = tokio::task::spawn_blocking(move || paths.into_iter().map(entry).collect::<Vec<_>>()).await;
        entries.extend(read.map_err(|error| ArchiveError::Source(error.to_string()))?);
        Ok(entries)
    }
}

/// The entry of a finished path.
fn entry(path: PartitionPath) -> Entry {
    let content = match path.found {
        Ok((session, number)) => match session.finished(number, Classes::default()) {
            Some(Ok(path)) => Content::Path(path),
            Some(Err(excluded)) => Content::Excluded(excluded.reason),
            None => Content::Missed { count: Some(1), reason: "deleted", session: Some(path.session) },
        },
        Err(reason) => Content::Missed { count: Some(1), reason, session: Some(path.session) },
    };
    Entry { position: Position::from(path.id), content }
}

/// The greatest id below this one.
fn before(id: StreamId) -> StreamId {
    match id.seq.checked_sub(1) {
        Some(seq) => StreamId { seq, ..id },
        None => StreamId { ms: id.ms.saturating_sub(1), seq: u64::MAX },
    }
}

fn place(partition: u32, position: &Position) -> Option<(u16, StreamId)> {
    Some((u16::try_from(partition).ok().filter(|partition| *partition < PARTITIONS)?, position.stream_id()?))
}

#[expect(clippy::needless_pass_by_value, reason = "it is an argument of map_err")]
fn failed(error: LedgerError) -> ArchiveError {
    ArchiveError::Source(error.to_string())
}
