//! Emits the reasoning of a message: the text of its think spans.

use super::Event;
use super::space::{strip_end, strip_start};

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
