//! Separates calls from content in text whose think spans are removed.

use super::buffer::{Buffer, length_before};
use super::content::ContentEmitter;
use super::space::strip_start;
use super::syntax::{Step, Syntax};
use super::{Event, Format};

/// Scans text from left to right for blocks of calls. Blocks do not overlap.
#[derive(Debug, Clone)]
pub(super) struct Scanner {
    syntax: Option<Syntax>,
    buffer: Buffer,
    /// The buffered text begins with a start marker or a bare start.
    in_call: bool,
    /// No visible text and no call has been emitted so far.
    is_blank: bool,
    /// A think span was removed from the buffered text; `content` does not know it yet.
    has_pending_removal: bool,
    content: ContentEmitter,
}

impl Scanner {
    pub(super) fn new(format: Option<Format>) -> Self {
        Self {
            syntax: format.map(Syntax::new),
            buffer: Buffer::default(),
            in_call: false,
            is_blank: true,
            has_pending_removal: false,
            content: ContentEmitter::default(),
        }
    }

    /// Whether the text so far ends within a possible call.
    pub(super) fn in_call(&self) -> bool {
        self.in_call
    }

    /// Records that a think span was removed at this position.
    pub(super) fn record_removal(&mut self) {
        // the position is after the buffered text, which may become the first visible text
        if self.buffer.rest().is_empty() { self.content.record_removal() } else { self.has_pending_removal = true }
    }

    /// Adds text.
    pub(super) fn push(&mut self, text: &str, out: &mut Vec<Event>) {
        self.buffer.push(text);
        self.scan(out);
    }

    /// Ends the text.
    pub(super) fn finish(mut self, out: &mut Vec<Event>) {
        while self.in_call {
            let buffered = self.buffer.rest();
            let all = buffered.len();
            let step = match self.syntax.as_mut().map(|syntax| syntax.end(buffered)) {
                Some(step @ (Step::Text(_) | Step::Calls(..))) => step,
                Some(Step::More) | None => Step::Text(all),
            };
            self.apply(step, out);
            self.scan(out);
        }
        self.emit_text(self.buffer.rest().len(), out);
        self.content.finish(out);
    }

    /// Parses the buffered text until more text is needed.
    fn scan(&mut self, out: &mut Vec<Event>) {
        loop {
            if !self.in_call && !self.find_start(out) {
                return;
            }
            let step = self.syntax.as_mut().map_or(Step::More, |syntax| syntax.read(self.buffer.rest()));
            if matches!(step, Step::More) {
                return;
            }
            self.apply(step, out);
        }
    }

    /// Emits text up to the next start marker or bare start. Returns whether one was found.
    fn find_start(&mut self, out: &mut Vec<Event>) -> bool {
        let Some(syntax) = &self.syntax else {
            self.emit_text(self.buffer.rest().len(), out);
            return false;
        };
        let rest = self.buffer.rest();
        let visible = strip_start(rest);
        let is_bare = self.is_blank && syntax.bare_start().is_some_and(|start| visible.starts_with(start));
        let (length, found) =
            if is_bare { (rest.len() - visible.len(), true) } else { length_before(rest, syntax.start()) };
        self.emit_text(length, out);
        self.in_call = found;
        if found && let Some(syntax) = &mut self.syntax {
            syntax.begin();
        }
        found
    }

    /// Emits the text or the calls of a step and removes them from the buffer.
    fn apply(&mut self, step: Step, out: &mut Vec<Event>) {
        self.in_call = false;
        match step {
            Step::More => {}
            Step::Text(length) => self.emit_text(length, out),
            Step::Calls(length, calls) => {
                self.buffer.skip(length);
                self.content.record_removal();
                (self.is_blank, self.has_pending_removal) = (false, false);
                out.extend(calls.into_iter().map(Event::Call));
            }
        }
    }

    /// Emits the next `length` bytes as content.
    fn emit_text(&mut self, length: usize, out: &mut Vec<Event>) {
        if length == 0 {
            return;
        }
        let text = &self.buffer.rest()[..length];
        self.is_blank &= strip_start(text).is_empty();
        self.content.push(text, out);
        self.buffer.skip(length);
        if std::mem::take(&mut self.has_pending_removal) {
            self.content.record_removal();
        }
    }
}
