// SPDX-License-Identifier: Apache-2.0
//! The faults of an engine: its action, the client's expected view, and the expected turn.

use super::doors::{RequestKind, TOKENS};
use crate::support::manual_upstream::chunk;
use crate::support::upstream::message;

/// An engine's action on one request, and the expected result.
pub struct Script {
    /// The bytes that it sends.
    pub reply: Vec<u8>,
    /// Sends each byte with a separate write.
    pub bytewise: bool,
    /// Its action after these bytes.
    pub end: End,
    pub view: ClientView,
    /// Tokens and fault of the recorded turn.
    pub turn: Option<(usize, Option<&'static str>)>,
    /// Whether the reply is counted as a failure of the engine.
    pub blamed: bool,
}

pub enum End {
    /// Waits for the next request.
    Keep,
    Close,
    /// Resets the connection after the client has received this many pieces.
    Reset(usize),
    /// Closes its side, then waits until tokentap closes the other.
    HalfClose,
    /// Waits until tokentap has closed the connection.
    Refused,
    /// Sends this after the client has its reply, and waits until tokentap has closed the connection.
    Late(Vec<u8>),
}

/// The client's view of the reply.
pub enum ClientView {
    /// An error answer of tokentap.
    Refusal,
    /// This many pieces without an end.
    Cut(usize),
    /// This many pieces and an end.
    Ended(usize),
    /// All but this many bytes, and an end.
    Short(usize),
    /// The whole reply.
    Whole,
}

/// A fault, by the name of its row in docs/faults.md.
pub struct Case {
    pub name: &'static str,
    pub script: fn(RequestKind) -> Option<Script>,
}

/// A reply of which no turn is recorded.
fn lost(reply: Vec<u8>, end: End, view: ClientView) -> Script {
    Script { reply, bytewise: false, end, view, turn: None, blamed: true }
}

/// A reply that the client receives completely.
fn whole(kind: RequestKind, reply: Vec<u8>, end: End) -> Script {
    let turn = (kind != RequestKind::Forward).then_some((TOKENS, None));
    Script { reply, bytewise: false, end, view: ClientView::Whole, turn, blamed: false }
}

/// A stream or a forwarded reply that is cut after `pieces` pieces.
fn cut(kind: RequestKind, reply: Vec<u8>, end: End, pieces: usize) -> Script {
    let tokens = pieces.min(TOKENS);
    let fault = if pieces < TOKENS { Some("broken") } else { None };
    let turn = (kind.is_stream() && tokens > 0).then_some((tokens, fault));
    Script { turn, ..lost(reply, end, ClientView::Cut(pieces)) }
}

/// As [`cut`], but a buffered reply becomes an error: its head was not forwarded yet.
fn cut_or_refused(kind: RequestKind, reply: Vec<u8>, end: End, pieces: usize) -> Script {
    if kind == RequestKind::Whole { lost(reply, end, ClientView::Refusal) } else { cut(kind, reply, end, pieces) }
}

/// The first piece and half of the next.
fn half(kind: RequestKind) -> Vec<u8> {
    let next = kind.framed(&kind.pieces()[1]);
    let next = if kind.is_stream() { &next[..next.len() / 2] } else { b"" };
    [&kind.prefix(1)[..], next].concat()
}

/// A reply without a request.
fn stray() -> Vec<u8> {
    message(200, &[("content-type", "application/json")], b"another's")
}

/// A reply without a length and without chunks.
fn unframed(kind: RequestKind, body: &[u8]) -> Vec<u8> {
    let kind = if kind.is_stream() { "text/event-stream" } else { "application/json" };
    [format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n\r\n").as_bytes(), body].concat()
}

pub const CASES: &[Case] = &[
    Case {
        name: "the engine closes without an answer",
        script: |_| Some(lost(Vec::new(), End::Close, ClientView::Refusal)),
    },
    Case {
        name: "it resets without an answer",
        script: |_| Some(lost(Vec::new(), End::Reset(0), ClientView::Refusal)),
    },
    Case {
        name: "it closes within the head",
        script: |kind| {
            let head = kind.head(None);
            Some(lost(head[..head.len() - 3].to_vec(), End::Close, ClientView::Refusal))
        },
    },
    Case {
        name: "it closes after the head (200 and nothing more)",
        script: |kind| Some(cut_or_refused(kind, kind.head(None), End::Close, 0)),
    },
    Case { name: "it closes within the body", script: |kind| Some(cut_or_refused(kind, half(kind), End::Close, 1)) },
    Case { name: "it resets within the body", script: |kind| Some(cut_or_refused(kind, half(kind), End::Reset(1), 1)) },
    Case {
        name: "it closes between two events",
        script: |kind| kind.is_stream().then(|| cut(kind, kind.prefix(2), End::Close, 2)),
    },
    Case {
        name: "it closes after the last event",
        script: |kind| kind.is_stream().then(|| cut(kind, kind.prefix(TOKENS), End::Close, TOKENS)),
    },
    Case {
        name: "it closes after `[DONE]`",
        script: |kind| kind.is_stream().then(|| cut(kind, kind.prefix(TOKENS + 1), End::Close, TOKENS + 1)),
    },
    Case {
        name: "it ends a stream properly, without `[DONE]`",
        script: |kind| {
            let reply = [&kind.prefix(2)[..], b"0\r\n\r\n"].concat();
            let ended = Script { view: ClientView::Ended(2), blamed: false, ..cut(kind, reply, End::Keep, 2) };
            kind.is_stream().then_some(ended)
        },
    },
    Case {
        name: "it sends an invalid chunk",
        script: |kind| {
            let reply = [&kind.prefix(1)[..], b"zz\r\n"].concat();
            kind.is_stream().then(|| cut(kind, reply, End::Refused, 1))
        },
    },
    Case {
        name: "it announces more bytes than it sends",
        script: |kind| {
            let body = kind.pieces().concat();
            let reply = [kind.head(Some(body.len() + 10)), body].concat();
            (!kind.is_stream()).then(|| cut_or_refused(kind, reply, End::Close, 2))
        },
    },
    Case {
        name: "it announces fewer bytes than it sends",
        script: |kind| {
            let body = kind.pieces().concat();
            let reply = [kind.head(Some(body.len() - 5)), body].concat();
            let short = Script { blamed: false, ..lost(reply, End::Refused, ClientView::Short(5)) };
            (!kind.is_stream()).then_some(short)
        },
    },
    Case {
        name: "it announces two lengths",
        script: |kind| {
            let body = kind.pieces().concat();
            let lengths = format!("content-length: {}\r\ncontent-length: {}\r\n\r\n", body.len(), body.len() + 1);
            let reply = [b"HTTP/1.1 200 OK\r\n", lengths.as_bytes(), &body].concat();
            (!kind.is_stream()).then(|| lost(reply, End::Refused, ClientView::Refusal))
        },
    },
    Case {
        name: "it sends a second reply after the first",
        script: |kind| Some(whole(kind, [kind.healthy(), stray()].concat(), End::Refused)),
    },
    Case {
        name: "it sends a reply without a request",
        script: |kind| Some(whole(kind, kind.healthy(), End::Late(stray()))),
    },
    Case {
        name: "it writes one byte at a time",
        script: |kind| {
            let bytes = kind.pieces().concat();
            let reply = match kind {
                RequestKind::Forward => kind.healthy(),
                _ => {
                    let kind = if kind == RequestKind::Whole { "application/json" } else { "text/event-stream" };
                    let head = [("content-type", kind), ("transfer-encoding", "chunked")];
                    let chunks: Vec<u8> = bytes.iter().flat_map(|byte| chunk(&[*byte])).collect();
                    [&message(200, &head, b"")[..], &chunks, b"0\r\n\r\n"].concat()
                }
            };
            Some(Script { bytewise: true, ..whole(kind, reply, End::Keep) })
        },
    },
    Case {
        name: "it closes its side after the reply",
        script: |kind| Some(whole(kind, kind.healthy(), End::HalfClose)),
    },
    Case {
        name: "the reply is close-delimited",
        script: |kind| Some(whole(kind, unframed(kind, &kind.pieces().concat()), End::Close)),
    },
    Case {
        name: "the reply is close-delimited, and it closes early",
        script: |kind| {
            let reply = unframed(kind, &kind.pieces()[0]);
            Some(Script { view: ClientView::Ended(1), blamed: false, ..cut(kind, reply, End::Close, 1) })
        },
    },
];
