//! The faults of an engine: what it does, what the client must see, what must be kept.

use super::doors::{Door, TOKENS};
use crate::support::hand::chunk;
use crate::support::upstream::message;

/// What an engine does to one request, and what comes of it.
pub struct Script {
    /// What it says.
    pub said: Vec<u8>,
    /// Each byte is a write.
    pub spelt: bool,
    /// What it does then.
    pub end: End,
    pub seen: Seen,
    /// Tokens of the turn that is kept, and its fault.
    pub kept: Option<(usize, Option<&'static str>)>,
    /// Whether the engine is blamed for it.
    pub blamed: bool,
}

pub enum End {
    /// Waits for the next request.
    Keep,
    Close,
    /// Closes by a reset, once the client has so many pieces.
    Reset(usize),
    /// Closes its side and waits for the other.
    HalfClose,
    /// Waits until tokentap has closed the connection.
    Refused,
    /// Says this when the client has its reply, and waits as before.
    Late(Vec<u8>),
}

/// What the client sees.
pub enum Seen {
    /// An answer of tokentap's own.
    Refusal,
    /// So many pieces, and then no end.
    Cut(usize),
    /// So many pieces, and an end.
    Ended(usize),
    /// All but so many bytes, and an end.
    Short(usize),
    /// All of it.
    Whole,
}

/// A fault, by the name of its row in docs/faults.md.
pub struct Case {
    pub name: &'static str,
    pub script: fn(Door) -> Option<Script>,
}

/// A reply of which nothing is kept.
fn lost(said: Vec<u8>, end: End, seen: Seen) -> Script {
    Script { said, spelt: false, end, seen, kept: None, blamed: true }
}

/// A reply that comes whole, whatever else happens.
fn whole(door: Door, said: Vec<u8>, end: End) -> Script {
    let kept = (door != Door::Forward).then_some((TOKENS, None));
    Script { said, spelt: false, end, seen: Seen::Whole, kept, blamed: false }
}

/// A stream, or a reply that is passed on, that is cut when so many pieces have come.
fn cut(door: Door, said: Vec<u8>, end: End, pieces: usize) -> Script {
    let tokens = pieces.min(TOKENS);
    let fault = if pieces < TOKENS { Some("broken") } else { None };
    let kept = (door.is_stream() && tokens > 0).then_some((tokens, fault));
    Script { kept, ..lost(said, end, Seen::Cut(pieces)) }
}

/// The same, where a reply in one piece is refused: its head has not been passed on yet.
fn cut_or_refused(door: Door, said: Vec<u8>, end: End, pieces: usize) -> Script {
    if door == Door::Whole { lost(said, end, Seen::Refusal) } else { cut(door, said, end, pieces) }
}

/// The first piece and half of the next.
fn half(door: Door) -> Vec<u8> {
    let next = door.framed(&door.pieces()[1]);
    let next = if door.is_stream() { &next[..next.len() / 2] } else { b"" };
    [&door.begun(1)[..], next].concat()
}

/// A reply to nobody.
fn stray() -> Vec<u8> {
    message(200, &[("content-type", "application/json")], b"another's")
}

/// A reply without a word of its length.
fn unframed(door: Door, body: &[u8]) -> Vec<u8> {
    let kind = if door.is_stream() { "text/event-stream" } else { "application/json" };
    [format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n\r\n").as_bytes(), body].concat()
}

pub const CASES: &[Case] = &[
    Case { name: "the engine closes without an answer", script: |_| Some(lost(Vec::new(), End::Close, Seen::Refusal)) },
    Case { name: "it resets without an answer", script: |_| Some(lost(Vec::new(), End::Reset(0), Seen::Refusal)) },
    Case {
        name: "it closes within the head",
        script: |door| {
            let head = door.head(None);
            Some(lost(head[..head.len() - 3].to_vec(), End::Close, Seen::Refusal))
        },
    },
    Case {
        name: "it closes behind the head (200 and nothing more)",
        script: |door| Some(cut_or_refused(door, door.head(None), End::Close, 0)),
    },
    Case { name: "it closes within the body", script: |door| Some(cut_or_refused(door, half(door), End::Close, 1)) },
    Case { name: "it resets within the body", script: |door| Some(cut_or_refused(door, half(door), End::Reset(1), 1)) },
    Case {
        name: "it closes between two events",
        script: |door| door.is_stream().then(|| cut(door, door.begun(2), End::Close, 2)),
    },
    Case {
        name: "it closes behind the last event",
        script: |door| door.is_stream().then(|| cut(door, door.begun(TOKENS), End::Close, TOKENS)),
    },
    Case {
        name: "it closes behind `[DONE]`",
        script: |door| door.is_stream().then(|| cut(door, door.begun(TOKENS + 1), End::Close, TOKENS + 1)),
    },
    Case {
        name: "it ends a stream properly, without `[DONE]`",
        script: |door| {
            let said = [&door.begun(2)[..], b"0\r\n\r\n"].concat();
            let ended = Script { seen: Seen::Ended(2), blamed: false, ..cut(door, said, End::Keep, 2) };
            door.is_stream().then_some(ended)
        },
    },
    Case {
        name: "it sends a chunk that is none",
        script: |door| {
            let said = [&door.begun(1)[..], b"zz\r\n"].concat();
            door.is_stream().then(|| cut(door, said, End::Refused, 1))
        },
    },
    Case {
        name: "it announces more bytes than it sends",
        script: |door| {
            let body = door.pieces().concat();
            let said = [door.head(Some(body.len() + 10)), body].concat();
            (!door.is_stream()).then(|| cut_or_refused(door, said, End::Close, 2))
        },
    },
    Case {
        name: "it announces fewer bytes than it sends",
        script: |door| {
            let body = door.pieces().concat();
            let said = [door.head(Some(body.len() - 5)), body].concat();
            let short = Script { blamed: false, ..lost(said, End::Refused, Seen::Short(5)) };
            (!door.is_stream()).then_some(short)
        },
    },
    Case {
        name: "it announces two lengths",
        script: |door| {
            let body = door.pieces().concat();
            let lengths = format!("content-length: {}\r\ncontent-length: {}\r\n\r\n", body.len(), body.len() + 1);
            let said = [b"HTTP/1.1 200 OK\r\n", lengths.as_bytes(), &body].concat();
            (!door.is_stream()).then(|| lost(said, End::Refused, Seen::Refusal))
        },
    },
    Case {
        name: "it sends a second reply behind the first",
        script: |door| Some(whole(door, [door.healthy(), stray()].concat(), End::Refused)),
    },
    Case {
        name: "it sends a reply that nobody asked for",
        script: |door| Some(whole(door, door.healthy(), End::Late(stray()))),
    },
    Case {
        name: "it writes one byte at a time",
        script: |door| {
            let bytes = door.pieces().concat();
            let said = match door {
                Door::Forward => door.healthy(),
                _ => {
                    let kind = if door == Door::Whole { "application/json" } else { "text/event-stream" };
                    let head = [("content-type", kind), ("transfer-encoding", "chunked")];
                    let chunks: Vec<u8> = bytes.iter().flat_map(|byte| chunk(&[*byte])).collect();
                    [&message(200, &head, b"")[..], &chunks, b"0\r\n\r\n"].concat()
                }
            };
            Some(Script { spelt: true, ..whole(door, said, End::Keep) })
        },
    },
    Case {
        name: "it closes its side behind the reply",
        script: |door| Some(whole(door, door.healthy(), End::HalfClose)),
    },
    Case {
        name: "only its close ends the reply",
        script: |door| Some(whole(door, unframed(door, &door.pieces().concat()), End::Close)),
    },
    Case {
        name: "only its close would end the reply, and it comes early",
        script: |door| {
            let said = unframed(door, &door.pieces()[0]);
            Some(Script { seen: Seen::Ended(1), blamed: false, ..cut(door, said, End::Close, 1) })
        },
    },
];
