// SPDX-License-Identifier: Apache-2.0
//! Emits the text of a message, content and reasoning, without the white space that belongs to neither.

use super::Event;
use crate::json::python::{strip_end, strip_start};

/// Emits content. Removes white space at its ends where a span or call was removed, and buffers white space until a visible character
/// follows or the text ends.
#[derive(Debug, Clone, Default)]
pub(super) struct ContentEmitter {
    /// A call or a think span was removed from the text so far.
    has_removal: bool,
    /// A visible character was emitted.
    has_text: bool,
    /// White space that is not emitted yet.
    white_space: String,
}

impl ContentEmitter {
    /// Records that a call or a think span was removed at this position.
    pub(super) fn record_removal(&mut self) {
        self.has_removal = true;
    }

    /// Adds text.
    pub(super) fn push(&mut self, text: &str, out: &mut Vec<Event>) {
        let visible = strip_end(text);
        if visible.is_empty() {
            self.white_space.push_str(text);
            return;
        }
        let mut emitted = std::mem::take(&mut self.white_space);
        if self.has_removal && !self.has_text {
            emitted.clear();
            emitted.push_str(strip_start(visible));
        } else {
            emitted.push_str(visible);
        }
        self.has_text = true;
        self.white_space.push_str(&text[visible.len()..]);
        out.push(Event::Content(emitted));
    }

    /// Ends the text.
    pub(super) fn finish(self, out: &mut Vec<Event>) {
        if !self.has_removal && !self.white_space.is_empty() {
            out.push(Event::Content(self.white_space));
        }
    }
}

/// Emits reasoning: each span without white space at its ends, and a line feed between spans.
#[derive(Debug, Clone, Default)]
pub(super) struct ReasoningEmitter {
    /// A visible character was emitted.
    has_text: bool,
    /// A visible character of the open span was emitted.
    span_has_text: bool,
    /// White space of the open span that is not emitted yet.
    white_space: String,
}

impl ReasoningEmitter {
    /// Adds text of the open span.
    pub(super) fn push(&mut self, text: &str, out: &mut Vec<Event>) {
        let text = if self.span_has_text { text } else { strip_start(text) };
        let visible = strip_end(text);
        if visible.is_empty() {
            self.white_space.push_str(text);
            return;
        }
        let mut emitted = std::mem::take(&mut self.white_space);
        if self.has_text && !self.span_has_text {
            emitted.push('\n');
        }
        emitted.push_str(visible);
        (self.has_text, self.span_has_text) = (true, true);
        self.white_space.push_str(&text[visible.len()..]);
        out.push(Event::Reasoning(emitted));
    }

    /// Ends the open span.
    pub(super) fn end(&mut self) {
        self.span_has_text = false;
        self.white_space.clear();
    }
}
