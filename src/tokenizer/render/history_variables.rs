//! Finds the variables of a template that change the text of a history.
//!
//! A variable may change the system prompt, as the effort of gpt-oss does, or only the start of the next reply, or nothing. Conversations
//! are not compared by their variables but by the text that these render, so that a client can change a variable without effect. Rendering
//! the whole history twice would cost too much: short conversations with all kinds of messages are rendered instead, once for the same
//! variables. Thoughts and their markers in replies do not count, because replies keep their sampled tokens.

use std::sync::PoisonError;

use super::continuation_check::{object, turn_with_call};
use super::{MAX_GENERATION_PROMPTS, PLACEHOLDER, Renderer, Setting, TemplateVariables, is_small, message};
use crate::json::Value;
use crate::tokenizer::template::RenderError;

/// The maximum number of variables that are tried one by one.
const MAX_TRIED: usize = 16;

impl Renderer {
    /// The variables that change the text of a history, without its end, the start of the next reply. Empty if the text is that without
    /// variables.
    #[must_use]
    pub fn history_variables(&self, variables: &[(String, Value)]) -> TemplateVariables {
        if variables.is_empty() {
            return Vec::new();
        }
        let known = self.history_variables.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = known.iter().find(|(known, _)| known == variables) {
            return found.clone();
        }
        drop(known);
        let found = self.find_history_variables(variables);
        if variables.iter().all(is_small) {
            let mut known = self.history_variables.write().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= MAX_GENERATION_PROMPTS {
                known.remove(0);
            }
            known.push((variables.to_vec(), found.clone()));
        }
        found
    }

    fn find_history_variables(&self, variables: &[(String, Value)]) -> TemplateVariables {
        let shown = self.render_histories(variables);
        if shown == self.render_histories(&[]) {
            return Vec::new();
        }
        let mut found = variables.to_vec();
        if variables.len() <= MAX_TRIED && variables.iter().all(is_small) {
            for at in (0..found.len()).rev() {
                let mut fewer = found.clone();
                fewer.remove(at);
                if self.render_histories(&fewer) == shown {
                    found = fewer;
                }
            }
        }
        found
    }

    /// The texts of conversations with all kinds of messages, each with and without tools, up to the text of the last message: some templates
    /// write the start of the next reply always. They lack white space and the markers of thoughts.
    fn render_histories(&self, variables: &[(String, Value)]) -> Vec<Result<String, RenderError>> {
        let tools = [tool()];
        let without_thoughts = |text: String| {
            let mut text = text.rsplit_once(PLACEHOLDER).map_or(&*text, |(before, _)| before).to_owned();
            for marker in self.family.think().into_iter().flat_map(|(start, end)| [start, end]) {
                text = text.replace(marker, "");
            }
            text.retain(|c| !c.is_whitespace());
            text
        };
        let render = |messages: &Vec<Value>| {
            [None, Some(&tools[..])].map(|tools| {
                let setting = Setting { tools, generation_prompt: false, extra: variables };
                self.render_text(messages, setting).map(without_thoughts)
            })
        };
        histories().iter().flat_map(render).collect()
    }
}

/// Conversations with and without a system message, and one that ends with a tool result. The last text is the placeholder.
fn histories() -> [Vec<Value>; 3] {
    let user = || message("user", "U");
    let after_call = |result| {
        let result = object(&[("role", "tool"), ("tool_call_id", "call00001"), ("content", result)]);
        vec![user(), turn_with_call(), result]
    };
    let answered = || vec![message("assistant", "A"), message("user", PLACEHOLDER)];
    [
        [vec![message("system", "S")], after_call("It rains."), answered()].concat(),
        after_call(PLACEHOLDER),
        [vec![user()], answered()].concat(),
    ]
}

fn tool() -> Value {
    let parameters =
        Value::Object(vec![("type".into(), "object".into()), ("properties".into(), Value::Object(Vec::new()))]);
    let mut function = object(&[("name", "weather"), ("description", "The weather")]);
    if let Value::Object(members) = &mut function {
        members.push(("parameters".into(), parameters));
    }
    Value::Object(vec![("type".into(), "function".into()), ("function".into(), function)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Folder;

    const TOKENIZER: &[u8] = include_bytes!("../../demo/assets/tokenizer.json");
    const MESSAGES: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";

    fn renderer(template: &str) -> Renderer {
        Renderer::new(Folder::embedded(TOKENIZER, template, "<|im_end|>").unwrap())
    }

    fn variables(json: &str) -> TemplateVariables {
        let Ok(Value::Object(members)) = Value::parse(json.as_bytes()) else { panic!("{json} is an object") };
        members
    }

    #[test]
    fn variables_that_change_the_history_are_found() {
        let effort = format!("Reasoning: {{{{ reasoning_effort or 'medium' }}}}{MESSAGES}");
        let next = format!("{MESSAGES}{{% if add_generation_prompt %}}{{{{ enable_thinking }}}}{{% endif %}}");
        let either = format!("{{% if thinking or enable_thinking %}}/think{{% endif %}}{MESSAGES}");
        let always = format!("{MESSAGES}{{% if not enable_thinking %}}<think></think>{{% endif %}}");
        let with_tools = format!("{{% if tools and brief %}}Be brief.{{% endif %}}{MESSAGES}");
        let of_users =
            "{% for m in messages %}{{ m.content }}{% if m.role == 'user' and brief %}/brief{% endif %}{% endfor %}";
        let refusing = format!("{{% if brief %}}{{{{ raise_exception('no') }}}}{{% endif %}}{MESSAGES}");
        for (template, given, expected) in [
            (MESSAGES, r#"{"reasoning_effort": "high", "unknown": [1, {"a": null}]}"#, "{}"),
            (
                &effort,
                r#"{"unknown": 1, "reasoning_effort": "high", "thinking": true}"#,
                r#"{"reasoning_effort": "high"}"#,
            ),
            (&effort, r#"{"reasoning_effort": "medium"}"#, "{}"),
            (&next, r#"{"enable_thinking": false, "reasoning_effort": "high"}"#, "{}"),
            (&either, r#"{"thinking": true, "enable_thinking": true}"#, r#"{"thinking": true}"#),
            (&either, r#"{"thinking": false, "enable_thinking": false}"#, "{}"),
            (&always, r#"{"enable_thinking": true}"#, "{}"),
            (&with_tools, r#"{"brief": true, "other": 1}"#, r#"{"brief": true}"#),
            (of_users, r#"{"brief": true}"#, r#"{"brief": true}"#),
            (&refusing, r#"{"brief": true}"#, r#"{"brief": true}"#),
            // too large to be tried one by one
            (
                &effort,
                r#"{"unknown": [1], "reasoning_effort": "high"}"#,
                r#"{"unknown": [1], "reasoning_effort": "high"}"#,
            ),
        ] {
            let renderer = renderer(template);
            for _ in 0..2 {
                let found = renderer.history_variables(&variables(given));
                assert_eq!(found, variables(expected), "{given} in {template}");
            }
        }
    }

    #[test]
    fn known_variables_are_bounded() {
        let renderer = renderer(MESSAGES);
        for at in 0..100 {
            drop(renderer.history_variables(&variables(&format!(r#"{{"unknown": {at}}}"#))));
        }
        assert_eq!(renderer.history_variables.read().unwrap().len(), MAX_GENERATION_PROMPTS);
    }
}
