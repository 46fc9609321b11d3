// SPDX-License-Identifier: Apache-2.0
//! A block with any number of calls in tags with attributes:
//! `<invoke name="NAME"><parameter name="KEY">VALUE</parameter>…</invoke>`.

use std::sync::Arc;

use super::buffer::MarkerSearch;
use super::loads::loads;
use super::parameter_types::{CalledTool, ParameterType, ParameterTypes};
use super::parameter_value::{ParameterValue, write_key};
use super::step::{self, Step};
use super::{Event, Format, ToolCall};
use crate::json::python::{strip, strip_start};

/// The tags of a format.
#[derive(Debug)]
pub(super) struct InvokeFormat {
    pub(super) format: Format,
    /// The start of a block.
    pub(super) start: &'static str,
    /// The end of a block.
    pub(super) end: &'static str,
    /// The opening tag of a call, without its attributes.
    pub(super) invoke: &'static str,
    /// The end tag of a call.
    pub(super) invoke_end: &'static str,
    /// The opening tag of a parameter, without its attributes.
    pub(super) parameter: &'static str,
    /// The end tag of a parameter.
    pub(super) parameter_end: &'static str,
    /// The tag of a parameter says whether its value is a string. Otherwise the schema of the tool does.
    pub(super) has_types: bool,
}

/// Parses one block. A call starts when its opening tag is complete. A block without a call is text, and so is one without an end marker,
/// unless a call has started in it.
///
/// Text between tags is ignored, except in a call without parameters: there it is the JSON of all arguments. An opening tag that is malformed
/// and a missing end tag make the call invalid. An end tag of a call or a block is text of a value if the end tag of the value precedes the
/// next opening tag.
#[derive(Debug, Clone)]
pub(super) struct InvokeBlock {
    format: &'static InvokeFormat,
    tool: CalledTool,
    tags: Tags,
    state: State,
    /// A call has started.
    has_started: bool,
    /// A parameter of the call is written.
    has_parameter: bool,
}

/// The position of the parser in the block.
#[derive(Debug, Clone)]
enum State {
    /// Outside calls.
    Between,
    /// In a call whose opening tag, at this position, is malformed.
    Nameless(usize),
    /// In a call, outside parameters.
    Call,
    /// In a call with a malformed tag.
    Invalid,
    /// In the value of a parameter, whose rest begins the buffered text.
    Value(ParameterValue),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag {
    Invoke,
    InvokeEnd,
    Parameter,
    ParameterEnd,
    BlockEnd,
}

impl InvokeBlock {
    /// A parser at the start of a block. Without `types`, all parameters have the type of those without a schema.
    pub(super) fn new(format: &'static InvokeFormat, types: Option<Arc<ParameterTypes>>) -> Self {
        Self {
            format,
            tool: CalledTool::new(format.format, Some(types.unwrap_or_default())),
            tags: Tags::new(format),
            state: State::Between,
            has_started: false,
            has_parameter: false,
        }
    }

    /// Continues in `buffered`, which begins with the start marker, or with text after the start of a call.
    pub(super) fn read(&mut self, buffered: &str) -> Step {
        self.step(buffered, false)
    }

    /// Whether the text so far ends within the value of a parameter.
    pub(super) fn in_value(&self) -> bool {
        matches!(self.state, State::Value(_))
    }

    /// Ends the call at an end tag in a value whose end was not found so far. Returns `None` if there is no such tag.
    pub(super) fn end_at_pending_marker(&mut self, buffered: &str) -> Option<Step> {
        let (_, tag) = self.tags.before(buffered, &VALUE_TAGS);
        tag.filter(|_| self.in_value()).map(|_| self.step(buffered, true))
    }

    /// Ends a block whose text has no end marker after its last call.
    pub(super) fn end(&mut self, buffered: &str) -> Step {
        if let Some(step) = self.end_at_pending_marker(buffered) {
            return step;
        }
        let events = match std::mem::replace(&mut self.state, State::Between) {
            State::Between | State::Nameless(_) if !self.has_started => return Step::Text(buffered.len()),
            State::Between | State::Nameless(_) => Vec::new(),
            State::Call | State::Invalid => vec![Event::CallEnd { error: true }],
            State::Value(value) => value.end_call(buffered),
        };
        Step::End(buffered.len(), events)
    }

    /// Reads up to the end of the next tag. With `is_last`, no text follows that could show that an end tag is text of a value.
    fn step(&mut self, text: &str, is_last: bool) -> Step {
        let (length, events) = loop {
            match &mut self.state {
                State::Between => match self.tags.before(text, &[Tag::Invoke, Tag::BlockEnd]) {
                    (_, None) => return Step::More,
                    (at, Some(Tag::Invoke)) => match TagHead::parse(&text[at + self.format.invoke.len()..]) {
                        TagHead::Incomplete => return Step::More,
                        TagHead::Complete { name, attributes, length }
                            if matches!(strip_start(attributes), "" | "/") =>
                        {
                            let length = at + self.format.invoke.len() + length;
                            break (length, self.start_call(name, text[..length].ends_with("/>")));
                        }
                        TagHead::Malformed | TagHead::Complete { .. } => {
                            self.tags.skip_to(at + 1, &CALL_ENDS);
                            self.state = State::Nameless(at);
                        }
                    },
                    (at, Some(_)) => {
                        let length = at + self.format.end.len();
                        return if self.has_started { Step::End(length, Vec::new()) } else { Step::Text(length) };
                    }
                },
                State::Nameless(from) => {
                    let (at, Some(tag)) = self.tags.before(text, &CALL_ENDS) else { return Step::More };
                    let call = ToolCall::invalid("", strip(&text[*from..at]));
                    self.has_started = true;
                    break (self.end_call(at, tag), call.into_events().collect());
                }
                State::Call => match self.tags.before(text, &CALL_TAGS) {
                    (_, None) => return Step::More,
                    (at, Some(Tag::Parameter)) => match TagHead::parse(&text[at + self.format.parameter.len()..]) {
                        TagHead::Incomplete => return Step::More,
                        TagHead::Malformed => self.state = State::Invalid,
                        TagHead::Complete { name, attributes, length } => {
                            let Some(parameter) = self.parameter_type(name, attributes) else {
                                self.state = State::Invalid;
                                continue;
                            };
                            let written = Event::Arguments(write_key(name, &mut self.has_parameter));
                            self.state = State::Value(ParameterValue::new(Some(parameter), false));
                            break (at + self.format.parameter.len() + length, vec![written]);
                        }
                    },
                    (at, Some(Tag::InvokeEnd)) if self.has_parameter => {
                        let end = [Event::Arguments("}".to_owned()), Event::CallEnd { error: false }];
                        break (self.end_call(at, Tag::InvokeEnd), end.into());
                    }
                    (at, Some(Tag::InvokeEnd)) => {
                        break (self.end_call(at, Tag::InvokeEnd), json_arguments(strip(&text[..at])));
                    }
                    (at, Some(tag)) => break (self.end_call(at, tag), vec![Event::CallEnd { error: true }]),
                },
                State::Invalid => match self.tags.before(text, &CALL_ENDS) {
                    (_, None) => return Step::More,
                    (at, Some(tag)) => break (self.end_call(at, tag), vec![Event::CallEnd { error: true }]),
                },
                State::Value(value) => {
                    let (length, tag) = self.tags.before(text, &VALUE_TAGS);
                    let mut written = String::new();
                    let removed = value.read(&text[..length], &mut written);
                    if removed > 0 {
                        break (removed, Event::arguments(written).into_iter().collect());
                    }
                    let Some(tag) = tag else { return Step::More };
                    if tag != Tag::ParameterEnd {
                        self.tags.skip_to(length, &[Tag::Invoke, Tag::Parameter]);
                        match self.tags.before(text, &[Tag::ParameterEnd, Tag::Invoke, Tag::Parameter]) {
                            (at, Some(Tag::ParameterEnd)) => {
                                self.tags.skip_to(at, &[Tag::InvokeEnd, Tag::BlockEnd]);
                                continue;
                            }
                            (_, None) if !is_last => return Step::More,
                            _ => {}
                        }
                    }
                    let State::Value(value) = std::mem::replace(&mut self.state, State::Call) else { continue };
                    if tag != Tag::ParameterEnd {
                        break (self.end_call(length, tag), value.end_call(&text[..length]));
                    }
                    value.end(&text[..length], &mut written);
                    break (length + self.format.parameter_end.len(), vec![Event::Arguments(written)]);
                }
            }
        };
        self.tags.remove(length);
        Step::Part(length, events)
    }

    /// The type of the parameter of a tag; `None` if the attributes are not those of the format.
    fn parameter_type(&self, name: &str, attributes: &str) -> Option<ParameterType> {
        if !self.format.has_types {
            return self.tool.parameter(name).filter(|_| strip(attributes).is_empty());
        }
        let is_separate = strip_start(attributes).len() < attributes.len();
        match strip(attributes).strip_prefix("string=\"")?.strip_suffix('"')? {
            "true" => Some(ParameterType::Text),
            // as SGLang's parser, which gives another word than `true` the meaning of `false`
            word if !word.is_empty() && !word.contains('"') => Some(ParameterType::Json),
            _ => None,
        }
        .filter(|_| is_separate)
    }

    /// The events at the start of a call, which also ends if it `is_closed`.
    fn start_call(&mut self, name: &str, is_closed: bool) -> Vec<Event> {
        (self.has_started, self.has_parameter) = (true, false);
        if is_closed {
            return ToolCall::with_arguments(name, None).into_events().collect();
        }
        self.state = State::Call;
        self.tool.set_name(name);
        vec![Event::CallStart { name: name.to_owned(), id: None }, Event::Arguments("{".to_owned())]
    }

    /// Ends the call at the tag at this position. Returns the number of bytes that belong to the call.
    fn end_call(&mut self, at: usize, tag: Tag) -> usize {
        self.state = State::Between;
        if tag == Tag::InvokeEnd { at + self.format.invoke_end.len() } else { at }
    }
}

/// The events after the opening brace of a call that has this text instead of parameters.
fn json_arguments(text: &str) -> Vec<Event> {
    let dict = || loads(text).ok().filter(|value| value.is_dict() && value.is_finite());
    let arguments = if text.is_empty() { Some("{}".to_owned()) } else { dict().map(|dict| dict.dumps()) };
    if let Some(arguments) = arguments {
        return vec![Event::Arguments(arguments[1..].to_owned()), Event::CallEnd { error: false }];
    }
    // with the opening brace before it, another text may be JSON
    let rest = Event::arguments(text).filter(|_| text.starts_with('{') || !text.ends_with('}'));
    rest.into_iter().chain([Event::CallEnd { error: true }]).collect()
}

/// The tags that end a call, the second and third one before its end tag.
const CALL_ENDS: [Tag; 3] = [Tag::InvokeEnd, Tag::BlockEnd, Tag::Invoke];

/// The tags in a call outside parameters.
const CALL_TAGS: [Tag; 4] = [Tag::Parameter, Tag::InvokeEnd, Tag::BlockEnd, Tag::Invoke];

/// The tags that may end a value.
const VALUE_TAGS: [Tag; 3] = [Tag::ParameterEnd, Tag::InvokeEnd, Tag::BlockEnd];

/// Searches the tags of a block. No byte is searched twice for a tag.
#[derive(Debug, Clone)]
struct Tags([MarkerSearch; 5]);

impl Tags {
    /// The searches after the start marker of a block.
    fn new(format: &InvokeFormat) -> Self {
        let from = format.start.len();
        let tags = [format.invoke, format.invoke_end, format.parameter, format.parameter_end, format.end];
        Self(tags.map(|tag| MarkerSearch::new(tag, from)))
    }

    /// The number of bytes before the first of these tags or before the possible beginning of one at the end of `text`, and the tag if it is
    /// complete.
    fn before(&mut self, text: &str, tags: &[Tag]) -> (usize, Option<Tag>) {
        let mut first = (text.len(), None);
        for tag in tags {
            let search = &mut self.0[*tag as usize];
            let length = search.read(text);
            if length < first.0 {
                first = (length, search.found().map(|_| *tag));
            }
        }
        first
    }

    /// Ignores these tags before byte `from` of the text.
    fn skip_to(&mut self, from: usize, tags: &[Tag]) {
        tags.iter().for_each(|tag| self.0[*tag as usize].skip_to(from));
    }

    /// Records that the first `length` bytes are removed from the text.
    fn remove(&mut self, length: usize) {
        for search in &mut self.0 {
            search.skip_to(length);
            search.skip(length);
        }
    }
}

/// The attributes of an opening tag.
#[derive(Debug, PartialEq, Eq)]
enum TagHead<'a> {
    /// The text is too short to decide.
    Incomplete,
    /// The tag does not begin with a name, or it has no end.
    Malformed,
    Complete {
        /// The name, without white space around it. Never empty.
        name: &'a str,
        /// The text between the name and the end of the tag.
        attributes: &'a str,
        /// The length up to the end of the tag.
        length: usize,
    },
}

impl<'a> TagHead<'a> {
    /// Reads white space, `name="NAME"`, other attributes and `>`.
    fn parse(text: &'a str) -> Self {
        const NAME: &str = "name=\"";
        let (head, is_full) = step::head(text);
        let undecided = if is_full { Self::Malformed } else { Self::Incomplete };
        let attribute = strip_start(head);
        if attribute.len() == head.len() && !head.is_empty() {
            return Self::Malformed;
        }
        let Some(rest) = attribute.strip_prefix(NAME) else {
            return if NAME.starts_with(attribute) { undecided } else { Self::Malformed };
        };
        let Some((name, rest)) = rest.split_once('"') else { return undecided };
        let Some((attributes, after)) = rest.split_once('>') else { return undecided };
        match strip(name) {
            "" => Self::Malformed,
            name => Self::Complete { name, attributes, length: head.len() - after.len() },
        }
    }
}
