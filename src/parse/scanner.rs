// SPDX-License-Identifier: Apache-2.0
//! Separates calls from content in text whose think spans are removed.

use std::sync::Arc;

use super::buffer::{Buffer, length_before};
use super::emitter::ContentEmitter;
use super::parameter_types::ParameterTypes;
use super::step::Step;
use super::syntax::{CallMarkers, Syntax};
use super::{Event, Format, Grammar};
use crate::json::python::strip_start;

/// Scans text from left to right for blocks of calls. Blocks do not overlap.
#[derive(Debug, Clone)]
pub(super) struct Scanner {
    format: Option<Format>,
    types: Option<Arc<ParameterTypes>>,
    buffer: Buffer,
    /// The parser of the block whose start marker or bare start begins the buffered text, or which is partly emitted.
    block: Option<Syntax>,
    /// A call has started and has not ended.
    has_open_call: bool,
    /// No visible text and no call has been emitted so far.
    is_blank: bool,
    /// A think span was removed from the buffered text; `content` does not know it yet.
    has_pending_removal: bool,
    content: ContentEmitter,
}

impl Scanner {
    pub(super) fn new(grammar: &Grammar) -> Self {
        Self {
            format: grammar.format,
            types: grammar.parameters.clone(),
            buffer: Buffer::default(),
            block: None,
            has_open_call: false,
            is_blank: true,
            has_pending_removal: false,
            content: ContentEmitter::default(),
        }
    }

    /// Whether the text so far ends within a possible call.
    pub(super) fn in_call(&self) -> bool {
        self.block.is_some()
    }

    /// Whether the text so far ends within a string of the arguments of a call.
    pub(super) fn in_string(&self) -> bool {
        self.block.as_ref().is_some_and(Syntax::in_string)
    }

    /// Ends a block at a marker that may be text of a string, because the string ends there: a think start was sampled as its token, or the
    /// text has ended.
    pub(super) fn end_at_pending_markers(&mut self, out: &mut Vec<Event>) {
        while let Some(step) = self.block.as_mut().and_then(|block| block.end_at_pending_marker(self.buffer.rest())) {
            self.apply(step, out);
            self.scan(out);
        }
    }

    /// Whether a call has started and has not ended.
    pub(super) fn has_open_call(&self) -> bool {
        self.has_open_call
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
        while let Some(block) = &mut self.block {
            let step = block.end(self.buffer.rest());
            self.apply(step, out);
            self.scan(out);
        }
        self.emit_text(self.buffer.rest().len(), out);
        self.content.finish(out);
    }

    /// Parses the buffered text until more text is needed.
    fn scan(&mut self, out: &mut Vec<Event>) {
        loop {
            let Some(block) = &mut self.block else {
                self.block = self.find_start(out).map(|format| Syntax::new(format, self.types.clone()));
                if self.block.is_none() {
                    return;
                }
                continue;
            };
            let step = block.read(self.buffer.rest());
            if matches!(step, Step::More) {
                return;
            }
            self.apply(step, out);
        }
    }

    /// Emits text up to the next start marker or bare start. Returns the format of the block if one was found.
    fn find_start(&mut self, out: &mut Vec<Event>) -> Option<Format> {
        let Some(format) = self.format else {
            self.emit_text(self.buffer.rest().len(), out);
            return None;
        };
        let markers = CallMarkers::new(format);
        let rest = self.buffer.rest();
        let visible = strip_start(rest);
        let is_bare = self.is_blank && markers.bare_start.is_some_and(|start| visible.starts_with(start));
        let (length, found) =
            if is_bare { (rest.len() - visible.len(), true) } else { length_before(rest, markers.start) };
        self.emit_text(length, out);
        found.then_some(format)
    }

    /// Emits the text or the events of a step and removes its text from the buffer.
    fn apply(&mut self, step: Step, out: &mut Vec<Event>) {
        let (length, events, has_ended) = match step {
            Step::More => return,
            Step::Text(length) => {
                self.block = None;
                return self.emit_text(length, out);
            }
            Step::Part(length, events) => (length, events, false),
            Step::End(length, events) => (length, events, true),
        };
        if has_ended {
            self.block = None;
        }
        self.buffer.skip(length);
        self.content.record_removal();
        (self.is_blank, self.has_pending_removal) = (false, false);
        for event in events {
            match (&event, out.last_mut()) {
                (Event::CallStart { .. }, _) => self.has_open_call = true,
                (Event::CallEnd { .. }, _) => self.has_open_call = false,
                (Event::Arguments(text), Some(Event::Arguments(last))) => {
                    last.push_str(text);
                    continue;
                }
                _ => {}
            }
            out.push(event);
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
