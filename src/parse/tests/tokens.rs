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
