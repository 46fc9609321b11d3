// SPDX-License-Identifier: Apache-2.0
//! Detects whether the variables of a template change the text of a history.
//!
//! A variable may change the system prompt, as the effort of gpt-oss does, or only the start of the next reply, or nothing. Conversations
//! are not compared by their variables but by the text that these render, so that a client can change a variable without effect. Rendering
//! the whole history twice would cost too much: short conversations with all kinds of messages are rendered instead, once for the same
//! variables. Thoughts and their markers in replies do not count, because replies keep their sampled tokens.

use sha2::{Digest as _, Sha256};

use super::checks::{tool, tool_result, turn_with_call};
use super::{PLACEHOLDER, Renderer, Setting, TemplateVariables, message};
use crate::budget::{Stopped, Work};
use crate::json::Value;

/// The maximum number of known variables. When it is reached, all are forgotten.
const MAX_KNOWN: usize = 1024;

/// A SHA-256 digest.
pub(super) type Hash = [u8; 32];

impl Renderer {
    /// A digest of the text that a history with these variables has, without its end, the start of the next reply. `None` if the text is
    /// that without variables.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn history_digest(&self, variables: &[(String, Value)], work: &Work) -> Result<Option<Hash>, Stopped> {
        let templates = || self.folder.tool_template.iter().chain([&self.folder.template]);
        let is_read = |name: &str| templates().any(|template| template.mentions(name));
        if !variables.iter().any(|(name, _)| is_read(name)) {
            return Ok(None);
        }
        let variables: TemplateVariables = variables.iter().filter(|(name, _)| is_read(name)).cloned().collect();
        let digest = self.digest_histories(&variables, work)?;
        Ok(Some(digest).filter(|digest| Ok(digest) != self.digest_histories(&[], work).as_ref()))
    }

    /// A digest of the texts of conversations with all kinds of messages.
    fn digest_histories(&self, variables: &[(String, Value)], work: &Work) -> Result<Hash, Stopped> {
        let mut key = Sha256::new();
        for (name, value) in variables {
            add_text(&mut key, name);
            add_value(&mut key, value);
        }
        let key = key.finalize().into();
        if let Some(digest) = self.history_digests.read().get(&key) {
            return Ok(*digest);
        }
        let digest = self.render_histories(variables, work)?;
        let mut known = self.history_digests.write();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(key, digest);
        Ok(digest)
    }

    /// Renders the conversations, each with and without tools, up to the text of the last message: some templates write the start of the next
    /// reply always. White space and the markers of thoughts do not count.
    fn render_histories(&self, variables: &[(String, Value)], work: &Work) -> Result<Hash, Stopped> {
        let parameters = [("type", "object".into()), ("properties", Value::Object(Vec::new()))];
        let tools = [tool("weather", "The weather", Value::object(parameters))];
        let mut texts = Sha256::new();
        for messages in histories() {
            for tools in [None, Some(&tools[..])] {
                work.check()?;
                let setting = Setting { tools, generation_prompt: false, extra: variables };
                match self.render_text(&messages, setting) {
                    Ok(text) => {
                        let before = text.rsplit_once(PLACEHOLDER).map_or(&*text, |(before, _)| before);
                        add_text(&mut texts, &self.without_thoughts(before));
                    }
                    Err(error) => add_text(&mut texts, &error.to_string()),
                }
            }
        }
        Ok(texts.finalize().into())
    }
}

fn add_text(hash: &mut Sha256, text: &str) {
    hash.update(text.len().to_le_bytes());
    hash.update(text);
}

fn add_value(hash: &mut Sha256, value: &Value) {
    match value {
        Value::Null => hash.update(b"z"),
        Value::Bool(is_true) => hash.update([b'b', u8::from(*is_true)]),
        Value::Number(text) => {
            hash.update(b"n");
            add_text(hash, text);
        }
        Value::String(text) => {
            hash.update(b"s");
            add_text(hash, text);
        }
        Value::Array(values) => {
            hash.update(b"a");
            hash.update(values.len().to_le_bytes());
            values.iter().for_each(|value| add_value(hash, value));
        }
        Value::Object(members) => {
            hash.update(b"o");
            hash.update(members.len().to_le_bytes());
            for (name, value) in members {
                add_text(hash, name);
                add_value(hash, value);
            }
        }
    }
}

/// Conversations with and without a system message, and one that ends with a tool result. The last text is the placeholder.
fn histories() -> [Vec<Value>; 3] {
    let user = || message("user", "U");
    let after_call = |result| vec![user(), turn_with_call(), tool_result(result)];
    let answered = || vec![message("assistant", "A"), message("user", PLACEHOLDER)];
    [
        [vec![message("system", "S")], after_call("It rains."), answered()].concat(),
        after_call(PLACEHOLDER),
        [vec![user()], answered()].concat(),
    ]
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
    fn variables_are_compared_by_the_text_of_a_history() {
        let effort = format!("Reasoning: {{{{ reasoning_effort or 'medium' }}}}{MESSAGES}");
        let next = format!("{MESSAGES}{{% if add_generation_prompt %}}{{{{ enable_thinking }}}}{{% endif %}}");
        let either = format!("{{% if thinking or enable_thinking %}}/think{{% endif %}}{MESSAGES}");
        let always = format!("{MESSAGES}{{% if not enable_thinking %}}<think></think>{{% endif %}}");
        let with_tools = format!("{{% if tools and brief %}}Be brief.{{% endif %}}{MESSAGES}");
        let of_users =
            "{% for m in messages %}{{ m.content }}{% if m.role == 'user' and brief %}/brief{% endif %}{% endfor %}";
        let refusing = format!("{{% if brief %}}{{{{ raise_exception('no') }}}}{{% endif %}}{MESSAGES}");
        let listing = format!("{{{{ (documents or []) | length > 1 }}}}{MESSAGES}");
        let high = r#"{"reasoning_effort": "high"}"#;
        for (template, given, same, other) in [
            (MESSAGES, r#"{"reasoning_effort": "high", "unknown": [1, {"a": null}]}"#, "{}", None),
            (&effort, r#"{"unknown": 1, "reasoning_effort": "high", "thinking": true}"#, high, Some("{}")),
            (&effort, r#"{"unknown": [1], "reasoning_effort": "high"}"#, high, Some("{}")),
            (&effort, high, high, Some(r#"{"reasoning_effort": "low"}"#)),
            (&effort, r#"{"reasoning_effort": "medium"}"#, "{}", None),
            (&next, r#"{"enable_thinking": false, "reasoning_effort": "high"}"#, "{}", None),
            (&either, r#"{"thinking": true, "enable_thinking": true}"#, r#"{"enable_thinking": true}"#, Some("{}")),
            (&either, r#"{"enable_thinking": true}"#, r#"{"thinking": true}"#, Some("{}")),
            (&either, r#"{"thinking": false, "enable_thinking": false}"#, "{}", None),
            (&always, r#"{"enable_thinking": true}"#, "{}", None),
            (&with_tools, r#"{"brief": true, "other": 1}"#, r#"{"brief": true}"#, Some("{}")),
            (of_users, r#"{"brief": true}"#, r#"{"brief": 1}"#, Some("{}")),
            (&refusing, r#"{"brief": true}"#, r#"{"brief": 1}"#, Some("{}")),
            (&listing, r#"{"documents": [1, 2]}"#, r#"{"documents": [3, 4, 5]}"#, Some(r#"{"documents": [1]}"#)),
        ] {
            let renderer = renderer(template);
            let digest = |json: &str| renderer.history_digest(&variables(json), &Work::unlimited()).unwrap();
            for _ in 0..2 {
                assert_eq!(digest(given), digest(same), "{given} {same} in {template}");
                assert_eq!(digest(given) == digest("{}"), same == "{}", "{given} in {template}");
                assert_ne!(other.map(digest), Some(digest(given)), "{given} {other:?} in {template}");
            }
        }
    }

    #[test]
    fn known_variables_are_bounded() {
        let renderer = renderer(&format!("{{{{ date }}}}{MESSAGES}"));
        let digest = |json: &str| renderer.history_digest(&variables(json), &Work::unlimited()).unwrap();
        let known = || renderer.history_digests.read().len();
        for at in 0..100 {
            digest(&format!(r#"{{"request_id": {at}, "date": "today"}}"#));
        }
        assert_eq!(known(), 2, "with the date and without variables");
        for at in 0..MAX_KNOWN + 10 {
            digest(&format!(r#"{{"date": {at}}}"#));
            assert!(known() <= MAX_KNOWN);
        }
    }

    #[test]
    fn abandoned_work_renders_nothing() {
        let renderer = renderer(&format!("{{{{ date }}}}{MESSAGES}"));
        let work = Work::unlimited();
        drop(work.until_dropped());
        assert_eq!(renderer.history_digest(&variables(r#"{"date": 1}"#), &work), Err(Stopped::Abandoned));
    }
}
