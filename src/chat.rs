//! Conversations as token ids, and sampled ids as messages.
//!
//! A conversation has no API's words in it: an API decodes its requests to a [`Conversation`], and encodes the messages that are read here from what
//! was sampled. The tokens that a session has stay as they are; only what follows them is rendered and encoded.

mod canonical;
pub(crate) mod conversation;
mod departure;
pub mod drift;
mod error;
mod history;
pub(crate) mod limits;
pub(crate) mod message;
pub mod model;
pub mod prompt;
pub mod reading;
pub(crate) mod remembered;
pub(crate) mod tool_choice;

pub use canonical::dumps;
pub use conversation::Conversation;
pub use error::RequestError;

/// A string as JSON text.
#[must_use]
pub fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string is always JSON")
}
