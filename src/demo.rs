// SPDX-License-Identifier: Apache-2.0
//! The embedded demo engine: a small language model that serves SGLang's HTTP API.
//!
//! [`Engine::distribution`] returns its exact distribution at every position, so tests compare the results that tokentap computes from top
//! logprobs with the exact values.

mod admin;
mod control;
mod engine;
pub mod experts;
mod generate;
mod grammar;
mod info;
mod item;
mod journal;
mod logits;
mod model;
mod ngram;
mod options;
mod refusal;
mod request;
mod rng;
mod routes;
mod sampling;
mod sequence;
mod token_data;
mod transcript;
pub mod wire;

pub use control::Weights;
pub use engine::Engine;
pub use grammar::Grammar;
pub use journal::{End, JournalEntry, SampledToken};
pub use model::{Model, Position, THINK_TOKENS, Vocabulary, entropy};
pub use options::{Dialect, EngineOptions, Plugin, Streaming};
pub use routes::ReplyBody;
pub use sampling::{SamplingParams, ScriptedOutput};
