//! Reads a log.

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::OpenError;
use super::frame::Decoder;
use super::segment::{Entry, Segment, StoreId, TearPoint};
use crate::session::ledger::Record;

/// A summary of a log that was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Records that were read.
    pub records: u64,
    /// Records that this version cannot read, and skipped.
    pub unknown: u64,
    /// Files.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that could not be read to their end, after a crash or damage.
    pub torn: Vec<TornFile>,
    /// Files in which damaged records were skipped.
    pub damaged: Vec<DamagedFile>,
    /// The id of the store, 16 hexadecimal digits; `None` if no file has it.
    pub store: Option<Box<str>>,
}

/// A file that could not be read to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornFile {
    /// The file.
    pub path: PathBuf,
    /// The offset of the first record that could not be read.
    pub offset: u64,
    /// Bytes from there to the end of the file.
    pub lost: u64,
    /// Why it could not be read.
    pub reason: &'static str,
}

/// A file with damaged records. The records between and after them were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedFile {
    /// The file.
    pub path: PathBuf,
    /// Runs of bytes that cannot be read.
    pub regions: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The offset of the first run.
    pub offset: u64,
    /// Why it could not be read.
    pub reason: &'static str,
}

impl ReplaySummary {
    /// The number of damaged places at which records were lost. A file end that is typical of a kill or a power loss does not count.
    #[must_use]
    pub fn damaged_regions(&self) -> u64 {
        let torn = self.torn.iter().filter(|torn| !TearPoint::is_crash(torn.reason)).count() as u64;
        torn + self.damaged.iter().map(|damaged| damaged.regions).sum::<u64>()
    }

    fn damage(&mut self, path: &Path, offset: u64, bytes: u64, reason: &'static str) {
        match self.damaged.last_mut().filter(|damaged| damaged.path == path) {
            Some(damaged) => {
                damaged.regions += 1;
                damaged.bytes += bytes;
            }
            None => self.damaged.push(DamagedFile { path: path.to_owned(), regions: 1, bytes, offset, reason }),
        }
    }
}

impl fmt::Display for DamagedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, regions, bytes, offset, reason } = self;
        let path = path.display();
        write!(f, "{path}: {reason} (first at byte {offset}; {bytes} bytes in {regions} places are skipped)")
    }
}

impl fmt::Display for TornFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, offset, lost, reason } = self;
        write!(f, "{}: {reason} (byte {offset}; {lost} bytes are not read)", path.display())
    }
}

/// Calls `each` with every record of the log in `dir`, in the order they were written. Takes no lock and writes nothing.
///
/// While another tokentap writes to the log, the last file may look truncated.
///
/// # Errors
/// When the directory cannot be listed.
pub fn read(dir: &Path, mut each: impl FnMut(Record)) -> Result<ReplaySummary, OpenError> {
    let failed = |cause| OpenError::new("read", dir, cause);
    let segments = Segment::list(dir).map_err(failed)?;
    let mut decoder = Decoder::try_new().map_err(failed)?;
    let found = replay(&segments, &mut decoder, &mut |_, record| {
        record.into_iter().for_each(&mut each);
        ControlFlow::Continue(())
    });
    Ok(found)
}

/// Called with the number of bytes read so far and each record, and with `None` at the end of a file.
pub(super) type Restore<'a> = &'a mut dyn FnMut(u64, Option<Record>) -> ControlFlow<()>;

/// Reads the files in order until `restore` breaks.
pub(super) fn replay(segments: &[Segment], decoder: &mut Decoder, restore: Restore<'_>) -> ReplaySummary {
    let mut store: Option<StoreId> = None;
    let mut found = ReplaySummary::default();
    for segment in segments {
        let before = found.bytes;
        let mut interrupted = false;
        let read = segment.read(decoder, &mut store, &mut |bytes, entry| {
            let record = match entry {
                Entry::Record(record) => {
                    found.records += 1;
                    Some(record)
                }
                Entry::Unknown => {
                    found.unknown += 1;
                    None
                }
                Entry::Damage { offset, bytes, reason } => {
                    found.damage(&segment.path, offset, bytes, reason);
                    None
                }
            };
            let flow = restore(before + bytes, record);
            interrupted = flow.is_break();
            flow
        });
        found.segments += 1;
        found.bytes += segment.bytes;
        if let Err(tear) = read {
            let (path, offset) = (segment.path.clone(), tear.offset);
            let lost = segment.bytes.saturating_sub(offset);
            found.torn.push(TornFile { path, offset, lost, reason: tear.reason });
        }
        if interrupted || restore(found.bytes, None).is_break() {
            break;
        }
    }
    found.store = store.map(|id| id.0);
    found
}
