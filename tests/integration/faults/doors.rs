// SPDX-License-Identifier: Apache-2.0
//! Kinds of requests, and the healthy reply of an engine to each.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::support::client::written;
use crate::support::manual_upstream::{END, STREAM, chunk};
use crate::support::upstream::message;

/// The route and the reply format of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// A request that is only forwarded.
    Forward,
    /// `/generate` without a stream.
    Whole,
    /// `/generate` with a stream whose events repeat all tokens.
    Cumulative,
    /// `/generate` with a stream whose events have only the new tokens.
    Incremental,
}

/// Tokens of a healthy reply.
pub const TOKENS: usize = 3;

/// The last event of a stream.
const DONE: &[u8] = b"data: [DONE]\n\n";

impl RequestKind {
    /// All kinds, by the streaming mode of their engine.
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

    /// The body of a healthy reply: two halves, or its events and the end mark.
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

    /// The head of a healthy reply; `length` replaces its length.
    pub fn head(self, length: Option<usize>) -> Vec<u8> {
        let length = length.unwrap_or_else(|| self.pieces().concat().len()).to_string();
        match self {
            Self::Forward => message(200, &[("content-length", &length)], b""),
            Self::Whole => message(200, &[("content-type", "application/json"), ("content-length", &length)], b""),
            Self::Cumulative | Self::Incremental => STREAM.to_vec(),
        }
    }

    /// A piece of a body in its transfer framing.
    pub fn framed(self, piece: &[u8]) -> Vec<u8> {
        if self.is_stream() { chunk(piece) } else { piece.to_vec() }
    }

    /// The head and the first `pieces` pieces.
    pub fn prefix(self, pieces: usize) -> Vec<u8> {
        let framed = self.pieces().into_iter().take(pieces).map(|piece| self.framed(&piece));
        [self.head(None)].into_iter().chain(framed).collect::<Vec<_>>().concat()
    }

    /// A whole healthy reply.
    pub fn healthy(self) -> Vec<u8> {
        let end = if self.is_stream() { END } else { b"" };
        [&self.prefix(usize::MAX)[..], end].concat()
    }
}

/// The engine's object for the tokens `from..to` when it has sampled `to` tokens.
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
