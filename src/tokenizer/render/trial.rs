//! Tests on a short conversation whether the text rendered after a turn equals what the template renders for the whole conversation.

use super::behind::stub_with_calls;
use super::{Renderer, Setting, TURN, message};
use crate::json::Value;

/// How a template handles conversations that continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// The existing tokens and the text rendered after them equal what the template renders for the whole conversation.
    Exact,
    /// It writes the same text after a turn, and different text for earlier turns: those turns keep their sampled tokens.
    Rewrites,
    /// The text after a turn cannot be separated from the turn: the conversation is rendered as a whole each time.
    NoBoundary,
    /// It refuses such a conversation.
    Refused,
}

/// The results of the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trial {
    /// A user message follows.
    pub user: Fit,
    /// A tool result follows.
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
    /// Tests the template.
    #[must_use]
    pub fn trial(&self) -> Trial {
        let answer = object(&[("role", "tool"), ("tool_call_id", "call00001"), ("content", "It rains.")]);
        Trial { user: self.fit(&message("assistant", TURN), message("user", "W")), tool: self.fit(&calling(), answer) }
    }

    fn fit(&self, turn: &Value, next: Value) -> Fit {
        let bare = Setting { tools: None, generation_prompt: true, extra: &[] };
        let mut conversation = vec![message("user", "U"), message("assistant", "A"), message("user", "V")];
        let before = self.text(&conversation, bare);
        conversation.push(stub_with_calls(turn).unwrap_or_else(|| turn.clone()));
        conversation.push(next.clone());
        let (Ok(before), Ok(whole)) = (before, self.text(&conversation, bare)) else { return Fit::Refused };
        let Ok(behind) = self.text_behind(turn, &[next], bare) else { return Fit::NoBoundary };
        if !whole.ends_with(&behind) {
            return Fit::NoBoundary;
        }
        if whole.starts_with(&before) { Fit::Exact } else { Fit::Rewrites }
    }
}

/// A turn that calls a tool.
fn calling() -> Value {
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

fn object(members: &[(&str, &str)]) -> Value {
    Value::Object(members.iter().map(|(name, text)| ((*name).to_owned(), (*text).into())).collect())
}
