// SPDX-License-Identifier: Apache-2.0
//! The requests and the numbers of connections.

use std::time::Duration;

use crate::api::Api;
use crate::canned::{SUPPORT, VARIANTS};
use crate::grpc;
use crate::upstream::Server;

/// What the client requests besides tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntropyRequest {
    /// A small reply of another route.
    About,
    /// Nothing: `return_entropy` is false.
    Nothing,
    /// Top logprobs that the client requests, without entropy: the reply is forwarded unchanged.
    TopLogprobs,
    /// Entropy, which only tokentap returns; the others forward the engine's small reply.
    Entropy,
    /// Entropy; the others forward the top logprobs that tokentap reads for it.
    EntropyOverLogprobs,
}

/// How tokens are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// In one reply.
    Whole,
    /// As a stream with one event for each token, as fast as possible.
    Stream,
    /// As the same stream with pauses between tokens.
    Paced(Duration),
}

/// A workload.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    pub name: &'static str,
    pub api: Api,
    pub server: Server,
    pub entropy_request: EntropyRequest,
    pub flow: Flow,
    pub tokens: usize,
    pub k: usize,
    /// Ids of the prompt.
    pub prompt: usize,
    pub connections: &'static [usize],
}

/// The workloads that show what each token column costs begin with it.
const COLUMNS: &str = "columns ";

/// Ids of a short prompt.
const SHORT_PROMPT: usize = 32;

impl Workload {
    /// All workloads.
    pub fn all() -> Vec<Self> {
        use EntropyRequest::{About, Entropy, EntropyOverLogprobs, Nothing, TopLogprobs};
        use Server::{Flat, Nested};
        let whole = |name, server, entropy_request, tokens, k| {
            let (api, flow) = (Api::Generate, Flow::Whole);
            let (prompt, connections) = (SHORT_PROMPT, &[1, 16, 64]);
            Self { name, api, server, entropy_request, flow, tokens, k, prompt, connections }
        };
        let stream = |name, server, entropy_request, flow, tokens, connections| Self {
            name,
            api: Api::Generate,
            server,
            entropy_request,
            flow,
            tokens,
            k: 20,
            prompt: SHORT_PROMPT,
            connections,
        };
        let stream_512 = stream("stream 512", Flat, Entropy, Flow::Stream, 512, &[1]);
        let paced = Flow::Paced(Duration::from_millis(5));
        vec![
            whole("forward GET", Flat, About, 0, 0),
            whole("forward tiny", Flat, Nothing, 16, 0),
            whole("forward 512 x 20", Nested, TopLogprobs, 512, 20),
            Self { connections: &[1, 16, 64, 1024], ..whole("job flat 16 x 20", Flat, Entropy, 16, 20) },
            Self { connections: &[1, 16, 64, 256], ..whole("job flat 512 x 20", Flat, Entropy, 512, 20) },
            whole("columns 512 x 20", Flat, Entropy, 512, 20),
            stream("columns stream 512", Flat, Entropy, Flow::Stream, 512, &[1]),
            Self { prompt: 50_000, connections: &[1, 16], ..whole("long prompt", Flat, Entropy, 16, 20) },
            whole("job nested 512 x 20", Nested, Entropy, 512, 20),
            whole("job flat 512 x 128", Flat, Entropy, 512, 128),
            whole("job nested 512 x 128", Nested, Entropy, 512, 128),
            whole("job flat 4096 x 20", Flat, Entropy, 4096, 20),
            whole("job nested 4096 x 20", Nested, Entropy, 4096, 20),
            stream("stream paced 64", Flat, Entropy, paced, 64, &[1, 16, 64]),
            stream_512,
            Self { name: "chat stream 512", api: Api::Chat, ..stream_512 },
            Self { name: "grpc stream 512", api: Api::Grpc, ..stream_512 },
            stream("stream 4096", Flat, Entropy, Flow::Stream, 4096, &[1]),
            stream("stream cumulative 512", Nested, EntropyOverLogprobs, Flow::Stream, 512, &[1]),
        ]
    }

    /// Whether it is run with each token column.
    pub fn has_columns(&self) -> bool {
        self.name.starts_with(COLUMNS)
    }

    pub fn is_stream(&self) -> bool {
        self.flow != Flow::Whole
    }

    pub fn is_paced(&self) -> bool {
        matches!(self.flow, Flow::Paced(_))
    }

    /// Whether tokentap computes entropies.
    pub fn is_job(&self) -> bool {
        matches!(self.entropy_request, EntropyRequest::Entropy | EntropyRequest::EntropyOverLogprobs)
    }

    /// The time of a cell, in units of the extent's time.
    pub fn patience(&self) -> u32 {
        if self.is_paced() { 2 } else { 1 }
    }

    /// The requests that a client sends in turn: to a tokentap that measures, and to the others.
    pub fn requests(&self, to_tokentap: bool) -> Vec<Vec<u8>> {
        if self.entropy_request == EntropyRequest::About {
            return vec![b"GET /model_info HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\n\r\n".to_vec()];
        }
        // a cumulative stream is too large to keep four of
        let variants = if self.entropy_request == EntropyRequest::EntropyOverLogprobs { 1 } else { VARIANTS };
        let request = |variant| match self.api {
            Api::Generate => post("/generate", &self.body(variant, to_tokentap)),
            Api::Chat => post("/v1/chat/completions", &self.chat(variant)),
            Api::Grpc => grpc::request(self.body(variant, to_tokentap)),
        };
        (0..variants).map(request).collect()
    }

    /// The same as `requests` to `/generate`, for a client without logprobs and entropy.
    pub fn plain_requests(&self) -> Vec<Vec<u8>> {
        let plain = Self { entropy_request: EntropyRequest::Nothing, ..*self };
        let count = self.requests(true).len() as u64;
        (0..count).map(|variant| post("/generate", &plain.body(variant, true))).collect()
    }

    /// The same tokens from the engine, requested through `/generate`.
    pub fn native(&self) -> Self {
        Self { api: Api::Generate, ..*self }
    }

    /// A chat whose client requests neither logprobs nor entropy.
    fn chat(&self, variant: u64) -> String {
        format!(
            r#"{{"model":"qwen","messages":[{{"role":"user","content":"How far does the light go when the night is clear?"}}],"max_tokens":{},"temperature":1.0,"seed":{variant},"stream":{}}}"#,
            self.tokens,
            self.is_stream()
        )
    }

    fn body(&self, variant: u64, to_tokentap: bool) -> String {
        let own_top = match self.entropy_request {
            EntropyRequest::TopLogprobs => true,
            EntropyRequest::EntropyOverLogprobs => !to_tokentap,
            _ => false,
        };
        let mut more = String::new();
        if own_top {
            more += &format!(r#","return_logprob":true,"top_logprobs_num":{}"#, self.k);
        }
        more += match self.entropy_request {
            EntropyRequest::Entropy => "",
            EntropyRequest::EntropyOverLogprobs => r#","return_entropy":true"#,
            _ => r#","return_entropy":false"#,
        };
        if self.is_job() && self.k != 20 {
            more += &format!(r#","entropy_options":{{"top_k":{}}}"#, self.k);
        }
        if self.is_stream() {
            more += r#","stream":true"#;
        }
        // a mask needs a finite support
        let support = if self.has_columns() { format!(r#","top_k":{SUPPORT}"#) } else { String::new() };
        let pace = match self.flow {
            Flow::Paced(pace) => format!(r#","custom_params":{{"pace_us":{}}}"#, pace.as_micros()),
            _ => String::new(),
        };
        let prompt: Vec<String> = (0..self.prompt).map(|at| (1000 + 37 * at % 150_000).to_string()).collect();
        format!(
            r#"{{"input_ids":[{}],"sampling_params":{{"max_new_tokens":{},"temperature":1.0,"sampling_seed":{variant}{support}{pace}}}{more}}}"#,
            prompt.join(","),
            self.tokens
        )
    }
}

fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}
