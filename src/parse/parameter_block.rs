// SPDX-License-Identifier: Apache-2.0
//! A block of one call in `<tool_call>` tags, in which each parameter has tags, too.

use std::sync::Arc;

use super::buffer::MarkerSearch;
use super::hermes::{END, START};
use super::parameter_types::{CalledTool, ParameterTypes};
use super::step::Step;
use super::{Event, Format};

/// The call of a block, as one format writes it.
pub(super) trait TaggedCall {
    const FORMAT: Format;
    /// The end tag of values.
    const VALUE_END: &'static str;
    /// The markers that only follow the end of a value.
    const AFTER_VALUE: &'static [&'static str];

    fn new(tool: CalledTool) -> Self;

    /// Continues in `body`, the text up to the end of the block. Returns the number of bytes that are removed, and their events. Returns `None`
    /// if more text is needed.
    fn read(&mut self, body: &str) -> Option<(usize, Vec<Event>)>;

    /// Whether the text so far ends within the value of a parameter that has a type.
    fn in_value(&self) -> bool;

    /// Ends the block at the end marker after `body`.
    fn end(&mut self, body: &str) -> Step;

    /// Ends a block whose `text` has no end marker after its last value.
    fn cut_off(&mut self, text: &str) -> Step;
}

/// Parses one block. Its end marker is text in a value that has a type, if the end tag of the value is the next tag after it.
#[derive(Debug, Clone)]
pub(super) struct ParameterBlock<C> {
    end: MarkerSearch,
    call: C,
    /// The searches for the end tag of the value and for the markers after values. They begin after an end marker in a value.
    lookahead: Option<(MarkerSearch, Vec<MarkerSearch>)>,
}

impl<C: TaggedCall> ParameterBlock<C> {
    pub(super) fn new(types: Option<Arc<ParameterTypes>>) -> Self {
        let call = C::new(CalledTool::new(C::FORMAT, types));
        Self { end: MarkerSearch::new(END, START.len()), call, lookahead: None }
    }

    /// Continues in `buffered`, which begins with the start marker, or with text of a started call.
    pub(super) fn read(&mut self, buffered: &str) -> Step {
        loop {
            let body = &buffered[..self.end.read(buffered)];
            if let Some((length, events)) = self.call.read(body) {
                self.end.skip(length);
                return Step::Part(length, events);
            }
            match self.ends_block(buffered) {
                None => return Step::More,
                Some(true) => return self.call.end(body),
                Some(false) => {}
            }
        }
    }

    /// Whether the text so far ends within the value of a parameter that has a type.
    pub(super) fn in_value(&self) -> bool {
        self.call.in_value()
    }

    /// Ends the block at an end marker in a value whose end was not found so far. Returns `None` if there is no such marker.
    pub(super) fn end_at_pending_marker(&mut self, buffered: &str) -> Option<Step> {
        let length = self.end.found().filter(|_| self.lookahead.is_some())?;
        Some(self.call.end(&buffered[..length]))
    }

    /// Ends a block whose text has no end marker after its last value.
    pub(super) fn end(&mut self, buffered: &str) -> Step {
        self.end_at_pending_marker(buffered).unwrap_or_else(|| self.call.cut_off(buffered))
    }

    /// Whether the end marker that was found ends the block. A marker in a value does not if the end tag of the value precedes the other
    /// markers; the search then continues after the value. Returns `None` if more text is needed.
    fn ends_block(&mut self, text: &str) -> Option<bool> {
        let from = self.end.found()? + END.len();
        if !self.call.in_value() {
            return Some(true);
        }
        let new = |marker: &&'static str| MarkerSearch::new(marker, from);
        let searches = || (new(&C::VALUE_END), C::AFTER_VALUE.iter().map(new).collect());
        let (value_end, others) = self.lookahead.get_or_insert_with(searches);
        let find = |search: &mut MarkerSearch| {
            search.read(text);
            search.found()
        };
        match (find(value_end), others.iter_mut().filter_map(find).min()) {
            (None, None) => None,
            (Some(value_end), other) if other.is_none_or(|other| value_end < other) => {
                self.end.skip_to(value_end);
                self.lookahead = None;
                Some(false)
            }
            _ => Some(true),
        }
    }
}
