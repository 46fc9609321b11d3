// SPDX-License-Identifier: Apache-2.0
//! A naive reference parser of whole texts for the formats of strands-sglang. It shares only `loads`, `dumps` and the reader of strings with the
//! parser. It does not know that a think start in a string of a call is text.
//!
//! It does not compute the arguments of an invalid call that has started before it became invalid. They are [`STARTED`].

use std::ops::Range;

use super::super::json_reader::{JsonReader, StringLookahead};
use super::super::loads::loads;
use super::super::value::{PythonValue, escape};
use super::*;

/// Stands for the arguments of an invalid call that has started.
pub(super) const STARTED: &str = "(started)";

/// A block of calls.
struct Block {
    range: Range<usize>,
    calls: Vec<ToolCall>,
    /// The last call has no end marker.
    is_cut_off: bool,
}

/// Whether Python's `str.isspace` is true for a character.
fn is_space(c: char) -> bool {
    "\t\n\u{b}\u{c}\r\u{1c}\u{1d}\u{1e}\u{1f} \u{85}\u{a0}\u{1680}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}".contains(c)
        || ('\u{2000}'..='\u{200a}').contains(&c)
}

fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// The message of a text.
pub(super) fn message(grammar: &Grammar, text: &str) -> Message {
    let mut spans = Vec::new();
    let mut text = text;
    let think = grammar.think.clone().unwrap_or(Think { start: "\0none".into(), end: "\0none".into() });
    let opened = grammar.opened && grammar.think.is_some();
    if opened {
        let begun = text.trim_start_matches(is_space);
        text = begun.strip_prefix(&think.start).unwrap_or(begun);
        match text.split_once(&think.end) {
            None => return Message { reasoning: joined(&[text]), ..Message::default() },
            Some((span, rest)) => {
                spans.push(span);
                text = rest;
            }
        }
    }
    // step 1: remove closed spans, and record their positions in the remaining text
    let (mut plain, mut cuts, mut rest) = (String::new(), Vec::new(), text);
    while let Some((before, span, after)) = between(rest, &think.start, &think.end) {
        plain.push_str(before);
        cuts.push(plain.len());
        spans.push(span);
        rest = after;
    }
    let mut tail = rest.find(&think.start).map(|at| plain.len() + at);
    plain.push_str(rest);
    // step 2: find the blocks
    let mut blocks = grammar.format.map_or(Vec::new(), |format| blocks(format, &plain));
    // an open span inside a block is part of the block
    if blocks.iter().any(|block| tail.is_some_and(|tail| block.range.contains(&tail))) {
        tail = None;
    }
    let end = tail.unwrap_or(plain.len());
    // a call that is cut off in an open span is only reasoning
    for block in blocks.iter_mut().filter(|block| block.is_cut_off && block.range.start >= end) {
        block.calls.pop();
    }
    let open_span = tail.map(|tail| plain[tail + think.start.len()..].to_owned());
    spans.extend(open_span.as_deref());
    let removed: Vec<&Range<usize>> = blocks
        .iter()
        .filter(|block| block.range.start < end && !block.calls.is_empty())
        .map(|block| &block.range)
        .collect();
    let remaining: Vec<(usize, char)> =
        plain[..end].char_indices().filter(|(at, _)| !removed.iter().any(|range| range.contains(at))).collect();
    let mut content: String = remaining.iter().map(|(_, c)| c).collect();
    let first = remaining.iter().find(|(_, c)| !is_space(*c)).map_or(end, |(at, _)| *at);
    if opened
        || tail == Some(first)
        || cuts.iter().any(|cut| *cut <= first)
        || removed.iter().any(|range| range.start < first)
    {
        content = content.trim_start_matches(is_space).to_owned();
    }
    if opened || tail.is_some() || !cuts.is_empty() || !removed.is_empty() {
        content = content.trim_end_matches(is_space).to_owned();
    }
    let calls = blocks.iter().flat_map(|block| block.calls.clone()).collect();
    Message { reasoning: joined(&spans), content, calls }
}

fn joined(spans: &[&str]) -> Option<String> {
    let visible: Vec<&str> = spans.iter().map(|span| strip(span)).filter(|span| !span.is_empty()).collect();
    (!visible.is_empty()).then(|| visible.join("\n"))
}

/// The text before the first `start`, the text from there to the next `end`, and the text after that `end`.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let (before, rest) = text.split_once(start)?;
    let (inner, after) = rest.split_once(end)?;
    Some((before, inner, after))
}

/// The blocks. A block without an end marker extends to the end of the text.
fn blocks(format: Format, plain: &str) -> Vec<Block> {
    let start = if format == Format::KimiK2 { kimi_k2::START } else { "<tool_call>" };
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(open) = plain[at..].find(start).map(|open| at + open) {
        let text = &plain[open + start.len()..];
        let (calls, after) = match format {
            Format::Hermes => one(text, end_outside_strings(text, &["</tool_call>"]), hermes),
            Format::QwenXml => one(text, first_end(text, &["</tool_call>"]), qwen_xml),
            Format::Glm => one(text, first_end(text, &["</tool_call>"]), glm),
            Format::KimiK2 => kimi_k2::section(text),
            _ => panic!("{format} has no reference parser"),
        };
        at = after.map_or(plain.len(), |after| plain.len() - after.len());
        found.push(Block { range: open..at, calls: calls.calls, is_cut_off: calls.is_cut_off });
    }
    found
}

/// The calls of a block.
#[derive(Default)]
struct Calls {
    calls: Vec<ToolCall>,
    /// The last call has no end marker.
    is_cut_off: bool,
}

/// An end marker, and the text before and after it.
struct End<'a> {
    before: &'a str,
    marker: &'static str,
    after: &'a str,
}

/// The first of these end markers.
fn first_end<'a>(text: &'a str, markers: &[&'static str]) -> Option<End<'a>> {
    let found = markers.iter().filter_map(|marker| Some((text.find(marker)?, *marker)));
    let (at, marker) = found.min_by_key(|(at, _)| *at)?;
    Some(End { before: &text[..at], marker, after: &text[at + marker.len()..] })
}

/// The first of these end markers that is not in a string with an end of the JSON at the start of the text.
fn end_outside_strings<'a>(text: &'a str, markers: &[&'static str]) -> Option<End<'a>> {
    let (mut json, mut from) = (JsonReader::new(), 0);
    let mut at = text.len() - text.trim_start_matches(is_space).len();
    loop {
        let End { before, marker, after } = first_end(&text[from..], markers)?;
        let end = from + before.len();
        while let Some((_, length)) = text.get(at..end).and_then(|text| json.next(text, &mut String::new())) {
            at += length;
        }
        let found = End { before: &text[..end], marker, after };
        if !json.in_string() || json.error().is_some() {
            return Some(found);
        }
        match StringLookahead::new(json.clone(), at).read(text) {
            Some(Ok(after)) => from = after,
            _ => return Some(found),
        }
    }
}

/// The call of a block, and the text after the block.
fn one<'a>(text: &'a str, end: Option<End<'a>>, parse: fn(&str, bool) -> Option<ToolCall>) -> (Calls, Option<&'a str>) {
    let call = parse(end.as_ref().map_or(text, |end| end.before), end.is_some());
    let calls = Calls { calls: call.into_iter().collect(), is_cut_off: end.is_none() };
    (calls, end.map(|end| end.after))
}

/// A call with these arguments, which may be of any type.
fn with_arguments(name: &str, arguments: Option<&PythonValue>) -> ToolCall {
    let inner = arguments.and_then(PythonValue::as_text).and_then(|text| loads(&text).ok());
    match (arguments, inner) {
        (None | Some(PythonValue::Null), _) => call(name, "{}"),
        (_, Some(object @ PythonValue::Dict(_))) => call(name, &object.dumps()),
        (Some(object @ PythonValue::Dict(_)), _) => call(name, &object.dumps()),
        (Some(other), _) => error(name, &other.dumps()),
    }
}

fn hermes(body: &str, is_closed: bool) -> Option<ToolCall> {
    let body = strip(body);
    let Some((name, at)) = hermes_start(body) else { return is_closed.then(|| hermes_whole(body)) };
    let ends = body.match_indices('}').map(|(end, _)| end + 1).filter(|end| *end > at);
    let valid = ends.clone().find_map(|end| Some((loads(&body[at..end]).ok()?, &body[end..])));
    if is_closed
        && loads(body).is_ok()
        && let Some((arguments, after)) = valid
        && let Ok(PythonValue::Dict(after)) = loads(&format!("{{\"\": 0{after}"))
        && !after.has("name")
        && !after.has("arguments")
    {
        return Some(call(&name, &arguments.dumps()));
    }
    Some(error(&name, STARTED))
}

/// The name of a call, and the position of its arguments, if the name is before the arguments and the arguments are an object.
fn hermes_start(body: &str) -> Option<(String, usize)> {
    body.match_indices('{').find_map(|(at, _)| {
        let Ok(PythonValue::Dict(object)) = loads(&format!("{}{{\"\\u0001\": 1}}}}", &body[..at])) else { return None };
        let name = object.get("name")?.as_text().filter(|name| !name.is_empty())?;
        let PythonValue::Dict(arguments) = object.get("arguments")? else { return None };
        arguments.has("\\u0001").then_some((name, at))
    })
}

fn hermes_whole(body: &str) -> ToolCall {
    if let Ok(PythonValue::Dict(object)) = loads(body) {
        let name = object.get("name").and_then(PythonValue::as_text).unwrap_or_default();
        if !name.is_empty() {
            return with_arguments(&name, object.get("arguments"));
        }
    }
    for (at, key) in body.match_indices("\"name\"") {
        let rest = body[at + key.len()..].trim_start_matches(is_space);
        let Some(rest) = rest.strip_prefix(':') else { continue };
        let Some(rest) = rest.trim_start_matches(is_space).strip_prefix('"') else { continue };
        match rest.find('"') {
            None | Some(0) => {}
            Some(length) => return error(&rest[..length], body),
        }
    }
    error("unknown_tool", body)
}

fn qwen_xml(body: &str, is_closed: bool) -> Option<ToolCall> {
    let invalid = || is_closed.then(|| error("unknown_tool", strip(body)));
    let Some((name, rest)) = tag(body, "<function=") else { return invalid() };
    let name = strip(name);
    if name.is_empty() {
        return invalid();
    }
    let started = Some(error(name, STARTED));
    let Some((mut rest, _)) = rest.split_once("</function>").filter(|_| is_closed) else { return started };
    let mut pairs = Vec::new();
    while let Some((key, value)) = tag(rest, "<parameter=") {
        let Some((value, after)) = value.split_once("</parameter>") else { return started };
        pairs.push((strip(key), strip(value)));
        rest = after;
    }
    pairs.retain(|(key, _)| !key.is_empty());
    Some(call(name, &arguments(&pairs)))
}

/// The first opening tag with a name, and the text after it.
fn tag<'a>(text: &'a str, open: &str) -> Option<(&'a str, &'a str)> {
    text.match_indices(open)
        .filter_map(|(at, _)| text[at + open.len()..].split_once('>'))
        .find(|(name, _)| !name.is_empty())
}

fn glm(body: &str, is_closed: bool) -> Option<ToolCall> {
    let body = strip(body);
    let name = strip(body.split("<arg_key>").next().unwrap_or_default());
    if name.is_empty() || !body.contains("<arg_key>") {
        let whole = if name.is_empty() { error("unknown_tool", body) } else { call(name, "{}") };
        return is_closed.then_some(whole);
    }
    let (mut pairs, mut rest) = (Vec::new(), body);
    'pairs: while let Some(at) = rest.find("<arg_key>") {
        rest = &rest[at + "<arg_key>".len()..];
        for (at, end) in rest.match_indices("</arg_key>") {
            let after = rest[at + end.len()..].trim_start_matches(is_space);
            if let Some(after) = after.strip_prefix("<arg_value>") {
                let Some((value, after)) = after.split_once("</arg_value>") else { return Some(error(name, STARTED)) };
                pairs.push((strip(&rest[..at]), strip(value)));
                rest = after;
                continue 'pairs;
            }
        }
        break;
    }
    Some(if is_closed { call(name, &arguments(&pairs)) } else { error(name, STARTED) })
}

/// The arguments of these parameters. Repeated parameters are kept.
fn arguments(pairs: &[(&str, &str)]) -> String {
    let dumps = |value: &str| loads(value).unwrap_or_else(|_| PythonValue::text(value)).dumps();
    let members: Vec<String> =
        pairs.iter().map(|(key, value)| format!("\"{}\": {}", escape(key), dumps(value))).collect();
    format!("{{{}}}", members.join(", "))
}

mod kimi_k2 {
    use super::*;

    pub(super) const START: &str = "<|tool_calls_section_begin|>";
    const END: &str = "<|tool_calls_section_end|>";
    const CALL_START: &str = "<|tool_call_begin|>";
    const CALL_END: &str = "<|tool_call_end|>";
    const SEPARATOR: &str = "<|tool_call_argument_begin|>";

    /// The calls of a section, and the text after its end marker.
    pub(super) fn section(text: &str) -> (Calls, Option<&str>) {
        let (mut calls, mut has_started, mut rest) = (Vec::new(), false, text);
        loop {
            let end = first_end(rest, &[END]);
            let body = end.as_ref().map_or(rest, |end| end.before);
            let Some((id, arguments)) = head(body) else {
                let calls = if end.is_some() || has_started { calls } else { Vec::new() };
                return (Calls { calls, is_cut_off: false }, end.map(|end| end.after));
            };
            let arguments = &rest[body.len() - arguments.len()..];
            let is_object = strip(arguments).starts_with('{');
            has_started |= is_object;
            let find_end = if is_object { end_outside_strings } else { first_end };
            let end = find_end(arguments, &[CALL_END, END]);
            let arguments = end.as_ref().filter(|end| end.marker == CALL_END).map(|end| end.before);
            let after = end.map(|end| end.after);
            // a call that has no end is one if it has started
            if arguments.is_some() || is_object {
                calls.push(ToolCall { id: Some(id.to_owned()), ..call(&name(id), arguments) });
            }
            match after {
                Some(after) if arguments.is_some() => rest = after,
                _ if after.is_none() && !has_started => return (Calls::default(), None),
                after => return (Calls { calls, is_cut_off: is_object && after.is_none() }, after),
            }
        }
    }

    /// The id of the first call, and the text from its arguments on.
    fn head(section: &str) -> Option<(&str, &str)> {
        let (_, after) = section.split_once(CALL_START)?;
        let (id, arguments) = after.split_once(SEPARATOR)?;
        let id = strip(id);
        if id.is_empty() || id.contains(|c| c == '<' || is_space(c)) {
            return head(after);
        }
        Some((id, arguments))
    }

    /// A call with these arguments. They are `None` if the call has started and has no end.
    fn call(name: &str, arguments: Option<&str>) -> ToolCall {
        let Some(raw) = arguments.map(strip) else { return error(name, STARTED) };
        match loads(raw) {
            Ok(value) => with_arguments(name, Some(&value)),
            Err(_) => error(name, if raw.starts_with('{') { STARTED } else { raw }),
        }
    }

    fn name(id: &str) -> String {
        let allowed = |c: char| c.is_alphanumeric() || "_.-".contains(c);
        let (stem, digits) = id.rsplit_once(':').unwrap_or((id, "0"));
        let stem = if !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit()) { stem } else { id };
        for name in [stem.strip_prefix("functions.").unwrap_or_default(), stem] {
            if !name.is_empty() && name.chars().all(allowed) {
                return name.to_owned();
            }
        }
        id.to_owned()
    }
}
