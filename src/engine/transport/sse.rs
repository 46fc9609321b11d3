// SPDX-License-Identifier: Apache-2.0
//! Splits a byte stream into server-sent events and preserves every byte.
//!
//! A proxy forwards bytes unchanged, so an event holds its raw bytes and the range of its data.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

/// One event, including its blank line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SseEvent {
    /// All its bytes.
    pub raw: Bytes,
    /// The range of its data, if it has exactly one data line: SGLang never writes more.
    pub data: Option<Range<usize>>,
    /// It has several data lines, which are not read.
    pub has_several: bool,
}

impl SseEvent {
    /// An event with this JSON text, which has no line breaks.
    #[must_use]
    pub(crate) fn of_json(json: Vec<u8>) -> Self {
        const START: &[u8] = b"data: ";
        let data = START.len()..START.len() + json.len();
        Self { raw: [START, &json, b"\n\n"].concat().into(), data: Some(data), has_several: false }
    }

    /// The data.
    #[must_use]
    pub fn data(&self) -> Option<&[u8]> {
        self.data.clone().map(|range| &self.raw[range])
    }

    /// Whether this is the `[DONE]` that ends a stream.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.data() == Some(b"[DONE]")
    }
}

/// Whether the rest of a stream has only blank lines and comments.
#[must_use]
pub fn is_empty(rest: &[u8]) -> bool {
    rest.split(|byte| matches!(byte, b'\n' | b'\r')).all(|line| line.starts_with(b":") || line.trim_ascii().is_empty())
}

/// Splits a stream into events, independent of its split into chunks. Lines end in LF, CRLF or CR.
#[derive(Debug, Default)]
pub struct SseDecoder {
    buffer: BytesMut,
    /// The start of the current line.
    line: usize,
    /// The end of the part that was searched for a line end.
    scanned: usize,
    data: Option<Range<usize>>,
    data_lines: usize,
    begun: bool,
}

impl SseDecoder {
    /// Adds bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The bytes of incomplete events, to which those that follow are added.
    pub(crate) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The number of buffered bytes of an incomplete event.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.buffer.len()
    }

    /// Takes the bytes of an incomplete event: the rest of a stream that broke off, or of an event that is too large.
    pub fn take_rest(&mut self) -> Bytes {
        let begun = self.begun;
        let rest = std::mem::take(self).buffer.freeze();
        self.begun = begun;
        rest
    }
}

impl Iterator for SseDecoder {
    type Item = SseEvent;

    /// The next complete event.
    fn next(&mut self) -> Option<SseEvent> {
        if !self.begun {
            let mark = b"\xef\xbb\xbf";
            if self.buffer.len() < mark.len() && mark.starts_with(&self.buffer) {
                return None;
            }
            self.begun = true;
            if self.buffer.starts_with(mark) {
                (self.line, self.scanned) = (mark.len(), mark.len());
            }
        }
        loop {
            let found = memchr::memchr2(b'\n', b'\r', &self.buffer[self.scanned..]);
            let Some(end) = found.map(|at| self.scanned + at) else {
                self.scanned = self.buffer.len();
                return None;
            };
            let next = match (self.buffer[end], self.buffer.get(end + 1)) {
                (b'\n', _) => end + 1,
                (_, Some(b'\n')) => end + 2,
                (_, Some(_)) => end + 1,
                // more bytes must show whether this CR is part of a CRLF
                (_, None) => {
                    self.scanned = end;
                    return None;
                }
            };
            let blank = end == self.line;
            self.field(end);
            (self.line, self.scanned) = (next, next);
            if blank {
                let raw = self.buffer.split_to(next).freeze();
                let has_several = self.data_lines > 1;
                let data = self.data.take().filter(|_| !has_several);
                (self.line, self.scanned, self.data_lines) = (0, 0, 0);
                return Some(SseEvent { raw, data, has_several });
            }
        }
    }
}

impl SseDecoder {
    fn field(&mut self, end: usize) {
        let line = &self.buffer[self.line..end];
        if let Some(value) = line.strip_prefix(b"data:") {
            let space = usize::from(value.first() == Some(&b' '));
            self.data = Some(end - value.len() + space..end);
            self.data_lines += 1;
        } else if line == b"data" {
            // a field name without a colon has an empty value
            self.data = Some(end..end);
            self.data_lines += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn events(chunks: &[&[u8]]) -> (Vec<SseEvent>, Bytes) {
        let mut decoder = SseDecoder::default();
        let mut events = Vec::new();
        for chunk in chunks {
            decoder.push(chunk);
            events.extend(&mut decoder);
        }
        (events, decoder.take_rest())
    }

    #[test]
    fn data_range_is_found_in_each_event() {
        let (all, rest) = events(&[b"data: {\"a\":1}\n\ndata: [DONE]\n\n"]);
        assert_eq!(all[0].data(), Some(&b"{\"a\":1}"[..]));
        assert!(all[1].is_done() && rest.is_empty());
        let (all, _) = events(&[b": comment\r\nevent: x\r\ndata:1\r\n\r\ndata: a\ndata: b\n\n\xef\xbb\xbfdata: c\n\n"]);
        assert_eq!(all[0].data(), Some(&b"1"[..]));
        assert_eq!(all[1].data(), None, "two lines of data are forwarded, not read");
        assert_eq!([all[0].has_several, all[1].has_several], [false, true]);
        let (all, _) = events(&[b"data\ndata: a\n\ndata\n\n"]);
        assert_eq!((all[0].data(), all[1].data()), (None, Some(&b""[..])), "a name without a colon is a line of data");
        let (all, _) = events(&[b"\xef\xbb\xbfdata: c\r\rdata: d\r\r", b"x"]);
        assert_eq!(all.iter().filter_map(SseEvent::data).collect::<Vec<_>>(), [b"c", b"d"]);
    }

    #[test]
    fn rest_of_a_broken_stream_is_returned() {
        let (all, rest) = events(&[b"data: 1\n\ndata: {\"tex"]);
        assert_eq!((all.len(), &rest[..]), (1, &b"data: {\"tex"[..]));
    }

    #[test]
    fn rest_with_only_comments_is_empty() {
        assert!([&b""[..], b"\r\n", b": keep-alive", b":\n: data: 1\r\n"].into_iter().all(is_empty));
        assert!(![&b"data: 1"[..], b": a\ndata: {", b"{}\n"].into_iter().any(is_empty));
    }

    fn piece() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![
            "data: ",
            "data:",
            "{\"a\":\"\u{e9}\\n\"}",
            "\n",
            "\r",
            "\r\n",
            "\n\n",
            "event: x",
            ":",
            "[DONE]",
            "\u{feff}",
            "d",
        ])
    }

    proptest! {
        #[test]
        fn every_split_gives_the_same_events(
            pieces in prop::collection::vec(piece(), 0..24),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8)
        ) {
            let text = pieces.concat();
            let bytes = text.as_bytes();
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).chain([0, bytes.len()]).collect();
            at.sort_unstable();
            let chunks: Vec<&[u8]> = at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            let (whole, rest) = events(&[bytes]);
            prop_assert_eq!(&events(&chunks), &(whole.clone(), rest.clone()));
            prop_assert_eq!(&events(&single), &(whole.clone(), rest.clone()));
            let kept: Vec<u8> = whole.iter().flat_map(|event| event.raw.to_vec()).chain(rest).collect();
            prop_assert_eq!(kept, bytes);
        }
    }
}
