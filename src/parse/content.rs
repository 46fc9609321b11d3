//! The content of a message, without white space at its ends where markers were removed.

use super::Event;
use super::space::{strip_end, strip_start};

/// Passes content on, and holds white space back until it is known whether it ends the content.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    /// A call or a think span was removed from the text so far.
    taken: bool,
    /// A visible character was passed on.
    visible: bool,
    gap: String,
}

impl Content {
    /// A call or a think span was removed at this position.
    pub(super) fn taken(&mut self) {
        self.taken = true;
    }

    /// Adds text.
    pub(super) fn push(&mut self, text: &str, out: &mut Vec<Event>) {
        let shown = strip_end(text);
        if shown.is_empty() {
            self.gap.push_str(text);
            return;
        }
        let mut passed = std::mem::take(&mut self.gap);
        if self.taken && !self.visible {
            passed.clear();
            passed.push_str(strip_start(shown));
        } else {
            passed.push_str(shown);
        }
        self.visible = true;
        self.gap.push_str(&text[shown.len()..]);
        out.push(Event::Content(passed));
    }

    /// Ends the text.
    pub(super) fn finish(self, out: &mut Vec<Event>) {
        if !self.taken && !self.gap.is_empty() {
            out.push(Event::Content(self.gap));
        }
    }
}
