// SPDX-License-Identifier: Apache-2.0
//! `[f(a=1, b="x"), g()]`: a Python list of calls as the whole answer, or after `<|python_start|>`.

use super::ToolCall;
use super::literal::{self, is_name};
use super::step::{self, Step};
use crate::json::python::{strip, strip_start};

/// The marker that Llama 4 may write before the list.
pub(super) const START: &str = "<|python_start|>";
const END: &str = "<|python_end|>";

/// The markers that may have tokens.
pub(super) const MARKERS: [&str; 2] = [START, END];

/// Buffers text that begins like a list of calls up to the end of the text, because text after the list makes the list content.
///
/// Text of the form `[NAME( … )]` that is not a list of calls with literals as keyword arguments is one invalid call.
#[derive(Debug, Clone, Default)]
pub(super) struct Pythonic {
    /// The buffered text begins like a list of calls.
    begins_like_calls: bool,
    /// The number of bytes of a list of calls that are already read.
    at: usize,
    quotes: QuoteState,
}

/// Whether a position in Python code is within a string. `quote` is the quotation mark of the string.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum QuoteState {
    #[default]
    Outside,
    /// After the first quotation mark.
    FirstQuote {
        quote: u8,
    },
    /// After two quotation marks: a string without characters, or the beginning of a string in triple quotes.
    TwoQuotes {
        quote: u8,
    },
    String {
        quote: u8,
        escaped: bool,
    },
    /// In a string in triple quotes, after this many quotation marks that may end it.
    Triple {
        quote: u8,
        escaped: bool,
        quotes: u8,
    },
}

impl QuoteState {
    /// The state after the next byte.
    fn after(self, byte: u8) -> Self {
        let is_escape = byte == b'\\';
        match self {
            Self::FirstQuote { quote } if byte == quote => Self::TwoQuotes { quote },
            Self::TwoQuotes { quote } if byte == quote => Self::Triple { quote, escaped: false, quotes: 0 },
            Self::Outside | Self::TwoQuotes { .. } if matches!(byte, b'"' | b'\'') => Self::FirstQuote { quote: byte },
            Self::Outside | Self::TwoQuotes { .. } => Self::Outside,
            Self::String { quote, escaped: true } => Self::String { quote, escaped: false },
            Self::String { quote, .. } if byte == quote => Self::Outside,
            // a string in single quotes ends with its line
            Self::FirstQuote { .. } | Self::String { .. } if byte == b'\n' => Self::Outside,
            Self::FirstQuote { quote } | Self::String { quote, .. } => Self::String { quote, escaped: is_escape },
            Self::Triple { quote, escaped: true, .. } => Self::Triple { quote, escaped: false, quotes: 0 },
            Self::Triple { quote, quotes: 2, .. } if byte == quote => Self::Outside,
            Self::Triple { quote, quotes, .. } => {
                let quotes = if byte == quote { quotes + 1 } else { 0 };
                Self::Triple { quote, escaped: is_escape, quotes }
            }
        }
    }
}

impl Pythonic {
    pub(super) fn read(&mut self, buffered: &str) -> Step {
        if self.begins_like_calls {
            self.quotes = buffered.as_bytes()[self.at..].iter().fold(self.quotes, |quotes, byte| quotes.after(*byte));
            self.at = buffered.len();
            return Step::More;
        }
        let marker = if buffered.starts_with(START) { START.len() } else { 0 };
        let (head, full) = step::head(&buffered[marker..]);
        match call_prefix(head) {
            CallPrefix::Call(_) => {
                self.begins_like_calls = true;
                self.read(buffered)
            }
            CallPrefix::Incomplete if !full => Step::More,
            CallPrefix::Incomplete | CallPrefix::Other => Step::Text(marker.max(1)),
        }
    }

    /// Whether the text so far ends within a string of the list.
    pub(super) fn in_string(&self) -> bool {
        !matches!(self.quotes, QuoteState::Outside | QuoteState::TwoQuotes { .. })
    }

    pub(super) fn end(buffered: &str) -> Step {
        let inner = buffered.strip_prefix(START).map(|inner| strip(inner).strip_suffix(END).unwrap_or(inner));
        let list = strip(inner.unwrap_or(buffered));
        let CallPrefix::Call(name) = call_prefix(list) else { return Step::Text(buffered.len()) };
        match literal::calls(list) {
            Some(calls) => Step::calls(buffered.len(), calls),
            None if is_closed(list) => Step::call(buffered.len(), ToolCall::invalid(name, list)),
            None => Step::Text(buffered.len()),
        }
    }
}

/// Whether the text ends with `)]`, apart from white space and an optional comma.
fn is_closed(list: &str) -> bool {
    let calls = list.strip_suffix(']').map(strip);
    calls.is_some_and(|calls| strip(calls.strip_suffix(',').unwrap_or(calls)).ends_with(')'))
}

/// The beginning of a list of calls, up to the first parenthesis.
enum CallPrefix<'a> {
    /// The list begins with a call of this name.
    Call(&'a str),
    /// The text is too short to decide.
    Incomplete,
    /// The text does not begin like a list of calls.
    Other,
}

fn call_prefix(list: &str) -> CallPrefix<'_> {
    let Some(inner) = strip_start(list).strip_prefix('[') else {
        return if strip(list).is_empty() { CallPrefix::Incomplete } else { CallPrefix::Other };
    };
    let inner = strip_start(inner);
    let length = inner.find(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | '.')).unwrap_or(inner.len());
    let (name, rest) = inner.split_at(length);
    match strip_start(rest).chars().next() {
        Some('(') if name.split('.').all(is_name) => CallPrefix::Call(name),
        None => CallPrefix::Incomplete,
        Some(_) => CallPrefix::Other,
    }
}
