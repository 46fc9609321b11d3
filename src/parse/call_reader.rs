// SPDX-License-Identifier: Apache-2.0
//! Reads the JSON of one call while it arrives, and starts the call as soon as its name is certain.
//!
//! The JSON is a call, `{"name": …, "arguments": {…}}`, or only the object of arguments, if the name is before the JSON. The arguments are
//! written without their closing brace. It is written when the whole call is valid, because text without it is not JSON.

use super::Event;
use super::bracket_matcher::BracketMatcher;
use super::json_call::ARGUMENTS;
use super::json_reader::{JsonError, JsonReader, StringLookahead, Token};
use super::loads::loads;
use crate::json::python::{strip, strip_end};

/// Reads a call in a text that grows at its end. Text that became events is removed from its start.
#[derive(Debug, Clone)]
pub(super) struct CallReader {
    json: JsonReader,
    /// [`ARGUMENTS`]. Empty if the JSON is only the arguments.
    keys: &'static [&'static str],
    /// The index in `keys` of the member that counts so far.
    best_key: usize,
    /// The arguments that were read have no member.
    is_empty: bool,
    /// The position of the reader in the text.
    at: usize,
    phase: Phase,
    /// The last token that is not white space, and whether white space followed it.
    last: Option<(Token, bool)>,
    member: Member,
    /// The value of the last member `name`, if it is a string that is not empty.
    name: Option<String>,
    /// Finds the end of the text if it is not JSON.
    matcher: Option<BracketMatcher>,
}

/// The position of the reader relative to the arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Before the arguments. The call has not started, and the text has the whole JSON.
    Before,
    /// In the arguments. The text begins with the first byte that is not written.
    Arguments,
    /// After the arguments. The text begins with their closing brace.
    After,
}

/// The member of a call that is being read.
#[derive(Debug, Clone, Default)]
struct Member {
    /// The key, then the value of `name`, as `json.dumps` writes them. Other values may be long and are not stored.
    text: String,
    in_value: bool,
    is_name: bool,
    /// The member counts as the arguments of the call. After arguments that are not empty, it does if its value is true in Python.
    is_arguments: bool,
}

impl CallReader {
    /// A reader of a call.
    pub(super) fn call() -> Self {
        Self::new(&ARGUMENTS)
    }

    fn new(keys: &'static [&'static str]) -> Self {
        Self {
            json: JsonReader::new(),
            keys,
            best_key: keys.len(),
            is_empty: false,
            at: 0,
            phase: Phase::Before,
            last: None,
            member: Member::default(),
            name: None,
            matcher: None,
        }
    }

    /// A reader of the arguments of a call that has started. The text begins with their opening brace.
    pub(super) fn arguments() -> Self {
        Self { phase: Phase::Arguments, ..Self::new(&[]) }
    }

    /// Whether the call has started.
    pub(super) fn has_started(&self) -> bool {
        self.phase != Phase::Before
    }

    /// Whether the text so far ends within a string of valid JSON.
    pub(super) fn in_string(&self) -> bool {
        self.json.in_string() && self.json.error().is_none()
    }

    /// A reader that looks ahead from within the string in which the text so far ends. The text begins at byte `from` of its text.
    pub(super) fn look_ahead(&self, from: usize) -> StringLookahead {
        StringLookahead::new(self.json.clone(), from + self.at)
    }

    /// The length of the JSON, if it is valid and complete.
    pub(super) fn complete(&self) -> Option<usize> {
        self.json.is_complete().then_some(self.at)
    }

    /// The number of containers around the arguments.
    fn outer_depth(&self) -> usize {
        usize::from(!self.keys.is_empty())
    }

    /// Continues in `text`. Returns the number of bytes that are removed, at least one, and their events. Returns `None` if more text is
    /// needed, or if the JSON is complete or invalid.
    pub(super) fn read(&mut self, text: &str) -> Option<(usize, Vec<Event>)> {
        let mut out = String::new();
        while !self.json.is_complete() {
            let depth = self.json.depth();
            let Some((token, length)) = self.json.next(&text[self.at..], &mut out) else { break };
            self.at += length;
            let is_first = matches!(self.last, Some((Token::Open(_), _)));
            self.last = match (token, self.last) {
                (Token::Space, last) => last.map(|(token, _)| (token, true)),
                _ => Some((token, false)),
            };
            if self.phase != Phase::Arguments {
                let was_before = self.phase == Phase::Before;
                let name = self.read_member(token, depth, &out);
                if self.phase == Phase::Arguments {
                    // the brace of arguments that follow empty ones is already written
                    let arguments = Some(Event::Arguments(out)).filter(|_| was_before);
                    let start = name.map(|name| Event::CallStart { name, id: None });
                    return Some((std::mem::take(&mut self.at), start.into_iter().chain(arguments).collect()));
                }
                out.clear();
            } else if token == Token::Close && self.json.depth() == self.outer_depth() {
                // the closing brace stays in the text
                out.pop();
                (self.phase, self.is_empty) = (Phase::After, is_first);
                let length = std::mem::replace(&mut self.at, 1) - 1;
                if length > 0 {
                    return Some((length, Event::arguments(out).into_iter().collect()));
                }
            }
        }
        if self.phase != Phase::Arguments || self.at == 0 {
            return None;
        }
        Some((std::mem::take(&mut self.at), Event::arguments(out).into_iter().collect()))
    }

    /// Reads a token outside the arguments. `depth` is the depth before it. Returns the name of the call if the token starts the call.
    fn read_member(&mut self, token: Token, depth: usize, written: &str) -> Option<String> {
        let member = &mut self.member;
        match token {
            Token::Space => {}
            Token::Open(_) if depth == 0 => {}
            Token::Colon if depth == 1 => self.read_key(),
            Token::Comma | Token::Close if depth == 1 => {
                if member.is_name {
                    self.name =
                        loads(&member.text).ok().and_then(|value| value.as_text()).filter(|name| !name.is_empty());
                }
                self.member = Member::default();
            }
            Token::Open(b'{') if depth == 1 && member.is_arguments && self.phase == Phase::After && self.is_empty => {
                self.phase = Phase::Arguments;
            }
            Token::Open(b'{') if depth == 1 && member.is_arguments && self.phase == Phase::Before => {
                let name = self.name.take()?;
                self.phase = Phase::Arguments;
                return Some(name);
            }
            _ if member.is_arguments && self.phase == Phase::After => {
                member.text.push_str(written);
                let is_undecided = matches!(&*member.text, "{" | "[" | "\"");
                if !is_undecided && loads(&member.text).map_or(true, |value| value.is_true()) {
                    // the call has started with other arguments
                    self.json.fail();
                }
            }
            _ if !member.in_value || member.is_name => member.text.push_str(written),
            _ => {}
        }
        None
    }

    /// Reads the key of a member.
    fn read_key(&mut self) {
        let key = std::mem::take(&mut self.member.text);
        let is = |name: &str| key.strip_prefix('"').and_then(|key| key.strip_suffix('"')) == Some(name);
        let index = self.keys.iter().position(|key| is(key));
        let is_arguments = index.is_some_and(|index| match self.phase {
            // which of several members counts is known at the end of the call
            Phase::Before => self.best_key == self.keys.len(),
            _ => self.is_empty || index < self.best_key,
        });
        self.member = Member { in_value: true, is_name: is("name"), is_arguments, ..Member::default() };
        if self.phase == Phase::After && (self.member.is_name || !self.is_empty && index == Some(self.best_key)) {
            // the call has started with another name, or other arguments
            self.json.fail();
        }
        if self.phase == Phase::Before || self.is_empty {
            self.best_key = index.filter(|_| is_arguments).unwrap_or(self.best_key);
        }
    }

    /// Ends a call that has started and has no end marker: it ends at the bracket that closes its JSON. Returns the length of the text up
    /// to this bracket and the last events, or `None` if the text does not contain it.
    pub(super) fn end_at_bracket(&mut self, text: &str) -> Option<(usize, Vec<Event>)> {
        if let Some(length) = self.complete() {
            return Some((length, self.end(&text[..length], "")));
        }
        self.json.error()?;
        let is_closed = self.phase == Phase::After;
        let depth = if is_closed { self.outer_depth() + 1 } else { self.json.depth() };
        let in_string = !is_closed && self.json.in_string();
        let matcher = self.matcher.get_or_insert_with(|| BracketMatcher::new(depth, in_string));
        let length = matcher.read(text)?;
        Some((length, self.cut_off(&text[..length])))
    }

    /// The events at the end of a call that has started. `text` ends with the call. A valid call has only `tail` after its JSON, apart from
    /// white space.
    pub(super) fn end(&self, text: &str, tail: &str) -> Vec<Event> {
        match self.complete() {
            Some(length) if strip(&text[length..]) == tail => end_events("}", false),
            _ => self.cut_off(strip_end(text).strip_suffix(tail).unwrap_or(text)),
        }
    }

    /// The events at the end of a call that has started and is invalid or has no end marker. The arguments get the rest of the text, unless
    /// they would be valid JSON then.
    pub(super) fn cut_off(&self, text: &str) -> Vec<Event> {
        let rest = strip_end(text);
        let is_omitted = match self.json.error() {
            // another parser may accept the text
            Some(JsonError::Limit) => true,
            _ => self.phase == Phase::After && rest == "}",
        };
        if is_omitted || rest.is_empty() {
            return end_events("", true);
        }
        // white space is not written, and two numbers must not become one
        let is_apart = self.phase == Phase::Arguments && self.last == Some((Token::Scalar, true));
        let space = if is_apart { " " } else { "" };
        end_events(&[space, rest].concat(), true)
    }
}

/// The last part of the arguments, and the end of the call.
fn end_events(arguments: &str, error: bool) -> Vec<Event> {
    Event::arguments(arguments).into_iter().chain([Event::CallEnd { error }]).collect()
}
