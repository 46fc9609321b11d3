//! Extracts the text that a template writes after an assistant turn.

use super::{PLACEHOLDER, PromptError, Renderer, Setting, message};
use crate::json::Value;

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
            let mut messages = vec![message("user", "U"), stub];
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
        // some templates open a thought only before a last turn, or only before the other turns
        if self.without_thoughts(before) != self.without_thoughts(before_continued) {
            // the new messages also change the text before the turn, whose tokens are fixed
            return None;
        }
        let Some((end, _)) = &self.end_token else { return after.strip_prefix(alone) };
        let at = after.find(end.as_str())?;
        // text before the end token closes the tool call of the stub; white space before it is part of the end of the turn
        Some(if after[..at].trim().is_empty() { after } else { &after[at..] })
    }
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
