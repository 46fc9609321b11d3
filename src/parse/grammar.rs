//! The settings of a parser: the format of calls and the markers of thinking.

use super::{Format, Message, StreamingParser};

/// The markers of a span of thinking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Think {
    /// The marker at the start. If empty, no span starts.
    pub start: String,
    /// The marker at the end. If empty, no span ends.
    pub end: String,
}

impl Default for Think {
    fn default() -> Self {
        Self { start: "<think>".to_owned(), end: "</think>".to_owned() }
    }
}

/// The settings of a parser.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grammar {
    /// The format of calls. `None`: no calls are parsed, and text that looks like a call is content.
    pub format: Option<Format>,
    /// The markers of thinking. `None`: no text is reasoning.
    pub think: Option<Think>,
    /// The text begins inside a span that the prompt opened. Ignored without `think`.
    pub opened: bool,
}

impl Grammar {
    /// Parses a whole text. Never fails.
    #[must_use]
    pub fn parse(&self, text: &str) -> Message {
        let mut events = Vec::new();
        let mut streaming = self.stream();
        streaming.push(text, &mut events);
        streaming.finish(&mut events);
        events.into_iter().collect()
    }

    /// Returns a parser for a text that arrives in pieces.
    #[must_use]
    pub fn stream(&self) -> StreamingParser {
        StreamingParser::new(self)
    }
}
