// SPDX-License-Identifier: Apache-2.0
//! Detects what a template does with the thoughts of assistant turns.

use super::checks::tool;
use super::{PLACEHOLDER, Renderer, Setting, message};
use crate::json::Value;

/// The placeholder for a thought. No template contains it.
const THOUGHT: &str = "\u{fdd1}thought\u{fdd1}";

impl Renderer {
    /// Whether the template renders the thought of a last assistant turn, but not once a user message follows: in a conversation without
    /// tools, and in one with tools. Tries a thought in `reasoning_content` and one in the text. A template may write thoughts only with
    /// the variables with which it opens them.
    pub(super) fn detect_dropped_thinking(&self) -> [bool; 2] {
        let Some((start, end)) = self.family.think() else { return [false; 2] };
        let in_text = message("assistant", &format!("{start}\n{THOUGHT}\n{end}\n\nA"));
        let [user, next] = [message("user", "U"), message("user", "V")];
        let tools = [a_tool()];
        let settings = [None, Some(&tools[..])];
        let on = ["thinking", "enable_thinking"].map(|name| (name.to_owned(), Value::Bool(true)));
        let modes: [&[(String, Value)]; 2] = [&[], &on];
        // None: the template rejects the conversation
        let shows = |messages: &[Value], tools, extra: &[(String, Value)]| {
            let text = self.render_text(messages, Setting { tools, generation_prompt: false, extra }).ok()?;
            Some(text.contains(THOUGHT))
        };
        let mut drops = [false; 2];
        for turn in [turn_with_thought("A"), in_text] {
            let last = [user.clone(), turn.clone()];
            let earlier = [user.clone(), turn, next.clone()];
            let is_shown = |extra| settings.iter().any(|tools| shows(&last, *tools, extra) == Some(true));
            let Some(extra) = modes.into_iter().find(|extra| is_shown(*extra)) else { continue };
            for (drops, tools) in drops.iter_mut().zip(settings) {
                *drops |= shows(&earlier, tools, extra) == Some(false);
            }
        }
        drops
    }

    /// The text that the template writes between a thought and the answer after it. `variables` are those with which a reply begins in a
    /// thought.
    #[must_use]
    pub fn thought_end(&self, variables: &[(String, Value)]) -> Option<String> {
        let (_, end) = self.family.think()?;
        let messages = [message("user", "U"), turn_with_thought(PLACEHOLDER)];
        let tools = [a_tool()];
        let written = [None, Some(&tools[..])].into_iter().find_map(|tools| {
            let setting = Setting { tools, generation_prompt: false, extra: variables };
            let text = self.render_text(&messages, setting).ok()?;
            let (between, _) = text.split_once(THOUGHT)?.1.split_once(PLACEHOLDER)?;
            between.contains(end).then(|| between.to_owned())
        });
        // many templates have no place for a thought
        Some(written.unwrap_or_else(|| format!("\n{end}\n\n")))
    }
}

/// An assistant turn with a thought and this answer.
fn turn_with_thought(answer: &str) -> Value {
    let members = [("role", "assistant"), ("content", answer), ("reasoning_content", THOUGHT)];
    Value::object(members.map(|(name, text)| (name, text.into())))
}

fn a_tool() -> Value {
    tool(
        "weather",
        "The weather",
        Value::object([("type", "object".into()), ("properties", Value::Object(Vec::new()))]),
    )
}
