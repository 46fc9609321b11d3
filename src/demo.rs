//! The embedded demo engine: a real, tiny language model behind SGLang's HTTP.
//!
//! Its whole distribution is known at every position ([`Engine::distribution`]),
//! so tests compare what was made of its top logprobs with the truth.

mod admin;
mod body;
mod cache;
mod control;
mod engine;
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
mod rows;
mod said;
mod sampling;
mod sequence;
mod transcript;
mod verify;
mod vocabulary;
mod weights;
pub mod wire;

pub use body::ReplyBody;
pub use engine::Engine;
pub use grammar::Grammar;
pub use journal::{End, JournalEntry, Sampled};
pub use model::{Model, Position, THINK_TOKENS, entropy};
pub use options::{Dialect, EngineOptions, Plugin, Streaming};
pub use sampling::{SamplingParams, ScriptedOutput};
pub use vocabulary::Vocabulary;
pub use weights::Weights;
