//! What is asked, by which door, and what a healthy engine says to it.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::support::client::written;
use crate::support::hand::{END, STREAM, chunk};
use crate::support::upstream::message;

/// How a request comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// A request that is merely passed on.
    Forward,
    /// `/generate`, its reply in one piece.
    Whole,
    /// The same as a stream whose events repeat what came before.
    Cumulative,
    /// The same as a stream whose events hold what is new.
    Incremental,
}

/// Tokens of a healthy reply.
pub const TOKENS: usize = 3;

/// What a stream ends with.
const DONE: &[u8] = b"data: [DONE]\n\n";

impl Door {
    /// All of them, by how the streams of their engine are.
    pub const ALL: [(&'static str, &'static [Self]); 2] =
        [("cumulative", &[Self::Forward, Self::Whole, Self::Cumulative]), ("incremental", &[Self::Incremental])];

    pub fn is_stream(self) -> bool {
        matches!(self, Self::Cumulative | Self::Incremental)
    }

    /// The JSON of the request.
    pub fn body(self) -> Value {
        json!({"input_ids": [1, 2, 3], "stream": self.is_stream()})
    }

    /// The bytes of the request.
    pub fn request(self, addr: SocketAddr, session: &str) -> Vec<u8> {
        let headers = [("x-session-id", session)];
        match self {
            Self::Forward => written(addr, "GET", "/a/path/of/its/own", &headers, b""),
            _ => written(addr, "POST", "/generate", &headers, self.body().to_string().as_bytes()),
        }
    }

    /// The body of a healthy reply: in two pieces, or an event each and the end mark.
    pub fn pieces(self) -> Vec<Vec<u8>> {
        let halves = |body: &[u8]| {
            let (first, second) = body.split_at(body.len() / 2);
            vec![first.to_vec(), second.to_vec()]
        };
        let event = |from: usize, to: usize| format!("data: {}\n\n", sampled(from, to)).into_bytes();
        let events = |first: fn(usize) -> usize| {
            let events = (1..=TOKENS).map(|token| event(first(token), token));
            events.chain([DONE.to_vec()]).collect()
        };
        match self {
            Self::Forward => halves(b"bytes that are passed on as they are"),
            Self::Whole => halves(sampled(0, TOKENS).to_string().as_bytes()),
            Self::Cumulative => events(|_| 0),
            Self::Incremental => events(|token| token - 1),
        }
    }

    /// The head of a healthy reply, with another length than it has where one is given.
    pub fn head(self, length: Option<usize>) -> Vec<u8> {
        let length = length.unwrap_or_else(|| self.pieces().concat().len()).to_string();
        match self {
            Self::Forward => message(200, &[("content-length", &length)], b""),
            Self::Whole => message(200, &[("content-type", "application/json"), ("content-length", &length)], b""),
            Self::Cumulative | Self::Incremental => STREAM.to_vec(),
        }
    }

    /// A piece of a body as it is framed.
    pub fn framed(self, piece: &[u8]) -> Vec<u8> {
        if self.is_stream() { chunk(piece) } else { piece.to_vec() }
    }

    /// The head and so many pieces.
    pub fn begun(self, pieces: usize) -> Vec<u8> {
        let framed = self.pieces().into_iter().take(pieces).map(|piece| self.framed(&piece));
        [self.head(None)].into_iter().chain(framed).collect::<Vec<_>>().concat()
    }

    /// All of a healthy reply.
    pub fn healthy(self) -> Vec<u8> {
        let end = if self.is_stream() { END } else { b"" };
        [&self.begun(usize::MAX)[..], end].concat()
    }
}

/// What the engine says of these tokens when it has sampled so many.
fn sampled(from: usize, to: usize) -> Value {
    let ids: Vec<usize> = (from..to).map(|at| 40 + at).collect();
    let chosen: Vec<Value> = ids.iter().map(|id| json!([-0.5, id, null])).collect();
    let rows: Vec<Value> = ids.iter().map(|id| json!([[-0.5, id, null], [-1.5, 900, null]])).collect();
    let finish = if to == TOKENS { json!({"type": "length", "length": TOKENS}) } else { Value::Null };
    let meta = json!({
        "id": "engine", "finish_reason": finish, "prompt_tokens": 3, "output_token_logprobs": chosen,
        "output_top_logprobs": rows, "completion_tokens": to,
    });
    json!({"text": "t", "output_ids": ids, "meta_info": meta})
}
