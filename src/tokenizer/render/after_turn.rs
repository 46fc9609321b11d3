// SPDX-License-Identifier: Apache-2.0
//! Extracts the text that a template writes after an assistant turn.

use super::{PLACEHOLDER, PromptError, Renderer, Setting, message};
use crate::json::Value;

/// The text of the user message before a turn. No template contains it.
const USER: &str = "\u{fdd1}user\u{fdd1}";

impl Renderer {
    /// The text that the template writes after the text of an assistant turn if the `new` messages follow the turn.
    pub(super) fn text_after_turn(
        &self,
        turn: &Value,
        new: &[Value],
        setting: Setting<'_>,
    ) -> Result<String, PromptError> {
        // the tokens before the turn already contain the tools
        let setting = Setting { tools: None, ..setting };
        let is_tool_result = new.first().and_then(|message| message.get_str("role")) == Some("tool");
        let stub_with_calls = is_tool_result.then(|| placeholder_turn_with_calls(turn)).flatten();
        let mut failed = None;
        for stub in stub_with_calls.into_iter().chain([message("assistant", PLACEHOLDER)]) {
            let mut messages = vec![message("user", USER), stub];
            let alone = self.render_text(&messages, Setting { generation_prompt: false, ..setting });
            messages.extend_from_slice(new);
            let texts = alone.and_then(|alone| Ok((alone, self.render_text(&messages, setting)?)));
            match texts {
                Ok((alone, continued)) => match self.difference(&alone, &continued) {
                    Some(text) => return Ok(text.to_owned()),
                    None => continue,
                },
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.map_or(PromptError::NoBoundary, PromptError::Render))
    }

    /// The part of `continued` after the turn; `None` if it cannot be separated. `alone` is the same conversation without the messages
    /// after the turn. The part begins with the end token of the turn; if there is no end token, it begins where `alone` ends.
    fn difference<'a>(&self, alone: &str, continued: &'a str) -> Option<&'a str> {
        if alone.matches(PLACEHOLDER).count() != 1 {
            // a text of the client contains the placeholder, too
            return None;
        }
        let (before, alone) = alone.split_once(PLACEHOLDER)?;
        let (before_continued, after) = continued.split_once(PLACEHOLDER)?;
        if !self.starts_alike(before, before_continued) {
            // the new messages also change the text before the turn, whose tokens are fixed
            return None;
        }
        let Some((end, _)) = &self.end_token else { return after.strip_prefix(alone) };
        let at = after.find(end.as_str())?;
        // text before the end token closes the tool call of the stub; white space before it is part of the end of the turn
        Some(if after[..at].trim().is_empty() { after } else { &after[at..] })
    }

    /// Whether the texts before a turn are the same. At the start of the turn they may differ in markers of thoughts: some templates open a
    /// thought only before a last turn, or only before the other turns.
    fn starts_alike(&self, one: &str, other: &str) -> bool {
        let (Some((before, start)), Some((other_before, other_start))) = (one.split_once(USER), other.split_once(USER))
        else {
            return one == other;
        };
        let marks = self.family.think().map(|(start, end)| [start, end]);
        before == other_before && differ_in_marks(start, other_start, marks.as_ref().map_or(&[], |marks| &marks[..]))
    }
}

/// Whether two texts are equal except for one place where they have only white space and `marks`.
fn differ_in_marks(one: &str, other: &str, marks: &[&str]) -> bool {
    let (one, other) = (units(one, marks), units(other, marks));
    let start = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
    let (one, other) = (&one[start..], &other[start..]);
    let end = one.iter().rev().zip(other.iter().rev()).take_while(|(a, b)| a == b).count();
    let differing = one[..one.len() - end].iter().chain(&other[..other.len() - end]);
    differing.copied().all(|unit| marks.contains(&unit) || unit.trim().is_empty())
}

/// The characters of a text, with each of the `marks` as a whole.
fn units<'a>(mut text: &'a str, marks: &[&str]) -> Vec<&'a str> {
    let mut units = Vec::with_capacity(text.len());
    while let Some(first) = text.chars().next() {
        let length = marks.iter().find(|mark| text.starts_with(**mark)).map_or(first.len_utf8(), |mark| mark.len());
        let (unit, rest) = text.split_at(length);
        units.push(unit);
        text = rest;
    }
    units
}

/// The text after the first placeholder. A later placeholder is text of the client.
pub(super) fn text_after_placeholder(text: &str) -> Option<&str> {
    text.split_once(PLACEHOLDER).map(|(_, after)| after)
}

/// An assistant turn with the tool calls of `turn`, whose last call has the placeholder in its arguments. `None` if `turn` has no calls.
pub(super) fn placeholder_turn_with_calls(turn: &Value) -> Option<Value> {
    let mut calls = turn.get("tool_calls")?.as_array()?.to_vec();
    let count = calls.len();
    for (at, call) in calls.iter_mut().enumerate() {
        let text = if at + 1 == count { PLACEHOLDER } else { "" };
        let arguments = Value::object([("a", text.into())]);
        let Value::Object(members) = call else { return None };
        let function = members.iter_mut().find(|(name, _)| name == "function");
        let Some((_, Value::Object(function))) = function else { return None };
        match function.iter_mut().find(|(name, _)| name == "arguments") {
            Some((_, known)) => *known = arguments,
            None => function.push(("arguments".into(), arguments)),
        }
    }
    (count > 0)
        .then(|| Value::object([("role", "assistant".into()), ("content", "".into()), ("tool_calls", calls.into())]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_markers_of_thoughts_in_one_place_may_differ() {
        let marks = ["<think>", "</think>"];
        for (one, other, is_alike) in [
            ("<a>x", "<a>x", true),
            ("<a><think>\n\n</think>\n\nx", "<a>x", true),
            ("<a>\n<think>x", "<a>\nx", true),
            ("<a><think></think>x", "<a></think>x", true),
            ("<a><think>x", "<a></think>x", true),
            ("<a>\nx", "<a>x", true),
            ("<a><think>x<think>", "<a>x", false),
            ("<a> <b> x", "<a><b>x", false),
            ("<a><think>2", "<a>1", false),
            ("<a><thin>", "<a>", false),
            ("", "x", false),
        ] {
            assert_eq!(differ_in_marks(one, other, &marks), is_alike, "{one:?} {other:?}");
            assert_eq!(differ_in_marks(other, one, &marks), is_alike, "{other:?} {one:?}");
        }
    }
}
