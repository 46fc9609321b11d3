// SPDX-License-Identifier: Apache-2.0
//! Property tests of calls that are emitted in parts: random texts, changed texts, and random cuts.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::Value;

use super::super::loads::loads;
use super::calls_in_parts::call_events;
use super::property::{cut, expect_no_json};
use super::*;

/// The text around the arguments of one call.
const CALLS: &[(Format, &str, &str)] = &[
    (Format::Hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": ", "}\n</tool_call>"),
    (Format::Hermes, "<tool_call>{\"x\":[{}],\"name\":\"f\",\"arguments\":", ",\"y\":\"}\"}</tool_call>"),
    (Format::Llama3, "<|python_tag|>{\"name\": \"f\", \"parameters\": ", "}"),
    (Format::Llama3, "<|python_tag|>{\"name\": \"g\"};{\"name\": \"f\", \"arguments\": ", "}"),
    (Format::Mistral, "[TOOL_CALLS]f[ARGS]", ""),
    (
        Format::KimiK2,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>",
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        Format::DeepSeek,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>",
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        Format::DeepSeek,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n",
        "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
];

/// Texts that are inserted into calls.
const INSERTED: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    "\\u",
    ":",
    ",",
    " ",
    "\n",
    "\u{a0}",
    "0",
    "-",
    ".",
    "e",
    "a",
    "ü",
    "true",
    "NaN",
    "\"a\": 1, ",
    "\"name\": \"g\", ",
    ", \"arguments\": {}",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<function=g>",
    "</function>",
    "<parameter=a>",
    "</parameter>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<invoke name=\"g\">",
    "</invoke>",
    "<parameter name=\"a\">",
    "</minimax:tool_call>",
    "```",
    "<|tool_call_end|>",
    "<｜tool▁call▁end｜>",
    "<|tool_calls_section_end|>",
    "<｜tool▁calls▁end｜>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    ";",
];

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        "[a-z ]{0,8}".prop_map(Into::into),
        ".{0,8}".prop_map(Into::into),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::vec(("[a-c]", inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Value> {
    prop::collection::vec(("[a-c]|.{0,4}", value()), 0..4)
        .prop_map(|members| Value::Object(members.into_iter().collect()))
}

/// JSON text of an object, in one of several spellings.
fn json() -> impl Strategy<Value = String> {
    (object(), 0..4).prop_map(|(value, spelling)| match spelling {
        0 => value.to_string(),
        1 => serde_json::to_string_pretty(&value).unwrap(),
        2 => loads(&value.to_string()).unwrap().dumps(),
        // all escaped characters, and spaces before colons
        _ => serde_json::to_string_pretty(&value).unwrap().replace("\": ", "\" : ").replace('é', "\\u00E9"),
    })
}

/// A call in a format whose values are texts.
fn call_with_parameters() -> impl Strategy<Value = (Format, String)> {
    let value = prop_oneof![
        value().prop_map(|value| value.to_string()),
        ".{0,12}",
        "[a-z\n ]{0,20}",
        select(&["1 2", "[1, ", "\"a", "tru", "-", "1.", "{\"a\": 1} b"][..]).prop_map(str::to_owned),
    ];
    let formats = select(&[Format::QwenXml, Format::Glm, Format::MiniMaxM2][..]);
    (prop::collection::vec(("[a-c]| a |", value), 0..4), formats).prop_map(|(parameters, format)| {
        let text = |(key, value): &(String, String)| match format {
            Format::Glm => format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"),
            Format::MiniMaxM2 => format!("<parameter name=\"{key}\">{value}</parameter>\n"),
            _ => format!("<parameter={key}>\n{value}\n</parameter>\n"),
        };
        let parameters: String = parameters.iter().map(text).collect();
        let call = match format {
            Format::Glm => format!("<tool_call>f\n{parameters}</tool_call>"),
            Format::MiniMaxM2 => {
                format!("<minimax:tool_call>\n<invoke name=\"f\">\n{parameters}</invoke>\n</minimax:tool_call>")
            }
            _ => format!("<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>"),
        };
        (format, call)
    })
}

/// A text with one call, and its format.
fn valid_call() -> impl Strategy<Value = (Format, String)> {
    let json =
        (select(CALLS), json()).prop_map(|((format, before, after), json)| (format, format!("{before}{json}{after}")));
    prop_oneof![4 => json, 2 => call_with_parameters()]
}

/// A text with up to three calls, of which parts are removed, inserted or cut off.
fn changed_calls() -> impl Strategy<Value = (Format, String)> {
    let change = (any::<Index>(), 0..6usize, prop::option::of(select(INSERTED)));
    let texts = (valid_call(), prop::collection::vec(valid_call(), 0..3), prop::collection::vec(change, 0..3));
    (texts, any::<bool>(), any::<Index>()).prop_map(|(((format, mut text), others, changes), is_cut, end)| {
        others.iter().filter(|(other, _)| *other == format).for_each(|(_, other)| text.push_str(other));
        for (at, removed, inserted) in changes {
            let boundaries: Vec<usize> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
            let at = at.index(boundaries.len());
            let end = boundaries[(at + removed).min(boundaries.len() - 1)];
            text.replace_range(boundaries[at]..end, inserted.unwrap_or_default());
        }
        if is_cut {
            let boundaries: Vec<usize> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
            text.truncate(*end.get(&boundaries));
        }
        (format, text)
    })
}

/// Checks the order of the events.
fn expect_well_formed(events: &[Event]) -> Result<(), TestCaseError> {
    let mut is_open = false;
    for event in events {
        match event {
            Event::CallStart { name, .. } => {
                prop_assert!(!is_open && !name.is_empty(), "{:?}", events);
                is_open = true;
            }
            Event::Arguments(text) => prop_assert!(is_open && !text.is_empty(), "{:?}", events),
            Event::CallEnd { .. } => prop_assert!(std::mem::take(&mut is_open), "{:?}", events),
            Event::Content(_) | Event::Reasoning(_) => prop_assert!(!is_open, "{:?}", events),
        }
    }
    prop_assert!(!is_open, "{:?}", events);
    Ok(())
}

/// Checks that `message` is the beginning of `whole`.
fn expect_beginning(message: &Message, whole: &Message) -> Result<(), TestCaseError> {
    let reasoning = |message: &Message| message.reasoning.clone().unwrap_or_default();
    prop_assert!(reasoning(whole).starts_with(&reasoning(message)));
    prop_assert!(whole.content.starts_with(&message.content));
    prop_assert!(message.calls.len() <= whole.calls.len());
    for (call, whole) in message.calls.iter().zip(&whole.calls) {
        prop_assert_eq!((&call.name, &call.id), (&whole.name, &whole.id));
        prop_assert!(whole.arguments.starts_with(&call.arguments), "{:?} {:?}", call, whole);
    }
    Ok(())
}

#[test]
fn numbers_with_only_white_space_between_them_stay_apart() {
    let (format, before, after) = CALLS[0];
    for arguments in ["{\"a\": 1 0}", "{\"a\": 1\n\n.5}", "{\"a\": [1 2]}"] {
        let message = parse_pieces(&grammar(format), characters(&format!("{before}{arguments}{after}")));
        let call = &message.calls[0];
        assert!(call.error && loads(&call.arguments).is_err(), "{arguments}: {call:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parts_of_arguments_are_those_of_the_whole_text((format, text) in changed_calls(), at in prop::collection::vec(any::<Index>(), 0..20)) {
        let grammar = grammar(format);
        let whole = grammar.parse(&text);
        for pieces in [cut(&text, &at), characters(&text).collect()] {
            let events: Vec<Event> = call_events(format, &pieces).concat();
            expect_well_formed(&events)?;
            prop_assert_eq!(&events.into_iter().collect::<Message>(), &whole);
        }
    }

    #[test]
    fn events_so_far_are_the_beginning_of_the_message((format, text) in changed_calls()) {
        let grammar = grammar(format);
        let (whole, mut parser, mut events) = (grammar.parse(&text), grammar.stream(), Vec::new());
        for piece in characters(&text) {
            parser.push(piece, &mut events);
            expect_beginning(&events.iter().cloned().collect(), &whole)?;
        }
    }

    #[test]
    fn arguments_of_a_valid_call_are_written_as_json_dumps_writes_them((format, before, after) in select(CALLS), json in json()) {
        if json.contains('<') {
            // it may be a marker, which ends the call also in a string
            return Ok(());
        }
        let text = format!("{before}{json}{after}");
        let message = parse_pieces(&grammar(format), characters(&text));
        let last = message.calls.last().unwrap();
        prop_assert_eq!(&last.arguments, &loads(&json).unwrap().dumps());
        prop_assert!(!last.error && last.name == "f" && message.content.is_empty());
    }

    #[test]
    fn invalid_arguments_keep_their_text((format, before, after) in select(&CALLS[..1]), json in json(), at in any::<Index>(), removed in 0..4usize, inserted in select(&INSERTED[..23])) {
        let text = format!("{json}{}", after.replace("\n</tool_call>", ""));
        let boundaries: Vec<usize> = (1..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
        let at = at.index(boundaries.len());
        let mut changed = text.clone();
        changed.replace_range(boundaries[at]..boundaries[(at + removed).min(boundaries.len() - 1)], inserted);
        if changed.contains('<') {
            return Ok(());
        }
        let message = grammar(format).parse(&format!("{before}{changed}\n</tool_call>"));
        prop_assert_eq!(message.calls.len(), 1);
        let call = &message.calls[0];
        prop_assert_eq!(&call.name, "f");
        if !call.error {
            return Ok(());
        }
        if loads(&call.arguments).is_ok() {
            // the arguments are complete, and the call has lost its last brace
            prop_assert!(loads(&changed).is_ok(), "{}", changed);
            return Ok(());
        }
        expect_no_json(&call.arguments)?;
        // numbers and escapes may have another spelling, and white space between tokens
        if changed.bytes().all(|byte| (b' '..=b'~').contains(&byte) && !byte.is_ascii_digit() && byte != b'\\') {
            let without_space = |text: &str| text.replace(' ', "");
            let (ours, raw) = (without_space(&call.arguments), without_space(&changed));
            // empty arguments before others are not kept
            let raw = raw.strip_prefix("{},\"arguments\":").filter(|_| !ours.starts_with("{}")).unwrap_or(&raw);
            prop_assert!(ours == raw || format!("{ours}}}") == raw, "{} {}", ours, raw);
        }
    }
}
