//! tokentap: a sidecar for SGLang.
//!
//! Agents point at it instead of SGLang. They get what SGLang would have answered, plus the entropy of the policy at every sampled
//! token; and every token that went in and came out is kept as a trajectory. Nothing in SGLang is patched: tokentap asks for the top
//! logprobs, measures them, and takes them away again.
//!
//! ```text
//!  client                                                                                      SGLang
//!    │ POST /generate                                                                             ▲
//!    ▼                                                                                            │
//! ┌──────┐  GenerateRequest  ┌────────────┐  + return_logprob, top_logprobs_num (Plan)   ┌────────┴──┐
//! │ http │ ────────────────▶ │ generation │ ───────────────────────────────────────────▶ │  sglang   │
//! │ edge │                   │  Capture   │ ◀──────────── one reply, or events ───────── │  client   │
//! │      │ ◀──── enriched ── │            │  numbers ─▶ entropy ─▶ nats                  └───────────┘
//! └──────┘                   └─────┬──────┘
//!                                  ▼
//!          entropy store, sessions (and their log) ──▶ control port: samples, live entropy, /metrics, probes
//! ```
//!
//! A non-streaming reply is a stream of exactly one object, so the pipeline is written once.
//!
//! | module | what it is |
//! |---|---|
//! | [`app`] | settings become running parts; the only one that knows all of them |
//! | [`cli`] | one file a command |
//! | [`demo`] | the embedded engine |
//! | [`serve`] | the ports: the layers that every request passes |
//! | [`http`], [`grpc`], [`server`] | the routes and connections: bytes to types |
//! | [`generation`] | the pipeline: plan, guard, ask, parse, measure, record, abort, retry |
//! | [`api`] | the APIs that agents speak: requests to generations, events to replies |
//! | [`chat`] | conversations to token ids and back |
//! | [`tensors`] | slices of logits as safetensors |
//! | [`rl`] | what trainers compute from trajectories |
//! | [`sglang`] | the upstream: client, wire format, probe |
//! | [`entropy`] | numbers in, numbers out |
//! | [`trajectory`] | sessions, turns, exports |
//! | [`tokenizer`] | text to ids and back |
//! | [`parse`] | generated text to reasoning, content and tool calls |
//! | [`json`], [`logprobs`], [`config`], [`metrics`], [`error`], [`budget`], [`long_work`] | what all of them stand on |
//!
//! Imports point downwards in this list, and parts of one level do not import each other; `tests/layering.rs` checks it.

pub mod api;
pub mod app;
pub mod budget;
pub mod chat;
pub mod cli;
pub mod config;
pub mod demo;

pub mod entropy;
pub mod error;
pub mod generation;
pub mod grpc;
pub mod http;
pub mod json;
pub mod logprobs;
pub mod long_work;
pub mod metrics;
pub mod parse;
pub mod rl;
pub mod serve;
pub mod server;
pub mod sglang;
pub mod tensors;
pub mod tokenizer;
pub mod trajectory;
