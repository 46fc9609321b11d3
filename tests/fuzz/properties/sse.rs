// SPDX-License-Identifier: Apache-2.0
//! The decoder of server-sent events.

use tokentap::engine::transport::sse::{SseDecoder, SseEvent};

use super::grammar::shown;

/// Raw bytes and data of each event, then the bytes of an incomplete event.
type Read = (Vec<(Vec<u8>, Option<Vec<u8>>)>, Vec<u8>);

/// The first byte is the number of split positions, which follow with two bytes each; the rest is the stream. However the stream is split,
/// its events are the same, they equal those of a naive decoder of the whole stream, and no byte is lost.
pub fn sse(bytes: &[u8]) {
    let Some((count, rest)) = bytes.split_first() else { return };
    let (cuts, text) = rest.split_at(rest.len().min(usize::from(count % 8) * 2));
    let place = |pair: &[u8; 2]| usize::from(u16::from_le_bytes(*pair)) % (text.len() + 1);
    let mut at: Vec<usize> = cuts.as_chunks::<2>().0.iter().map(place).chain([0, text.len()]).collect();
    at.sort_unstable();

    let wanted = naive(text);
    assert_eq!(read(at.windows(2).map(|pair| &text[pair[0]..pair[1]])), wanted, "{} cut at {at:?}", shown(text));
    assert_eq!(read([text].into_iter()), wanted, "{}", shown(text));
    assert_eq!(read(text.chunks(1)), wanted, "{}", shown(text));
    let kept: Vec<u8> = wanted.0.iter().flat_map(|(raw, _)| raw).chain(&wanted.1).copied().collect();
    assert_eq!(kept, text);
}

fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Read {
    let (mut decoder, mut events, mut given) = (SseDecoder::default(), Vec::new(), 0);
    for piece in pieces {
        decoder.push(piece);
        given += piece.len();
        events.extend(decoder.by_ref().map(|event: SseEvent| {
            assert_eq!(event.is_done(), event.data() == Some(b"[DONE]"));
            given -= event.raw.len();
            (event.raw.to_vec(), event.data().map(<[u8]>::to_vec))
        }));
        assert_eq!(decoder.pending(), given, "pending bytes are those pushed and not yet returned");
    }
    (events, decoder.take_rest().to_vec())
}

/// A naive decoder of a complete stream, line by line.
fn naive(text: &[u8]) -> Read {
    let (mut events, mut data) = (Vec::new(), Vec::new());
    let mut line = if text.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    let mut begun = 0;
    while let Some(length) = text[line..].iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
        let end = line + length;
        let next = match &text[end..] {
            [b'\r', b'\n', ..] => end + 2,
            // may be the first half of a CRLF
            [b'\r'] => break,
            _ => end + 1,
        };
        match &text[line..end] {
            b"" => {
                let one = if data.len() == 1 { data.pop() } else { None };
                data.clear();
                events.push((text[begun..next].to_vec(), one));
                begun = next;
            }
            b"data" => data.push(Vec::new()),
            field => data
                .extend(field.strip_prefix(b"data:").map(|value| value.strip_prefix(b" ").unwrap_or(value).to_vec())),
        }
        line = next;
    }
    (events, text[begun..].to_vec())
}
