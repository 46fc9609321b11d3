//! Emits the content of a message, and removes white space at its ends where a span or call was removed.

use super::Event;
use super::space::{strip_end, strip_start};

/// Emits content. Buffers white space until a visible character follows or the text ends.
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
