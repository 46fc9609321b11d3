// SPDX-License-Identifier: Apache-2.0
//! Where the body of a reply ends: after its length, after its last chunk, or with the connection.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::MAX_HEADERS;

/// The most bytes of chunk extensions of a body.
const MAX_EXTENSIONS: usize = 16 * 1024;

/// The most bytes of trailers.
const MAX_TRAILERS: usize = 16 * 1024;

/// A body whose framing is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct MalformedBody(pub(super) &'static str);

/// The framing of a body, and how much of it was read.
#[derive(Debug)]
pub(super) enum Framing {
    /// Bytes that are missing.
    Length(u64),
    /// Chunks.
    Chunked(Chunks),
    /// The body ends with the connection.
    UntilClose,
}

#[derive(Debug, Default)]
pub(super) struct Chunks {
    state: ChunkState,
    /// The size of the chunk as far as it was read; within its data, the bytes that are missing.
    left: u64,
    /// Bytes of extensions so far.
    extensions: usize,
    /// The trailers with their line ends.
    trailers: Vec<u8>,
    /// Lines of trailers so far.
    lines: usize,
}

/// What the next byte belongs to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    #[default]
    FirstDigit,
    Size,
    /// The white space after a size.
    Space,
    Extension,
    /// The LF after a size.
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// The first byte after the last chunk or after a trailer.
    Line,
    Trailer,
    TrailerLf,
    EndLf,
    End,
}

impl Framing {
    /// A chunked body.
    pub(super) fn chunked() -> Self {
        Self::Chunked(Chunks::default())
    }

    /// Whether the body has ended. One that ends with the connection never has.
    pub(super) fn has_ended(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunks) => chunks.state == ChunkState::End,
            Self::UntilClose => false,
        }
    }

    /// Reads the framing at the start of received bytes. Returns its length: data, or nothing follows.
    pub(super) fn skip(&mut self, bytes: &[u8]) -> Result<usize, MalformedBody> {
        let Self::Chunked(chunks) = self else { return Ok(0) };
        for (at, byte) in bytes.iter().enumerate() {
            if matches!(chunks.state, ChunkState::Data | ChunkState::End) {
                return Ok(at);
            }
            chunks.state = chunks.advance(*byte)?;
        }
        Ok(bytes.len())
    }

    /// The number of bytes of data that follow at least; zero if the framing must be read first.
    pub(super) fn data(&self) -> usize {
        let left = match self {
            Self::Length(left) => *left,
            Self::Chunked(chunks) if chunks.state == ChunkState::Data => chunks.left,
            Self::Chunked(_) => 0,
            Self::UntilClose => u64::MAX,
        };
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    /// Records that data was read, not more than [`Self::data`].
    pub(super) fn take(&mut self, length: usize) {
        match self {
            Self::Length(left) => *left -= length as u64,
            Self::Chunked(chunks) => {
                chunks.left -= length as u64;
                if chunks.left == 0 {
                    chunks.state = ChunkState::DataCr;
                }
            }
            Self::UntilClose => {}
        }
    }

    /// The trailers of a body that has ended.
    pub(super) fn trailers(&mut self) -> Result<Option<HeaderMap>, MalformedBody> {
        let Self::Chunked(chunks) = self else { return Ok(None) };
        let mut text = std::mem::take(&mut chunks.trailers);
        if text.is_empty() {
            return Ok(None);
        }
        text.extend_from_slice(b"\r\n");
        let malformed = || MalformedBody("invalid trailer");
        let mut parsed = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let Ok(httparse::Status::Complete((_, parsed))) = httparse::parse_headers(&text, &mut parsed[..chunks.lines])
        else {
            return Err(malformed());
        };
        let mut trailers = HeaderMap::with_capacity(parsed.len());
        for header in parsed {
            let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| malformed())?;
            trailers.append(name, HeaderValue::from_bytes(header.value).map_err(|_| malformed())?);
        }
        Ok(Some(trailers))
    }
}

impl Chunks {
    fn advance(&mut self, byte: u8) -> Result<ChunkState, MalformedBody> {
        use ChunkState::{
            Data, DataCr, DataLf, End, EndLf, Extension, FirstDigit, Line, Size, SizeLf, Space, Trailer, TrailerLf,
        };
        Ok(match (self.state, byte) {
            (FirstDigit | Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                let shifted = self.left.checked_mul(16).ok_or(MalformedBody("invalid chunk size: overflow"))?;
                self.left = shifted + u64::from(digit);
                Size
            }
            (Size | Space, b' ' | b'\t') => Space,
            (Size | Space, b';') => Extension,
            (Size | Space | Extension, b'\r') => SizeLf,
            (Extension, b'\n') => return Err(MalformedBody("invalid chunk extension contains newline")),
            (Extension, _) => {
                self.extensions += 1;
                if self.extensions >= MAX_EXTENSIONS {
                    return Err(MalformedBody("chunk extensions over limit"));
                }
                Extension
            }
            (SizeLf, b'\n') if self.left == 0 => Line,
            (SizeLf, b'\n') => Data,
            (DataCr, b'\r') => DataLf,
            (DataLf, b'\n') => FirstDigit,
            (Line, b'\r') => EndLf,
            (Line | Trailer, _) => {
                self.add_trailer(byte)?;
                if byte == b'\r' { TrailerLf } else { Trailer }
            }
            (TrailerLf, b'\n') => {
                self.lines += 1;
                if self.lines > MAX_HEADERS {
                    return Err(MalformedBody("chunk trailers count overflow"));
                }
                self.add_trailer(byte)?;
                Line
            }
            (EndLf, b'\n') => End,
            (FirstDigit | Size | Space | SizeLf, _) => return Err(MalformedBody("invalid chunk size line")),
            (DataCr | DataLf, _) => return Err(MalformedBody("invalid end of a chunk")),
            (TrailerLf | EndLf, _) => return Err(MalformedBody("invalid end of the trailers")),
            (Data | End, _) => unreachable!("data and what follows the body are not framing"),
        })
    }

    fn add_trailer(&mut self, byte: u8) -> Result<(), MalformedBody> {
        if self.trailers.len() >= MAX_TRAILERS {
            return Err(MalformedBody("chunk trailers bytes over limit"));
        }
        self.trailers.push(byte);
        Ok(())
    }
}
