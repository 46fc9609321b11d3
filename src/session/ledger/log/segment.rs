// SPDX-License-Identifier: Apache-2.0
//! One file of the log: its name, its first line, and its records.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use super::LogRecord;
use super::frame::{CUT, Frame, Marker};
use super::salvage::Salvage;
use crate::session::ProcessId;
use crate::session::ledger::SCHEMA;

/// Bytes of the first line.
pub(super) const FIRST_LINE: u64 = 58;
/// The start of the first line of every schema. The number of the schema follows.
const MAGIC: &str = "tokentap-log ";
/// The most bytes of the first line of any schema.
const LONGEST_LINE: u64 = 128;
/// The offset of the store's id in the first line.
const HEX_STORE: Range<usize> = 15..31;
/// The offset of the marker in the first line.
const HEX_MARKER: Range<usize> = 32..48;
/// The reason why a file of another store is not read.
const FOREIGN: &str = "it belongs to another store";
/// The reason for a file whose process was killed while it wrote the first line.
const LINE_CUT: &str = "it ends inside its first line";
/// The reason for a file after a power loss: its length was written, and its blocks were not.
const ZEROS: &str = "it ends in zeros";
/// The smallest block that a disk writes.
const SECTOR: u64 = 512;
/// Bytes of the read buffer.
const READ_AHEAD: usize = 256 << 10;

/// The content of the first line of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// The id of its store, the same in all files of a directory.
    pub(super) store: ProcessId,
    /// The first bytes of each of its records.
    pub(super) marker: Marker,
}

/// A file of the log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Segment {
    /// Its position in the order of files.
    pub(super) number: u64,
    /// Its path.
    pub(super) path: PathBuf,
    /// Its length.
    pub(super) bytes: u64,
}

/// One part of a file's content.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum SegmentEntry {
    /// A frame that is not decoded yet, its offset and its length.
    Frame(Frame, u64, u64),
    /// A record.
    Record(LogRecord),
    /// A record that this build cannot read.
    Unknown,
    /// Bytes that cannot be decoded, between others that can.
    Damage {
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        bytes: u64,
        /// Why they cannot be decoded.
        reason: &'static str,
    },
}

impl SegmentEntry {
    /// Decodes a frame. Other entries stay as they are.
    pub(super) fn decode(self) -> Self {
        let Self::Frame(frame, offset, bytes) = self else { return self };
        match frame.decode() {
            Some(record) if !record.is_plausible() => {
                Self::Damage { offset, bytes, reason: "a record has an invalid session name or turn number" }
            }
            Some(record) => Self::Record(record),
            None => Self::Unknown,
        }
    }

    /// About the bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        if let Self::Frame(frame, ..) = self { frame.bytes() } else { 0 }
    }
}

/// Called with each entry and the number of bytes of the file that were read up to its end.
pub(super) type Visit<'a> = &'a mut dyn FnMut(u64, SegmentEntry) -> ControlFlow<()>;

/// The place from which on a file could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TearPoint {
    /// The offset of the first record that could not be read.
    pub(super) offset: u64,
    /// Why it could not be read.
    pub(super) reason: &'static str,
}

impl TearPoint {
    /// Whether this is the typical end of a file after a kill or a power loss.
    pub(super) fn is_crash(reason: &str) -> bool {
        [CUT, LINE_CUT, ZEROS].contains(&reason)
    }
}

/// Whether a damaged first line still has the id of another store: the id is well-formed, and most of its digits differ.
fn names_other_store(line: &[u8], store: ProcessId) -> bool {
    let Some(found) = line.get(HEX_STORE) else { return false };
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let same = found.iter().zip(store.to_string().bytes()).filter(|(found, own)| *found == own).count();
    found.iter().all(is_digit) && same < found.len() / 2
}

impl Header {
    /// The first line of a file.
    pub(super) fn line(&self) -> String {
        let text = format!("{MAGIC}{SCHEMA} {} {}", self.store, self.marker.hex());
        format!("{text} {:08x}\n", crc32c::crc32c(text.as_bytes()))
    }

    /// Parses a whole and undamaged line.
    fn parse(line: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(line).ok()?;
        let store = text.get(HEX_STORE)?.parse().ok()?;
        let header = Self { store, marker: Marker::parse(text.get(HEX_MARKER)?)? };
        (header.line().as_bytes() == line).then_some(header)
    }
}

/// The schema of a file that begins with `start`; `None` if its first line is damaged, or not that of a log.
fn schema_of(start: &[u8]) -> Option<u64> {
    let end = start.iter().position(|byte| *byte == b'\n')?;
    let (text, checksum) = std::str::from_utf8(&start[..end]).ok()?.rsplit_once(' ')?;
    let number = text.strip_prefix(MAGIC)?.split(' ').next()?.parse().ok()?;
    (checksum == format!("{:08x}", crc32c::crc32c(text.as_bytes()))).then_some(number)
}

impl Segment {
    /// The file with this number, still empty.
    pub(super) fn new(dir: &Path, number: u64) -> Self {
        Self { number, path: dir.join(format!("segment-{number:016}.log")), bytes: 0 }
    }

    /// The files of a directory in order. Files with other names are ignored.
    pub(super) fn list(dir: &Path) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            if let Some(number) = entry.file_name().to_str().and_then(number) {
                // a file that no longer exists was removed by the process that writes the log
                let Ok(meta) = entry.metadata() else { continue };
                found.push(Self { number, path: entry.path(), bytes: meta.len() });
            }
        }
        found.sort();
        Ok(found)
    }

    /// The schema of the file; `None` if its first line is damaged or cannot be read.
    pub(super) fn schema(&self) -> Option<u64> {
        let mut start = Vec::new();
        // opening a pipe would block
        std::fs::metadata(&self.path).ok().filter(std::fs::Metadata::is_file)?;
        File::open(&self.path).ok()?.take(LONGEST_LINE).read_to_end(&mut start).ok()?;
        schema_of(&start)
    }

    /// Calls `visit` with each entry until it breaks. Frames are not decoded.
    ///
    /// `store` is set by the first file with an id. Files of another store are not read.
    pub(super) fn read(&self, store: &mut Option<ProcessId>, visit: Visit<'_>) -> Result<(), TearPoint> {
        match File::open(&self.path) {
            Ok(file) => scan(&mut BufReader::with_capacity(READ_AHEAD, file), self.bytes, store, visit),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(_) => Err(TearPoint { offset: 0, reason: "the file cannot be opened" }),
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("segment-")?.strip_suffix(".log")?;
    (digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}

fn scan(
    source: &mut (impl Read + Seek),
    bytes: u64,
    store: &mut Option<ProcessId>,
    visit: Visit<'_>,
) -> Result<(), TearPoint> {
    let at_start = |reason| TearPoint { offset: 0, reason };
    let (mut start, wrong) = (Vec::new(), "its first line is not of this format");
    source.by_ref().take(FIRST_LINE).read_to_end(&mut start).map_err(|_| at_start("the file cannot be read"))?;
    let is_cut = (start.len() as u64) < FIRST_LINE;
    let (marker, is_damaged) = match Header::parse(&start) {
        Some(header) => {
            if *store.get_or_insert(header.store) != header.store {
                return Err(at_start(FOREIGN));
            }
            (header.marker, false)
        }
        None if is_cut => return Err(at_start(LINE_CUT)),
        None if store.is_some_and(|store| names_other_store(&start, store)) => return Err(at_start(FOREIGN)),
        None => {
            // the whole file is in memory meanwhile
            source
                .take(bytes.saturating_sub(FIRST_LINE))
                .read_to_end(&mut start)
                .map_err(|_| at_start("the file cannot be read"))?;
            let reason = if start.iter().all(|byte| *byte == 0) { ZEROS } else { wrong };
            (marker_of(&start).ok_or(at_start(reason))?, true)
        }
    };
    let mut offset = FIRST_LINE;
    if is_damaged && visit(offset, SegmentEntry::Damage { offset: 0, bytes: offset, reason: wrong }).is_break() {
        return Ok(());
    }
    source.seek(SeekFrom::Start(offset)).map_err(|_| at_start("the file cannot be read"))?;
    while offset < bytes {
        let Ok((frame, length)) = Frame::read(source, bytes - offset, marker) else {
            return scan_damaged(source, offset..bytes, marker, visit);
        };
        offset += length;
        if visit(offset, SegmentEntry::Frame(frame, offset - length, length)).is_break() {
            break;
        }
    }
    Ok(())
}

/// The marker of a file with a destroyed first line. It is taken only from places that no client can write to: the first line, and the
/// first bytes after it. An intact frame must confirm it.
fn marker_of(file: &[u8]) -> Option<Marker> {
    let frames = file.get(FIRST_LINE as usize..)?;
    let is_confirmed = |marker: &Marker| Salvage::new(*marker, file.len() as u64).find(frames).is_some();
    Marker::candidates(&file[HEX_MARKER], *frames.first_chunk::<8>()?).find(is_confirmed)
}

/// Reads the frames of the rest of a file, whose first one cannot be decoded. The rest is in memory meanwhile.
fn scan_damaged(
    source: &mut (impl Read + Seek),
    Range { start: offset, end }: Range<u64>,
    marker: Marker,
    visit: Visit<'_>,
) -> Result<(), TearPoint> {
    let mut rest = Vec::new();
    let read = source.seek(SeekFrom::Start(offset)).and_then(|_| source.take(end - offset).read_to_end(&mut rest));
    read.map_err(|_| TearPoint { offset, reason: "the file cannot be read" })?;
    let mut salvage = Salvage::new(marker, rest.len() as u64);
    let mut at = 0;
    while at < rest.len() {
        let here = offset + at as u64;
        let (entry, length) = match Frame::read(&mut &rest[at..], (rest.len() - at) as u64, marker) {
            Ok((frame, length)) => (SegmentEntry::Frame(frame, here, length), length),
            Err(reason) => {
                let reason = if ends_in_zeros(&rest[at..], here, marker) { ZEROS } else { reason };
                let length = salvage.resume(&rest[at..]).ok_or(TearPoint { offset: here, reason })? as u64;
                (SegmentEntry::Damage { offset: here, bytes: length, reason }, length)
            }
        };
        at += usize::try_from(length).expect("it is within the rest");
        if visit(here + length, entry).is_break() {
            break;
        }
    }
    Ok(())
}

/// Whether the bytes from `offset` to the end of a file are at most the start of a frame, followed by zeros. The zeros must fill a whole
/// sector, because a record may end in zeros as well.
fn ends_in_zeros(rest: &[u8], offset: u64, marker: Marker) -> bool {
    let written = rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let is_within_frame = written == 0
        || marker.bytes().starts_with(&rest[..written])
        || marker.whole(rest).is_some_and(|whole| written < whole);
    let has_sector = (offset + written as u64).next_multiple_of(SECTOR) < offset + rest.len() as u64;
    written == 0 || (is_within_frame && has_sector)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fake;
    use super::*;
    use crate::session::ledger::Change;

    /// A file, its records, and the offset at which each one ends.
    fn file() -> (Vec<u8>, Vec<LogRecord>, Vec<usize>) {
        let marker = Marker::random();
        let header = Header { store: "0123456789abcdef".parse().unwrap(), marker };
        let mut bytes = header.line().into_bytes();
        let mut records: Vec<LogRecord> = (0..3).map(fake::finished).collect();
        records.insert(1, fake::turn("s", 0, 3));
        records.insert(3, fake::turn("s", 1, 200));
        let mut ends = vec![bytes.len()];
        for record in &records {
            marker.push(record, &mut bytes).unwrap();
            ends.push(bytes.len());
        }
        (bytes, records, ends)
    }

    fn entries(bytes: &[u8]) -> (Vec<SegmentEntry>, Result<(), TearPoint>) {
        let mut entries = Vec::new();
        let mut source = io::Cursor::new(bytes);
        let read = scan(&mut source, bytes.len() as u64, &mut None, &mut |_, entry| {
            entries.push(entry.decode());
            ControlFlow::Continue(())
        });
        (entries, read)
    }

    fn read(bytes: &[u8]) -> (Vec<LogRecord>, u64, Result<(), TearPoint>) {
        let (entries, read) = entries(bytes);
        let unknown = entries.iter().filter(|entry| **entry == SegmentEntry::Unknown).count() as u64;
        (records(entries), unknown, read)
    }

    fn records(entries: Vec<SegmentEntry>) -> Vec<LogRecord> {
        let record = |entry| if let SegmentEntry::Record(record) = entry { Some(record) } else { None };
        entries.into_iter().filter_map(record).collect()
    }

    #[test]
    fn truncation_loses_only_the_truncated_record() {
        let (bytes, records, ends) = file();
        for cut in 0..=bytes.len() {
            let whole = ends.iter().filter(|end| **end <= cut).count();
            let (found, unknown, read) = read(&bytes[..cut]);
            assert_eq!(found, records[..whole.saturating_sub(1)], "cut at {cut}");
            assert_eq!(unknown, 0);
            assert_eq!(read.is_ok(), ends.contains(&cut), "cut at {cut}");
            let start = if whole == 0 { 0 } else { ends[whole - 1] as u64 };
            assert!(read.is_ok() || read.is_err_and(|tear| tear.offset == start), "the tear begins at the record");
        }
    }

    #[test]
    fn flipped_bit_loses_only_its_frame() {
        let (bytes, all, ends) = file();
        for bit in 0..8 * bytes.len() {
            let at = bit / 8;
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (bit % 8);
            let (entries, read) = entries(&changed);
            let damage = entries.iter().filter(|entry| matches!(entry, SegmentEntry::Damage { .. })).count();
            let damaged = ends.iter().position(|end| at < *end).expect("it is in the file");
            let mut expected = all.clone();
            if damaged > 0 {
                expected.remove(damaged - 1);
            }
            assert_eq!(records(entries), expected, "bit {} of byte {at}", bit % 8);
            // damage in the last frame cannot be distinguished from truncation
            let is_last = damaged == all.len();
            assert_eq!((damage, read.is_err()), (usize::from(!is_last), is_last), "bit {} of byte {at}", bit % 8);
        }
    }

    #[test]
    fn destroyed_first_line_loses_no_record() {
        let (bytes, all, _) = file();
        let line = FIRST_LINE as usize;
        // two bits, the store, the marker, the whole line
        for destroyed in [0..2, 15..31, 32..48, 0..line] {
            let mut changed = bytes.clone();
            changed[destroyed.clone()].iter_mut().for_each(|byte| *byte ^= 0x81);
            let (entries, read) = entries(&changed);
            let damage = |entry: &&SegmentEntry| matches!(entry, SegmentEntry::Damage { offset: 0, bytes: 58, .. });
            assert_eq!((entries.iter().filter(damage).count(), read), (1, Ok(())), "{destroyed:?}");
            assert_eq!(records(entries), all, "{destroyed:?}");
        }
    }

    #[test]
    fn destroyed_first_line_and_first_frame_lose_only_that_frame() {
        let (bytes, all, ends) = file();
        // the end of the marker in the line, and the start of the marker in the frame
        for destroyed in [40..60, 50..ends[1], 15..31] {
            let mut changed = bytes.clone();
            changed[destroyed.clone()].iter_mut().for_each(|byte| *byte ^= 0x81);
            changed[ends[1] - 1] ^= 1;
            assert_eq!(read(&changed).0, all[1..], "{destroyed:?}");
        }
    }

    #[test]
    fn file_of_another_store_is_not_read_after_a_destroyed_first_line() {
        let (mut bytes, all, _) = file();
        bytes[..4].fill(0xff);
        let mut found = |store: &str| {
            let (mut records, mut store) = (Vec::new(), store.parse().ok());
            let length = bytes.len() as u64;
            let read = scan(&mut io::Cursor::new(&mut bytes), length, &mut store, &mut |_, entry| {
                records.push(entry.decode());
                ControlFlow::Continue(())
            });
            (self::records(records), read.map_err(|tear| tear.reason))
        };
        assert_eq!(found("fedcba9876543210"), (Vec::new(), Err("it belongs to another store")));
        assert_eq!(found("0123456789abcdef"), (all, Ok(())));
    }

    #[test]
    fn damage_in_several_places_loses_only_those_frames() {
        let (bytes, all, ends) = file();
        let mut changed = bytes.clone();
        // a length, and a payload
        changed[ends[0] + 9] ^= 2;
        changed[ends[3] - 1] ^= 2;
        let (entries, read) = entries(&changed);
        let damage: Vec<_> = entries
            .iter()
            .filter_map(|entry| {
                if let SegmentEntry::Damage { offset, bytes, .. } = entry { Some((*offset, *bytes)) } else { None }
            })
            .collect();
        let span = |frame: usize| (ends[frame] as u64, (ends[frame + 1] - ends[frame]) as u64);
        assert_eq!((damage, read), (vec![span(0), span(2)], Ok(())));
        assert_eq!(records(entries), [1, 3, 4].map(|frame: usize| all[frame].clone()));
    }

    #[test]
    fn unknown_records_are_skipped() {
        let (bytes, records, ends) = file();
        let marker = &bytes[ends[0]..ends[0] + 8];
        let frame = |kind: u8, payload: &[u8]| {
            let crc = crc32c::crc32c_append(crc32c::crc32c(&[kind]), payload);
            [marker, &(payload.len() as u32).to_le_bytes(), &crc.to_le_bytes(), &[kind], payload].concat()
        };
        let deleted = LogRecord::from(fake::record("s", Change::Deleted));
        let mut payload = Vec::new();
        deleted.encode(&mut payload).unwrap();
        // the name of the session and its length, its birth, the change
        let change = 2 + 16;
        let renamed = [&payload[..change], &[99], &payload[change + 1..]].concat();
        let kind = frame(2, &payload);
        let more = frame(0, &[&payload[..], b"by user"].concat());
        let later = [&bytes[..ends[2]], &frame(0, &renamed), &kind, &more, &frame(0, &payload), &bytes[ends[2]..]];
        let (mut found, unknown, read) = read(&later.concat());
        assert_eq!(read, Ok(()));
        assert_eq!(unknown, 3);
        assert_eq!(found.remove(2), deleted);
        assert_eq!(found, records);
    }

    #[test]
    fn out_of_bounds_length_skips_only_its_frame() {
        for length in [(1 << 30) + 1, u32::MAX, 1 << 29] {
            let (mut bytes, all, _) = file();
            let start = FIRST_LINE as usize + 8;
            bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
            let (found, _, read) = read(&bytes);
            assert_eq!((found, read), (all[1..].to_vec(), Ok(())), "only the damaged frame is skipped");
        }
    }

    #[test]
    fn schema_is_read_from_intact_first_lines_of_any_schema() {
        let (bytes, ..) = file();
        assert_eq!(schema_of(&bytes), Some(SCHEMA));
        for bit in 0..8 * FIRST_LINE as usize {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(schema_of(&changed), None, "bit {bit} makes no other schema of it");
        }
        for (number, members) in [(1, "0123456789abcdef"), (2, "0123456789abcdef 0123456789abcdef"), (12, "x y z")] {
            let text = format!("tokentap-log {number} {members}");
            let line = format!("{text} {:08x}\nframes", crc32c::crc32c(text.as_bytes()));
            assert_eq!(schema_of(line.as_bytes()), Some(number), "{line}");
        }
        assert_eq!(schema_of(b"tokentap-log 3 0123"), None, "it is cut");
    }

    #[test]
    fn names_sort_as_numbers() {
        let name = |number| Segment::new(Path::new(""), number).path.to_str().unwrap().to_owned();
        assert_eq!(name(12), "segment-0000000000000012.log");
        assert_eq!(number(&name(12)), Some(12));
        for other in ["lock", "segment-12.log", "segment-00000000000000+2.log", "segment-0000000000000012.log.gz"] {
            assert_eq!(number(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn garbage_yields_no_false_record(at in any::<prop::sample::Index>(), garbage in prop::collection::vec(any::<u8>(), 1..80)) {
            let (mut bytes, records, ends) = file();
            let at = at.index(bytes.len());
            let end = bytes.len().min(at + garbage.len());
            bytes[at..end].copy_from_slice(&garbage[..end - at]);
            let (found, unknown, _) = read(&bytes);
            let mut written = records.iter();
            prop_assert!(found.iter().all(|found| written.any(|record| record == found)), "records keep their order");
            prop_assert_eq!(unknown, 0);
            // frames outside of the garbage are read, unless the same byte of the marker is lost in the first line and in the first frame
            let whole = ends.windows(2).filter(|frame| frame[1] <= at || frame[0] >= end).count();
            let is_lost = |byte: usize| at < 34 + 2 * byte && end > FIRST_LINE as usize + byte;
            prop_assert!((0..8).any(is_lost) || found.len() >= whole);
        }
    }
}
