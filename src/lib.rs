// SPDX-License-Identifier: Apache-2.0
//! tokentap: a sidecar for SGLang.
//!
//! Agents send their requests to tokentap instead of SGLang. They get the replies of SGLang, plus the entropy of the policy at every
//! sampled token. tokentap records all prompt and output tokens as trajectories. It does not patch SGLang: it requests top logprobs,
//! computes the entropies from them, and removes the logprobs that the client did not request.
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
//! | [`cli`] | the commands, one file for each |
//! | [`app`] | binds the ports, builds the proxy from the settings, spawns its tasks and drains |
//! | [`serve`] | the ports: connections, the layers that each request passes, the routes of HTTP and gRPC |
//! | [`demo`] | the embedded demo engine |
//! | [`archive`] | finished trajectories in object storage: Parquet files and manifests |
//! | [`api`] | the APIs of agents: decodes requests to generation requests, encodes events to replies |
//! | [`rl`] | advantages and thinking spans over recorded trajectories |
//! | [`export`] | trajectories in the formats of trainers |
//! | [`generation`] | the pipeline: runs, measures, records, aborts and retries generations |
//! | [`chat`] | renders conversations to token ids, and parses token ids to messages |
//! | [`engine`] | SGLang and sglang-jax: every key and rule; capabilities, plans, events, transport |
//! | [`session`] | turns, sessions, the store and its log |
//! | [`logits`] | whole rows of logits: safetensors, shared memory, batching, GPU |
//! | [`tokenizer`] | encodes and decodes text, renders chat templates |
//! | [`parse`] | parses generated text into reasoning, content and tool calls |
//! | [`entropy`] | estimators and kernels of entropy, without I/O |
//! | [`columns`] | the table of token columns: data of tokens beyond ids, logprobs and entropies |
//! | [`images`] | pictures of prompts: formats, digests, base64 |
//! | [`traces`] | spans of generations for an OpenTelemetry collector |
//! | [`json`], [`logprobs`], [`config`], [`metrics`], [`error`], [`long_work`], [`named_enum`], [`tls_client`], [`budget`] | shared utilities |
//!
//! A module imports only modules that are lower in this table; `tests/layering.rs` checks this.

#[cfg(not(unix))]
compile_error!(
    "tokentap runs beside SGLang on Linux; it does not build for Windows. The Python client alone is in python/tokentap"
);

pub mod api;
pub mod app;
pub mod archive;
pub mod budget;
pub mod chat;
pub mod cli;
pub mod columns;
pub mod config;
pub mod demo;
pub mod engine;
pub mod entropy;
pub mod error;
pub mod export;
pub mod generation;
pub mod images;
pub mod json;
pub mod logits;
pub mod logprobs;
pub(crate) mod long_work;
pub mod metrics;
pub(crate) mod named_enum;
pub mod parse;
pub mod rl;
pub mod serve;
pub mod session;
pub mod tls_client;
pub mod tokenizer;
mod traces;
