// SPDX-License-Identifier: Apache-2.0
//! Limits the instructions of a rendering, so that a template that loops for ever does not hold its thread.
//!
//! The limit grows with the conversation. A template visits each message a few times and does some work for each value and each line of
//! text; some search the later messages for each message. An instruction takes some ten nanoseconds.

use super::Setting;
use crate::json::Value;

/// Instructions of any rendering.
const BASE: u64 = 1 << 20;

/// Instructions for each byte and each value of the conversation, at least four times what the templates of the test need.
const PER_UNIT: u64 = 64;

/// Instructions for each pair of messages.
const PER_PAIR: u64 = 16;

/// The number of messages from which pairs are no longer counted.
const MOST_PAIRED: u64 = 8 << 10;

/// The instructions that the rendering of a conversation may take.
pub(super) fn limit(messages: &[Value], setting: Setting<'_>) -> u64 {
    let lists = messages.iter().chain(setting.tools.into_iter().flatten());
    let units: u64 = lists.chain(setting.extra.iter().map(|(_, value)| value)).map(units).sum();
    let paired = (messages.len() as u64).min(MOST_PAIRED);
    BASE + PER_UNIT * units + PER_PAIR * paired * paired
}

/// The values in a value, and the bytes of their texts.
fn units(value: &Value) -> u64 {
    1 + match value {
        Value::Null | Value::Bool(_) => 0,
        Value::Number(text) => text.len() as u64,
        Value::String(text) => text.len() as u64,
        Value::Array(values) => values.iter().map(units).sum(),
        Value::Object(members) => members.iter().map(|(key, value)| key.len() as u64 + units(value)).sum(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::tokenizer::template::{ChatTemplate, JinjaTemplate, RenderError};

    fn message(role: &str, content: &str) -> Value {
        Value::Object(vec![("role".into(), role.into()), ("content".into(), content.into())])
    }

    const SETTING: Setting<'_> = Setting { tools: None, generation_prompt: true, extra: &[] };

    #[test]
    fn endless_template_is_stopped() {
        for source in [
            "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        ] {
            let template = ChatTemplate::try_new(source, BTreeMap::new()).unwrap();
            let messages = [message("user", "U")];
            let error = template.render(&messages, SETTING).unwrap_err();
            assert!(matches!(error, RenderError::Endless(_)), "{error}");
            assert!(error.to_string().contains("looped for ever"), "{error}");
        }
    }

    #[test]
    fn long_histories_are_rendered_with_a_quarter_of_the_limit() {
        let by_line = "{% for m in messages %}{% for line in m.content.split('\n') %}{% if line.startswith('#') %}# {% else %}{{ line | trim }}\
                       {% endif %}{% endfor %}{% endfor %}";
        // looks for a later final answer of each call, as the template of gpt-oss does
        let by_pair = "{% for m in messages %}{% set found = namespace(later=false) %}{% if m.role == 'assistant' %}\
                       {% for later in messages[loop.index:] %}{% if later.role == 'assistant' and 'tool_calls' not in later %}\
                       {% set found.later = true %}{% endif %}{% endfor %}{% endif %}{{ m.content }}{{ found.later }}{% endfor %}";
        let empty: Vec<Value> = ["user", "assistant"].iter().cycle().take(2000).map(|role| message(role, "")).collect();
        let lines = [message("user", &"\n".repeat(100_000))];
        for (source, messages) in [
            (include_str!("../../demo/assets/chat_template.jinja"), &empty[..]),
            (by_pair, &empty),
            (by_line, &empty),
            (by_line, &lines),
        ] {
            let template = JinjaTemplate::try_new(source, BTreeMap::new()).unwrap();
            let rendered = template.render_within(limit(messages, SETTING) / 4, messages, SETTING);
            assert!(rendered.is_ok(), "{:?}", rendered.err());
        }
    }
}
