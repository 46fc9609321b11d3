//! JSON objects with `name` and `parameters`, `;` between them: after `<|python_tag|>`, or as the whole answer.

use super::extent::Extent;
use super::loads::loads;
use super::space::strip_start;
use super::syntax::{self, Step};
use super::value::PythonValue;
use super::{ToolCall, named};

/// Says that calls follow. Without an object after it, it is text.
pub(super) const TAG: &str = "<|python_tag|>";

const ARGUMENTS: [&str; 2] = ["parameters", "arguments"];

/// Reads one run of objects.
///
/// After a tag each object is a call, and the run ends at what is neither white space, nor a semicolon with an object after it, nor
/// an object. Without one the run is calls only where it is all of the answer and each object has a name and an object of arguments:
/// an answer in JSON is an answer.
#[derive(Debug, Clone, Default)]
pub(super) struct Llama3 {
    calls: Vec<ToolCall>,
    /// Where the last call ends, or the tag.
    at: usize,
    /// Where the next one begins, and how far it is read.
    object: Option<(usize, Extent)>,
}

impl Llama3 {
    pub(super) fn read(&mut self, held: &str) -> Step {
        let tag = tag(held);
        self.at = self.at.max(tag);
        loop {
            if let Some((start, extent)) = &mut self.object {
                let Some(length) = extent.read(&held[*start..]) else { return Step::More };
                let raw = &held[*start..*start + length];
                if tag == 0 && !is_call(raw) {
                    return Step::Text(1);
                }
                self.calls.push(named::read(raw, &ARGUMENTS));
                self.at = *start + length;
                self.object = None;
            }
            match gap(&held[self.at..], !self.calls.is_empty()) {
                Gap::More => return Step::More,
                Gap::Object(length) => self.object = Some((self.at + length, Extent::default())),
                Gap::Other if tag > 0 => return self.ended(tag),
                Gap::Other => return Step::Text(1),
            }
        }
    }

    pub(super) fn end(&mut self, held: &str) -> Step {
        match tag(held) {
            0 if self.object.is_none() && strip_start(&held[self.at..]).is_empty() => self.ended(1),
            0 => Step::Text(1),
            // an object that does not end takes the rest of the text with it
            _ if self.calls.is_empty() => Step::More,
            tag => self.ended(tag),
        }
    }

    /// The calls of the run, or that nothing but `marker` bytes were found.
    fn ended(&mut self, marker: usize) -> Step {
        if self.calls.is_empty() { Step::Text(marker) } else { Step::Calls(self.at, std::mem::take(&mut self.calls)) }
    }
}

/// The length of the tag in front.
fn tag(held: &str) -> usize {
    if held.starts_with(TAG) { TAG.len() } else { 0 }
}

fn is_call(raw: &str) -> bool {
    let Ok(PythonValue::Dict(call)) = loads(raw) else { return false };
    let named = matches!(call.get("name"), Some(PythonValue::Text(name)) if !name.is_empty());
    named && matches!(ARGUMENTS.iter().find_map(|key| call.get(key)), Some(PythonValue::Dict(_)))
}

/// The text before the next object.
enum Gap {
    /// The text is too short to decide.
    More,
    /// An object follows after this many bytes.
    Object(usize),
    /// No object follows.
    Other,
}

fn gap(text: &str, separated: bool) -> Gap {
    let (text, full) = syntax::head(text);
    let mut rest = strip_start(text);
    if separated && let Some(behind) = rest.strip_prefix(';') {
        rest = strip_start(behind);
        if rest.starts_with('{') {
            return Gap::Object(text.len() - rest.len());
        }
    } else if !separated && rest.starts_with('{') {
        return Gap::Object(text.len() - rest.len());
    }
    if rest.is_empty() && !full { Gap::More } else { Gap::Other }
}
