//! `[f(a=1, b="x"), g()]`: a Python list of calls as the whole answer, or after `<|python_start|>`.

use super::ToolCall;
use super::literal::{self, is_name};
use super::space::{strip, strip_start};
use super::syntax::{self, Step};

/// The marker that Llama 4 may write before the list.
pub(super) const START: &str = "<|python_start|>";
const END: &str = "<|python_end|>";

/// Buffers text that begins like a list of calls until the end, because text after the list makes it content.
///
/// Text of the form `[NAME( … )]` that is not a list of calls with keyword literals is one call that could not be read.
#[derive(Debug, Clone, Default)]
pub(super) struct Pythonic {
    likely: bool,
}

impl Pythonic {
    pub(super) fn read(&mut self, held: &str) -> Step {
        let marker = if held.starts_with(START) { START.len() } else { 0 };
        let (head, full) = syntax::head(&held[marker..]);
        match name(head) {
            _ if self.likely => Step::More,
            Name::Called(_) => {
                self.likely = true;
                Step::More
            }
            Name::Short if !full => Step::More,
            Name::Short | Name::Other => Step::Text(marker.max(1)),
        }
    }

    pub(super) fn end(held: &str) -> Step {
        let inner = held.strip_prefix(START).map(|inner| strip(inner).strip_suffix(END).unwrap_or(inner));
        let list = strip(inner.unwrap_or(held));
        let Name::Called(name) = name(list) else { return Step::More };
        match literal::calls(list) {
            Some(calls) => Step::Calls(held.len(), calls),
            None if is_closed(list) => Step::Calls(held.len(), vec![ToolCall::unread(name, list)]),
            None => Step::More,
        }
    }
}

fn is_closed(list: &str) -> bool {
    let calls = list.strip_suffix(']').map(strip);
    calls.is_some_and(|calls| strip(calls.strip_suffix(',').unwrap_or(calls)).ends_with(')'))
}

/// The text before the first parenthesis.
enum Name<'a> {
    /// The name of a call.
    Called(&'a str),
    /// It may become a call.
    Short,
    /// Not a call.
    Other,
}

fn name(list: &str) -> Name<'_> {
    let Some(inner) = strip_start(list).strip_prefix('[') else {
        return if strip(list).is_empty() { Name::Short } else { Name::Other };
    };
    let inner = strip_start(inner);
    let length = inner.find(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | '.')).unwrap_or(inner.len());
    let (name, rest) = inner.split_at(length);
    match strip_start(rest).chars().next() {
        Some('(') if name.split('.').all(is_name) => Name::Called(name),
        None => Name::Short,
        Some(_) => Name::Other,
    }
}
