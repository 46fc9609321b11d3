//! Strict parsers of what a model wrote: its reasoning, its content and its tool calls.
//!
//! A [`Grammar`] says what to look for. [`Grammar::parse`] reads a whole text, [`Grammar::stream`] reads one that comes in pieces, and
//! both are the same incremental scanner: however a text is cut, the events put together are the message. Nothing is repaired. Text
//! between the markers of a call that cannot be parsed becomes a call with `error`, with the raw text as its arguments, so that the
//! agent's validation fails and the model sees its mistake. Text that begins a call and does not end it is no call, and stays text.
//!
//! ```text
//!            ┌─────────┐  outside of spans  ┌─────────┐  outside of calls  ┌─────────┐
//!  pieces ──▶│  spans  │ ──────────────────▶│ scanner │ ──────────────────▶│ content │──▶ Event::Content
//!            └────┬────┘                    └────┬────┘                    └─────────┘
//!                 └▶ Event::Reasoning            └▶ Event::Call
//! ```
//!
//! # Thinking
//!
//! A span is a think start up to the next think end, wherever it is, also within a call: spans are taken out first, and calls are
//! looked for in what is left. A lone think end is text. What remains open at the end depends on who opened it:
//!
//! - The prompt ([`Grammar::opened`]): everything up to the think end is reasoning and holds no calls, and without one all of the text
//!   is. A think start that the model writes first of all is the prompt's once more.
//! - The model: the text after the think start is reasoning, word for word, and the calls in it are calls as well, emitted at the end.
//!   Where the think start is within an open call, it is only a part of that call.
//!
//! Each span loses the white space at its ends; spans with text in them are joined by a line feed.
//!
//! # Content
//!
//! What is neither a span nor a call, byte for byte, except for white space at the ends: in front it is dropped where something was
//! taken out before the first visible character, at the back where something was taken out at all. A call that does not end, and a
//! block of calls in which none is found, stay content with their markers.
//!
//! White space is Python's throughout.

mod buffer;
mod content;
mod deepseek;
mod extent;
mod fence;
mod format;
mod glm;
mod grammar;
mod hermes;
mod kimi_k2;
mod literal;
mod llama3;
mod loads;
mod message;
mod mistral;
mod named;
mod pythonic;
mod qwen_xml;
mod reasoning;
mod scanner;
mod space;
mod streaming;
mod syntax;
mod value;

pub use format::{Format, UnknownFormat};
pub use grammar::{Grammar, Think};
pub use message::{Event, Message, ToolCall, UNKNOWN_TOOL};
pub use streaming::StreamingParser;

#[cfg(test)]
mod tests;
