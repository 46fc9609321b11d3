//! A naive reference parser of whole texts for the formats of strands-sglang. It shares only `loads` and `dumps` with the parser.

use std::ops::Range;

use super::super::loads::loads;
use super::super::value::{Dict, PythonValue, escape};
use super::*;

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
    let blocks = grammar.format.map_or(Vec::new(), |format| blocks(format, &plain));
    // an open span inside a block is part of the block
    if blocks.iter().any(|(range, _)| tail.is_some_and(|tail| range.contains(&tail))) {
        tail = None;
    }
    let end = tail.unwrap_or(plain.len());
    let open_span = tail.map(|tail| plain[tail + think.start.len()..].to_owned());
    spans.extend(open_span.as_deref());
    let removed: Vec<&Range<usize>> =
        blocks.iter().filter(|(range, calls)| range.start < end && !calls.is_empty()).map(|(range, _)| range).collect();
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
    let calls = blocks.into_iter().flat_map(|(_, calls)| calls).collect();
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

/// The ranges of the blocks, and their calls. A block without an end marker extends to the end of the text and has no calls.
fn blocks(format: Format, plain: &str) -> Vec<(Range<usize>, Vec<ToolCall>)> {
    let (start, end) = match format {
        Format::KimiK2 => ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        _ => ("<tool_call>", "</tool_call>"),
    };
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(open) = plain[at..].find(start).map(|open| at + open) {
        let Some((_, body, after)) = between(&plain[open..], start, end) else {
            found.push((open..plain.len(), Vec::new()));
            break;
        };
        at = plain.len() - after.len();
        let calls = match format {
            Format::Hermes => vec![hermes(strip(body))],
            Format::QwenXml => vec![qwen_xml(strip(body))],
            Format::Glm => vec![glm(strip(body))],
            Format::KimiK2 => kimi_k2(body),
            _ => panic!("{format} has no reference parser"),
        };
        found.push((open..at, calls));
    }
    found
}

fn hermes(body: &str) -> ToolCall {
    if let Ok(PythonValue::Dict(object)) = loads(body) {
        let name = object.get("name").and_then(PythonValue::as_text).unwrap_or_default();
        if !name.is_empty() {
            let arguments = object.get("arguments").filter(|value| matches!(value, PythonValue::Dict(_)));
            return call(&name, &arguments.map_or("{}".to_owned(), PythonValue::dumps));
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

fn qwen_xml(body: &str) -> ToolCall {
    let Some((name, inner, _)) = tagged(body, "<function=", "</function>") else { return error("unknown_tool", body) };
    if strip(name).is_empty() {
        return error("unknown_tool", body);
    }
    let (mut pairs, mut rest) = (Vec::new(), inner);
    while let Some((key, value, after)) = tagged(rest, "<parameter=", "</parameter>") {
        pairs.push((strip(key), strip(value)));
        rest = after;
    }
    pairs.retain(|(key, _)| !key.is_empty());
    call(strip(name), &arguments(&pairs))
}

/// The first element that begins with `open`, a non-empty name and `>`, and ends with `close`: its name, its text, and the text after it.
fn tagged<'a>(text: &'a str, open: &str, close: &str) -> Option<(&'a str, &'a str, &'a str)> {
    text.match_indices(open).find_map(|(at, _)| {
        let (name, rest) = text[at + open.len()..].split_once('>')?;
        let (inner, after) = rest.split_once(close)?;
        (!name.is_empty()).then_some((name, inner, after))
    })
}

fn glm(body: &str) -> ToolCall {
    let name = strip(body.split("<arg_key>").next().unwrap_or_default());
    if name.is_empty() {
        return error("unknown_tool", body);
    }
    let (mut pairs, mut rest) = (Vec::new(), body);
    'pairs: while let Some(at) = rest.find("<arg_key>") {
        rest = &rest[at + "<arg_key>".len()..];
        for (at, end) in rest.match_indices("</arg_key>") {
            let after = rest[at + end.len()..].trim_start_matches(is_space);
            if after.starts_with("<arg_value>")
                && let Some((_, value, after)) = between(after, "<arg_value>", "</arg_value>")
            {
                pairs.push((strip(&rest[..at]), strip(value)));
                rest = after;
                continue 'pairs;
            }
        }
    }
    call(name, &arguments(&pairs))
}

fn arguments(pairs: &[(&str, &str)]) -> String {
    let mut dict = Dict::default();
    for (key, value) in pairs {
        dict.set(escape(key), loads(value).unwrap_or_else(|_| PythonValue::text(value)));
    }
    PythonValue::Dict(dict).dumps()
}

fn kimi_k2(section: &str) -> Vec<ToolCall> {
    let (mut calls, mut rest) = (Vec::new(), section);
    while let Some(at) = rest.find("<|tool_call_begin|>") {
        rest = &rest[at + "<|tool_call_begin|>".len()..];
        let Some((id, after)) = rest.split_once("<|tool_call_argument_begin|>") else { continue };
        let id = strip(id);
        if id.is_empty() || id.contains(|c| c == '<' || is_space(c)) {
            continue;
        }
        let Some((raw, after)) = after.split_once("<|tool_call_end|>") else { continue };
        let raw = strip(raw);
        let read = match loads(raw) {
            Ok(value @ PythonValue::Dict(_)) => call(&name(id), &value.dumps()),
            Ok(_) => call(&name(id), "{}"),
            Err(_) => error(&name(id), raw),
        };
        calls.push(ToolCall { id: Some(id.to_owned()), ..read });
        rest = after;
    }
    calls
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
