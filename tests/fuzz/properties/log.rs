// SPDX-License-Identifier: Apache-2.0
//! The reader of the trajectory log.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use tokentap::session::ledger::log::{Fsync, Log, OpenError, Options, ReplaySummary, read};
use tokentap::session::ledger::{Change, LogRecord, ProcessRecord, Record, RecordLog, SCHEMA};
use tokentap::session::{Turn, TurnMetadata};

use super::grammar::shown;

/// Length of a file's first line, in bytes.
const FIRST_LINE: usize = 58;
/// Length of a frame's header, in bytes: everything before the payload.
const ENVELOPE: usize = 17;

/// The first bytes of each frame of [`good`].
const MARKER: [u8; 8] = *b"\x9cmarker\x01";

/// Writes a file between two intact ones. The first byte selects its kind: arbitrary bytes, frames with valid checksums, or an intact log
/// with a changed byte, a truncated end and appended bytes. Both intact files are always read completely, and a log is refused only if it
/// has intact records that cannot be read. Of a damaged log all intact records are read, and no record that was never written.
pub fn log(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match kind % 3 {
        0 if kind & 64 == 0 => drop(between(rest)),
        0 => drop(between(&[first_line(), rest].concat())),
        1 => {
            let (file, frames) = framed(rest);
            let (records, replayed) = match between(&file) {
                Ok(read) => read,
                Err(unknown) => {
                    return assert!((1..=frames).contains(&unknown), "{unknown} of {frames}: {}", shown(bytes));
                }
            };
            assert!(replayed.torn.is_empty(), "{:?}: {}", replayed.torn, shown(bytes));
            // records with an impossible session or turn are skipped
            let skipped = replayed.damaged_regions();
            assert_eq!(records.len() as u64 + skipped, frames, "{}", shown(bytes));
            if !records.is_empty() {
                let again = read_back(&written(&records)).0;
                assert_eq!(comparable(&again), comparable(&records), "{}", shown(bytes));
            }
        }
        _ => damaged(rest),
    }
}

fn comparable(records: &[LogRecord]) -> String {
    // NaN is not equal to itself
    format!("{records:?}")
}

fn first_line() -> &'static [u8] {
    &good().0[..FIRST_LINE]
}

/// A log and its records.
fn good() -> &'static (Vec<u8>, Vec<LogRecord>) {
    static GOOD: OnceLock<(Vec<u8>, Vec<LogRecord>)> = OnceLock::new();
    GOOD.get_or_init(|| {
        let record = |change| Record::new("s", "000000000000000000000000000000b1".parse().unwrap(), change).into();
        let turn = |id: u32, tokens: u32| {
            let numbers = || (0..tokens).map(|at| (at as f32 * 0.37).sin()).collect::<Box<[f32]>>();
            Turn {
                id,
                parent: id.checked_sub(1),
                prompt: (0..tokens).map(|at| at * 7).collect(),
                response: (0..tokens).map(|at| at * 31).collect(),
                logprobs: numbers(),
                entropy: numbers(),
                about: TurnMetadata { uid: format!("{id:032x}").parse().unwrap(), ..TurnMetadata::default() },
            }
        };
        let records = vec![
            record(Change::Turn(Arc::new(turn(0, 3)))),
            record(Change::Turn(Arc::new(turn(1, 200)))),
            record(Change::Finished { leaf: 1, turns: 2, number: 7 }),
            ProcessRecord::Epoch { number: 3, version: Some("three".into()) }.into(),
        ];
        // the store id and the marker are random, so they are replaced: an input must have the same meaning in each run
        let mut file = written(&records);
        let text = format!("tokentap-log {SCHEMA} {:016x} {:016x}", 0xfeed, u64::from_be_bytes(MARKER));
        let line = format!("{text} {:08x}\n", crc32c::crc32c(text.as_bytes()));
        file[..FIRST_LINE].copy_from_slice(line.as_bytes());
        let mut at = FIRST_LINE;
        while at < file.len() {
            file[at..at + MARKER.len()].copy_from_slice(&MARKER);
            at += frame_length(&file[at..]).unwrap();
        }
        (file, records)
    })
}

/// The length of the frame at the start of `bytes`.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let length = bytes.get(MARKER.len()..)?.first_chunk()?;
    Some(ENVELOPE + u32::from_le_bytes(*length) as usize)
}

/// The file of a log with these records.
fn written(records: &[LogRecord]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { fsync: Fsync::Never, ..Options::new(dir.path()) };
    let (log, _) = Log::open(&options, |_| ()).unwrap();
    records.iter().for_each(|record| drop(log.append(record.clone())));
    drop(log);
    std::fs::read(file(dir.path(), 0)).unwrap()
}

fn file(dir: &Path, number: u64) -> std::path::PathBuf {
    dir.join(format!("segment-{number:016}.log"))
}

fn read_back(bytes: &[u8]) -> (Vec<LogRecord>, ReplaySummary) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(file(dir.path(), 0), bytes).unwrap();
    let mut records = Vec::new();
    let replayed = read(dir.path(), |_, record| records.push(record)).unwrap();
    (records, replayed)
}

/// Reads a file with these bytes between two intact ones; returns its records.
///
/// # Errors
/// The number of its intact records that cannot be read, if it is refused for them.
fn between(bytes: &[u8]) -> Result<(Vec<LogRecord>, ReplaySummary), u64> {
    let (good, known) = good();
    let dir = tempfile::tempdir().unwrap();
    for (number, bytes) in [(0, &good[..]), (1, bytes), (2, good)] {
        std::fs::write(file(dir.path(), number), bytes).unwrap();
    }
    let mut records = Vec::new();
    let replayed = match read(dir.path(), |_, record| records.push(record)) {
        Ok(replayed) => replayed,
        Err(OpenError::UnknownRecords { path, records }) => {
            assert_eq!(path, file(dir.path(), 1));
            return Err(records);
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!(replayed.records, records.len() as u64);
    assert_eq!(replayed.bytes, (2 * good.len() + bytes.len()) as u64);
    assert!(replayed.torn.len() < 2, "{:?}", replayed.torn);
    for torn in &replayed.torn {
        assert_eq!(torn.offset + torn.lost, bytes.len() as u64, "{torn}");
    }
    assert!(records.starts_with(known) && records.ends_with(known), "the intact files are read completely");
    let end = records.len() - known.len();
    Ok((records.drain(known.len()..end).collect(), replayed))
}

/// Builds frames with valid checksums; returns the file and their number. Each frame takes from the input the kind of its record, the length of
/// the head (two bytes), the length of the arrays (one byte), then the head and the arrays.
fn framed(mut rest: &[u8]) -> (Vec<u8>, u64) {
    let (mut file, mut frames) = (first_line().to_vec(), 0);
    while let [how, low, high, arrays, after @ ..] = rest {
        let (head, after) = after.split_at(after.len().min(usize::from(u16::from_le_bytes([*low, *high]))));
        let (arrays, after) = after.split_at(after.len().min(usize::from(*arrays)));
        rest = after;
        let payload = [head, arrays].concat();
        let kind = how & 3;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&[kind]), &payload);
        file.extend(MARKER);
        file.extend((payload.len() as u32).to_le_bytes());
        file.extend(crc.to_le_bytes());
        file.push(kind);
        file.extend(payload);
        frames += 1;
    }
    (file, frames)
}

/// Damages an intact log. The input is the position of the changed byte (two bytes), the bits to flip (one byte), the number of bytes to
/// cut off the end (two bytes), and the bytes to append.
fn damaged(rest: &[u8]) {
    let [low, high, change, cut_low, cut_high, garbage @ ..] = rest else { return };
    let (good, known) = good();
    let place = |low: &u8, high: &u8, of: usize| usize::from(u16::from_le_bytes([*low, *high])) % of;
    let cut = good.len() - place(cut_low, cut_high, good.len() + 1);
    let mut file = good[..cut].to_vec();
    let mut whole = cut;
    if *change != 0 && cut > 0 {
        whole = place(low, high, cut);
        file[whole] ^= change;
    }
    file.extend(garbage);
    let (records, replayed) = match between(&file) {
        Ok(read) => read,
        // the appended bytes may be a frame
        Err(unknown) => return assert!(unknown > 0 && !garbage.is_empty(), "{}", shown(rest)),
    };
    let mut ends = vec![FIRST_LINE];
    while let Some(length) = frame_length(&good[ends[ends.len() - 1]..]) {
        ends.push(ends[ends.len() - 1] + length);
    }
    let kept = ends.iter().filter(|end| **end <= whole).count().saturating_sub(1);
    assert!(records.starts_with(&known[..kept]), "the {kept} records before the damage are read: {}", shown(rest));
    if garbage.is_empty() {
        let is_damaged = *change != 0 && cut > 0;
        let is_sound = |frame: &[usize]| frame[1] <= cut && !(is_damaged && (frame[0]..frame[1]).contains(&whole));
        let sound = ends.windows(2).zip(known).filter(|(frame, _)| is_sound(frame));
        let sound: Vec<LogRecord> = sound.map(|(_, record)| record.clone()).collect();
        assert_eq!((comparable(&records), replayed.unknown), (comparable(&sound), 0), "{}", shown(rest));
        let is_whole = replayed.torn.is_empty() && replayed.damaged.is_empty();
        assert_eq!(is_whole, ends.contains(&cut) && !is_damaged, "{}", shown(rest));
    }
}
