//! The reasoning of a message: the text of its think spans.

use super::Event;
use super::space::{strip_end, strip_start};

/// Passes reasoning on: each span without white space at its ends, with a line feed between spans.
#[derive(Debug, Clone, Default)]
pub(super) struct Reasoning {
    /// A visible character was passed on.
    visible: bool,
    /// A visible character of this span was passed on.
    begun: bool,
    gap: String,
}

impl Reasoning {
    /// Adds text of the open span.
    pub(super) fn push(&mut self, text: &str, out: &mut Vec<Event>) {
        let text = if self.begun { text } else { strip_start(text) };
        let shown = strip_end(text);
        if shown.is_empty() {
            self.gap.push_str(text);
            return;
        }
        let mut passed = std::mem::take(&mut self.gap);
        if self.visible && !self.begun {
            passed.push('\n');
        }
        passed.push_str(shown);
        (self.visible, self.begun) = (true, true);
        self.gap.push_str(&text[shown.len()..]);
        out.push(Event::Reasoning(passed));
    }

    /// Ends the span.
    pub(super) fn end(&mut self) {
        self.begun = false;
        self.gap.clear();
    }
}
