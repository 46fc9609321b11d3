//! The log of trajectories, read back.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use tokentap::session::ledger::log::{Fsync, Log, Options, ReplaySummary, read};
use tokentap::session::ledger::{Ledger, Record, SessionKey};
use tokentap::session::{Turn, TurnMetadata};

use super::grammar::shown;

/// Bytes of a file's first line, and before a record's payload.
const FIRST_LINE: usize = 58;
const ENVELOPE: usize = 17;

/// What the frames of [`good`] begin with.
const MARKER: [u8; 8] = *b"\x9cmarker\x01";

/// Between two good files lies one that a byte says the kind of: any bytes, records whose checksums hold, or a good log with a byte
/// changed, an end cut off and bytes behind it. The good ones are read all the same; of the third all but the damaged record, and what
/// never was written is not read.
pub fn log(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match kind % 3 {
        0 if kind & 64 == 0 => drop(between(rest)),
        0 => drop(between(&[first_line(), rest].concat())),
        1 => {
            let (file, frames) = framed(rest);
            let (records, replayed) = between(&file);
            assert!(replayed.torn.is_empty(), "{:?}: {}", replayed.torn, shown(bytes));
            // records with an impossible session or turn are skipped
            let passed_over = replayed.unknown + replayed.damaged_regions();
            assert_eq!(records.len() as u64 + passed_over, frames, "{}", shown(bytes));
            if !records.is_empty() {
                let again = read_back(&written(&records)).0;
                assert_eq!(told(&again), told(&records), "{}", shown(bytes));
            }
        }
        _ => damaged(rest),
    }
}

fn told(records: &[Record]) -> String {
    // NaN is not equal to itself
    format!("{records:?}")
}

fn first_line() -> &'static [u8] {
    &good().0[..FIRST_LINE]
}

/// A log and its records, one of them large enough to be compressed.
fn good() -> &'static (Vec<u8>, Vec<Record>) {
    static GOOD: OnceLock<(Vec<u8>, Vec<Record>)> = OnceLock::new();
    GOOD.get_or_init(|| {
        let session = SessionKey::from("s");
        let turn = |id: u32, tokens: u32| {
            let numbers = || (0..tokens).map(|at| (at as f32 * 0.37).sin()).collect::<Box<[f32]>>();
            Turn {
                id,
                parent: id.checked_sub(1),
                prompt: (0..tokens).map(|at| at * 7).collect(),
                response: (0..tokens).map(|at| at * 31).collect(),
                logprobs: numbers(),
                entropy: numbers(),
                about: TurnMetadata::default(),
            }
        };
        let records = vec![
            Record::Turn { session: session.clone(), turn: Arc::new(turn(0, 3)) },
            Record::Turn { session: session.clone(), turn: Arc::new(turn(1, 200)) },
            Record::Finished { session, leaf: 1, turns: 2, number: 7 },
            Record::Policy { epoch: 3, version: Some("three".into()) },
        ];
        // store and marker differ with every run, which would make inputs mean another thing each time
        let mut file = written(&records);
        let text = format!("tokentap-log 2 {:016x} {:016x}", 0xfeed, u64::from_be_bytes(MARKER));
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

/// Bytes of the frame that `bytes` begin with.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let length = bytes.get(MARKER.len()..)?.first_chunk()?;
    Some(ENVELOPE + u32::from_le_bytes(*length) as usize)
}

/// The file of a log with these records.
fn written(records: &[Record]) -> Vec<u8> {
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

fn read_back(bytes: &[u8]) -> (Vec<Record>, ReplaySummary) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(file(dir.path(), 0), bytes).unwrap();
    let mut records = Vec::new();
    let replayed = read(dir.path(), |record| records.push(record)).unwrap();
    (records, replayed)
}

/// What is read of a file between two good ones.
fn between(bytes: &[u8]) -> (Vec<Record>, ReplaySummary) {
    let (good, known) = good();
    let dir = tempfile::tempdir().unwrap();
    for (number, bytes) in [(0, &good[..]), (1, bytes), (2, good)] {
        std::fs::write(file(dir.path(), number), bytes).unwrap();
    }
    let mut records = Vec::new();
    let replayed = read(dir.path(), |record| records.push(record)).unwrap();
    assert_eq!(replayed.records, records.len() as u64);
    assert_eq!(replayed.bytes, (2 * good.len() + bytes.len()) as u64);
    assert!(replayed.torn.len() < 2, "{:?}", replayed.torn);
    for torn in &replayed.torn {
        assert_eq!(torn.offset + torn.lost, bytes.len() as u64, "{torn}");
    }
    assert!(records.starts_with(known) && records.ends_with(known), "the good files are read whole");
    let end = records.len() - known.len();
    (records.drain(known.len()..end).collect(), replayed)
}

/// Frames whose checksums hold, and how many: each is a byte, two of a length, one of another, and so many bytes of head and arrays.
fn framed(mut rest: &[u8]) -> (Vec<u8>, u64) {
    let (mut file, mut frames) = (first_line().to_vec(), 0);
    while let [how, low, high, arrays, behind @ ..] = rest {
        let (head, behind) = behind.split_at(behind.len().min(usize::from(u16::from_le_bytes([*low, *high]))));
        let (arrays, behind) = behind.split_at(behind.len().min(usize::from(*arrays)));
        rest = behind;
        let length = if how & 8 == 0 { (head.len() as u32).to_le_bytes().to_vec() } else { Vec::new() };
        let mut payload = [&length, head, arrays].concat();
        if how & 4 != 0 {
            payload = zstd::bulk::compress(&payload, 1).unwrap();
        }
        let flags = how & 3;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&[flags]), &payload);
        file.extend(MARKER);
        file.extend((payload.len() as u32).to_le_bytes());
        file.extend(crc.to_le_bytes());
        file.push(flags);
        file.extend(payload);
        frames += 1;
    }
    (file, frames)
}

/// Two bytes say where a good log is changed, one how, two where it is cut; the rest follows the cut.
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
    let (records, replayed) = between(&file);
    let mut ends = vec![FIRST_LINE];
    while let Some(length) = frame_length(&good[ends[ends.len() - 1]..]) {
        ends.push(ends[ends.len() - 1] + length);
    }
    let kept = ends.iter().filter(|end| **end <= whole).count().saturating_sub(1);
    assert!(records.starts_with(&known[..kept]), "{kept} records come before the damage: {}", shown(rest));
    if garbage.is_empty() {
        let is_damaged = *change != 0 && cut > 0;
        // one flipped bit of the first line is repaired; more hide whose file it is
        let is_hidden = is_damaged && whole < FIRST_LINE && change.count_ones() > 1;
        let is_sound = |frame: &[usize]| frame[1] <= cut && !(is_damaged && (frame[0]..frame[1]).contains(&whole));
        let sound = ends.windows(2).zip(known).filter(|(frame, _)| !is_hidden && is_sound(frame));
        let sound: Vec<Record> = sound.map(|(_, record)| record.clone()).collect();
        assert_eq!((told(&records), replayed.unknown), (told(&sound), 0), "{}", shown(rest));
        let is_whole = replayed.torn.is_empty() && replayed.damaged.is_empty();
        assert_eq!(is_whole, ends.contains(&cut) && !is_damaged, "{}", shown(rest));
    }
}
