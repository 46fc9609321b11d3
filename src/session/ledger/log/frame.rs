//! The frame of a record: marker, length, checksum, flags, payload.
//!
//! `marker [u8; 8], length u32, crc32c u32, flags u8, payload`, little-endian. The length is that of the stored payload. The
//! checksum covers the flags and the payload, so a wrong length fails it too. The marker is random, and the first line of the file has
//! it: records contain bytes that clients choose, and a reader that continues after damage must not take those for frames.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::get_frame_content_size;

use super::LogRecord;

/// Bytes of length, checksum and flags.
const ENVELOPE: usize = 9;
/// Bytes before the payload.
pub(super) const HEADER: usize = 8 + ENVELOPE;
/// Bytes of the largest payload, compressed or not. A larger length is corrupt.
const MAX_PAYLOAD: usize = 1 << 30;
/// Payloads up to this size are not compressed: it would not save a write.
const PLAIN_UP_TO: usize = 1024;
/// The capacity that buffers keep between records. A large record may use more.
const KEEP: usize = 4 << 20;
/// The flag of a compressed payload.
const ZSTD: u8 = 1;

/// Random bytes that no client learns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marker([u8; 8]);

/// Encodes records as frames.
pub(super) struct Encoder {
    marker: Marker,
    zstd: Compressor<'static>,
    plain: Vec<u8>,
    packed: Vec<u8>,
}

/// Decodes the payloads of frames.
pub(super) struct Decoder {
    zstd: Decompressor<'static>,
    /// The decompressed payload. A new buffer for each record would cost as much as the decompression, by the page faults.
    plain: Vec<u8>,
}

/// A frame whose checksum holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Frame {
    flags: u8,
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
        let Some(([_, _, _, _, a, b, c, d, flags], payload)) = after else { return false };
        u32::from_le_bytes([*a, *b, *c, *d]) == checksum(*flags, payload)
    }
}

impl Encoder {
    /// An encoder of frames with this marker.
    pub(super) fn try_new(marker: Marker) -> io::Result<Self> {
        // level 1 is faster than most disks, and higher levels save little
        Ok(Self { marker, zstd: Compressor::new(1)?, plain: Vec::new(), packed: Vec::new() })
    }

    /// The marker of the frames.
    pub(super) fn marker(&self) -> Marker {
        self.marker
    }

    /// Appends the frame of `record` to `out`. An error leaves `out` unchanged.
    pub(super) fn push(&mut self, record: &LogRecord, out: &mut Vec<u8>) -> io::Result<()> {
        for buffer in [&mut self.plain, &mut self.packed] {
            buffer.clear();
            buffer.shrink_to(KEEP);
        }
        record.encode(&mut self.plain)?;
        if self.plain.len() > MAX_PAYLOAD {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let packed = self.plain.len() > PLAIN_UP_TO && {
            self.packed.reserve(zstd::zstd_safe::compress_bound(self.plain.len()));
            self.zstd.compress_to_buffer(&self.plain, &mut self.packed)? < self.plain.len()
        };
        let (flags, payload) = if packed { (ZSTD, &self.packed) } else { (0, &self.plain) };
        let length = u32::try_from(payload.len()).expect("MAX_PAYLOAD fits");
        out.extend(self.marker.0);
        out.extend(length.to_le_bytes());
        out.extend(checksum(flags, payload).to_le_bytes());
        out.push(flags);
        out.extend(payload);
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
        let [a, b, c, d, e, f, g, h, flags] = envelope;
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
        if u32::from_le_bytes([e, f, g, h]) != checksum(flags, &payload) {
            return Err("a checksum does not hold");
        }
        Ok((Self { flags, payload }, whole))
    }

    /// The bytes of the decompressed payload.
    pub(super) fn plain_bytes(&self) -> usize {
        self.plain_size().unwrap_or(self.payload.len())
    }

    /// The size of the decompressed payload, if it is compressed and not too large.
    fn plain_size(&self) -> Option<usize> {
        let size = get_frame_content_size(&self.payload).ok().flatten().filter(|_| self.flags == ZSTD)?;
        usize::try_from(size).ok().filter(|size| *size <= MAX_PAYLOAD)
    }
}

impl Decoder {
    pub(super) fn try_new() -> io::Result<Self> {
        Ok(Self { zstd: Decompressor::new()?, plain: Vec::new() })
    }

    /// The record of a frame. `None` if this build cannot read it, although the checksum holds.
    pub(super) fn decode(&mut self, frame: &Frame) -> Option<LogRecord> {
        match frame.flags {
            0 => LogRecord::decode(&frame.payload),
            ZSTD => self.unpack(frame).and_then(|()| LogRecord::decode(&self.plain)),
            _ => None,
        }
    }

    fn unpack(&mut self, frame: &Frame) -> Option<()> {
        let size = frame.plain_size()?;
        self.plain.clear();
        self.plain.shrink_to(KEEP);
        self.plain.reserve(size);
        let written = self.zstd.decompress_to_buffer(&frame.payload, &mut self.plain).ok()?;
        (written == size).then_some(())
    }
}

/// The reason for a file that a crash has truncated.
pub(super) const CUT: &str = "it ends inside a record";

fn reason(error: io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::UnexpectedEof { CUT } else { "the file cannot be read" }
}

fn checksum(flags: u8, payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&[flags]), payload)
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
        Encoder::try_new(marker).unwrap().push(record, &mut out).unwrap();
        let (frame, bytes) = Frame::read(&mut &*out, out.len() as u64, marker).unwrap();
        assert_eq!(bytes, out.len() as u64);
        (bytes, Decoder::try_new().unwrap().decode(&frame).expect("it was written by this build"))
    }

    #[test]
    fn large_payloads_are_compressed_if_it_saves_space() {
        let reward = Change::Reward { leaf: None, reward: Arc::new("0".repeat(100_000).into()), version: 0 };
        let zeros = fake::record("s", reward).into();
        let (bytes, read) = round_trip(&zeros);
        assert!(bytes < 1000, "{bytes}");
        assert_eq!(read, zeros);

        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        let turn = Turn { response: (0..10_000).map(|_| random()).collect(), ..fake::bare_turn(0) };
        let noise = fake::record("s", Change::Turn(Arc::new(turn))).into();
        let (bytes, read) = round_trip(&noise);
        assert!(bytes < 40_000 + 600, "random data is stored uncompressed: {bytes}");
        assert_eq!(read, noise);
    }

    #[test]
    fn buffers_shrink_after_a_large_record() {
        let (mut encoder, mut out) = (Encoder::try_new(Marker::random()).unwrap(), Vec::new());
        encoder.push(&fake::turn("s", 0, 1_000_000), &mut out).unwrap();
        encoder.push(&fake::finished(0), &mut out).unwrap();
        assert!(encoder.plain.capacity() <= KEEP && encoder.packed.capacity() <= KEEP);
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
            measured: Some(measured),
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
            let (mut encoder, mut decoder) = (Encoder::try_new(Marker::random()).unwrap(), Decoder::try_new().unwrap());
            let (mut plain, mut out) = (Vec::new(), Vec::new());
            record.encode(&mut plain).unwrap();
            let rounds = 2000;
            let begin = Instant::now();
            for _ in 0..rounds {
                out.clear();
                encoder.push(&record, &mut out).unwrap();
            }
            let encode = begin.elapsed() / rounds;
            let begin = Instant::now();
            for _ in 0..rounds {
                let frame = Frame::read(&mut &*out, out.len() as u64, encoder.marker());
                assert!(decoder.decode(&frame.unwrap().0).is_some());
            }
            let decode = begin.elapsed() / rounds;
            let all = turn.prompt.len() + turn.response.len();
            eprintln!(
                "{tokens} sampled of {all} tokens: {} bytes ({} before zstd), {:.2} a token; {encode:?} to encode, {decode:?} to decode",
                out.len(),
                plain.len(),
                out.len() as f64 / all as f64
            );
        }
    }
}
