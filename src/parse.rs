//! Strict parsers of generated text: separate reasoning, content and tool calls.
//!
//! A [`Grammar`] has the format of calls and the markers of thinking. [`Grammar::parse`] parses a whole text, and [`Grammar::stream`]
//! parses a text that arrives in pieces. Both use the same incremental parser, so the message does not depend on where the text is cut.
//! Calls are not repaired: an invalid call between its markers becomes a call with `error` and its raw text as arguments, so that the
//! agent's validation fails and the model sees its mistake. A call without an end marker stays text.
//!
//! ```text
//!            ┌─────────┐   outside spans    ┌─────────┐   outside calls    ┌─────────┐
//!  pieces ──▶│  spans  │ ──────────────────▶│ scanner │ ──────────────────▶│ content │──▶ Event::Content
//!            └────┬────┘                    └────┬────┘                    └─────────┘
//!                 └▶ Event::Reasoning            └▶ Event::Call
//! ```
//!
//! # Thinking
//!
//! A span of thinking lasts from a think start to the next think end, also inside a call: spans are removed first, and calls are searched
//! in the remaining text. A span that the prompt opened ([`Grammar::opened`]) begins with the text; a think start that the model repeats
//! there is dropped. A think end outside a span is text. A span without a think end:
//!
//! - If the prompt opened the span, all of the text is reasoning, without calls.
//! - If the model opened the span, the text after the think start is reasoning. Calls in it are part of the reasoning, and they are also
//!   emitted, at the end of the text. But if the think start is inside an open call, it is text of that call.
//!
//! White space at the ends of each span is removed. Spans that are not empty are joined by a line feed.
//!
//! # Content
//!
//! Content is the text outside spans and calls, byte for byte, except for white space at its ends. White space at the start is removed if a
//! span or call was removed before the first visible character; white space at the end is removed if any span or call was removed. A call
//! without an end, and a block without calls, are content with their markers.
//!
//! White space is as in Python's `str.isspace`.

mod bracket_matcher;
mod buffer;
mod content;
mod deepseek;
mod fence;
mod format;
mod glm;
mod grammar;
mod hermes;
mod json_call;
mod kimi_k2;
mod literal;
mod llama3;
mod loads;
mod message;
mod mistral;
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
