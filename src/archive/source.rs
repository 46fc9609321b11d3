// SPDX-License-Identifier: Apache-2.0
//! Where finished paths come from.

use std::sync::Arc;

use super::{ArchiveError, Position};
use crate::session::Path;

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

/// The content of a source at a position.
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
