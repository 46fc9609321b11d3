//! The APIs that agents speak, one folder each.
//!
//! An API decodes a request to a generation, and encodes the events of its reply. All else is the same for every API: sessions, retries, recording,
//! aborts and errors.

pub mod openai;
pub mod openai_chat;
pub mod openai_completions;
pub mod sample;
pub mod voice;
