// SPDX-License-Identifier: Apache-2.0
//! The settings of a parser: the format of calls and the markers of thinking.

use std::sync::Arc;

use super::syntax::CallMarkers;
use super::{Format, Message, ParameterTypes, StreamingParser};

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
    /// The types of the parameters of the tools, for formats whose values are texts. `None`: a value of `qwen_xml` or `glm` is JSON, or text if it
    /// is not JSON, without the white space around it, as strands-sglang reads it.
    pub parameters: Option<Arc<ParameterTypes>>,
    /// The markers of thinking. `None`: no text is reasoning.
    pub think: Option<Think>,
    /// The markers that have a token in the vocabulary. Text that looks like one of them is text, unless it is pushed as a token.
    pub tokens: Arc<[Box<str>]>,
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

    /// The texts that are markers of this grammar, and may have tokens.
    pub fn markers(&self) -> impl Iterator<Item = &str> {
        let think = self.think.iter().flat_map(|think| [&*think.start, &*think.end]);
        think
            .filter(|marker| !marker.is_empty())
            .chain(self.format.map_or(&[][..], |format| CallMarkers::new(format).all).iter().copied())
    }

    /// Returns a parser for a text that arrives in pieces.
    #[must_use]
    pub fn stream(&self) -> StreamingParser {
        StreamingParser::new(self)
    }
}
