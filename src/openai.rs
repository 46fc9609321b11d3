//! OpenAI's chat and completions in terms of /generate.
//!
//! A conversation becomes tokens here and nowhere else, and what was sampled becomes a message; the pipeline in between is the one that
//! native requests go through.

mod body;
mod canonical;
pub mod choice;
pub mod completion;
mod departure;
pub mod drift;
mod fields;
pub mod foreign;
mod history;
pub mod limits;
mod logprobs;
pub mod message;
pub mod model;
pub mod native;
pub mod problem;
pub mod prompt;
pub mod reading;
pub mod remembered;
pub mod reply;
pub mod request;
pub mod sample;
pub mod sglext;
pub mod speaker;
pub mod text;
pub mod voice;

use body::{Body, is_meant, is_said, wrong};

pub use body::Unserved;

/// A string as JSON text.
fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string is always JSON")
}
