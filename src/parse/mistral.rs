//! `[TOOL_CALLS]`, then a JSON array of calls, or one call as `NAME[ARGS]{…}` or `NAME[CALL_ID]ID[ARGS]{…}`.
//!
//! A call ends where its JSON ends. If its brackets never close, the rest of the text is content.

use super::ToolCall;
use super::extent::Extent;
use super::loads::{elements, loads};
use super::named;
use super::space::strip_start;
use super::syntax::{self, Step};
use super::value::PythonValue;
use crate::json::python::is_space;

/// The marker before the array, or before each call.
pub(super) const START: &str = "[TOOL_CALLS]";

/// Reads the text after one marker. A marker without a call after it is text.
#[derive(Debug, Clone, Default)]
pub(super) struct Mistral {
    found: Option<Head>,
    extent: Extent,
}

/// The part of a call before the JSON.
#[derive(Debug, Clone, Default)]
struct Head {
    /// The start of the JSON.
    json: usize,
    /// The name of the one call; `None` before an array.
    name: Option<String>,
    id: Option<String>,
}

impl Mistral {
    pub(super) fn read(&mut self, held: &str) -> Step {
        if self.found.is_none() {
            let (text, full) = syntax::head(&held[START.len()..]);
            match head(text) {
                Ok(head) => self.found = Some(head),
                Err(Unfit::Short) if !full => return Step::More,
                Err(_) => return Step::Text(START.len()),
            }
        }
        let Some(head) = &self.found else { return Step::More };
        let json = &held[START.len() + head.json..];
        let Some(length) = self.extent.read(json) else { return Step::More };
        Step::Calls(START.len() + head.json + length, calls(head, &json[..length]))
    }
}

/// Why no head was found.
enum Unfit {
    /// The text is too short to decide.
    Short,
    /// The text begins with something else.
    Other,
}

fn head(text: &str) -> Result<Head, Unfit> {
    let mut rest = strip_start(text);
    if let Some(array) = rest.strip_prefix('[') {
        return match strip_start(array).chars().next() {
            None => Err(Unfit::Short),
            Some('{') => Ok(Head { json: text.len() - rest.len(), ..Head::default() }),
            Some(_) => Err(Unfit::Other),
        };
    }
    let name = word(&mut rest)?;
    let id = match tag(&mut rest, "[CALL_ID]")? {
        true => Some(word(&mut rest)?),
        false => None,
    };
    if !tag(&mut rest, "[ARGS]")? {
        return Err(Unfit::Other);
    }
    rest = strip_start(rest);
    match rest.chars().next() {
        None => Err(Unfit::Short),
        Some('{' | '[') => Ok(Head { json: text.len() - rest.len(), name: Some(name), id }),
        Some(_) => Err(Unfit::Other),
    }
}

/// Consumes a run of visible characters up to a bracket.
fn word(rest: &mut &str) -> Result<String, Unfit> {
    let visible = strip_start(rest);
    let length = visible.find(|c| matches!(c, '[' | '{') || is_space(c)).ok_or(Unfit::Short)?;
    let (word, behind) = visible.split_at(length);
    *rest = strip_start(behind);
    match (word, rest.chars().next()) {
        ("", _) | (_, Some('{')) => Err(Unfit::Other),
        (_, None) => Err(Unfit::Short),
        _ => Ok(word.to_owned()),
    }
}

/// Consumes `tag` if it is next.
fn tag(rest: &mut &str, tag: &str) -> Result<bool, Unfit> {
    match rest.strip_prefix(tag) {
        Some(behind) => {
            *rest = behind;
            Ok(true)
        }
        None if tag.starts_with(*rest) => Err(Unfit::Short),
        None => Ok(false),
    }
}

fn calls(head: &Head, json: &str) -> Vec<ToolCall> {
    if let Some(name) = &head.name {
        let call = match loads(json) {
            Ok(arguments) => ToolCall::read(name, Some(&arguments)),
            Err(_) => ToolCall::unread(name, json),
        };
        return vec![ToolCall { id: head.id.clone(), ..call }];
    }
    match elements(json) {
        Ok(elements) => elements.into_iter().map(element).collect(),
        Err(_) => vec![named::read(json, &[])],
    }
}

fn element(raw: &str) -> ToolCall {
    let call = named::read(raw, &["arguments"]);
    let id = match loads(raw) {
        Ok(PythonValue::Dict(dict)) => dict.get("id").and_then(PythonValue::as_text),
        _ => None,
    };
    ToolCall { id, ..call }
}
