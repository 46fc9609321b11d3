// SPDX-License-Identifier: Apache-2.0
//! Markers that have a token are distinguished from equal text in other tokens.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// A grammar whose markers all have tokens.
fn with_tokens(format: Format) -> Grammar {
    let grammar = grammar(format);
    let tokens: Arc<[Box<str>]> = grammar.markers().map(Box::from).collect();
    Grammar { tokens, ..grammar }
}

/// A part of a sampled text.
#[derive(Debug, Clone, Copy)]
enum Part {
    Text(&'static str),
    Token(&'static str),
}
use Part::{Text, Token};

/// The message of these parts. Texts arrive as a whole, or one character at a time.
fn message(grammar: &Grammar, parts: &[Part], in_characters: bool) -> Message {
    let (mut parser, mut events) = (grammar.stream(), Vec::new());
    for part in parts {
        match part {
            Text(text) if in_characters => characters(text).for_each(|piece| parser.push(piece, &mut events)),
            Text(text) => parser.push(text, &mut events),
            Token(marker) => parser.push_token(marker, &mut events),
        }
    }
    parser.finish(&mut events);
    events.into_iter().collect()
}

#[test]
fn text_that_looks_like_a_marker_is_text() {
    let called = |arguments: &str| Message { calls: vec![call("f", arguments)], ..Message::default() };
    let content = |content: &str| Message { content: content.to_owned(), ..Message::default() };
    let table: &[(Format, &[Part], Message)] = &[
        (
            Format::Hermes,
            &[
                Token("<tool_call>"),
                Text("{\"name\": \"f\", \"arguments\": {\"a\": \"x </tool_call> <think> y\"}}"),
                Token("</tool_call>"),
            ],
            called(r#"{"a": "x </tool_call> <think> y"}"#),
        ),
        (
            Format::Hermes,
            &[Token("<tool_call>"), Text("{\"name\": \"f\", x</tool_call>"), Token("</tool_call>")],
            Message { calls: vec![error("f", "{\"name\": \"f\", x</tool_call>")], ..Message::default() },
        ),
        (
            Format::QwenXml,
            &[
                Token("<tool_call>"),
                Text("<function=f><parameter=a>x </tool_call> <think>y</think></parameter></function>"),
                Token("</tool_call>"),
            ],
            called(r#"{"a": "x </tool_call> <think>y</think>"}"#),
        ),
        (
            Format::Glm,
            &[
                Token("<tool_call>"),
                Text("f"),
                Token("<arg_key>"),
                Text("a"),
                Token("</arg_key>"),
                Token("<arg_value>"),
                Text("[\"</arg_value>\"]"),
                Token("</arg_value>"),
                Token("</tool_call>"),
            ],
            called(r#"{"a": ["</arg_value>"]}"#),
        ),
        (
            Format::DeepSeekV4,
            &[
                Text("<"),
                Token("｜DSML｜"),
                Text("tool_calls>\n<"),
                Token("｜DSML｜"),
                Text("invoke name=\"f\"><"),
                Token("｜DSML｜"),
                Text("parameter name=\"a\" string=\"true\">x </｜DSML｜parameter> <think> </"),
                Token("｜DSML｜"),
                Text("parameter></"),
                Token("｜DSML｜"),
                Text("invoke></"),
                Token("｜DSML｜"),
                Text("tool_calls>"),
            ],
            called(r#"{"a": "x </\uff5cDSML\uff5cparameter> <think> "}"#),
        ),
        (
            Format::MiniMaxM2,
            &[
                Token("<minimax:tool_call>"),
                Text(
                    "<invoke name=\"f\"><parameter name=\"a\">x </minimax:tool_call> <think>y</think></parameter></invoke>",
                ),
                Token("</minimax:tool_call>"),
            ],
            called(r#"{"a": "x </minimax:tool_call> <think>y</think>"}"#),
        ),
        (
            Format::Hermes,
            &[Text("<tool_call>{\"name\": \"f\"}</tool_call>")],
            content("<tool_call>{\"name\": \"f\"}</tool_call>"),
        ),
        (Format::Mistral, &[Text("[TOOL_CALLS]f[ARGS]{} ")], content("[TOOL_CALLS]f[ARGS]{} ")),
        (Format::Hermes, &[Text("a <tool"), Text("_call> b <tool_")], content("a <tool_call> b <tool_")),
        (
            Format::Hermes,
            &[Token("<think>"), Text("so </think> on <tool_"), Token("</think>"), Text("a<th")],
            Message { reasoning: Some("so </think> on <tool_".to_owned()), content: "a<th".to_owned(), calls: vec![] },
        ),
        // the character of which marks consist is text where it was sampled, also beside a mark and in Python strings
        (
            Format::Hermes,
            &[
                Text("\u{fdd0}<tool_call>\u{fdd1}\u{fdd0}\u{fdd0}"),
                Token("<tool_call>"),
                Text("{\"name\": \"f\", \"arguments\": {\"a\": \"\u{fdd0}<think>\u{fdd0}\u{fdd0}\"}}"),
                Token("</tool_call>"),
            ],
            Message {
                content: "\u{fdd0}<tool_call>\u{fdd1}\u{fdd0}\u{fdd0}".to_owned(),
                ..called(r#"{"a": "\ufdd0<think>\ufdd0\ufdd0"}"#)
            },
        ),
        (
            Format::Pythonic,
            &[Text("[f(a='\u{fdd0}<think>\\\u{fdd0}', b=r'\\\u{fdd0}<think>')]")],
            called(r#"{"a": "\ufdd0<think>\\\ufdd0", "b": "\\\ufdd0<think>"}"#),
        ),
        // a span after an end marker in a string without an end
        (
            Format::Hermes,
            &[
                Token("<tool_call>"),
                Text("{\"name\": \"f\", \"arguments\": {\"q\": \"abc}}"),
                Token("</tool_call>"),
                Token("<think>"),
                Text("hm"),
                Token("</think>"),
                Text("Done."),
            ],
            Message {
                reasoning: Some("hm".to_owned()),
                content: "Done.".to_owned(),
                calls: vec![error("f", "{\"q\": \"abc}}")],
            },
        ),
    ];
    for (format, parts, expected) in table {
        for in_characters in [false, true] {
            assert_eq!(message(&with_tokens(*format), parts, in_characters), *expected, "{parts:?}");
        }
    }
}

#[test]
fn end_marker_that_is_sampled_in_a_string_is_text() {
    const KIMI: &str = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>";
    let with_id = |id: &str, call: ToolCall| ToolCall { id: Some(id.to_owned()), ..call };
    let xml = |value: &str| format!("<tool_call><function=f><parameter=a>{value}</parameter></function></tool_call>");
    let pair = |value: &str| format!("<arg_key>a</arg_key><arg_value>{value}</arg_value></tool_call>");
    let glm = |value: &str| format!("<tool_call>f{}", pair(value));
    let kimi = |arguments: &str| {
        format!("<|tool_calls_section_begin|>{KIMI}{arguments}<|tool_call_end|><|tool_calls_section_end|>")
    };
    let deepseek = |arguments: &str| {
        format!(
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        )
    };
    let id = "functions.f:0";
    let table: Vec<(Format, String, &str, Vec<ToolCall>)> = vec![
        (
            Format::QwenXml,
            xml("x </tool_call> y </tool_call>"),
            "",
            vec![call("f", r#"{"a": "x </tool_call> y </tool_call>"}"#)],
        ),
        (
            Format::QwenXml,
            xml("x <tool_call> </tool_call>\n"),
            "",
            vec![call("f", r#"{"a": "x <tool_call> </tool_call>"}"#)],
        ),
        // the value has no end: the marker ends the call, and the next call is found
        (
            Format::QwenXml,
            format!("<tool_call><function=f><parameter=a>x</tool_call>{}", xml("y")),
            "",
            vec![error("f", r#"{"a": "x"#), call("f", r#"{"a": "y"}"#)],
        ),
        (
            Format::QwenXml,
            "<tool_call><function=f><parameter=a>x</tool_call> so".to_owned(),
            "so",
            vec![error("f", r#"{"a": "x"#)],
        ),
        (Format::Glm, glm("x </tool_call> y"), "", vec![call("f", r#"{"a": "x </tool_call> y"}"#)]),
        (
            Format::Glm,
            format!("<tool_call>f<arg_key>a</arg_key><arg_value>[1</tool_call><tool_call>f{}", pair("2")),
            "",
            vec![error("f", r#"{"a": [1"#), call("f", r#"{"a": 2}"#)],
        ),
        (
            Format::KimiK2,
            kimi(r#"{"a": "x <|tool_call_end|> <|tool_calls_section_end|> y"}"#),
            "",
            vec![with_id(id, call("f", r#"{"a": "x <|tool_call_end|> <|tool_calls_section_end|> y"}"#))],
        ),
        (
            Format::KimiK2,
            kimi(&format!("{{\"a\": \"x}}<|tool_call_end|>{KIMI}{{\"a\": \"y\"}}")),
            "",
            vec![with_id(id, error("f", r#"{"a": "x}"#)), with_id(id, call("f", r#"{"a": "y"}"#))],
        ),
        (Format::KimiK2, format!("{} so", kimi("{\"a\": \"x}")), "so", vec![with_id(id, error("f", r#"{"a": "x}"#))]),
        (
            Format::DeepSeek,
            deepseek(r#"{"a": "x <｜tool▁call▁end｜> <｜tool▁calls▁end｜> y"}"#),
            "",
            vec![call(
                "f",
                r#"{"a": "x <\uff5ctool\u2581call\u2581end\uff5c> <\uff5ctool\u2581calls\u2581end\uff5c> y"}"#,
            )],
        ),
    ];
    for (format, text, content, calls) in table {
        let expected = Message { reasoning: None, content: content.to_owned(), calls };
        let types = Some(Arc::default());
        // each marker is its token where the vocabulary has one, and otherwise text
        assert_message(&Grammar { parameters: types, ..grammar(format) }, &text, &expected);
    }
    // a think start after the marker ends the call
    let parts = [
        Token("<tool_call>"),
        Text("<function=f><parameter=a>x"),
        Token("</tool_call>"),
        Token("<think>"),
        Text("hm"),
        Token("</think>"),
        Text("So."),
    ];
    let grammar = Grammar { parameters: Some(Arc::default()), ..with_tokens(Format::QwenXml) };
    for in_characters in [false, true] {
        let found = message(&grammar, &parts, in_characters);
        assert_eq!((found.reasoning.as_deref(), &*found.content), (Some("hm"), "So."));
        assert_eq!(found.calls, [error("f", r#"{"a": "x"#)]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn message_does_not_depend_on_the_pieces_between_tokens(
        format in select(&Format::ALL[..]),
        parts in prop::collection::vec((any::<bool>(), select(&["<tool_call>", "</tool_call>", "<think>", "</think>", "<arg_key>", "<", "<tool_", "call>", "{\"name\": \"f\", \"arguments\": {\"a\": \"", "\"}}", "x", " ", "\n", "[TOOL_CALLS]", "f[ARGS]", "{}"][..])), 0..12),
    ) {
        let grammar = with_tokens(format);
        let is_token = |text: &str| grammar.tokens.iter().any(|token| &**token == text);
        let parts: Vec<Part> =
            parts.into_iter().map(|(token, text)| if token && is_token(text) { Token(text) } else { Text(text) }).collect();
        let whole = message(&grammar, &parts, false);
        prop_assert_eq!(&message(&grammar, &parts, true), &whole);
        // nothing but tokens can be a marker
        if parts.iter().all(|part| matches!(part, Text(_))) && !matches!(format, Format::Llama3 | Format::Pythonic) {
            prop_assert!(whole.calls.is_empty() && whole.reasoning.is_none());
        }
    }
}
