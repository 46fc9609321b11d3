//! JSON objects with `name` and `parameters`, separated by `;`: after `<|python_tag|>`, or as the whole answer.

use super::bracket_matcher::BracketMatcher;
use super::loads::loads;
use super::space::strip_start;
use super::syntax::{self, Step};
use super::value::PythonValue;
use super::{ToolCall, json_call};

/// The marker before calls. A marker without an object after it is text.
pub(super) const TAG: &str = "<|python_tag|>";

const ARGUMENTS: [&str; 2] = ["parameters", "arguments"];

/// Parses one run of objects, which semicolons separate.
///
/// After a tag, each object is a call, and other text ends the run. Without a tag, the objects are calls only if they are the whole answer
/// and each has a name and an object of arguments; otherwise the answer is content.
#[derive(Debug, Clone, Default)]
pub(super) struct Llama3 {
    calls: Vec<ToolCall>,
    /// The end of the last call, or of the tag.
    at: usize,
    /// The start of the object that is being read, and the matcher of its brackets.
    object: Option<(usize, BracketMatcher)>,
}

impl Llama3 {
    pub(super) fn read(&mut self, buffered: &str) -> Step {
        let tag = tag_length(buffered);
        self.at = self.at.max(tag);
        loop {
            if let Some((start, matcher)) = &mut self.object {
                let Some(length) = matcher.read(&buffered[*start..]) else { return Step::More };
                let raw = &buffered[*start..*start + length];
                if tag == 0 && !is_call(raw) {
                    return Step::Text(1);
                }
                self.calls.push(json_call::parse_call(raw, &ARGUMENTS));
                self.at = *start + length;
                self.object = None;
            }
            match next_object(&buffered[self.at..], !self.calls.is_empty()) {
                NextObject::Undecided => return Step::More,
                NextObject::At(length) => self.object = Some((self.at + length, BracketMatcher::default())),
                NextObject::Missing if tag > 0 => return self.finish(tag),
                NextObject::Missing => return Step::Text(1),
            }
        }
    }

    pub(super) fn end(&mut self, buffered: &str) -> Step {
        match tag_length(buffered) {
            0 if self.object.is_none() && strip_start(&buffered[self.at..]).is_empty() => self.finish(1),
            0 => Step::Text(1),
            // an object without an end includes the rest of the text
            _ if self.calls.is_empty() => Step::More,
            tag => self.finish(tag),
        }
    }

    /// Ends the run: returns its calls. A run without calls begins with `length` bytes of text.
    fn finish(&mut self, length: usize) -> Step {
        if self.calls.is_empty() { Step::Text(length) } else { Step::Calls(self.at, std::mem::take(&mut self.calls)) }
    }
}

/// The length of the tag at the start in bytes; zero without a tag.
fn tag_length(buffered: &str) -> usize {
    if buffered.starts_with(TAG) { TAG.len() } else { 0 }
}

/// Whether an object has a name and an object of arguments.
fn is_call(raw: &str) -> bool {
    let Ok(PythonValue::Dict(call)) = loads(raw) else { return false };
    let has_name = matches!(call.get("name"), Some(PythonValue::Text(name)) if !name.is_empty());
    has_name && matches!(ARGUMENTS.iter().find_map(|key| call.get(key)), Some(PythonValue::Dict(_)))
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
    let (text, full) = syntax::head(text);
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
