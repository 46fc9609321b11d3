// SPDX-License-Identifier: Apache-2.0
//! Reads a log.
//!
//! One thread reads the files, several decode the records, and the caller gets the records in order. Batches go to the decoders in turn,
//! and come back in turn.

use std::fmt;
use std::num::NonZero;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::OpenError;
use super::segment::{Segment, SegmentEntry, TearPoint};
use crate::session::ProcessId;
use crate::session::ledger::{LogRecord, SCHEMA};

/// A summary of a log that was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Records that were read.
    pub records: u64,
    /// Intact records that this build cannot read.
    pub unknown: u64,
    /// The first file with such a record.
    pub unknown_in: Option<PathBuf>,
    /// Files.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that could not be read to their end, after a crash or damage.
    pub torn: Vec<TornFile>,
    /// Files in which damaged records were skipped.
    pub damaged: Vec<DamagedFile>,
    /// The id of the store; `None` if no file has it.
    pub store: Option<ProcessId>,
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

    /// Refuses a log with intact records that this build cannot read. Another build wrote them, and a turn that follows them would take their
    /// numbers.
    pub(super) fn check_records(self) -> Result<Self, OpenError> {
        match &self.unknown_in {
            Some(path) => Err(OpenError::UnknownRecords { path: path.clone(), records: self.unknown }),
            None => Ok(self),
        }
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

/// Calls `each` with the number of bytes read so far and every record of the log in `dir`, in the order they were written. Takes no lock
/// and writes nothing.
///
/// While another tokentap writes to the log, the last file may look truncated.
///
/// # Errors
/// When the directory cannot be listed, or this build cannot read the log.
pub fn read(dir: &Path, mut each: impl FnMut(u64, LogRecord)) -> Result<ReplaySummary, OpenError> {
    let failed = |cause| OpenError::new("read", dir, cause);
    let segments = Segment::list(dir).map_err(failed)?;
    check_schema(&segments)?;
    let found = replay(&segments, &mut |bytes, record| {
        record.into_iter().for_each(|record| each(bytes, record));
        ControlFlow::Continue(())
    });
    found.check_records()
}

/// Refuses files of another schema.
pub(super) fn check_schema(segments: &[Segment]) -> Result<(), OpenError> {
    for segment in segments {
        if let Some(found) = segment.schema().filter(|found| *found != SCHEMA) {
            return Err(OpenError::OtherSchema { path: segment.path.clone(), found });
        }
    }
    Ok(())
}

/// The size of the files of the log in `dir`, in bytes.
///
/// # Errors
/// When the directory cannot be listed.
pub fn size(dir: &Path) -> Result<u64, OpenError> {
    let segments = Segment::list(dir).map_err(|cause| OpenError::new("read", dir, cause))?;
    Ok(segments.iter().map(|segment| segment.bytes).sum())
}

/// Called with the number of bytes read so far and each record, and with `None` at the end of a file.
pub(super) type Restore<'a> = &'a mut dyn FnMut(u64, Option<LogRecord>) -> ControlFlow<()>;

/// The largest number of threads that decode. More do not help, because the records are applied on one thread.
const DECODERS: usize = 4;

/// The approximate bytes of decoded records, and the number of entries, after which a batch ends.
const BATCH: (usize, usize) = (1 << 20, 256);

/// An event of reading the files.
enum ReadEvent {
    /// An entry, and the bytes of its file up to its end.
    Entry(u64, SegmentEntry),
    /// The end of a file.
    End(Result<(), TearPoint>),
}

/// Reads the files in order until `restore` breaks.
pub(super) fn replay(segments: &[Segment], restore: Restore<'_>) -> ReplaySummary {
    let decoders = std::thread::available_parallelism().map_or(1, NonZero::get).min(DECODERS);
    let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..decoders {
            let (input, batches) = sync_channel(1);
            let (decoded, output) = sync_channel(1);
            inputs.push(input);
            outputs.push(output);
            scope.spawn(move || decode(batches, &decoded));
        }
        let reading = scope.spawn(move || Batches { inputs, next: 0, events: Vec::new(), bytes: 0 }.read(segments));
        let mut found = ReplaySummary::default();
        // dropping the outputs ends the other threads
        apply(segments, outputs, restore, &mut found);
        found.store = reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        found
    })
}

/// Sends events to the decoders.
struct Batches {
    inputs: Vec<SyncSender<Vec<ReadEvent>>>,
    /// The decoder of the next batch.
    next: usize,
    events: Vec<ReadEvent>,
    bytes: usize,
}

impl Batches {
    /// Reads the files in order, until nothing receives their entries. Returns the id of the store.
    fn read(mut self, segments: &[Segment]) -> Option<ProcessId> {
        let mut store = None;
        for segment in segments {
            let read = segment.read(&mut store, &mut |bytes, entry| self.push(ReadEvent::Entry(bytes, entry)));
            if self.push(ReadEvent::End(read)).is_break() {
                break;
            }
        }
        store
    }

    fn push(&mut self, event: ReadEvent) -> ControlFlow<()> {
        // the records of a file do not wait for those of the next one
        let is_last = match &event {
            ReadEvent::Entry(_, entry) => {
                self.bytes += entry.bytes();
                self.bytes >= BATCH.0 || self.events.len() + 1 >= BATCH.1
            }
            ReadEvent::End(_) => true,
        };
        self.events.push(event);
        if is_last { self.send() } else { ControlFlow::Continue(()) }
    }

    fn send(&mut self) -> ControlFlow<()> {
        self.bytes = 0;
        let sent = self.inputs[self.next].send(std::mem::take(&mut self.events));
        self.next = (self.next + 1) % self.inputs.len();
        if sent.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Decodes batches until there are no more, or nothing receives them.
fn decode(batches: Receiver<Vec<ReadEvent>>, decoded: &SyncSender<Vec<ReadEvent>>) {
    for batch in batches {
        let decode = |event| match event {
            ReadEvent::Entry(bytes, entry) => ReadEvent::Entry(bytes, entry.decode()),
            end => end,
        };
        if decoded.send(batch.into_iter().map(decode).collect()).is_err() {
            break;
        }
    }
}

/// Takes the decoded events in order.
fn apply(
    segments: &[Segment],
    outputs: Vec<Receiver<Vec<ReadEvent>>>,
    restore: Restore<'_>,
    found: &mut ReplaySummary,
) {
    let mut files = segments.iter();
    let batches = outputs.iter().cycle().map_while(|output| output.recv().ok());
    for event in batches.flatten() {
        let Some(segment) = files.as_slice().first() else { return };
        let flow = match event {
            ReadEvent::Entry(bytes, entry) => {
                let record = found.count(segment, entry);
                restore(found.bytes + bytes, record)
            }
            ReadEvent::End(read) => {
                files.next();
                found.end(segment, read);
                restore(found.bytes, None)
            }
        };
        if flow.is_break() {
            return;
        }
    }
}

impl ReplaySummary {
    /// Counts an entry. Returns its record.
    fn count(&mut self, segment: &Segment, entry: SegmentEntry) -> Option<LogRecord> {
        match entry {
            SegmentEntry::Record(record) => {
                self.records += 1;
                return Some(record);
            }
            SegmentEntry::Unknown | SegmentEntry::Frame(..) => {
                self.unknown += 1;
                self.unknown_in.get_or_insert_with(|| segment.path.clone());
            }
            SegmentEntry::Damage { offset, bytes, reason } => self.damage(&segment.path, offset, bytes, reason),
        }
        None
    }

    /// Counts a file that was read to its end, or to a tear.
    fn end(&mut self, segment: &Segment, read: Result<(), TearPoint>) {
        self.segments += 1;
        self.bytes += segment.bytes;
        if let Err(tear) = read {
            let (path, offset) = (segment.path.clone(), tear.offset);
            let lost = segment.bytes.saturating_sub(offset);
            self.torn.push(TornFile { path, offset, lost, reason: tear.reason });
        }
    }
}
