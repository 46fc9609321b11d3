//! Reading a log back.

use std::fmt;
use std::path::{Path, PathBuf};

use super::frame::Decoder;
use super::segment::{Segment, StoreId};
use super::{OpenError, Record};

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
    pub torn: Vec<Torn>,
    /// Which store it is: 16 hexadecimal digits; `None` where no file says it.
    pub store: Option<Box<str>>,
}

/// A file that could not be read to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torn {
    /// The file.
    pub path: PathBuf,
    /// Where the first record begins that could not be read.
    pub offset: u64,
    /// Bytes from there to the end of the file.
    pub lost: u64,
    /// What is wrong there.
    pub reason: &'static str,
}

impl fmt::Display for Torn {
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
pub fn read(dir: &Path, each: impl FnMut(Record)) -> Result<Replayed, OpenError> {
    replay(dir, each).map(|(replayed, _)| replayed)
}

pub(super) fn replay(dir: &Path, mut each: impl FnMut(Record)) -> Result<(Replayed, Vec<Segment>), OpenError> {
    let failed = |cause| OpenError::new("read", dir, cause);
    let segments = Segment::list(dir).map_err(failed)?;
    let mut decoder = Decoder::try_new().map_err(failed)?;
    let mut store: Option<StoreId> = None;
    let mut found = Replayed::default();
    for segment in &segments {
        found.segments += 1;
        found.bytes += segment.bytes;
        let (records, unknown) = (&mut found.records, &mut found.unknown);
        let read = segment.read(&mut decoder, &mut store, &mut |record| match record {
            Some(record) => {
                *records += 1;
                each(record);
            }
            None => *unknown += 1,
        });
        if let Err(tear) = read {
            let (path, offset) = (segment.path.clone(), tear.offset);
            let lost = segment.bytes.saturating_sub(offset);
            found.torn.push(Torn { path, offset, lost, reason: tear.reason });
        }
    }
    found.store = store.map(|id| id.0);
    Ok((found, segments))
}
