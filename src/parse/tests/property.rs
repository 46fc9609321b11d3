// SPDX-License-Identifier: Apache-2.0
//! The message does not depend on where the text is cut, and equals that of the reference parser.

use proptest::prelude::*;
use proptest::sample::select;

use super::super::loads::loads;
use super::*;

/// Parts of texts in any format.
const COMMON: &[&str] = &[
    "<think>", "</think>", "<thi", "nk>", "</", "<", "a", " ", "\n", "\u{1f}", "\u{3000}", "ü", "😀", "so ", "0", "{",
    "}", "[", "]", "\"", "\\", ":", ",", "{}", "null", "1e5", "NaN",
];

/// Parts of texts in one format: whole and cut markers and calls.
fn parts(format: Format) -> &'static [&'static str] {
    match format {
        Format::Hermes => &[
            "<tool_call>",
            "</tool_call>",
            "<tool_",
            "call>",
            "</tool_call",
            "{\"name\": \"f\"}",
            "{\"name\":\"f\",\"arguments\":",
            "\"name\"",
            "<tool_call>{\"name\": \"g\", \"arguments\": {\"a\": [1, \"ü\"]}}</tool_call>",
        ],
        Format::QwenXml => &[
            "<tool_call>",
            "</tool_call>",
            "<tool_",
            "call>",
            "<function=f>",
            "<function=",
            "</function>",
            "<parameter=a>",
            ">",
            "</parameter>",
            "<tool_call><function=g><parameter=b>1</parameter></function></tool_call>",
        ],
        Format::Glm => &[
            "<tool_call>",
            "</tool_call>",
            "<tool_",
            "call>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
            "<tool_call>g<arg_key>b</arg_key>\n<arg_value>1</arg_value></tool_call>",
            "<arg_key>c</arg_key><arg_value>",
        ],
        Format::KimiK2 => &[
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            "<|tool_call_begin|>",
            "<|tool_call_end|>",
            "<|tool_call_argument_begin|>",
            "functions.",
            ":0",
            "f",
            "<|tool_calls",
            "_section_begin|>",
            "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{\"a\":1}<|tool_call_end|>",
            "<|tool_call_begin|>functions.h:2<|tool_call_argument_begin|>{\"b\":\"",
            "\"}<|tool_call_end|>",
        ],
        Format::DeepSeek => &[
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁",
            "calls▁begin｜>",
            "function",
            "f\n```json\n",
            "\n```",
            "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{\"a\":1}<｜tool▁call▁end｜>",
        ],
        Format::Llama3 => &[
            "<|python_tag|>",
            "<|python",
            "_tag|>",
            ";",
            "{\"name\": \"f\", \"parameters\": {}}",
            "{\"name\":",
            "\"arguments\":",
            "{\"name\": \"g\", \"arguments\": {\"a\": \"};\"}}",
        ],
        Format::Pythonic => &[
            "<|python_start|>",
            "<|python_end|>",
            "<|python",
            "[f(",
            ")]",
            "(",
            ")",
            "a=",
            "'",
            "f()",
            "[g(a=1), h(b=[{'c': None}])]",
        ],
        Format::Mistral => &[
            "[TOOL_CALLS]",
            "[TOOL_",
            "CALLS]",
            "[ARGS]",
            "[CALL_ID]",
            "f",
            "[{",
            "}]",
            "[{\"name\": \"f\"}]",
            "[TOOL_CALLS]g[ARGS]{\"a\":1}",
        ],
        Format::MiniMaxM2 => &[
            "<minimax:tool_call>",
            "</minimax:tool_call>",
            "<minimax:",
            "tool_call>",
            "<invoke name=\"f\">",
            "<invoke",
            " name=\"",
            "\">",
            "/>",
            "</invoke>",
            "<parameter name=\"a\">",
            "</parameter>",
            "<minimax:tool_call><invoke name=\"g\"><parameter name=\"b\">1</parameter></invoke>",
        ],
        Format::DeepSeekV32 => &[
            "<｜DSML｜function_calls>",
            "</｜DSML｜function_calls>",
            "<｜DSML｜",
            "</｜DSML｜",
            "invoke>",
            "<｜DSML｜invoke name=\"f\">",
            "<｜DSML｜parameter name=\"a\" string=\"true\">",
            "<｜DSML｜parameter name=\"a\" string=\"false\">",
            "</｜DSML｜parameter>",
            "</｜DSML｜invoke>",
        ],
        Format::DeepSeekV4 => &[
            "<｜DSML｜tool_calls>",
            "</｜DSML｜tool_calls>",
            "<｜DSML｜invoke name=\"f\"/>",
            "<｜DSML｜invoke name=\"f\">",
            "<｜DSML｜parameter name=\"a\" string=\"true\">",
            "</｜DSML｜parameter>",
            "</｜DSML｜invoke>",
        ],
    }
}

fn text(format: Format, length: usize) -> impl Strategy<Value = String> {
    let part = prop_oneof![2 => select(COMMON), 3 => select(parts(format))];
    prop::collection::vec(part, 0..length).prop_map(|parts| parts.concat())
}

fn any_grammar(formats: &'static [Format]) -> impl Strategy<Value = (Grammar, Format)> {
    (select(formats), 0..6, any::<bool>()).prop_map(|(format, kind, opened)| {
        let think = (kind != 0).then(Think::default);
        (
            Grammar { format: (kind != 1).then_some(format), think, opened: opened && kind < 4, ..Grammar::default() },
            format,
        )
    })
}

fn grammar_and_text(formats: &'static [Format], length: usize) -> impl Strategy<Value = (Grammar, String)> {
    any_grammar(formats).prop_flat_map(move |(grammar, format)| (Just(grammar), text(format, length)))
}

/// The pieces of `text`, cut at these character boundaries.
pub(super) fn cut<'a>(text: &'a str, at: &[prop::sample::Index]) -> Vec<&'a str> {
    let boundaries: Vec<usize> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
    let mut cuts: Vec<usize> = at.iter().map(|at| *at.get(&boundaries)).chain([0, text.len()]).collect();
    cuts.sort_unstable();
    cuts.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect()
}

/// Checks the arguments of an invalid call that has started.
pub(super) fn expect_no_json(arguments: &str) -> Result<(), TestCaseError> {
    prop_assert!(arguments.starts_with('{'), "{}", arguments);
    prop_assert!(loads(arguments).is_err(), "{} is JSON", arguments);
    prop_assert!(serde_json::from_str::<serde_json::Value>(arguments).is_err(), "{} is JSON", arguments);
    Ok(())
}

const STRANDS_FORMATS: &[Format] = &[Format::Hermes, Format::QwenXml, Format::Glm, Format::KimiK2];

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn message_equals_that_of_the_reference_parser((grammar, text) in grammar_and_text(STRANDS_FORMATS, 14)) {
        let start = text.find("<tool_call>").or_else(|| text.find("<|tool_calls_section_begin|>"));
        let is_in_string = |start: usize| text[start..].split_once('"').is_some_and(|(_, rest)| rest.contains("<think>"));
        if matches!(grammar.format, Some(Format::Hermes | Format::KimiK2)) && start.is_some_and(is_in_string) {
            return Ok(());
        }
        let (mut parsed, expected) = (grammar.parse(&text), oracle::message(&grammar, &text));
        for (call, expected) in parsed.calls.iter_mut().zip(&expected.calls) {
            if call.error && expected.arguments == oracle::STARTED {
                expect_no_json(&call.arguments)?;
                call.arguments.clone_from(&expected.arguments);
            }
        }
        prop_assert_eq!(parsed, expected);
    }

    #[test]
    fn message_does_not_depend_on_one_cut((grammar, text) in grammar_and_text(&Format::ALL, 6)) {
        let whole = grammar.parse(&text);
        prop_assert_eq!(&parse_pieces(&grammar, characters(&text)), &whole);
        for (at, _) in text.char_indices() {
            prop_assert_eq!(&parse_pieces(&grammar, [&text[..at], &text[at..]]), &whole, "cut at {}", at);
        }
    }

    #[test]
    fn message_of_a_long_text_does_not_depend_on_its_cuts(
        (grammar, text) in grammar_and_text(&Format::ALL, 60),
        at in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let whole = grammar.parse(&text);
        prop_assert_eq!(&parse_pieces(&grammar, characters(&text)), &whole);
        prop_assert_eq!(&parse_pieces(&grammar, cut(&text, &at)), &whole);
    }

    #[test]
    fn no_text_panics((grammar, _) in any_grammar(&Format::ALL), text in prop_oneof![any::<String>(), "\\PC*"], prefix in 0..12usize) {
        let format = grammar.format.unwrap_or(Format::Hermes);
        let text = format!("{}{text}", parts(format).get(prefix).unwrap_or(&""));
        prop_assert_eq!(parse_pieces(&grammar, characters(&text)), grammar.parse(&text));
    }

    #[test]
    fn arguments_of_valid_calls_are_an_object((grammar, text) in grammar_and_text(&Format::ALL, 14)) {
        for call in grammar.parse(&text).calls {
            prop_assert!(!call.name.is_empty());
            let is_exempt = call.error || call.arguments.contains("NaN");
            let object = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&call.arguments).is_ok();
            prop_assert!(is_exempt || object, "{:?}", call);
        }
    }
}

/// Parses all texts of `LENGTH` of these characters, each cut in all ways.
#[test]
fn message_of_a_short_text_does_not_depend_on_its_cuts() {
    const LENGTH: usize = 6;
    let grammar = Grammar { think: Some(Think { start: "<a".into(), end: "a>".into() }), ..grammar(Format::Llama3) };
    let letters = ["<", "a", ">", " ", "{", "}"];
    for number in 0..letters.len().pow(LENGTH as u32) {
        let text: String =
            (0..LENGTH).map(|at| letters[number / letters.len().pow(at as u32) % letters.len()]).collect();
        let whole = grammar.parse(&text);
        for split in 1..1 << (LENGTH - 1) {
            let mut ends: Vec<usize> = (1..LENGTH).filter(|at| split >> (at - 1) & 1 == 1).collect();
            ends.push(LENGTH);
            let mut start = 0;
            let pieces: Vec<&str> = ends.iter().map(|end| &text[std::mem::replace(&mut start, *end)..*end]).collect();
            assert_eq!(parse_pieces(&grammar, pieces.iter().copied()), whole, "{pieces:?}");
        }
    }
}
