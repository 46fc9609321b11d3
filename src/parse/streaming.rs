//! Parses a text that arrives in pieces: separates spans of thinking from the rest, and passes the rest to the scanner.

use super::buffer::{Buffer, until};
use super::reasoning::Reasoning;
use super::scanner::Scanner;
use super::space::strip_start;
use super::{Event, Format, Grammar, Think};

/// The state of the parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParserState {
    Outside,
    /// In the span that the prompt opened, where a second think start may follow.
    Opened,
    /// In the span that the prompt opened.
    Within,
    /// In a span that the model opened, in the text.
    Inside,
    /// In a span that the model opened, within a call.
    InCall,
}

/// Reads a text piece by piece. The events do not depend on where the text is cut.
///
/// Content and reasoning are emitted up to text that may still become a marker or trailing white space; a call is emitted when its
/// block is complete. The cost of a piece is linear in its length: nothing is read twice.
#[derive(Debug, Clone)]
pub struct StreamingParser {
    think: Think,
    place: ParserState,
    buffer: Buffer,
    /// The text of the span that the model opened, in case it is never closed.
    span: String,
    reasoning: Reasoning,
    format: Option<Format>,
    scanner: Scanner,
}

impl StreamingParser {
    pub(super) fn new(grammar: &Grammar) -> Self {
        let think = grammar.think.clone().unwrap_or_else(|| Think { start: String::new(), end: String::new() });
        let opened = grammar.opened && grammar.think.is_some();
        Self {
            think,
            place: if opened { ParserState::Opened } else { ParserState::Outside },
            buffer: Buffer::default(),
            span: String::new(),
            reasoning: Reasoning::default(),
            format: grammar.format,
            scanner: Scanner::new(grammar.format),
        }
    }

    /// Reads the next piece, and adds the events that are now certain to `out`.
    pub fn push(&mut self, piece: &str, out: &mut Vec<Event>) {
        self.buffer.push(piece);
        while self.step(out) {}
    }

    /// Reads up to the next marker. Returns whether another one may follow.
    fn step(&mut self, out: &mut Vec<Event>) -> bool {
        match self.place {
            ParserState::Outside => self.outside(out),
            ParserState::Opened => self.opened(),
            ParserState::Within | ParserState::Inside | ParserState::InCall => self.inside(out),
        }
    }

    fn outside(&mut self, out: &mut Vec<Event>) -> bool {
        let (length, found) = until(self.buffer.rest(), &self.think.start);
        self.scanner.push(&self.buffer.rest()[..length], out);
        self.buffer.skip(length);
        if found {
            self.buffer.skip(self.think.start.len());
            self.place = if self.scanner.in_call() { ParserState::InCall } else { ParserState::Inside };
        }
        found
    }

    fn opened(&mut self) -> bool {
        let rest = self.buffer.rest();
        let visible = strip_start(rest);
        let blank = rest.len() - visible.len();
        let again = visible.starts_with(&self.think.start);
        if !again && self.think.start.starts_with(visible) {
            self.buffer.skip(blank);
            return false;
        }
        self.place = ParserState::Within;
        if again {
            self.buffer.skip(blank + self.think.start.len());
        }
        true
    }

    fn inside(&mut self, out: &mut Vec<Event>) -> bool {
        let (length, found) = until(self.buffer.rest(), &self.think.end);
        self.think_on(length, out);
        if found {
            if self.place == ParserState::InCall {
                self.reasoning.push(&self.span, out);
            }
            self.buffer.skip(self.think.end.len());
            self.span.clear();
            self.reasoning.end();
            self.scanner.taken();
            self.place = ParserState::Outside;
        }
        found
    }

    /// The next `length` bytes are of the open span.
    fn think_on(&mut self, length: usize, out: &mut Vec<Event>) {
        let text = &self.buffer.rest()[..length];
        if self.place != ParserState::InCall {
            self.reasoning.push(text, out);
        }
        let kept = self.place == ParserState::InCall || self.place == ParserState::Inside && self.format.is_some();
        if kept {
            self.span.push_str(text);
        }
        self.buffer.skip(length);
    }

    /// Ends the text. Adds the buffered text to `out`, and the calls of a span that the model never closed.
    pub fn finish(mut self, out: &mut Vec<Event>) {
        let rest = self.buffer.rest().len();
        let mut drafts = Vec::new();
        match self.place {
            ParserState::Outside => self.scanner.push(self.buffer.rest(), out),
            ParserState::Opened | ParserState::Within => self.think_on(rest, out),
            ParserState::Inside => {
                self.think_on(rest, out);
                self.scanner.taken();
                drafts = self.drafts();
            }
            ParserState::InCall => {
                self.think_on(rest, out);
                self.scanner.push(&self.think.start, out);
                self.scanner.push(&self.span, out);
            }
        }
        self.scanner.finish(out);
        out.extend(drafts);
    }

    /// The calls after a think start that is never ended.
    fn drafts(&self) -> Vec<Event> {
        let (mut scanner, mut events) = (Scanner::new(self.format), Vec::new());
        // the marker is text here, so that what follows it is not the whole answer
        scanner.push(&self.think.start, &mut events);
        scanner.push(&self.span, &mut events);
        scanner.finish(&mut events);
        events.retain(|event| matches!(event, Event::Call(_)));
        events
    }
}
