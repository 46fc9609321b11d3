// SPDX-License-Identifier: Apache-2.0
//! `<tool_call><function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>`.

use super::buffer::{MarkerSearch, TagSearch};
use super::hermes::{END, START};
use super::parameter_block::TaggedCall;
use super::parameter_types::CalledTool;
use super::parameter_value::{ParameterValue, write_key};
use super::step::Step;
use super::{Event, Format, ToolCall};
use crate::json::python::strip;

const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// The call of a block: its first function. It starts when its opening tag is complete.
///
/// Text between elements is ignored, and so is a parameter with a blank name. A function or a parameter without an end tag makes the call
/// invalid.
#[derive(Debug, Clone)]
pub(super) struct QwenXml {
    function_end: MarkerSearch,
    state: State,
    tool: CalledTool,
    /// A parameter is written.
    has_parameter: bool,
}

/// The position of the parser in the block.
#[derive(Debug, Clone)]
enum State {
    /// Before the opening tag of the function.
    Block(TagSearch),
    /// In a block whose function has a blank name.
    Nameless,
    /// In the function, before the opening tag of a parameter.
    Function(TagSearch),
    /// In the value of a parameter, which begins the buffered text.
    Value { end: MarkerSearch, value: ParameterValue },
    /// After the function.
    AfterFunction,
    /// After the end of a function with a parameter that has no end.
    Invalid,
}

impl TaggedCall for QwenXml {
    const FORMAT: Format = Format::QwenXml;
    const VALUE_END: &'static str = PARAMETER_END;
    const AFTER_VALUE: &'static [&'static str] = &[FUNCTION, FUNCTION_END];

    fn new(tool: CalledTool) -> Self {
        Self {
            tool,
            function_end: MarkerSearch::new(FUNCTION_END, 0),
            state: State::Block(TagSearch::new(FUNCTION, START.len())),
            has_parameter: false,
        }
    }

    fn end(&mut self, body: &str) -> Step {
        let length = body.len() + END.len();
        match self.end_call(body) {
            Some(events) => Step::End(length, events),
            None => Step::call(length, ToolCall::invalid("", strip(&body[START.len()..]))),
        }
    }

    fn in_value(&self) -> bool {
        matches!(self.state, State::Value { value: ParameterValue::Typed(_), .. })
    }

    fn cut_off(&mut self, buffered: &str) -> Step {
        if let State::AfterFunction = self.state {
            self.state = State::Invalid;
        }
        self.end_call(buffered).map_or(Step::Text(buffered.len()), |events| Step::End(buffered.len(), events))
    }

    fn read(&mut self, body: &str) -> Option<(usize, Vec<Event>)> {
        match &mut self.state {
            State::Block(search) => {
                let (name, length) = search.read(body)?;
                let name = strip(name).to_owned();
                if name.is_empty() {
                    self.state = State::Nameless;
                    return None;
                }
                self.state = State::Function(TagSearch::new(PARAMETER, 0));
                self.tool.set_name(&name);
                Some((length, vec![Event::CallStart { name, id: None }, Event::Arguments("{".to_owned())]))
            }
            State::Function(search) => {
                let length = self.function_end.read(body);
                match search.read(&body[..length]) {
                    Some((key, length)) => {
                        let (value, written) = match strip(key) {
                            "" => (ParameterValue::Ignored, String::new()),
                            key => {
                                let value = ParameterValue::new(self.tool.parameter(key), true);
                                (value, write_key(key, &mut self.has_parameter))
                            }
                        };
                        self.state = State::Value { end: MarkerSearch::new(PARAMETER_END, 0), value };
                        Some(self.part(length, written))
                    }
                    None => {
                        self.function_end.found()?;
                        self.state = State::AfterFunction;
                        None
                    }
                }
            }
            State::Value { end, value } => {
                let function = self.function_end.read(body);
                let length = end.read(&body[..function]);
                let mut written = String::new();
                let removed = value.read(&body[..length], &mut written);
                if removed > 0 {
                    end.skip(removed);
                    return Some(self.part(removed, written));
                }
                let has_ended = end.found().is_some();
                if !has_ended {
                    self.function_end.found()?;
                }
                let next = if has_ended { State::Function(TagSearch::new(PARAMETER, 0)) } else { State::Invalid };
                let State::Value { value, .. } = std::mem::replace(&mut self.state, next) else { return None };
                if has_ended {
                    value.end(&body[..length], &mut written);
                    Some(self.part(length + PARAMETER_END.len(), written))
                } else {
                    value.cut_off(&body[..function], &mut written);
                    Some(self.part(function, written))
                }
            }
            State::Nameless | State::AfterFunction | State::Invalid => None,
        }
    }
}

impl QwenXml {
    /// Removes the first `length` bytes, for which `written` is emitted.
    fn part(&mut self, length: usize, written: String) -> (usize, Vec<Event>) {
        self.function_end.skip(length);
        (length, Event::arguments(written).into_iter().collect())
    }

    /// The events at the end of the block, which is after `body`. `None` if no call has started.
    fn end_call(&mut self, body: &str) -> Option<Vec<Event>> {
        match std::mem::replace(&mut self.state, State::Invalid) {
            State::Block(_) | State::Nameless => None,
            State::AfterFunction => Some(vec![Event::Arguments("}".to_owned()), Event::CallEnd { error: false }]),
            State::Value { value, .. } => Some(value.end_call(body)),
            State::Function(_) | State::Invalid => Some(vec![Event::CallEnd { error: true }]),
        }
    }
}
