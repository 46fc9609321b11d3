//! The markers that a text is parsed with.

use super::{Format, Message, StreamingParser};

/// The markers around thinking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Think {
    /// The start of a span. If empty, spans never start.
    pub start: String,
    /// The end of a span. If empty, spans never end.
    pub end: String,
}

impl Default for Think {
    fn default() -> Self {
        Self { start: "<think>".to_owned(), end: "</think>".to_owned() }
    }
}

/// How a text is parsed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grammar {
    /// The format of calls. Without it there are no tools, and text that looks like a call is content.
    pub format: Option<Format>,
    /// The markers of thinking. Without them no text is reasoning.
    pub think: Option<Think>,
    /// The prompt opened a span, so the text begins inside one. Ignored without `think`.
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
