// SPDX-License-Identifier: Apache-2.0
//! `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>…</tool_call>`.

use super::buffer::MarkerSearch;
use super::hermes::{END, START};
use super::parameter_block::TaggedCall;
use super::parameter_types::CalledTool;
use super::parameter_value::{ParameterValue, write_key};
use super::step::Step;
use super::{Event, Format, ToolCall};
use crate::json::python::{strip, strip_start};

const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";

/// The markers that may have tokens.
pub(super) const MARKERS: [&str; 6] = [START, END, KEY, KEY_END, VALUE, VALUE_END];

/// The call of a block. It starts at its first key. A call without keys is emitted at its end.
///
/// Text between pairs is ignored, and so is a key without a value. A value without an end tag makes the call invalid.
#[derive(Debug, Clone)]
pub(super) struct Glm {
    state: State,
    tool: CalledTool,
    /// A parameter is written.
    has_parameter: bool,
}

/// The position of the parser in the block.
#[derive(Debug, Clone)]
enum State {
    /// Before the first key.
    Name(MarkerSearch),
    /// In a block without a name.
    Nameless,
    /// Between pairs.
    Between(MarkerSearch),
    /// In a key, which begins the buffered text.
    Key(KeySearch),
    /// In a value, whose rest begins the buffered text.
    Value { end: MarkerSearch, value: ParameterValue },
}

/// Searches the end of a key. A key ends at the end tag that a value follows; an end tag without a value is part of the key.
#[derive(Debug, Clone)]
struct KeySearch {
    end: MarkerSearch,
    /// The position up to which only white space follows the end tag.
    searched: usize,
}

impl KeySearch {
    fn new(from: usize) -> Self {
        Self { end: MarkerSearch::new(KEY_END, from), searched: 0 }
    }

    /// Continues in `text`. Returns the length of the key, and that of the text up to the value, once the value begins.
    fn read(&mut self, text: &str) -> Option<(usize, usize)> {
        loop {
            self.end.read(text);
            let key = self.end.found()?;
            let from = self.searched.max(key + KEY_END.len());
            let rest = strip_start(&text[from..]);
            self.searched = text.len() - rest.len();
            if rest.starts_with(VALUE) {
                return Some((key, self.searched + VALUE.len()));
            }
            if VALUE.starts_with(rest) {
                return None;
            }
            *self = Self::new(key + KEY_END.len());
        }
    }
}

impl TaggedCall for Glm {
    const FORMAT: Format = Format::Glm;
    const VALUE_END: &'static str = VALUE_END;
    const AFTER_VALUE: &'static [&'static str] = &[KEY];

    fn new(tool: CalledTool) -> Self {
        Self { tool, state: State::Name(MarkerSearch::new(KEY, START.len())), has_parameter: false }
    }

    fn end(&mut self, body: &str) -> Step {
        let length = body.len() + END.len();
        match std::mem::replace(&mut self.state, State::Nameless) {
            State::Name(_) | State::Nameless => Step::call(length, call_without_keys(strip(&body[START.len()..]))),
            State::Between(_) | State::Key(_) => {
                Step::End(length, vec![Event::Arguments("}".to_owned()), Event::CallEnd { error: false }])
            }
            State::Value { value, .. } => Step::End(length, value.end_call(body)),
        }
    }

    fn in_value(&self) -> bool {
        matches!(self.state, State::Value { value: ParameterValue::Typed(_), .. })
    }

    fn cut_off(&mut self, buffered: &str) -> Step {
        match std::mem::replace(&mut self.state, State::Nameless) {
            State::Name(_) | State::Nameless => Step::Text(buffered.len()),
            State::Between(_) | State::Key(_) => Step::End(buffered.len(), vec![Event::CallEnd { error: true }]),
            State::Value { value, .. } => Step::End(buffered.len(), value.end_call(buffered)),
        }
    }

    fn read(&mut self, body: &str) -> Option<(usize, Vec<Event>)> {
        match &mut self.state {
            State::Nameless => None,
            State::Name(key) => {
                key.read(body);
                let length = key.found()?;
                let name = strip(&body[START.len()..length]).to_owned();
                if name.is_empty() {
                    self.state = State::Nameless;
                    return None;
                }
                self.state = State::Between(MarkerSearch::new(KEY, 0));
                self.tool.set_name(&name);
                Some((length, vec![Event::CallStart { name, id: None }, Event::Arguments("{".to_owned())]))
            }
            State::Between(key) => {
                key.read(body);
                let length = key.found()? + KEY.len();
                self.state = State::Key(KeySearch::new(0));
                Some((length, Vec::new()))
            }
            State::Key(search) => {
                let (key, length) = search.read(body)?;
                let (end, key) = (MarkerSearch::new(VALUE_END, 0), strip(&body[..key]));
                self.state = State::Value { end, value: ParameterValue::new(self.tool.parameter(key), false) };
                Some((length, vec![Event::Arguments(write_key(key, &mut self.has_parameter))]))
            }
            State::Value { end, value } => {
                let length = end.read(body);
                let mut written = String::new();
                let removed = value.read(&body[..length], &mut written);
                let length = if removed > 0 {
                    end.skip(removed);
                    removed
                } else {
                    end.found()?;
                    let next = State::Between(MarkerSearch::new(KEY, 0));
                    if let State::Value { value, .. } = std::mem::replace(&mut self.state, next) {
                        value.end(&body[..length], &mut written);
                    }
                    length + VALUE_END.len()
                };
                Some((length, Event::arguments(written).into_iter().collect()))
            }
        }
    }
}

/// The call of a block without keys, which is only a name.
fn call_without_keys(body: &str) -> ToolCall {
    if body.is_empty() || body.starts_with(KEY) {
        ToolCall::invalid("", body)
    } else {
        ToolCall::with_arguments(body, None)
    }
}
