//! The embedded demo engine: a small language model that serves SGLang's HTTP API.
//!
//! [`Engine::distribution`] returns its exact distribution at every position, so tests compare the results that tokentap computes from top
//! logprobs with the exact values.

mod admin;
mod body;
mod control;
mod engine;
mod generate;
mod grammar;
mod info;
mod item;
mod journal;
mod logits;
mod logprob_rows;
mod model;
mod ngram;
mod options;
mod refusal;
mod reply_members;
mod request;
mod rng;
mod routes;
mod sampling;
mod sequence;
mod transcript;
mod verify;
pub mod wire;

pub use body::ReplyBody;
pub use control::Weights;
pub use engine::Engine;
pub use grammar::Grammar;
pub use journal::{End, JournalEntry, SampledToken};
pub use model::{Model, Position, THINK_TOKENS, Vocabulary, entropy};
pub use options::{Dialect, EngineOptions, Plugin, Streaming};
pub use sampling::{SamplingParams, ScriptedOutput};
