//! tokentap: a sidecar for SGLang.
//!
//! Agents point at it instead of SGLang. They get what SGLang would have answered, plus the entropy of the policy at every sampled
//! token; and every token that went in and came out is kept as a trajectory. Nothing in SGLang is patched: tokentap asks for the top
//! logprobs, measures them, and takes them away again.
//!
//! ```text
//!            decode                                                                   raw bytes
//!  request ──────────▶ GenerationRequest ─▶ Generator::run ─▶ plan ─▶ engine client ──────────────▶ SGLang
//!                                               │
//!                                               ▼  parsed once
//!                               stream of GenerationEvent: ids, logprobs, entropy, text, finish, raw bytes
//!                                  │            │               │
//!              encode ◀────────────┘            │               └──▶ live entropies, metrics
//!   reply ◀─── /generate: splices raw bytes     └──▶ recorder ─▶ session (forest of turns) ─▶ log
//!              others: read the typed fields
//! ```
//!
//! A reply that is not streamed is a stream of one event, so the pipeline is written once.
//!
//! | module | content |
//! |---|---|
//! | [`app`] | builds the running parts from the settings |
//! | [`cli`] | one file a command |
//! | [`serve`] | the ports: connections, the layers that every request passes, the routes of HTTP and gRPC |
//! | [`demo`] | the embedded engine |
//! | [`api`] | the APIs that agents speak: requests to generations, events to replies |
//! | [`export`] | trajectories in the formats of trainers |
//! | [`rl`] | advantages and thinking spans over recorded trajectories |
//! | [`logits`] | whole rows of logits: safetensors, shared memory, batching, GPU |
//! | [`generation`] | the pipeline: plan, guard, ask, parse, measure, record, abort, retry |
//! | [`chat`] | conversations to token ids and back |
//! | [`engine`] | SGLang: client, wire format, probe, capabilities |
//! | [`session`] | turns, sessions, the store and its log |
//! | [`entropy`] | estimators and kernels: numbers in, numbers out |
//! | [`tokenizer`] | text to ids and back, chat templates |
//! | [`parse`] | generated text to reasoning, content and tool calls |
//! | [`json`], [`logprobs`], [`config`], [`metrics`], [`error`], [`budget`], [`long_work`] | used by all of them |
//!
//! A module imports only modules below it in this list; `tests/layering.rs` checks it.

pub mod api;
pub mod app;
pub mod budget;
pub mod chat;
pub mod cli;
pub mod config;
pub mod demo;
pub mod engine;
pub mod entropy;
pub mod error;
pub mod export;
pub mod generation;
pub mod json;
pub mod logits;
pub mod logprobs;
pub mod long_work;
pub mod metrics;
pub mod parse;
pub mod rl;
pub mod serve;
pub mod session;
pub mod tokenizer;
