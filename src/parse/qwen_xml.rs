//! `<tool_call><function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>`.

use super::buffer::{MarkerSearch, TagSearch};
use super::hermes::{END, START};
use super::parameter_types::CalledTool;
use super::parameter_value::{ParameterValue, ValueLookahead, write_key};
use super::step::Step;
use super::{Event, ToolCall};
use crate::json::python::strip;

const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// Parses one block, which has one call: its first function. The call starts when its opening tag is complete.
///
/// Text between elements is ignored, and so is a parameter with a blank name. A function or a parameter without an end tag makes the call
/// invalid. The end marker of the block is text in a value that has a type, if the end tag of the value is the next tag after it.
#[derive(Debug, Clone)]
pub(super) struct QwenXml {
    end: MarkerSearch,
    function_end: MarkerSearch,
    state: State,
    tool: CalledTool,
    /// A parameter is written.
    has_parameter: bool,
    /// Decides whether the end marker is text of a value.
    lookahead: ValueLookahead,
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

impl QwenXml {
    pub(super) fn new(tool: CalledTool) -> Self {
        Self {
            tool,
            end: MarkerSearch::new(END, START.len()),
            function_end: MarkerSearch::new(FUNCTION_END, 0),
            state: State::Block(TagSearch::new(FUNCTION, START.len())),
            has_parameter: false,
            lookahead: ValueLookahead::new(PARAMETER_END, &[FUNCTION, FUNCTION_END]),
        }
    }

    /// Continues in `buffered`, which begins with the start marker, or with text of a started call.
    pub(super) fn read(&mut self, buffered: &str) -> Step {
        loop {
            let length = self.end.read(buffered);
            let body = &buffered[..length];
            if let Some(part) = self.read_body(body) {
                return part;
            }
            let in_value = self.in_value();
            match self.lookahead.ends_call(&mut self.end, buffered, in_value) {
                None => return Step::More,
                Some(true) => return self.end_at(body),
                Some(false) => {}
            }
        }
    }

    /// Ends the block at the end marker after `body`.
    fn end_at(&mut self, body: &str) -> Step {
        let length = body.len() + END.len();
        match self.end_call(body) {
            Some(events) => Step::End(length, events),
            None => Step::call(length, ToolCall::invalid("", strip(&body[START.len()..]))),
        }
    }

    /// Ends the block at an end marker in a value whose end was not found so far. Returns `None` if there is no such marker.
    pub(super) fn end_at_pending_marker(&mut self, buffered: &str) -> Option<Step> {
        let length = self.end.found().filter(|_| self.lookahead.is_pending())?;
        Some(self.end_at(&buffered[..length]))
    }

    /// Whether the text so far ends within the value of a parameter that has a type.
    pub(super) fn in_value(&self) -> bool {
        matches!(self.state, State::Value { value: ParameterValue::Typed(_), .. })
    }

    /// Ends a block whose text has no end marker after its last value.
    pub(super) fn end(&mut self, buffered: &str) -> Step {
        if let Some(step) = self.end_at_pending_marker(buffered) {
            return step;
        }
        if let State::AfterFunction = self.state {
            self.state = State::Invalid;
        }
        self.end_call(buffered).map_or(Step::Text(buffered.len()), |events| Step::End(buffered.len(), events))
    }

    /// Continues in the text up to the end of the block. Returns `None` if more text is needed.
    fn read_body(&mut self, body: &str) -> Option<Step> {
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
                self.end.skip(length);
                let start = Event::CallStart { name, id: None };
                Some(Step::Part(length, vec![start, Event::Arguments("{".to_owned())]))
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

    /// A step that writes `written` for the first `length` bytes.
    fn part(&mut self, length: usize, written: String) -> Step {
        self.end.skip(length);
        self.function_end.skip(length);
        Step::Part(length, Event::arguments(written).into_iter().collect())
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
