// SPDX-License-Identifier: Apache-2.0
//! The end of the log that is written: appends frames, begins new files, and removes old ones.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::disk::{Create, Medium, sync_names};
use super::health::{Shared, add};
use super::segment::{FIRST_LINE, Header, Segment};
use super::{Fsync, Options};

/// Appends frames to the current file.
pub(super) struct Tail {
    dir: PathBuf,
    first_line: String,
    fsync: Fsync,
    segment_bytes: u64,
    total_bytes: u64,
    create: Create,
    shared: Arc<Shared>,
    /// The number of the next file. The number of a file that could not be created is not used again.
    next: u64,
    current: Option<Current>,
    /// Closed files, the oldest first.
    closed: VecDeque<Segment>,
}

struct Current {
    file: Box<dyn Medium>,
    /// Its length counts whole frames only.
    segment: Segment,
    /// Records in it.
    records: u64,
    dirty: bool,
}

impl Tail {
    /// The tail of the log with the files `closed`. Creates no file yet.
    pub(super) fn new(
        options: &Options,
        header: &Header,
        closed: Vec<Segment>,
        create: Create,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            dir: options.dir.clone(),
            first_line: header.line(),
            fsync: options.fsync,
            // a file holds at least one record
            segment_bytes: options.segment_bytes.max(FIRST_LINE + 1),
            total_bytes: options.total_bytes,
            create,
            shared,
            next: closed.last().map_or(0, |segment| segment.number + 1),
            current: None,
            closed: closed.into(),
        }
    }

    /// Begins the first file of this process, because a file that may be torn is never continued. Removes files without records.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        self.prune();
        self.open()?;
        // after the new file has the store's id, which would be lost otherwise
        self.closed.retain(|segment| {
            let empty = segment.bytes <= FIRST_LINE;
            // a file that cannot be removed is harmless
            empty.then(|| std::fs::remove_file(&segment.path));
            !empty
        });
        self.prune();
        Ok(())
    }

    /// Appends the frames of `records` records. If this fails, none of them is in the log, unless the file cannot be truncated either.
    pub(super) fn append(&mut self, frames: &[u8], records: u64) -> io::Result<()> {
        let done = self.try_append(frames, records);
        if done.is_err() {
            self.abandon_file();
        }
        self.prune();
        done
    }

    /// Syncs the current file, unless syncing is off. After a failure the file is not written to again, because a second sync would not
    /// report the data that the first one has dropped.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        let done = self.try_sync();
        if done.is_err() {
            self.abandon_file();
        }
        done
    }

    /// Abandons a file that was removed or renamed while it was written. A restart would not read it, so its records count as lost.
    fn abandon_if_detached(&mut self) {
        let Some(left) = self.current.take_if(|current| current.file.is_detached(&current.segment.path)) else {
            return;
        };
        add(&self.shared.stats.failed, left.records);
        let (path, records) = (left.segment.path.display(), left.records);
        tracing::error!(%path, records, "a file of the log was removed or renamed: its records are lost, the next file begins");
    }

    fn try_append(&mut self, frames: &[u8], records: u64) -> io::Result<()> {
        self.abandon_if_detached();
        if self.current.as_ref().is_some_and(|current| current.segment.bytes >= self.segment_bytes) {
            self.try_sync()?;
            self.closed.extend(self.current.take().map(|current| current.segment));
        }
        let always = self.fsync == Fsync::Always;
        let current = self.open()?;
        current.dirty = true;
        current.file.write_all(frames)?;
        if always {
            current.file.sync()?;
            current.dirty = false;
        }
        current.segment.bytes += frames.len() as u64;
        current.records += records;
        Ok(())
    }

    fn try_sync(&mut self) -> io::Result<()> {
        if let Some(current) = self.current.as_mut().filter(|current| current.dirty && self.fsync != Fsync::Never) {
            current.file.sync()?;
            current.dirty = false;
        }
        Ok(())
    }

    /// The current file, which is created if it does not exist.
    fn open(&mut self) -> io::Result<&mut Current> {
        if self.current.is_none() {
            let mut segment = Segment::new(&self.dir, self.next);
            self.next += 1;
            let mut file = (self.create)(&segment.path)?;
            let made = file.write_all(self.first_line.as_bytes()).and_then(|()| {
                if self.fsync == Fsync::Never {
                    return Ok(());
                }
                file.sync()?;
                sync_names(&self.dir)
            });
            if let Err(error) = made {
                discard(file, &segment);
                return Err(error);
            }
            segment.bytes = FIRST_LINE;
            self.current = Some(Current { file, segment, records: 0, dirty: false });
        }
        Ok(self.current.as_mut().expect("it was created above"))
    }

    /// Closes a file after a failure, truncated to its last whole frame.
    fn abandon_file(&mut self) {
        let Some(Current { mut file, segment, .. }) = self.current.take() else { return };
        if segment.bytes <= FIRST_LINE {
            return discard(file, &segment);
        }
        let mut saved = file.truncate(segment.bytes);
        if self.fsync != Fsync::Never {
            saved = saved.and(file.sync());
        }
        if let Err(error) = saved {
            let path = segment.path.display();
            tracing::warn!(%path, %error, "the end of a file of the log may be torn");
        }
        self.closed.push_back(segment);
    }

    /// Removes the oldest files until the log is within its size limit.
    fn prune(&mut self) {
        let current = self.current.as_ref().map_or(0, |current| current.segment.bytes);
        let mut total = current + self.closed.iter().map(|segment| segment.bytes).sum::<u64>();
        while total > self.total_bytes {
            let Some(segment) = self.closed.pop_front() else { break };
            total -= segment.bytes;
            let path = segment.path.display();
            match std::fs::remove_file(&segment.path) {
                Ok(()) => {
                    add(&self.shared.stats.segments_removed, 1);
                    add(&self.shared.stats.bytes_removed, segment.bytes);
                    tracing::info!(%path, bytes = segment.bytes, "the log is at its size limit: its oldest file is removed");
                }
                // logged once and not for every group, because the file is not in the list any more
                Err(error) => tracing::warn!(%path, %error, "an old file of the log cannot be removed"),
            }
        }
        self.shared.stats.bytes_on_disk.store(total, Ordering::Relaxed);
    }
}

/// Removes a file without records.
fn discard(file: Box<dyn Medium>, segment: &Segment) {
    drop(file);
    // if this fails, a reader finds an empty file, or one that is torn before its first record
    _ = std::fs::remove_file(&segment.path);
}
