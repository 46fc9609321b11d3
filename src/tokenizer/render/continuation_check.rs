//! Checks on a short conversation whether the text that is rendered after a turn equals the end of the whole rendered conversation.

use super::after_turn::placeholder_turn_with_calls;
use super::{PLACEHOLDER, Renderer, Setting, message};
use crate::json::Value;

/// The result of appending messages to a conversation without rendering its earlier turns again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// The earlier text and the text rendered after the turn equal the whole rendered conversation.
    Exact,
    /// The template writes the same text after the turn, but rewrites earlier turns. The earlier turns keep their tokens.
    Rewrites,
    /// The text after the turn cannot be separated from the turn. Each call renders the whole conversation.
    NoBoundary,
    /// The template rejects the conversation.
    Refused,
}

/// The results of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContinuationCheck {
    /// The result for a user message after the turn.
    pub user: Fit,
    /// The result for a tool result after the turn.
    pub tool: Fit,
}

impl Fit {
    /// The name in logs and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Rewrites => "kept where the template would rewrite",
            Self::NoBoundary => "not possible",
            Self::Refused => "refused by the template",
        }
    }
}

impl Renderer {
    /// Checks how the template continues conversations.
    #[must_use]
    pub fn check_continuation(&self) -> ContinuationCheck {
        let tool_result = object(&[("role", "tool"), ("tool_call_id", "call00001"), ("content", "It rains.")]);
        ContinuationCheck {
            user: self.fit(&message("assistant", PLACEHOLDER), message("user", "W")),
            tool: self.fit(&turn_with_call(), tool_result),
        }
    }

    fn fit(&self, turn: &Value, next: Value) -> Fit {
        let setting = Setting { tools: None, generation_prompt: true, extra: &[] };
        let mut conversation = vec![message("user", "U"), message("assistant", "A"), message("user", "V")];
        let before = self.render_text(&conversation, setting);
        conversation.push(placeholder_turn_with_calls(turn).unwrap_or_else(|| turn.clone()));
        conversation.push(next.clone());
        let (Ok(before), Ok(whole)) = (before, self.render_text(&conversation, setting)) else { return Fit::Refused };
        let Ok(after) = self.text_after_turn(turn, &[next], setting) else { return Fit::NoBoundary };
        if !whole.ends_with(&after) {
            return Fit::NoBoundary;
        }
        if whole.starts_with(&before) { Fit::Exact } else { Fit::Rewrites }
    }
}

/// An assistant turn that calls a tool.
pub(super) fn turn_with_call() -> Value {
    let function =
        Value::Object(vec![("name".into(), "weather".into()), ("arguments".into(), object(&[("city", "Oslo")]))]);
    let mut call = object(&[("id", "call00001"), ("type", "function")]);
    let mut turn = message("assistant", "");
    if let (Value::Object(call), Value::Object(turn)) = (&mut call, &mut turn) {
        call.push(("function".into(), function));
        turn.push(("tool_calls".into(), Value::Array(vec![Value::Object(call.clone())])));
    }
    turn
}

pub(super) fn object(members: &[(&str, &str)]) -> Value {
    Value::Object(members.iter().map(|(name, text)| ((*name).to_owned(), (*text).into())).collect())
}
