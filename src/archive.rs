// SPDX-License-Identifier: Apache-2.0
//! The archive of finished paths: Parquet files and manifests in object storage or in a folder.
//!
//! A *chain* is the sequence of manifests of one partition of a source. Each manifest names the position after which its range begins, and
//! is stored only if no other manifest has the same name. So each position has one successor, whatever number of archivers run, and the
//! position to continue from is read from the manifests alone. `docs/decisions/archive.md` explains why.

mod archiver;
mod batch;
mod chain;
mod manifest;
mod position;
mod session_source;
mod source;
mod storage;
#[cfg(test)]
mod tests;
mod verify;

pub use archiver::{Archiver, CurrentAnnotate, Options, RunningArchive};
pub use chain::{ChainName, Manifests, chains};
pub use manifest::{DataFile, Manifest};
pub use position::Position;
pub use session_source::SessionSource;
pub use source::{Content, Entry, FinishedSource};
pub use storage::Storage;
pub use verify::{Verification, verify};

/// An operation of the archive failed.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The object storage refused or did not answer.
    #[error("{}", storage::describe(.0))]
    Storage(#[from] object_store::Error),
    /// A stored manifest cannot be read.
    #[error("{name} is not a manifest: {cause}")]
    Manifest {
        /// The name of the object.
        name: String,
        /// The error message.
        cause: String,
    },
    /// A stored manifest has another version of the archive's layout. This build adds nothing after it.
    #[error(
        "{name} has archive_version {found}, and this build reads and writes {}: use the build that wrote it, or give this one another URI",
        manifest::ARCHIVE_VERSION
    )]
    OtherVersion {
        /// The name of the object.
        name: String,
        /// Its version.
        found: u64,
    },
    /// The source cannot be read.
    #[error("finished paths cannot be read: {0}")]
    Source(String),
}
