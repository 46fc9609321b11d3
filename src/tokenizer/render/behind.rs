//! Separates what a template writes after a turn from all that it writes before.

use super::{PromptError, Renderer, Setting, TURN, message};
use crate::json::Value;

impl Renderer {
    /// What the template writes after the text of a turn when `new` follows it, from the end of the turn on.
    pub(super) fn text_behind(&self, turn: &Value, new: &[Value], setting: Setting<'_>) -> Result<String, PromptError> {
        // the existing tokens already contain the tools
        let setting = Setting { tools: None, ..setting };
        let answers = new.first().and_then(|message| message.get("role")).and_then(Value::as_str) == Some("tool");
        let called = answers.then(|| stub_with_calls(turn)).flatten();
        let mut failed = None;
        for stub in called.into_iter().chain([message("assistant", TURN)]) {
            let mut messages = vec![message("user", "U"), stub];
            let alone = self.text(&messages, Setting { generation_prompt: false, ..setting });
            messages.extend_from_slice(new);
            let both = alone.and_then(|alone| Ok((alone, self.text(&messages, setting)?)));
            match both {
                Ok((alone, both)) => match self.difference(&alone, &both) {
                    Some(text) => return Ok(text.to_owned()),
                    None => continue,
                },
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.map_or(PromptError::NoBoundary, PromptError::Render))
    }

    /// The part of `both` after the turn: from its end token on, or where it has none, after all that `alone` has.
    fn difference<'a>(&self, alone: &str, both: &'a str) -> Option<&'a str> {
        if alone.matches(TURN).count() != 1 {
            // a client's text has the mark, too
            return None;
        }
        let (before, alone) = alone.split_once(TURN)?;
        let (before_both, both) = both.split_once(TURN)?;
        if !self.is_same_beginning(before, before_both) {
            // the new messages also change the text before the turn, where nothing can be inserted any more
            return None;
        }
        let Some((end, _)) = &self.end else { return both.strip_prefix(alone) };
        let at = both.find(end.as_str())?;
        // after a call comes the text that closes it
        Some(if both[..at].trim().is_empty() { both } else { &both[at..] })
    }

    /// Whether the text before a turn is the same whether or not a message follows it. Some templates open a thought before a last
    /// turn, or before all others.
    fn is_same_beginning(&self, alone: &str, both: &str) -> bool {
        let (long, short) = if alone.len() > both.len() { (alone, both) } else { (both, alone) };
        let Some(more) = long.strip_prefix(short) else { return false };
        let Some((start, end)) = self.family.think() else { return more.trim().is_empty() };
        more.replace(start, "").replace(end, "").trim().is_empty()
    }
}

/// The text after the first mark, which is the turn's. A later mark may come from a client's text.
pub(super) fn behind_turn(text: &str) -> Option<&str> {
    text.split_once(TURN).map(|(_, behind)| behind)
}

/// A turn that calls what `turn` calls, with the mark in the arguments of its last call; `None` where it calls nothing.
pub(super) fn stub_with_calls(turn: &Value) -> Option<Value> {
    let mut calls = turn.get("tool_calls")?.as_array()?.to_vec();
    let count = calls.len();
    for (at, call) in calls.iter_mut().enumerate() {
        let marked = if at + 1 == count { TURN } else { "" };
        let arguments = Value::Object(vec![("a".into(), marked.into())]);
        let Value::Object(members) = call else { return None };
        let function = members.iter_mut().find(|(name, _)| name == "function");
        let Some((_, Value::Object(function))) = function else { return None };
        match function.iter_mut().find(|(name, _)| name == "arguments") {
            Some((_, known)) => *known = arguments,
            None => function.push(("arguments".into(), arguments)),
        }
    }
    (count > 0).then(|| {
        let mut stub = message("assistant", "");
        let Value::Object(members) = &mut stub else { return stub };
        members.push(("tool_calls".into(), Value::Array(calls)));
        stub
    })
}
