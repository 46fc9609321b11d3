//! OpenAI's Chat Completions.

mod generate_request;
mod logprobs;
mod message;
pub mod passthrough;
pub mod reply;
pub mod request;
pub mod sglext;
pub mod stream;
mod tool_choice;

pub use generate_request::Addition;
pub use request::ChatRequest;
