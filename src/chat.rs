// SPDX-License-Identifier: Apache-2.0
//! Converts conversations to token ids, and sampled token ids to messages.
//!
//! This module does not depend on an API. An API decodes its requests to a [`Conversation`], and encodes the messages that are parsed here.
//! The tokens of a session are reused unchanged. Only the messages after them are rendered and encoded.

mod canonical;
mod conversation;
pub mod drift;
pub(crate) mod forwarded;
mod history;
mod history_change;
pub mod image_support;
mod limits;
pub mod media;
pub(crate) mod message;
pub mod model;
pub mod prompt;
mod rendering;
pub mod reply_reader;
mod returned_arguments;
mod returned_reply;
mod sampled_text;
mod schema_references;
mod service;
pub(crate) mod system_messages;
pub(crate) mod tool_choice;

pub use canonical::dumps;
pub use conversation::{Conversation, RequestError};
pub use service::{ChatService, RequestSession};
pub(crate) use service::{image_text, image_too_large};

/// A string as JSON text.
#[must_use]
pub fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string is always JSON")
}
