//! Where finished paths come from.

use std::sync::Arc;

use super::{ArchiveError, Position};
use crate::generation::log_wait::LogWait;
use crate::session::{Classes, Path, Store};

/// Finished paths in partitions, each in the order of positions that rise and are never reused.
pub trait FinishedSource: Send + Sync + 'static {
    /// The id of the store: a position has a meaning only together with it. It is part of the names of objects.
    fn store_id(&self) -> String;

    /// The number of partitions.
    fn partitions(&self) -> u32;

    /// The position before the first path.
    fn start(&self) -> Position;

    /// The last position when the source was opened, if the source may have lost positions that it had given to an archive before; a
    /// crash of the machine loses the end of a log. `None` if it never loses positions.
    fn recovered(&self, partition: u32) -> Option<Position>;

    /// The number of entries that are read at once. Their paths are in memory beside the batch.
    fn page(&self) -> usize;

    /// Waits until there may be a path after this position. May be cancelled.
    fn changed(&self, partition: u32, after: &Position) -> impl Future<Output = ()> + Send;

    /// The entries after this position, at most `limit`, in order. They are durable in the source: their positions keep their meaning.
    ///
    /// # Errors
    /// When the source cannot be read. The caller tries again.
    fn next(
        &self,
        partition: u32,
        after: &Position,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Entry>, ArchiveError>> + Send;
}

/// What a source has at a position.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The position; of several missed paths the last one.
    pub position: Position,
    /// The path, or the reason why it cannot be archived.
    pub content: Content,
}

/// The content of an entry.
#[derive(Debug, Clone)]
pub enum Content {
    /// A finished path with its settled loss mask.
    Path(Path),
    /// A path that is not a row, and the reason.
    Excluded(&'static str),
    /// Paths that the source no longer has.
    Missed {
        /// Their number; `None` if it is unknown.
        count: Option<u64>,
        /// `evicted`, `deleted`, `unlisted` or `unreadable`.
        reason: &'static str,
        /// Their session, if it is known.
        session: Option<Arc<str>>,
    },
}

/// The finished paths of this process: one partition, whose positions are the numbers of `GET /v1/trajectories`.
#[derive(Debug)]
pub struct LocalSource {
    store: Arc<Store>,
    log_wait: Arc<LogWait>,
    /// The number of the last path that was restored.
    recovered: u64,
}

impl LocalSource {
    /// The finished paths of this store. Call it when the sessions have been restored.
    #[must_use]
    pub fn new(store: Arc<Store>, log_wait: Arc<LogWait>) -> Self {
        Self { recovered: store.last_finished(), store, log_wait }
    }
}

impl FinishedSource for LocalSource {
    fn store_id(&self) -> String {
        self.store.name().to_owned()
    }

    fn partitions(&self) -> u32 {
        1
    }

    fn start(&self) -> Position {
        Position::from(0)
    }

    fn recovered(&self, _: u32) -> Option<Position> {
        Some(Position::from(self.recovered))
    }

    fn page(&self) -> usize {
        512
    }

    async fn changed(&self, _: u32, after: &Position) {
        let mut finished = self.store.watch_finished();
        let after = after.number().unwrap_or(u64::MAX);
        while self.store.last_finished() <= after {
            if finished.changed().await.is_err() {
                // the store is gone, and so is what could finish
                std::future::pending::<()>().await;
            }
        }
    }

    async fn next(&self, _: u32, after: &Position, limit: usize) -> Result<Vec<Entry>, ArchiveError> {
        let Some(after) = after.number() else {
            return Err(ArchiveError::Source(format!("{after} is not a position of a local store")));
        };
        let store = Arc::clone(&self.store);
        let entries = tokio::task::spawn_blocking(move || read(&store, after, limit)).await;
        let entries = entries.map_err(|error| ArchiveError::Source(error.to_string()))?;
        // a position must refer to the same path after a crash
        self.log_wait.wait(vec![self.store.written()]).await;
        Ok(entries)
    }
}

/// The entries of a store after this number.
fn read(store: &Store, mut after: u64, limit: usize) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (number, name) in store.finished_after(after, limit) {
        if number > after + 1 {
            let content = Content::Missed { count: Some(number - after - 1), reason: "unlisted", session: None };
            entries.push(Entry { position: Position::from(number - 1), content });
        }
        after = number;
        let path = store.session(&name).and_then(|session| session.finished(number, Classes::default()));
        let content = match path {
            Some(Ok(path)) => Content::Path(path),
            Some(Err(excluded)) => Content::Excluded(excluded.reason),
            None => {
                let reason = store.eviction_of(&name).map_or("deleted", |_| "evicted");
                Content::Missed { count: Some(1), reason, session: Some(name) }
            }
        };
        entries.push(Entry { position: Position::from(number), content });
    }
    entries
}
