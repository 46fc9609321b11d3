//! JSON objects with `name` and `parameters`, separated by `;`: after `<|python_tag|>`, or as the whole answer.

use super::extent::Extent;
use super::loads::loads;
use super::space::strip_start;
use super::syntax::{self, Step};
use super::value::PythonValue;
use super::{ToolCall, named};

/// The marker before calls. Without an object after it, it is text.
pub(super) const TAG: &str = "<|python_tag|>";

const ARGUMENTS: [&str; 2] = ["parameters", "arguments"];

/// Reads one run of objects.
///
/// After a tag each object is a call, and the run ends at the first text that is neither white space, nor a semicolon before an object, nor
/// an object. Without a tag the objects are calls only if they are the whole answer and each has a name and an object of arguments.
/// Otherwise the answer is JSON content.
#[derive(Debug, Clone, Default)]
pub(super) struct Llama3 {
    calls: Vec<ToolCall>,
    /// The end of the last call, or of the tag.
    at: usize,
    /// The start of the next call, and how far it has been read.
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
            // an object that does not end includes the rest of the text
            _ if self.calls.is_empty() => Step::More,
            tag => self.ended(tag),
        }
    }

    /// The calls of the run, or text of `marker` bytes without a call.
    fn ended(&mut self, marker: usize) -> Step {
        if self.calls.is_empty() { Step::Text(marker) } else { Step::Calls(self.at, std::mem::take(&mut self.calls)) }
    }
}

/// The length of the tag at the start.
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
