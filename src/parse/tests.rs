//! Outcomes as tables, a naive reader of whole texts, and the two compared.

mod early;
mod four;
mod json;
mod oracle;
mod other;
mod property;
mod thinking;

use super::{Event, Format, Grammar, Message, Think, ToolCall};

/// Calls in this format, thinking in the usual markers.
fn grammar(format: Format) -> Grammar {
    Grammar { format: Some(format), think: Some(Think::default()), opened: false }
}

fn call(name: &str, arguments: &str) -> ToolCall {
    ToolCall { name: name.to_owned(), id: None, arguments: arguments.to_owned(), error: false }
}

fn error(name: &str, raw: &str) -> ToolCall {
    ToolCall { error: true, ..call(name, raw) }
}

/// The message of the pieces, whatever became of the events meanwhile.
fn streamed<'a>(grammar: &Grammar, pieces: impl IntoIterator<Item = &'a str>) -> Message {
    let mut events = Vec::new();
    let mut streaming = grammar.stream();
    for piece in pieces {
        streaming.push(piece, &mut events);
    }
    streaming.finish(&mut events);
    events.into_iter().collect()
}

/// The characters of a text, each a piece.
fn characters(text: &str) -> impl Iterator<Item = &str> {
    text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()])
}

/// What is in a table is true of the whole text and of the text in characters.
#[track_caller]
fn assert_message(grammar: &Grammar, text: &str, expected: &Message) {
    assert_eq!(grammar.parse(text), *expected, "{text:?}");
    assert_eq!(streamed(grammar, characters(text)), *expected, "{text:?}, one character at a time");
}

/// As [`assert_message`], for texts without reasoning.
#[track_caller]
fn assert_calls(format: Format, text: &str, content: &str, calls: &[ToolCall]) {
    let expected = Message { reasoning: None, content: content.to_owned(), calls: calls.to_vec() };
    assert_message(&grammar(format), text, &expected);
}
