// SPDX-License-Identifier: Apache-2.0
//! `[TOOL_CALLS]`, then a JSON array of calls, or one call as `NAME[ARGS]{…}` or `NAME[CALL_ID]ID[ARGS]{…}`.
//!
//! A call ends where its JSON ends. If the brackets of its JSON are not closed, the call is cut off if it has started, and otherwise the rest
//! of the text is content.

use super::bracket_matcher::BracketMatcher;
use super::call_reader::CallReader;
use super::json_call;
use super::loads::loads;
use super::step::{self, Step};
use super::value::PythonValue;
use super::{Event, ToolCall};
use crate::json::elements;
use crate::json::python::{is_space, strip_start};

/// The marker before the array, or before each call.
pub(super) const START: &str = "[TOOL_CALLS]";

const CALL_ID: &str = "[CALL_ID]";
const ARGUMENTS: &str = "[ARGS]";

/// The markers that may have tokens.
pub(super) const MARKERS: [&str; 3] = [START, CALL_ID, ARGUMENTS];

/// Parses the text after one marker. A marker without a call after it is text. A single call with an object of arguments starts when its
/// head is complete. The id of a call in an array is after the arguments, so the calls of an array are emitted at its end.
#[derive(Debug, Clone, Default)]
pub(super) struct Mistral {
    head: Option<CallHead>,
    matcher: BracketMatcher,
    /// The call that has started.
    call: Option<CallReader>,
}

/// The part of a call before the JSON.
#[derive(Debug, Clone, Default)]
struct CallHead {
    /// The offset of the JSON after the marker, in bytes.
    json: usize,
    /// The name of a single call; `None` before an array of calls.
    name: Option<String>,
    id: Option<String>,
}

impl Mistral {
    pub(super) fn read(&mut self, buffered: &str) -> Step {
        if let Some(call) = &mut self.call {
            if let Some((length, events)) = call.read(buffered) {
                return Step::Part(length, events);
            }
            let end = call.end_at_bracket(buffered);
            return end.map_or(Step::More, |(length, events)| Step::End(length, events));
        }
        if self.head.is_none() {
            let (text, full) = step::head(&buffered[START.len()..]);
            match parse_head(text) {
                Ok(head) => self.head = Some(head),
                Err(HeadError::Incomplete) if !full => return Step::More,
                Err(_) => return Step::Text(START.len()),
            }
        }
        let Some(head) = &self.head else { return Step::More };
        let from = START.len() + head.json;
        let json = &buffered[from..];
        if let Some(name) = &head.name
            && json.starts_with('{')
        {
            self.call = Some(CallReader::arguments());
            return Step::Part(from, vec![Event::CallStart { name: name.clone(), id: head.id.clone() }]);
        }
        let Some(length) = self.matcher.read(json) else { return Step::More };
        Step::calls(from + length, calls(head, &json[..length]))
    }

    /// Whether the text so far ends within a string of the JSON.
    pub(super) fn in_string(&self) -> bool {
        self.call.as_ref().map_or(self.matcher.in_string(), CallReader::in_string)
    }

    pub(super) fn end(&self, buffered: &str) -> Step {
        let call = self.call.as_ref();
        call.map_or(Step::Text(buffered.len()), |call| Step::End(buffered.len(), call.cut_off(buffered)))
    }
}

/// Error: the text does not begin with the head of a call.
enum HeadError {
    /// The text is too short to decide.
    Incomplete,
    /// The text begins with other text.
    Mismatch,
}

fn parse_head(text: &str) -> Result<CallHead, HeadError> {
    let mut rest = strip_start(text);
    if let Some(array) = rest.strip_prefix('[') {
        return match strip_start(array).chars().next() {
            None => Err(HeadError::Incomplete),
            Some('{') => Ok(CallHead { json: text.len() - rest.len(), ..CallHead::default() }),
            Some(_) => Err(HeadError::Mismatch),
        };
    }
    let name = word(&mut rest)?;
    let id = match tag(&mut rest, CALL_ID)? {
        true => Some(word(&mut rest)?),
        false => None,
    };
    if !tag(&mut rest, ARGUMENTS)? {
        return Err(HeadError::Mismatch);
    }
    rest = strip_start(rest);
    match rest.chars().next() {
        None => Err(HeadError::Incomplete),
        Some('{' | '[') => Ok(CallHead { json: text.len() - rest.len(), name: Some(name), id }),
        Some(_) => Err(HeadError::Mismatch),
    }
}

/// Consumes a word, which ends at white space or a bracket. Fails if a brace follows the word.
fn word(rest: &mut &str) -> Result<String, HeadError> {
    let visible = strip_start(rest);
    let length = visible.find(|c| matches!(c, '[' | '{') || is_space(c)).ok_or(HeadError::Incomplete)?;
    let (word, after) = visible.split_at(length);
    *rest = strip_start(after);
    match (word, rest.chars().next()) {
        ("", _) | (_, Some('{')) => Err(HeadError::Mismatch),
        (_, None) => Err(HeadError::Incomplete),
        _ => Ok(word.to_owned()),
    }
}

/// Consumes `tag` if it is next.
fn tag(rest: &mut &str, tag: &str) -> Result<bool, HeadError> {
    match rest.strip_prefix(tag) {
        Some(after) => {
            *rest = after;
            Ok(true)
        }
        None if tag.starts_with(*rest) => Err(HeadError::Incomplete),
        None => Ok(false),
    }
}

fn calls(head: &CallHead, json: &str) -> Vec<ToolCall> {
    if let Some(name) = &head.name {
        let call = match loads(json) {
            Ok(arguments) => ToolCall::with_arguments(name, Some(&arguments)),
            Err(_) => ToolCall::invalid(name, json),
        };
        return vec![ToolCall { id: head.id.clone(), ..call }];
    }
    match elements(json) {
        Ok(elements) => elements.into_iter().map(element).collect(),
        Err(_) => vec![json_call::parse_call(json)],
    }
}

/// Parses an element of an array of calls.
fn element(raw: &str) -> ToolCall {
    let call = json_call::parse_call(raw);
    let id = match loads(raw) {
        Ok(PythonValue::Dict(dict)) => dict.get("id").and_then(PythonValue::as_text),
        _ => None,
    };
    ToolCall { id, ..call }
}
