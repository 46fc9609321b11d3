// SPDX-License-Identifier: Apache-2.0
//! JSON objects with `name` and `parameters`, separated by `;`: after `<|python_tag|>`, or as the whole answer.

use super::bracket_matcher::BracketMatcher;
use super::call_reader::CallReader;
use super::json_call;
use super::loads::loads;
use super::step::{self, Step};
use super::value::PythonValue;
use super::{Event, ToolCall};
use crate::json::python::strip_start;

/// The marker before calls. A marker without an object after it is text.
pub(super) const TAG: &str = "<|python_tag|>";

/// Parses one run of objects, which semicolons separate.
///
/// After a tag, each object is a call, and other text ends the run. A call starts at the opening brace of its arguments if its name is before
/// them. Without a tag, the objects are calls only if they are the whole answer and each has a name and an object of arguments; otherwise the
/// answer is content.
#[derive(Debug, Clone, Default)]
pub(super) struct Llama3 {
    is_tagged: bool,
    /// A call of a tagged run was emitted. The buffered text begins with the rest of a call, or after the last call.
    has_emitted: bool,
    /// The calls of a run without a tag.
    calls: Vec<ToolCall>,
    /// The end of the last call, or of the tag.
    at: usize,
    object: Option<Object>,
}

/// The object that is being read.
#[derive(Debug, Clone)]
struct Object {
    from: usize,
    matcher: BracketMatcher,
    call: CallReader,
}

impl Llama3 {
    pub(super) fn read(&mut self, buffered: &str) -> Step {
        if !self.has_emitted && self.at == 0 && buffered.starts_with(TAG) {
            (self.is_tagged, self.at) = (true, TAG.len());
        }
        loop {
            if let Some(object) = &mut self.object {
                let text = &buffered[object.from..];
                if self.is_tagged {
                    if let Some((length, events)) = object.call.read(text) {
                        let length = std::mem::take(&mut object.from) + length;
                        self.has_emitted = true;
                        return Step::Part(length, events);
                    }
                    if object.call.has_started() {
                        return match object.call.end_at_bracket(text) {
                            Some((length, events)) => self.emit(length, events),
                            None => Step::More,
                        };
                    }
                }
                let Some(length) = object.matcher.read(text) else { return Step::More };
                let (raw, end) = (&text[..length], object.from + length);
                if self.is_tagged {
                    return self.emit(end, json_call::parse_call(raw).into_events().collect());
                }
                if !is_call(raw) {
                    return Step::Text(1);
                }
                self.calls.push(json_call::parse_call(raw));
                (self.at, self.object) = (end, None);
            }
            match next_object(&buffered[self.at..], self.has_emitted || !self.calls.is_empty()) {
                NextObject::Undecided => return Step::More,
                NextObject::At(length) => {
                    let (matcher, call) = (BracketMatcher::default(), CallReader::call());
                    self.object = Some(Object { from: self.at + length, matcher, call });
                }
                NextObject::Missing if self.has_emitted => return Step::End(0, Vec::new()),
                NextObject::Missing if self.is_tagged => return Step::Text(TAG.len()),
                NextObject::Missing => return Step::Text(1),
            }
        }
    }

    /// Whether the text so far ends within a string of an object.
    pub(super) fn in_string(&self) -> bool {
        self.object.as_ref().is_some_and(|object| match self.is_tagged {
            true => object.call.in_string(),
            false => object.matcher.in_string(),
        })
    }

    /// Emits a call, or its last part, up to the byte `end`.
    fn emit(&mut self, end: usize, events: Vec<Event>) -> Step {
        (self.has_emitted, self.at, self.object) = (true, 0, None);
        Step::Part(end, events)
    }

    pub(super) fn end(&mut self, buffered: &str) -> Step {
        match &self.object {
            Some(object) if object.call.has_started() => Step::End(buffered.len(), object.call.cut_off(buffered)),
            // an object without an end includes the rest of the text
            _ if self.is_tagged => Step::Text(buffered.len()),
            None if strip_start(&buffered[self.at..]).is_empty() && !self.calls.is_empty() => {
                Step::calls(self.at, std::mem::take(&mut self.calls))
            }
            _ => Step::Text(1),
        }
    }
}

/// Whether an object has a name and an object of arguments.
fn is_call(raw: &str) -> bool {
    let Ok(PythonValue::Dict(call)) = loads(raw) else { return false };
    let has_name = matches!(call.get("name"), Some(PythonValue::Text(name)) if !name.is_empty());
    has_name && matches!(json_call::arguments(&call), Some(PythonValue::Dict(_)))
}

/// The position of the next object.
enum NextObject {
    /// The text is too short to decide.
    Undecided,
    /// The object begins after this many bytes.
    At(usize),
    /// No object follows.
    Missing,
}

/// Finds the next object at the start of `text`; it follows a semicolon if `separated`.
fn next_object(text: &str, separated: bool) -> NextObject {
    let (text, full) = step::head(text);
    let mut rest = strip_start(text);
    if separated && let Some(after) = rest.strip_prefix(';') {
        rest = strip_start(after);
        if rest.starts_with('{') {
            return NextObject::At(text.len() - rest.len());
        }
    } else if !separated && rest.starts_with('{') {
        return NextObject::At(text.len() - rest.len());
    }
    if rest.is_empty() && !full { NextObject::Undecided } else { NextObject::Missing }
}
