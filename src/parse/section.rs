// SPDX-License-Identifier: Apache-2.0
//! A section of calls between special tokens, as Kimi K2 and DeepSeek write them.

use super::buffer::MarkerSearch;
use super::call_reader::CallReader;
use super::json_reader::StringLookahead;
use super::step::{self, Step};
use super::{Event, ToolCall};
use crate::json::python::strip_start;

/// The tokens of a section, and how its calls are parsed.
#[derive(Debug)]
pub(super) struct SectionFormat {
    /// The marker at the start of a section.
    pub(super) start: &'static str,
    /// The marker at the end of a section.
    pub(super) end: &'static str,
    /// The marker at the start of a call.
    pub(super) call_start: &'static str,
    /// The marker at the end of a call.
    pub(super) call_end: &'static str,
    /// The marker between the first part of a call and the second part, which has the arguments.
    pub(super) separator: &'static str,
    /// Parses the start of a call: its first part, and the beginning of its second part.
    pub(super) parse_head: fn(&str, &str) -> CallHead,
    /// Parses the text between the markers of a call; `None` if it is not a call.
    pub(super) parse_call: fn(&str) -> Option<ToolCall>,
}

impl SectionFormat {
    /// The markers that may have tokens.
    pub(super) const fn markers(&self) -> [&'static str; 5] {
        [self.start, self.end, self.call_start, self.call_end, self.separator]
    }
}

/// The start of a call.
#[derive(Debug)]
pub(super) enum CallHead {
    /// The text is too short to decide.
    Incomplete,
    /// The text is not a call. The scan continues in its second part.
    Text,
    /// The call cannot start before it is complete.
    Whole,
    /// The call starts.
    Start {
        name: String,
        id: Option<String>,
        /// The position of the arguments in the second part of the call. They begin with a brace.
        arguments: usize,
        /// The text between the arguments and the end of the call, without white space around it.
        tail: &'static str,
    },
}

/// Parses one section. Text between calls is ignored. A section without a call is text, and so is one without an end marker, unless a call
/// has started in it. An end marker in a string of a started call is text on the same condition as in `hermes`.
#[derive(Debug, Clone)]
pub(super) struct Section {
    format: &'static SectionFormat,
    end: MarkerSearch,
    state: State,
    /// The calls so far, until one has started.
    calls: Vec<ToolCall>,
    has_started: bool,
}

/// The position of the parser in the section.
#[derive(Debug, Clone)]
enum State {
    /// Before the start marker of a call.
    Between(MarkerSearch),
    /// In a call that has not started.
    Call {
        /// The position after the start marker.
        from: usize,
        separator: MarkerSearch,
        end: MarkerSearch,
        is_whole: bool,
    },
    /// In a call that has started.
    Started {
        call: CallReader,
        end: MarkerSearch,
        tail: &'static str,
        /// Decides whether an end marker is text of a string.
        lookahead: Option<Box<StringLookahead>>,
    },
}

impl Section {
    pub(super) fn new(format: &'static SectionFormat) -> Self {
        let from = format.start.len();
        Self {
            format,
            end: MarkerSearch::new(format.end, from),
            state: State::Between(MarkerSearch::new(format.call_start, from)),
            calls: Vec::new(),
            has_started: false,
        }
    }

    /// Continues in `buffered`, which begins with the start marker, or with text after the start of a call.
    pub(super) fn read(&mut self, buffered: &str) -> Step {
        if let Some(step) = self.read_section(buffered) {
            return step;
        }
        self.end.found().map_or(Step::More, |length| self.end_at(&buffered[..length]))
    }

    /// Ends the section at the end marker after `section`.
    fn end_at(&mut self, section: &str) -> Step {
        let length = section.len() + self.format.end.len();
        match self.cut_off(section) {
            Some(events) => Step::End(length, events),
            None => Step::calls(length, std::mem::take(&mut self.calls)),
        }
    }

    /// Ends the call at an end marker in a string whose end was not found so far. Returns `None` if there is no such marker.
    pub(super) fn end_at_pending_marker(&mut self, buffered: &str) -> Option<Step> {
        let State::Started { lookahead: Some(_), .. } = self.state else { return None };
        let section = &buffered[..self.end.read(buffered)];
        Some(self.end_call(section).unwrap_or_else(|| self.end_at(section)))
    }

    /// Ends a section whose text has no end marker after its last call.
    pub(super) fn end(&mut self, buffered: &str) -> Step {
        if let Some(step) = self.end_at_pending_marker(buffered) {
            return step;
        }
        self.cut_off(buffered).map_or(Step::Text(buffered.len()), |events| Step::End(buffered.len(), events))
    }

    /// Whether the text so far ends within a string of the arguments of a call.
    pub(super) fn in_string(&self) -> bool {
        matches!(&self.state, State::Started { call, .. } if call.in_string())
    }

    /// Continues in the text up to the end of the section. Returns `None` if this text is read.
    fn read_section(&mut self, buffered: &str) -> Option<Step> {
        loop {
            let section = &buffered[..self.end.read(buffered)];
            match &mut self.state {
                State::Between(start) => {
                    start.read(section);
                    let from = start.found()? + self.format.call_start.len();
                    let search = |marker| MarkerSearch::new(marker, from);
                    let (separator, end) = (search(self.format.separator), search(self.format.call_end));
                    self.state = State::Call { from, separator, end, is_whole: false };
                }
                State::Call { .. } => {
                    if let Some(part) = self.read_call(section)? {
                        return Some(part);
                    }
                }
                State::Started { call, end, lookahead, .. } => {
                    let length = end.read(section);
                    if let Some((length, events)) = call.read(&section[..length]) {
                        end.skip(length);
                        self.end.skip(length);
                        return Some(Step::Part(length, events));
                    }
                    if end.found().or(self.end.found()).is_some() && call.in_string() {
                        match lookahead.get_or_insert_with(|| Box::new(call.look_ahead(0))).read(buffered) {
                            None => return Some(Step::More),
                            Some(Ok(after)) => {
                                *lookahead = None;
                                end.skip_to(after);
                                self.end.skip_to(after);
                                continue;
                            }
                            Some(Err(_)) => {}
                        }
                    }
                    return self.end_call(section);
                }
            }
        }
    }

    /// Ends a call that has started at its end marker. Returns `None` if `section` does not contain the marker.
    fn end_call(&mut self, section: &str) -> Option<Step> {
        let State::Started { call, end, tail, .. } = &self.state else { return None };
        let length = end.found()?;
        let events = call.end(&section[..length], tail);
        self.state = State::Between(MarkerSearch::new(self.format.call_start, 0));
        let length = length + self.format.call_end.len();
        self.end.skip(length);
        Some(Step::Part(length, events))
    }

    /// Continues in a call that has not started. Returns `None` if more text is needed, and `Some(None)` if the scan continues.
    fn read_call(&mut self, section: &str) -> Option<Option<Step>> {
        let State::Call { from, separator, end, is_whole } = &mut self.state else { return Some(None) };
        let text = &section[..end.read(section)];
        let has_end = end.found().is_some();
        separator.read(text);
        if let Some(at) = separator.found()
            && !*is_whole
        {
            let second = at + self.format.separator.len();
            let (head, is_full) = step::head(&text[second..]);
            if strip_start(head).is_empty() && !is_full && !has_end {
                return None;
            }
            match (self.format.parse_head)(&text[*from..at], head) {
                CallHead::Incomplete if !is_full && !has_end => return None,
                CallHead::Incomplete | CallHead::Whole => *is_whole = true,
                CallHead::Text => {
                    self.state = State::Between(MarkerSearch::new(self.format.call_start, second));
                    return Some(None);
                }
                CallHead::Start { name, id, arguments, tail } => {
                    let length = second + arguments;
                    end.skip(length);
                    self.state =
                        State::Started { call: CallReader::arguments(), end: end.clone(), tail, lookahead: None };
                    self.has_started = true;
                    let mut events = Vec::new();
                    self.calls.drain(..).for_each(|call| events.extend(call.into_events()));
                    events.push(Event::CallStart { name, id });
                    self.end.skip(length);
                    return Some(Some(Step::Part(length, events)));
                }
            }
        }
        let at = end.found()?;
        let call = (self.format.parse_call)(&text[*from..at]);
        let after = at + self.format.call_end.len();
        self.calls.extend(call);
        self.state =
            State::Between(MarkerSearch::new(self.format.call_start, if self.has_started { 0 } else { after }));
        if !self.has_started {
            return Some(None);
        }
        self.end.skip(after);
        let events = self.calls.drain(..).flat_map(ToolCall::into_events).collect();
        Some(Some(Step::Part(after, events)))
    }

    /// The events at the end of the section, which is after `section`. `None` if no call has started.
    fn cut_off(&self, section: &str) -> Option<Vec<Event>> {
        match &self.state {
            State::Started { call, .. } => Some(call.cut_off(section)),
            _ => self.has_started.then(Vec::new),
        }
    }
}
