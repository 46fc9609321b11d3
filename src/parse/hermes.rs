// SPDX-License-Identifier: Apache-2.0
//! `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

use super::buffer::MarkerSearch;
use super::call_reader::CallReader;
use super::json_call::parse_call;
use super::json_reader::StringLookahead;
use super::step::Step;
use crate::json::python::{strip, strip_start};

/// The marker at the start of a block.
pub(super) const START: &str = "<tool_call>";
/// The marker at the end of a block.
pub(super) const END: &str = "</tool_call>";

/// Parses one block. The call starts at the opening brace of its arguments if its name is before them.
///
/// An end marker in a string of the JSON is text if the string has an end and the JSON is valid up to the token after it. Until this is certain,
/// the text from the marker on is not emitted.
#[derive(Debug, Clone)]
pub(super) struct Hermes {
    end: MarkerSearch,
    /// The start of the JSON in the buffered text, or of the text before which only white space was found.
    from: usize,
    /// `None` before the JSON.
    call: Option<CallReader>,
    /// Decides whether the end marker is text of a string.
    lookahead: Option<StringLookahead>,
}

impl Hermes {
    pub(super) fn new() -> Self {
        Self { end: MarkerSearch::new(END, START.len()), from: START.len(), call: None, lookahead: None }
    }

    /// Continues in `buffered`, which begins with the start marker, or with text of a started call.
    pub(super) fn read(&mut self, buffered: &str) -> Step {
        loop {
            let length = self.end.read(buffered);
            let body = &buffered[..length];
            if self.call.is_none() {
                let json = strip_start(&body[self.from..]);
                self.from = length - json.len();
                self.call = (!json.is_empty()).then(CallReader::call);
            }
            if let Some(call) = &mut self.call
                && let Some((length, events)) = call.read(&body[self.from..])
            {
                let length = std::mem::take(&mut self.from) + length;
                self.end.skip(length);
                return Step::Part(length, events);
            }
            if self.end.found().is_none() {
                return Step::More;
            }
            let Some(call) = self.call.as_ref().filter(|call| call.in_string()) else { return self.end_at(body) };
            let from = self.from;
            match self.lookahead.get_or_insert_with(|| call.look_ahead(from)).read(buffered) {
                None => return Step::More,
                Some(Err(_)) => return self.end_at(body),
                Some(Ok(after)) => (self.lookahead, self.end) = (None, MarkerSearch::new(END, after)),
            }
        }
    }

    /// Whether the text so far ends within a string of the JSON.
    pub(super) fn in_string(&self) -> bool {
        self.call.as_ref().is_some_and(CallReader::in_string)
    }

    /// Ends the block at an end marker in a string whose end was not found so far. Returns `None` if there is no such marker.
    pub(super) fn end_at_pending_marker(&self, buffered: &str) -> Option<Step> {
        Some(self.end_at(&buffered[..self.end.found()?]))
    }

    /// Ends the block at the end marker after `body`.
    fn end_at(&self, body: &str) -> Step {
        let end = body.len() + END.len();
        match &self.call {
            Some(call) if call.has_started() => Step::End(end, call.end(body, "")),
            _ => Step::call(end, parse_call(strip(&body[START.len()..]))),
        }
    }

    /// Ends a block whose text has no end marker after its JSON.
    pub(super) fn end(&self, buffered: &str) -> Step {
        if let Some(step) = self.end_at_pending_marker(buffered) {
            return step;
        }
        let call = self.call.as_ref().filter(|call| call.has_started());
        call.map_or(Step::Text(buffered.len()), |call| Step::End(buffered.len(), call.cut_off(buffered)))
    }
}
