// SPDX-License-Identifier: Apache-2.0
//! Rendering must not panic and must be deterministic for any conversation.

use std::sync::LazyLock;

use proptest::prelude::*;
use tokentap::json::Value;
use tokentap::tokenizer::template::{ChatTemplate, RenderError, Setting};

use super::record;

/// The synthetic templates, each compiled once.
static TEMPLATES: LazyLock<Vec<ChatTemplate>> =
    LazyLock::new(|| record::records(true).iter().map(record::Record::compiled).collect());

fn json() -> impl Strategy<Value = Value> {
    let text = prop_oneof!["\\PC{0,12}", "[a-z<|>'\"\\\\\n\u{fdd0}\u{2028} ]{0,12}", Just("weather".to_owned())];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i128>().prop_map(|number| Value::Number(number.to_string().into())),
        any::<f64>().prop_map(|number| Value::Number(format!("{number:e}").replace("inf", "Infinity").into())),
        text.prop_map(Value::String),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        let name = prop_oneof![
            prop::sample::select(vec![
                "role",
                "content",
                "tool_calls",
                "function",
                "arguments",
                "name",
                "type",
                "text"
            ])
            .prop_map(str::to_owned),
            "\\PC{0,6}",
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::vec((name, inner), 0..6).prop_map(Value::Object),
        ]
    })
}

/// Valid and invalid messages.
fn messages() -> impl Strategy<Value = Vec<Value>> {
    let role = prop::sample::select(vec!["system", "user", "assistant", "tool", "developer", ""]);
    let call = json().prop_map(|arguments| {
        let function = vec![("name".into(), "f".into()), ("arguments".into(), arguments)];
        Value::Object(vec![("type".into(), "function".into()), ("function".into(), Value::Object(function))])
    });
    let calls = prop::collection::vec(call, 0..3).prop_map(Value::Array);
    let message = (role, json(), prop::option::of(calls)).prop_map(|(role, content, calls)| {
        let mut members = vec![("role".to_owned(), role.into()), ("content".to_owned(), content)];
        members.extend(calls.map(|calls| ("tool_calls".to_owned(), calls)));
        Value::Object(members)
    });
    prop::collection::vec(prop_oneof![4 => message, 1 => json()], 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rendering_never_panics(
        messages in messages(),
        tools in prop::option::of(prop::collection::vec(json(), 0..3)),
        generation_prompt in any::<bool>(),
        extra in prop::collection::vec(("[a-z]{1,8}", json()), 0..3),
    ) {
        let setting = Setting { tools: tools.as_deref(), generation_prompt, extra: &extra };
        for template in TEMPLATES.iter() {
            // the time of day advances in minutes
            let (once, again) = (template.render(&messages, setting), template.render(&messages, setting));
            let minutes = |text: &Result<String, RenderError>| text.as_ref().ok().is_some_and(|text| text.contains("[today="));
            prop_assert!(once == again || minutes(&once), "{:?} is not {:?}", once, again);
        }
    }
}

#[test]
fn render_error_has_the_message_of_the_template() {
    for (source, error) in [
        (
            "{{ raise_exception('roles must alternate: \"é\"') }}",
            RenderError::Refused("roles must alternate: \"é\"".into()),
        ),
        ("{{ raise_exception(messages) }}", RenderError::Refused("[{'role': 'user', 'content': None}]".into())),
        (
            "{% macro deep() %}{% for m in messages %}{{ raise_exception('in ' ~ m.role) }}{% endfor %}{% endmacro %}{{ deep() }}",
            RenderError::Refused("in user".into()),
        ),
    ] {
        let template = ChatTemplate::try_new(source, Default::default()).unwrap();
        let message = Value::Object(vec![("role".into(), "user".into()), ("content".into(), Value::Null)]);
        let setting = Setting { tools: None, generation_prompt: true, extra: &[] };
        assert_eq!(template.render(&[message], setting), Err(error));
    }
    let template = ChatTemplate::try_new("{{ messages[0].content.strip() }}", Default::default()).unwrap();
    let setting = Setting { tools: None, generation_prompt: true, extra: &[] };
    assert!(
        matches!(template.render(&[], setting), Err(RenderError::Failed(_))),
        "an error of the template engine is not a refusal"
    );
}

#[test]
fn invalid_template_is_rejected() {
    for source in
        ["{% if %}", "{{ 'a }}", "{% for x in %}{% endfor %}", "{{", "{% raw %}", "{% endgeneration %}", "{{ )('}} }}"]
    {
        assert!(ChatTemplate::try_new(source, Default::default()).is_err(), "{source}");
    }
}
