//! Reading a log back.

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::OpenError;
use super::frame::Decoder;
use super::segment::{Entry, Segment, StoreId, TearPoint};
use crate::session::ledger::Record;

/// What was found in a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Records that were handed over.
    pub records: u64,
    /// Records that this version cannot read, and passed over.
    pub unknown: u64,
    /// Files.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that could not be read to their end: what a crash or a disk has left.
    pub torn: Vec<TornFile>,
    /// Files in which records were passed over because they are damaged.
    pub damaged: Vec<Damaged>,
    /// Which store it is: 16 hexadecimal digits; `None` where no file says it.
    pub store: Option<Box<str>>,
}

/// A file that could not be read to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornFile {
    /// The file.
    pub path: PathBuf,
    /// Where the first record begins that could not be read.
    pub offset: u64,
    /// Bytes from there to the end of the file.
    pub lost: u64,
    /// What is wrong there.
    pub reason: &'static str,
}

/// A file in which records are damaged; the records between and after them were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    /// The file.
    pub path: PathBuf,
    /// Runs of bytes that cannot be read.
    pub regions: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Where the first one begins.
    pub offset: u64,
    /// What is wrong there.
    pub reason: &'static str,
}

impl Replayed {
    /// Places where records were lost to damage; the end that a kill or a power loss has left is none.
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
            None => self.damaged.push(Damaged { path: path.to_owned(), regions: 1, bytes, offset, reason }),
        }
    }
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, regions, bytes, offset, reason } = self;
        let path = path.display();
        write!(f, "{path}: {reason} (first at byte {offset}; {bytes} bytes in {regions} places are passed over)")
    }
}

impl fmt::Display for TornFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, offset, lost, reason } = self;
        write!(f, "{}: {reason} (byte {offset}; {lost} bytes are not read)", path.display())
    }
}

/// Hands every record of the log in `dir` to `each`, in the order they were written; takes no lock and writes nothing.
///
/// Beside a tokentap that is writing there, the last file may seem torn.
///
/// # Errors
/// When the directory cannot be listed.
pub fn read(dir: &Path, mut each: impl FnMut(Record)) -> Result<Replayed, OpenError> {
    let failed = |cause| OpenError::new("read", dir, cause);
    let segments = Segment::list(dir).map_err(failed)?;
    let mut decoder = Decoder::try_new().map_err(failed)?;
    let found = replay(&segments, &mut decoder, &mut |_, record| {
        record.into_iter().for_each(&mut each);
        ControlFlow::Continue(())
    });
    Ok(found)
}

/// Takes each record, and the number of bytes that have been read when it is handed over; at the end of a file, none.
pub(super) type Restore<'a> = &'a mut dyn FnMut(u64, Option<Record>) -> ControlFlow<()>;

/// Reads the files in their order until `restore` breaks.
pub(super) fn replay(segments: &[Segment], decoder: &mut Decoder, restore: Restore<'_>) -> Replayed {
    let mut store: Option<StoreId> = None;
    let mut found = Replayed::default();
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
