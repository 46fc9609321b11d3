//! What is left of the text, without the white space that markers leave at its ends.

use super::Event;
use super::space::{strip_end, strip_start};

/// Passes content on, and holds white space until it is clear whether it ends the content.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    /// Something was taken out of the text so far.
    taken: bool,
    /// A visible character was passed on.
    visible: bool,
    gap: String,
}

impl Content {
    /// Something stood here that is no content.
    pub(super) fn taken(&mut self) {
        self.taken = true;
    }

    /// More text.
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

    /// The end of the text.
    pub(super) fn finish(self, out: &mut Vec<Event>) {
        if !self.taken && !self.gap.is_empty() {
            out.push(Event::Content(self.gap));
        }
    }
}
