//! Separates calls from content, in text without think spans.

use super::buffer::{Buffer, until};
use super::content::Content;
use super::space::strip_start;
use super::syntax::{Step, Syntax};
use super::{Event, Format};

/// Scans from left to right for blocks of calls; they do not overlap.
#[derive(Debug, Clone)]
pub(super) struct Scanner {
    syntax: Option<Syntax>,
    buffer: Buffer,
    /// The buffered text begins with a marker or an opener.
    in_call: bool,
    /// No visible text and no call has been emitted so far.
    blank: bool,
    /// A think span was removed from the buffered text.
    parted: bool,
    content: Content,
}

impl Scanner {
    pub(super) fn new(format: Option<Format>) -> Self {
        Self {
            syntax: format.map(Syntax::new),
            buffer: Buffer::default(),
            in_call: false,
            blank: true,
            parted: false,
            content: Content::default(),
        }
    }

    /// Whether the text so far ends within a possible call.
    pub(super) fn in_call(&self) -> bool {
        self.in_call
    }

    /// A think span was removed at this position.
    pub(super) fn taken(&mut self) {
        // after the buffered text, which may become the first visible text
        if self.buffer.rest().is_empty() { self.content.taken() } else { self.parted = true }
    }

    /// Adds text.
    pub(super) fn push(&mut self, text: &str, out: &mut Vec<Event>) {
        self.buffer.push(text);
        self.scan(out);
    }

    /// Ends the text.
    pub(super) fn finish(mut self, out: &mut Vec<Event>) {
        while self.in_call {
            let held = self.buffer.rest();
            let all = held.len();
            let step = match self.syntax.as_mut().map(|syntax| syntax.end(held)) {
                Some(step @ (Step::Text(_) | Step::Calls(..))) => step,
                Some(Step::More) | None => Step::Text(all),
            };
            self.settle(step, out);
            self.scan(out);
        }
        self.pass(self.buffer.rest().len(), out);
        self.content.finish(out);
    }

    fn scan(&mut self, out: &mut Vec<Event>) {
        loop {
            if !self.in_call && !self.seek(out) {
                return;
            }
            let step = self.syntax.as_mut().map_or(Step::More, |syntax| syntax.read(self.buffer.rest()));
            if matches!(step, Step::More) {
                return;
            }
            self.settle(step, out);
        }
    }

    /// Passes text on up to the next marker or opener. Returns whether one was found.
    fn seek(&mut self, out: &mut Vec<Event>) -> bool {
        let Some(syntax) = &self.syntax else {
            self.pass(self.buffer.rest().len(), out);
            return false;
        };
        let rest = self.buffer.rest();
        let visible = strip_start(rest);
        let whole = self.blank && syntax.opener().is_some_and(|opener| visible.starts_with(opener));
        let (length, found) = if whole { (rest.len() - visible.len(), true) } else { until(rest, syntax.start()) };
        self.pass(length, out);
        self.in_call = found;
        if found && let Some(syntax) = &mut self.syntax {
            syntax.begin();
        }
        found
    }

    fn settle(&mut self, step: Step, out: &mut Vec<Event>) {
        self.in_call = false;
        match step {
            Step::More => {}
            Step::Text(length) => self.pass(length, out),
            Step::Calls(length, calls) => {
                self.buffer.skip(length);
                self.content.taken();
                (self.blank, self.parted) = (false, false);
                out.extend(calls.into_iter().map(Event::Call));
            }
        }
    }

    /// The next `length` bytes are text.
    fn pass(&mut self, length: usize, out: &mut Vec<Event>) {
        if length == 0 {
            return;
        }
        let text = &self.buffer.rest()[..length];
        self.blank &= strip_start(text).is_empty();
        self.content.push(text, out);
        self.buffer.skip(length);
        if std::mem::take(&mut self.parted) {
            self.content.taken();
        }
    }
}
