// SPDX-License-Identifier: Apache-2.0
//! Parses a text that arrives in pieces: separates spans of thinking from other text, and passes the other text to the scanner.

use std::sync::Arc;

use super::buffer::{Buffer, length_before};
use super::emitter::ReasoningEmitter;
use super::lookalikes::{Lookalikes, remove_marks};
use super::scanner::Scanner;
use super::{Event, Grammar, Think};
use crate::json::python::strip_start;

/// The position of the parser relative to spans of thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParserState {
    /// Outside spans.
    Text,
    /// At the start of the span that the prompt opened, where the model may repeat the think start.
    PromptSpanStart,
    /// In the span that the prompt opened.
    PromptSpan,
    /// In a span that the model opened outside calls.
    ModelSpan,
    /// In a span that the model opened inside a call.
    SpanInCall,
}

/// Parses a text piece by piece. The resulting message does not depend on where the text is cut.
///
/// Content and reasoning are emitted up to text that may become a marker or trailing white space. A call is emitted as the documentation of
/// [`parse`](super) describes. The cost of a piece is linear in its length, because no text is read twice.
#[derive(Debug, Clone)]
pub struct StreamingParser {
    think: Think,
    state: ParserState,
    buffer: Buffer,
    /// The text of the span that the model opened, in case the span is not closed.
    span: String,
    reasoning: ReasoningEmitter,
    /// Reasoning that was in a call that has not ended.
    delayed: Vec<Event>,
    grammar: Grammar,
    scanner: Scanner,
    lookalikes: Lookalikes,
}

impl StreamingParser {
    pub(super) fn new(grammar: &Grammar) -> Self {
        let think = grammar.think.clone().unwrap_or_else(|| Think { start: String::new(), end: String::new() });
        let opened = grammar.opened && grammar.think.is_some();
        Self {
            think,
            state: if opened { ParserState::PromptSpanStart } else { ParserState::Text },
            buffer: Buffer::default(),
            span: String::new(),
            reasoning: ReasoningEmitter::default(),
            delayed: Vec::new(),
            grammar: grammar.clone(),
            scanner: Scanner::new(grammar),
            lookalikes: Lookalikes::new(Arc::clone(&grammar.tokens)),
        }
    }

    /// Parses the next piece. Appends to `out` the events that later text cannot change.
    pub fn push(&mut self, piece: &str, out: &mut Vec<Event>) {
        let piece = self.lookalikes.push(piece);
        self.parse(&piece, out);
    }

    /// Parses a marker that was sampled as its token.
    pub fn push_token(&mut self, marker: &str, out: &mut Vec<Event>) {
        let pending = self.lookalikes.take_pending();
        self.parse(&pending, out);
        self.parse(marker, out);
    }

    fn parse(&mut self, text: &str, out: &mut Vec<Event>) {
        let mut events = Vec::new();
        self.buffer.push(text);
        while self.step(&mut events) {}
        remove_marks(&mut events);
        out.append(&mut events);
    }

    /// Parses up to the next marker. Returns whether the buffered text may contain another marker.
    fn step(&mut self, out: &mut Vec<Event>) -> bool {
        match self.state {
            ParserState::Text => self.scan_text(out),
            ParserState::PromptSpanStart => self.skip_repeated_start(),
            ParserState::PromptSpan | ParserState::ModelSpan | ParserState::SpanInCall => self.scan_span(out),
        }
    }

    /// Passes text outside spans to the scanner, up to the next think start.
    fn scan_text(&mut self, out: &mut Vec<Event>) -> bool {
        let (length, found) = length_before(self.buffer.rest(), &self.think.start);
        self.scanner.push(&self.buffer.rest()[..length], out);
        if found && self.grammar.tokens.iter().any(|token| **token == self.think.start) {
            self.scanner.end_at_pending_markers(out);
        }
        if !self.scanner.has_open_call() {
            out.append(&mut self.delayed);
        }
        self.buffer.skip(length);
        if found {
            self.buffer.skip(self.think.start.len());
            if self.scanner.in_string() {
                self.scanner.push(&self.think.start, out);
                return true;
            }
            self.state = if self.scanner.in_call() { ParserState::SpanInCall } else { ParserState::ModelSpan };
        }
        found
    }

    /// Skips a think start that repeats that of the prompt.
    fn skip_repeated_start(&mut self) -> bool {
        let rest = self.buffer.rest();
        let visible = strip_start(rest);
        let blank = rest.len() - visible.len();
        let repeats = visible.starts_with(&self.think.start);
        if !repeats && self.think.start.starts_with(visible) {
            self.buffer.skip(blank);
            return false;
        }
        self.state = ParserState::PromptSpan;
        if repeats {
            self.buffer.skip(blank + self.think.start.len());
        }
        true
    }

    /// Reads the text of the open span, up to the think end.
    fn scan_span(&mut self, out: &mut Vec<Event>) -> bool {
        let (length, found) = length_before(self.buffer.rest(), &self.think.end);
        self.read_span(length, out);
        if found {
            if self.state == ParserState::SpanInCall {
                let out = if self.scanner.has_open_call() { &mut self.delayed } else { out };
                self.reasoning.push(&self.span, out);
            }
            self.buffer.skip(self.think.end.len());
            self.span.clear();
            self.reasoning.end();
            self.scanner.record_removal();
            self.state = ParserState::Text;
        }
        found
    }

    /// Reads the next `length` bytes, which belong to the open span.
    fn read_span(&mut self, length: usize, out: &mut Vec<Event>) {
        let text = &self.buffer.rest()[..length];
        if self.state != ParserState::SpanInCall {
            self.reasoning.push(text, out);
        }
        let is_stored = self.state == ParserState::SpanInCall
            || self.state == ParserState::ModelSpan && self.grammar.format.is_some();
        if is_stored {
            self.span.push_str(text);
        }
        self.buffer.skip(length);
    }

    /// Ends the text. Appends to `out` the events of the buffered text, and the calls of a span that the model did not close.
    pub fn finish(mut self, out: &mut Vec<Event>) {
        let pending = self.lookalikes.take_pending();
        self.parse(&pending, out);
        let mut events = Vec::new();
        let rest = self.buffer.rest().len();
        let mut calls = Vec::new();
        match self.state {
            ParserState::Text => self.scanner.push(self.buffer.rest(), &mut events),
            ParserState::PromptSpanStart | ParserState::PromptSpan => self.read_span(rest, &mut events),
            ParserState::ModelSpan => {
                self.read_span(rest, &mut events);
                self.scanner.record_removal();
                calls = self.calls_in_span();
            }
            ParserState::SpanInCall => {
                self.read_span(rest, &mut events);
                self.scanner.push(&self.think.start, &mut events);
                self.scanner.push(&self.span, &mut events);
            }
        }
        self.scanner.finish(&mut events);
        events.append(&mut self.delayed);
        events.extend(calls);
        remove_marks(&mut events);
        out.append(&mut events);
    }

    /// The calls in a span that is not closed. A call that is cut off is only reasoning.
    fn calls_in_span(&self) -> Vec<Event> {
        let (mut scanner, mut events) = (Scanner::new(&self.grammar), Vec::new());
        // the think start is text here, so that the text after it is not parsed as the whole answer
        scanner.push(&self.think.start, &mut events);
        scanner.push(&self.span, &mut events);
        scanner.end_at_pending_markers(&mut events);
        if scanner.has_open_call() {
            let start = events.iter().rposition(|event| matches!(event, Event::CallStart { .. }));
            events.truncate(start.unwrap_or_default());
        } else {
            scanner.finish(&mut events);
        }
        events.retain(|event| !matches!(event, Event::Content(_)));
        events
    }
}
