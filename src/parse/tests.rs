// SPDX-License-Identifier: Apache-2.0
//! Tables of texts and their messages, a naive reference parser, and property tests that compare the parser with it.

mod by_schema;
mod calls_in_parts;
mod emission;
mod json;
mod oracle;
mod other_formats;
mod property;
mod random_calls;
mod strands_formats;
mod thinking;
mod tokens;

use super::{Event, Format, Grammar, Message, Think, ToolCall};

/// A grammar with this format of calls and the default markers of thinking.
fn grammar(format: Format) -> Grammar {
    Grammar { format: Some(format), think: Some(Think::default()), ..Grammar::default() }
}

fn call(name: &str, arguments: &str) -> ToolCall {
    ToolCall { name: name.to_owned(), id: None, arguments: arguments.to_owned(), error: false }
}

/// An invalid call.
fn error(name: &str, raw: &str) -> ToolCall {
    ToolCall { error: true, ..call(name, raw) }
}

/// The message of a text that arrives in these pieces.
fn parse_pieces<'a>(grammar: &Grammar, pieces: impl IntoIterator<Item = &'a str>) -> Message {
    let mut events = Vec::new();
    let mut parser = grammar.stream();
    for piece in pieces {
        parser.push(piece, &mut events);
    }
    parser.finish(&mut events);
    events.into_iter().collect()
}

/// The pieces of a text that arrives one character at a time.
fn characters(text: &str) -> impl Iterator<Item = &str> {
    text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()])
}

/// Asserts the message of a text that arrives as a whole and of one that arrives one character at a time.
#[track_caller]
fn assert_message(grammar: &Grammar, text: &str, expected: &Message) {
    assert_eq!(grammar.parse(text), *expected, "{text:?}");
    assert_eq!(parse_pieces(grammar, characters(text)), *expected, "{text:?}, one character at a time");
}

/// Like [`assert_message`], for texts without reasoning.
#[track_caller]
fn assert_calls(format: Format, text: &str, content: &str, calls: &[ToolCall]) {
    let expected = Message { reasoning: None, content: content.to_owned(), calls: calls.to_vec() };
    assert_message(&grammar(format), text, &expected);
}
