// SPDX-License-Identifier: Apache-2.0
//! Finds the text that a template writes for `add_generation_prompt`: the start of a reply.

use std::sync::Arc;

use super::checks::{tool_result, turn_with_call};
use super::{Renderer, Setting, TemplateVariables, message};
use crate::json::Value;

/// The text that a template writes for `add_generation_prompt`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GenerationPrompt {
    Text(Arc<str>),
    /// The template also changes the text before it.
    Inseparable,
    /// The template fails.
    Failed,
}

/// Generation prompts by the variables of the template, and whether a tool result precedes them.
pub(super) type KnownPrompts = Vec<((TemplateVariables, bool), GenerationPrompt)>;

/// The maximum number of generation prompts that are kept.
const MAX_GENERATION_PROMPTS: usize = 16;

impl Renderer {
    /// Whether the generation prompt at the end of `text` opens a thought.
    pub(super) fn opens_thought(&self, text: &str, setting: Setting<'_>) -> bool {
        let Some((start, _)) = self.family.think() else { return false };
        match self.generation_prompt(setting, false) {
            GenerationPrompt::Failed => false,
            GenerationPrompt::Text(prompt) if text.ends_with(&*prompt) => {
                self.family.ends_in_thought(&prompt).unwrap_or(false)
            }
            _ => text.trim_end().ends_with(start),
        }
    }

    /// Whether the ids of a prompt end with the text that the template writes for `add_generation_prompt`, after a tool result or after
    /// another message. False if that text cannot be separated from the text before it.
    #[must_use]
    pub fn ends_with_generation_prompt(&self, prompt: &[u32], after_tool: bool, setting: Setting<'_>) -> bool {
        let mut expected = GenerationPrompt::Failed;
        if after_tool {
            expected = self.generation_prompt(setting, true);
        }
        if expected == GenerationPrompt::Failed {
            expected = self.generation_prompt(setting, false);
        }
        let GenerationPrompt::Text(text) = expected else { return false };
        let tokenizer = &self.folder.tokenizer;
        // a token may have white space and the end of the text before it
        let start = text.trim_start();
        let Ok(ids) = tokenizer.encode_rendered(start) else { return false };
        let tail = &prompt[prompt.len().saturating_sub(ids.len() + text.len() - start.len())..];
        prompt.ends_with(&ids)
            && (start.len() == text.len() || tokenizer.decode(tail, false).is_ok_and(|tail| tail.ends_with(&*text)))
    }

    /// The text that the template writes for `add_generation_prompt`. It is rendered once for the same variables.
    fn generation_prompt(&self, setting: Setting<'_>, after_tool: bool) -> GenerationPrompt {
        let known = self.generation_prompts.read();
        let is_asked = |(extra, is_after_tool): &(TemplateVariables, bool)| {
            *extra == setting.extra && *is_after_tool == after_tool
        };
        if let Some((_, prompt)) = known.iter().find(|(key, _)| is_asked(key)) {
            return prompt.clone();
        }
        drop(known);
        let prompt = self.render_generation_prompt(setting, after_tool);
        let mut known = self.generation_prompts.write();
        if known.len() < MAX_GENERATION_PROMPTS && setting.extra.iter().all(is_small) {
            known.push(((setting.extra.to_vec(), after_tool), prompt.clone()));
        }
        prompt
    }

    /// Compares renderings with and without a generation prompt.
    fn render_generation_prompt(&self, setting: Setting<'_>, after_tool: bool) -> GenerationPrompt {
        let mut messages = vec![message("user", "U")];
        if after_tool {
            messages.extend([turn_with_call(), tool_result("R")]);
        }
        let setting = Setting { tools: None, ..setting };
        let with_prompt = self.render_text(&messages, Setting { generation_prompt: true, ..setting });
        let without_prompt = self.render_text(&messages, Setting { generation_prompt: false, ..setting });
        let (Ok(with_prompt), Ok(without_prompt)) = (with_prompt, without_prompt) else {
            return GenerationPrompt::Failed;
        };
        match with_prompt.strip_prefix(without_prompt.as_str()) {
            Some(prompt) => GenerationPrompt::Text(prompt.into()),
            None => GenerationPrompt::Inseparable,
        }
    }
}

/// Whether a variable of a template takes little memory.
fn is_small((name, value): &(String, Value)) -> bool {
    let length = match value {
        Value::Null | Value::Bool(_) => 0,
        Value::Number(text) => text.len(),
        Value::String(text) => text.len(),
        Value::Array(_) | Value::Object(_) => usize::MAX,
    };
    name.len().saturating_add(length) <= 64
}
