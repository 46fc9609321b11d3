//! OpenAI's Completions.

pub mod reply;
pub mod request;

pub use request::CompletionRequest;
