// SPDX-License-Identifier: Apache-2.0
//! The frame of a record: marker, length, checksum, kind, payload.
//!
//! `marker [u8; 8], length u32, crc32c u32, kind u8, payload`, little-endian. The length is that of the payload. The
//! checksum covers the kind and the payload, so a wrong length fails it too. Nothing is compressed: ids are packed, and floats hardly shrink. The marker is random, and the first line of the file has
//! it: records contain bytes that clients choose, and a reader that continues after damage must not take those for frames.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};

use super::LogRecord;

/// Bytes of length, checksum and kind.
const ENVELOPE: usize = 9;
/// Bytes before the payload.
pub(super) const HEADER: usize = 8 + ENVELOPE;
/// Bytes of the largest payload. A larger length is corrupt.
const MAX_PAYLOAD: usize = 1 << 30;
/// Random bytes that no client learns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marker([u8; 8]);

/// A frame whose checksum holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Frame {
    /// See [`LogRecord::kind`].
    kind: u8,
    payload: Vec<u8>,
}

impl Marker {
    /// A marker that cannot be guessed.
    pub(super) fn random() -> Self {
        // SipHash under keys from the system's entropy, which the id of the store does not reveal
        Self(RandomState::new().hash_one("marker").to_le_bytes())
    }

    /// Its text in the first line of a file.
    pub(super) fn hex(self) -> String {
        format!("{:016x}", u64::from_be_bytes(self.0))
    }

    pub(super) fn parse(hex: &str) -> Option<Self> {
        u64::from_str_radix(hex, 16).ok().map(|marker| Self(marker.to_be_bytes()))
    }

    /// The possible markers of a file with two damaged copies: the first bytes from the text of the first line, the others from the first
    /// frame. The whole text comes first, because the marker of a frame always fits its own payload.
    pub(super) fn candidates(hex: &[u8], frame: [u8; 8]) -> impl Iterator<Item = Self> {
        let digits = |at: usize| std::str::from_utf8(hex.get(2 * at..2 * at + 2)?).ok();
        let written = move |at: usize| u8::from_str_radix(digits(at)?, 16).ok();
        (0..=8).rev().filter_map(move |split| {
            let mut marker = frame;
            for (at, byte) in marker.iter_mut().enumerate().take(split) {
                *byte = written(at)?;
            }
            Some(Self(marker))
        })
    }

    /// The bytes.
    pub(super) fn bytes(&self) -> &[u8; 8] {
        &self.0
    }

    /// The length of the frame at the start of `bytes`, by its header; `None` if no frame begins there or its length is out of bounds.
    pub(super) fn whole(self, bytes: &[u8]) -> Option<usize> {
        let length = u32::from_le_bytes(*bytes.strip_prefix(&self.0)?.first_chunk()?) as usize;
        (length <= MAX_PAYLOAD).then_some(HEADER + length)
    }

    /// Whether the checksum of a whole frame matches.
    pub(super) fn is_intact(self, frame: &[u8]) -> bool {
        let after = frame.strip_prefix(&self.0).and_then(|frame| frame.split_first_chunk());
        let Some(([_, _, _, _, a, b, c, d, kind], payload)) = after else { return false };
        u32::from_le_bytes([*a, *b, *c, *d]) == checksum(*kind, payload)
    }

    /// Appends the frame of `record` to `out`. An error leaves `out` unchanged.
    pub(super) fn push(self, record: &LogRecord, out: &mut Vec<u8>) -> io::Result<()> {
        let start = out.len();
        let pushed = self.try_push(record, out);
        if pushed.is_err() {
            out.truncate(start);
        }
        pushed
    }

    fn try_push(self, record: &LogRecord, out: &mut Vec<u8>) -> io::Result<()> {
        let (start, kind) = (out.len(), record.kind());
        out.extend(self.0);
        out.extend([0; ENVELOPE]);
        record.encode(out)?;
        let (header, payload) = out[start..].split_at_mut(HEADER);
        let length = u32::try_from(payload.len()).ok().filter(|_| payload.len() <= MAX_PAYLOAD);
        let length = length.ok_or(io::ErrorKind::FileTooLarge)?;
        header[8..12].copy_from_slice(&length.to_le_bytes());
        header[12..16].copy_from_slice(&checksum(kind, payload).to_le_bytes());
        header[16] = kind;
        Ok(())
    }
}

impl Frame {
    /// Reads the next frame of a source that has `rest` bytes left. Also returns the bytes of the frame.
    ///
    /// # Errors
    /// The reason why the source cannot be read beyond this point.
    pub(super) fn read(source: &mut impl Read, rest: u64, marker: Marker) -> Result<(Self, u64), &'static str> {
        let mut found = [0; 8];
        source.read_exact(&mut found).map_err(reason)?;
        if found != marker.0 {
            return Err("a record does not begin with the marker of its file");
        }
        let mut envelope = [0; ENVELOPE];
        source.read_exact(&mut envelope).map_err(reason)?;
        let [a, b, c, d, e, f, g, h, kind] = envelope;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > MAX_PAYLOAD {
            return Err("a length is out of bounds");
        }
        let whole = (HEADER + length) as u64;
        // checked before memory is reserved
        if whole > rest {
            return Err(CUT);
        }
        let mut payload = Vec::with_capacity(length);
        if source.take(length as u64).read_to_end(&mut payload).map_err(reason)? < length {
            return Err(CUT);
        }
        if u32::from_le_bytes([e, f, g, h]) != checksum(kind, &payload) {
            return Err("a checksum does not hold");
        }
        Ok((Self { kind, payload }, whole))
    }

    /// The bytes of the payload.
    pub(super) fn bytes(&self) -> usize {
        self.payload.len()
    }

    /// Its record. `None` if this build cannot read it, although the checksum holds.
    pub(super) fn decode(&self) -> Option<LogRecord> {
        LogRecord::decode(self.kind, &self.payload)
    }
}

/// The reason for a file that a crash has truncated.
pub(super) const CUT: &str = "it ends inside a record";

fn reason(error: io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::UnexpectedEof { CUT } else { "the file cannot be read" }
}

fn checksum(kind: u8, payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&[kind]), payload)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::super::fake;
    use super::*;
    use crate::session::ledger::Change;
    use crate::session::{EntropyMethod, Span, Turn, TurnMetadata};

    fn round_trip(record: &LogRecord) -> (u64, LogRecord) {
        let mut out = Vec::new();
        let marker = Marker::random();
        marker.push(record, &mut out).unwrap();
        let (frame, bytes) = Frame::read(&mut &*out, out.len() as u64, marker).unwrap();
        assert_eq!(bytes, out.len() as u64);
        (bytes, frame.decode().expect("it was written by this build"))
    }

    #[test]
    fn random_numbers_take_four_bytes() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        let turn = Turn { response: (0..10_000).map(|_| random()).collect(), ..fake::bare_turn(0) };
        let noise = fake::record("s", Change::Turn(Arc::new(turn))).into();
        let (bytes, read) = round_trip(&noise);
        assert!(bytes < 40_000 + 100, "{bytes}");
        assert_eq!(read, noise);
    }

    /// A turn with the statistics of an agent's: Zipfian ids, and mostly near-certain tokens.
    fn typical(tokens: usize) -> Turn {
        let mut state = 7_u64;
        let mut uniform = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1_u64 << 24) as f32
        };
        let mut ids = |count: usize| (0..count).map(|_| (150_000_f32.powf(uniform())) as u32).collect::<Vec<u32>>();
        let (prompt, response) = (ids(tokens / 2), ids(tokens));
        let logprobs: Box<[f32]> = (0..tokens).map(|_| -(uniform().powi(6) * 8.0)).collect();
        let entropy = logprobs.iter().map(|nats| nats.abs() * (0.5 + uniform())).collect();
        let span = Span {
            start: 0,
            end: tokens as u32,
            epoch: 3,
            until: 3,
            weight_version: None,
            version: None,
            process: None,
            adapter: None,
        };
        let measured = EntropyMethod {
            source: "top_k".into(),
            estimator: "estimate".into(),
            temperature: Some(1.0),
            top_k: Some(20),
            reason: None,
        };
        let about = TurnMetadata {
            rid: Some("0123456789abcdef0123456789abcdef".into()),
            finish: Some("stop".into()),
            policy: vec![span],
            measured: Some(measured.into()),
            sampling: Some(r#"{"temperature":1.0,"max_new_tokens":4096,"top_p":0.95}"#.into()),
            model: "Qwen/Qwen3-8B".into(),
            started_ms: 1_753_000_000_000,
            elapsed_ms: 8_123,
            ..TurnMetadata::default()
        };
        Turn { id: 1, parent: Some(0), prompt: prompt.into(), response: response.into(), logprobs, entropy, about }
    }

    /// `cargo test --release --lib log::frame -- --ignored --nocapture`
    #[test]
    #[ignore = "prints a measurement"]
    fn size_and_speed_of_a_turn() {
        for tokens in [16, 64, 512, 4096] {
            let turn = Arc::new(typical(tokens));
            let record = LogRecord::from(fake::record("6f1c", Change::Turn(Arc::clone(&turn))));
            let (marker, mut out) = (Marker::random(), Vec::new());
            let rounds = 2000;
            let begin = Instant::now();
            for _ in 0..rounds {
                out.clear();
                marker.push(&record, &mut out).unwrap();
            }
            let encode = begin.elapsed() / rounds;
            let begin = Instant::now();
            for _ in 0..rounds {
                let frame = Frame::read(&mut &*out, out.len() as u64, marker);
                assert!(frame.unwrap().0.decode().is_some());
            }
            let decode = begin.elapsed() / rounds;
            let all = turn.prompt.len() + turn.response.len();
            eprintln!(
                "{tokens} sampled of {all} tokens: {} bytes, {:.2} a token; {encode:?} to encode, {decode:?} to decode",
                out.len(),
                out.len() as f64 / all as f64
            );
        }
    }
}
