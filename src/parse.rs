// SPDX-License-Identifier: Apache-2.0
//! Strict parsers of generated text: separate reasoning, content and tool calls.
//!
//! A [`Grammar`] has the format of calls and the markers of thinking. [`Grammar::parse`] parses a whole text, and [`Grammar::stream`]
//! parses a text that arrives in pieces. Both use the same incremental parser, so the message does not depend on where the text is cut.
//! Calls are not repaired: an invalid call between its markers becomes a call with `error` and its raw text as arguments, so that the
//! agent's validation fails and the model sees its mistake. A call without an end marker is text, unless it has started.
//!
//! ```text
//!            ┌─────────┐   outside spans    ┌─────────┐   outside calls    ┌─────────┐
//!  pieces ──▶│  spans  │ ──────────────────▶│ scanner │ ──────────────────▶│ content │──▶ Event::Content
//!            └────┬────┘                    └────┬────┘                    └─────────┘
//!                 └▶ Event::Reasoning            └▶ Event::CallStart, Event::Arguments, Event::CallEnd
//! ```
//!
//! # Calls in parts
//!
//! A call starts as soon as its name and id are certain. From then on its arguments are emitted as they arrive, in the spelling of Python's
//! `json.dumps`. What is emitted is final:
//!
//! - A string is emitted up to its last complete character or escape. A number is emitted when another character follows it.
//! - The closing brace of the arguments is emitted when the whole call is valid and its end marker has arrived.
//! - In the formats whose parameters have tags, a string is emitted character by character, and another value at its end ([`ParameterTypes`]).
//!   Without types, a value of `qwen_xml` or `glm` is emitted at its end while its text may be JSON, and character by character once it cannot
//!   be JSON.
//! - In `hermes`, `kimi_k2` and `deepseek`, a string is emitted at its end from an end marker on that it contains, because the marker may end the
//!   call, and so is a value that has a type in `qwen_xml` and `glm`, and each value of the formats with `invoke` tags. The marker ends the call if a think start is
//!   sampled as its token before the end of the string or the value.
//! - Repeated keys are emitted. Parsers use the last one, as `json.loads` does.
//!
//! | format | a call starts at |
//! |---|---|
//! | `hermes`, `llama3` after its tag | the opening brace of the arguments, if the name is before them |
//! | `qwen_xml` | the end of `<function=NAME>` |
//! | `glm` | the first `<arg_key>` |
//! | `kimi_k2`, `deepseek` | the opening brace of the arguments |
//! | `mistral` | the opening brace of the arguments after `[ARGS]` |
//! | `minimax_m2`, `deepseek_v32`, `deepseek_v4` | the end of the tag with the name |
//!
//! Other calls have all their events at their end: those of `pythonic`, and of `llama3` without a tag, because text after the calls makes them
//! content; those in an array of `mistral`, because their ids are after the arguments; and calls whose name is after the arguments.
//!
//! A call that has started stays a call of this name, also if it turns out to be invalid (also because a later member repeats its name or its
//! arguments, unless the arguments are `{}` so far), and if its end marker is missing. Then it has `error`, and its arguments are those that
//! were emitted and the raw text after them, up to the end of the call. Two cases leave out the raw text, because the arguments would be valid
//! JSON with it: only the closing brace remains, or the text exceeds a limit of the parser, which other parsers do not have. In the
//! formats whose parameters have tags, the arguments end with the value that is cut off. In all cases the arguments are not JSON.
//!
//! Whether a call has started depends on the text only, not on its pieces. So [`Grammar::parse`] returns the calls that a client of a stream
//! has received, and a conversation that repeats them is recognised. A call that is cut off in a span of thinking without an end is only
//! reasoning.
//!
//! # Thinking
//!
//! A span of thinking lasts from a think start to the next think end, also inside a call: spans are removed first, and calls are searched
//! in the remaining text. But in a string of a call, and in a value that has a type, a think start is text. A span that the prompt opened ([`Grammar::opened`]) begins with the text; a think start that the model repeats
//! there is dropped. A think end outside a span is text. A span without a think end:
//!
//! - If the prompt opened the span, all of the text is reasoning, without calls.
//! - If the model opened the span, the text after the think start is reasoning. Calls in it are part of the reasoning, and they are also
//!   emitted, at the end of the text. But if the think start is inside an open call, it is text of that call.
//!
//! White space at the ends of each span is removed. Spans that are not empty are joined by a line feed.
//!
//! # Tokens
//!
//! A marker that has a token in the vocabulary ([`Grammar::tokens`]) is found only where it is pushed as a token. The same text in other
//! tokens is text.
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
mod call_reader;
mod deepseek;
mod deepseek_dsml;
mod emitter;
mod format;
mod glm;
mod grammar;
mod hermes;
mod invoke_block;
mod json_call;
mod json_reader;
mod kimi_k2;
mod literal;
mod llama3;
mod loads;
mod lookalikes;
mod message;
mod minimax_m2;
mod mistral;
mod parameter_block;
mod parameter_types;
mod parameter_value;
mod pythonic;
mod qwen_xml;
mod scanner;
mod section;
mod step;
mod streaming;
mod syntax;
mod value;

pub use format::{Format, UnknownFormat};
pub use grammar::{Grammar, Think};
pub use json_call::parse_calls;
pub use message::{Event, Message, ToolCall, UNKNOWN_TOOL};
pub use parameter_types::ParameterTypes;
pub use streaming::StreamingParser;

#[cfg(test)]
mod tests;
