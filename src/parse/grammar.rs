//! What to look for in a text.

use super::{Format, Message, StreamingParser};

/// The markers around thinking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Think {
    /// Begins a span. An empty one never does.
    pub start: String,
    /// Ends a span. An empty one never does.
    pub end: String,
}

impl Default for Think {
    fn default() -> Self {
        Self { start: "<think>".to_owned(), end: "</think>".to_owned() }
    }
}

/// How a text is to be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grammar {
    /// How calls are written; without it no tools exist, and text that looks like a call is content.
    pub format: Option<Format>,
    /// The markers of thinking; without them no text is reasoning.
    pub think: Option<Think>,
    /// The prompt opened a span, so the text begins inside one. Says nothing without `think`.
    pub opened: bool,
}

impl Grammar {
    /// Reads a whole text. No text fails.
    #[must_use]
    pub fn parse(&self, text: &str) -> Message {
        let mut events = Vec::new();
        let mut streaming = self.stream();
        streaming.push(text, &mut events);
        streaming.finish(&mut events);
        events.into_iter().collect()
    }

    /// Reads a text that comes in pieces.
    #[must_use]
    pub fn stream(&self) -> StreamingParser {
        StreamingParser::new(self)
    }
}
