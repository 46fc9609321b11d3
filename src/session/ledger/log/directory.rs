// SPDX-License-Identifier: Apache-2.0
//! The directory of a log. It belongs to one process, which reads the log before it writes.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;

use super::replay::{ReplaySummary, check_schema, replay};
use super::segment::Segment;
use super::{Log, OpenError, Options, RETRY, disk};
use crate::session::ledger::LogRecord;

/// A directory that is locked and listed, but not read yet.
pub struct Directory {
    pub(super) options: Options,
    pub(super) lock: File,
    pub(super) segments: Vec<Segment>,
}

/// Keeps a directory locked.
#[derive(Debug)]
pub struct DirectoryGuard {
    // closing it releases the lock
    _lock: File,
}

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Directory").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Directory {
    /// Creates the directory if it does not exist, locks it, and lists its files.
    ///
    /// # Errors
    /// When another process uses the directory, the log has another schema, or the directory cannot be created, locked or listed.
    pub fn lock(options: &Options) -> Result<Self, OpenError> {
        let dir = &options.dir;
        disk::create_directory(dir).map_err(|cause| OpenError::new("create", dir, cause))?;
        let lock = lock(dir)?;
        let failed = |cause| OpenError::new("read", dir, cause);
        let segments = Segment::list(dir).map_err(failed)?;
        check_schema(&segments)?;
        Ok(Self { options: options.clone(), lock, segments })
    }

    /// Calls `each` with the number of bytes read so far and every record, in the order they were written. Writes nothing. The directory is locked until the returned guard is
    /// dropped. Blocks.
    ///
    /// # Errors
    /// When this build cannot read a record.
    pub fn read(self, mut each: impl FnMut(u64, LogRecord)) -> Result<(ReplaySummary, DirectoryGuard), OpenError> {
        let found = replay(&self.segments, &mut |bytes, record| {
            record.into_iter().for_each(|record| each(bytes, record));
            ControlFlow::Continue(())
        });
        Ok((found.check_records()?, DirectoryGuard { _lock: self.lock }))
    }

    /// The size of its files in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Calls `restore` with every record, in the order they were written, and the number of bytes read so far. Then opens the log for
    /// appending. Returns `None` if `restore` breaks; nothing is written then. Blocks.
    ///
    /// # Errors
    /// When this build cannot read a record, or the writer cannot be started. Nothing is written then.
    pub fn open(
        self,
        restore: &mut dyn FnMut(u64, Option<LogRecord>) -> ControlFlow<()>,
    ) -> Result<Option<(Log, ReplaySummary)>, OpenError> {
        let mut interrupted = false;
        let found = replay(&self.segments, &mut |bytes, record| {
            let flow = restore(bytes, record);
            interrupted = flow.is_break();
            flow
        });
        if interrupted {
            return Ok(None);
        }
        let found = found.check_records()?;
        let log = Log::start(self, found.store, disk::files(), RETRY)?;
        Ok(Some((log, found)))
    }
}

fn lock(dir: &Path) -> Result<File, OpenError> {
    let path = dir.join("lock");
    let failed = |cause| OpenError::new("lock", &path, cause);
    let file = disk::open_lock(&path).map_err(failed)?;
    // the lock of std is newer than the oldest supported compiler
    match fs4::FileExt::try_lock(&file) {
        Ok(()) => Ok(file),
        Err(fs4::TryLockError::WouldBlock) => Err(OpenError::Locked(dir.to_owned())),
        Err(fs4::TryLockError::Error(cause)) => Err(failed(cause)),
    }
}
