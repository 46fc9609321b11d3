// SPDX-License-Identifier: Apache-2.0
//! `loads` and `dumps` agree with Python's `json`.

use proptest::prelude::*;
use serde_json::Value;

use super::super::loads::loads;
use super::super::value::PythonValue;

fn loads_then_dumps(text: &str) -> Option<String> {
    loads(text).ok().map(|value| value.dumps())
}

#[test]
fn loads_then_dumps_matches_python() {
    let table = [
        (r#" {"a":1,"b":[true,false,null]} "#, r#"{"a": 1, "b": [true, false, null]}"#),
        ("[]", "[]"),
        ("[ { } ]", "[{}]"),
        (r#"["\/\"\\\b\f\n\r\t\u000B\u007f\u00E9"]"#, r#"["/\"\\\b\f\n\r\t\u000b\u007f\u00e9"]"#),
        ("[\"\u{7f}é€😀\"]", r#"["\u007f\u00e9\u20ac\ud83d\ude00"]"#),
        (r#"["\ud83d\ude00", "\ud83d", "\ude00\ud83d"]"#, r#"["\ud83d\ude00", "\ud83d", "\ude00\ud83d"]"#),
        ("[NaN, Infinity, -Infinity, 1e999]", "[NaN, Infinity, -Infinity, Infinity]"),
        ("[123456789012345678901234567890, -0, 0.10, 1E3]", "[123456789012345678901234567890, 0, 0.1, 1000.0]"),
        ("\"x\"", "\"x\""),
    ];
    for (text, python) in table {
        assert_eq!(loads_then_dumps(text).as_deref(), Some(python), "{text}");
    }
    let rejected = [
        "",
        "{",
        "[1,]",
        "{\"a\":1,}",
        "{'a': 1}",
        "{a: 1}",
        "[01]",
        "[1.]",
        "[.5]",
        "[+1]",
        "[1] 2",
        "[\"a\nb\"]",
        "[\"\\x41\"]",
        "[\"\\u12\"]",
        "[\"\\u+123\"]",
        "nan",
        "[-NaN]",
        "True",
        "[1 2]",
        "{\"a\" 1}",
        "\u{feff}[]",
        "\u{a0}[]",
        "[\"a]",
        "[\"\\\"]",
    ];
    for text in rejected {
        assert_eq!(loads_then_dumps(text), None, "{text:?}");
    }
}

#[test]
fn repeated_keys_are_kept_and_the_last_one_counts() {
    for text in [r#"{"b": 1, "a": 2, "b": {"c": 3}}"#, r#"{"\u0062": 1, "b": {"c": 3}}"#] {
        let Ok(PythonValue::Dict(dict)) = loads(text) else { panic!("{text} is an object") };
        assert_eq!(dict.get("b").map(PythonValue::dumps).as_deref(), Some("{\"c\": 3}"));
        assert_eq!(PythonValue::Dict(dict).dumps(), text.replace("\\u0062", "b"));
    }
}

#[test]
fn nesting_deeper_than_max_depth_is_rejected() {
    let deep =
        |levels: usize| format!("{}{}", "[{\"a\":".repeat(levels / 2), "}]".repeat(levels / 2)).replace(":}", ":1}");
    assert!(loads_then_dumps(&deep(128)).is_some());
    assert_eq!(loads_then_dumps(&deep(130)), None);
    assert_eq!(loads_then_dumps(&"[".repeat(1_000_000)), None);
}

/// A text without the mark of lookalikes, which is never written.
fn text() -> impl Strategy<Value = String> {
    ".*".prop_map(|text| text.replace('\u{fdd0}', ""))
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        text().prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            prop::collection::vec((text(), inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn loads_then_dumps_keeps_the_value(value in value()) {
        let ours = loads_then_dumps(&value.to_string());
        prop_assert!(ours.as_ref().is_some_and(|text| text.is_ascii()));
        prop_assert_eq!(serde_json::from_str::<Value>(&ours.unwrap_or_default()).ok(), Some(value));
    }

    #[test]
    fn only_python_extensions_are_accepted_beyond_serde_json(value in value(), at in any::<prop::sample::Index>(), c in "[\\[\\]{}\",:0.e\\\\u-]|NaN|\n") {
        let mut text = value.to_string();
        let at = (0..=at.index(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        text.replace_range(at..at, &c);
        let (ours, theirs) = (loads_then_dumps(&text), serde_json::from_str::<Value>(&text));
        let has_extension = text.contains("NaN") || text.contains("\\u") || text.contains('e') || text.contains('E');
        match (ours, theirs) {
            (Some(ours), Ok(theirs)) => prop_assert_eq!(serde_json::from_str::<Value>(&ours).ok(), Some(theirs)),
            (Some(ours), Err(_)) => prop_assert!(has_extension || ours.len() > 300, "{}", text),
            (None, Ok(_)) => prop_assert!(false, "rejected {}", text),
            (None, Err(_)) => {}
        }
    }
}
