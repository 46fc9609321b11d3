// SPDX-License-Identifier: Apache-2.0
//! Which text is reasoning, and which is content or a call.

use super::*;

/// A call in the format `hermes`.
const F: &str = "<tool_call>{\"name\": \"f\"}</tool_call>";

fn message(reasoning: &str, content: &str, calls: usize) -> Message {
    Message {
        reasoning: (!reasoning.is_empty()).then(|| reasoning.to_owned()),
        content: content.to_owned(),
        calls: vec![call("f", "{}"); calls],
    }
}

#[test]
fn spans_of_the_model_are_reasoning() {
    let table = [
        ("answer".to_owned(), message("", "answer", 0)),
        ("<think>\nhm\n</think>\n\nanswer\n".to_owned(), message("hm", "answer", 0)),
        ("<think> \n </think>answer".to_owned(), message("", "answer", 0)),
        ("a <think>b</think> c<think>\td\n\ne </think>f".to_owned(), message("b\nd\n\ne", "a  cf", 0)),
        ("<think>a</think><think> </think><think>b</think>".to_owned(), message("a\nb", "", 0)),
        ("<think>a<think>b</think>c</think>d".to_owned(), message("a<think>b", "c</think>d", 0)),
        // a think end outside a span is text
        (" a</think>b ".to_owned(), message("", " a</think>b ", 0)),
        // calls inside a closed span are reasoning; a span inside a call is removed from the call
        (format!("<think>{F}</think>{F}"), message(F, "", 1)),
        (format!("<think>{}</think>", &F[..19]), message(&F[..19], "", 0)),
        ("<tool_call>{\"name\": <think>\"g\"</think>\"f\"}</tool_call>".to_owned(), message("\"g\"", "", 1)),
        (format!("<tool_<think>a</think>{}", &F[6..]), message("a", "", 1)),
        ("<tool_<think>a</think>x ".to_owned(), message("a", "<tool_x", 0)),
        ("\n<tool_<think>a</think>x ".to_owned(), message("a", "\n<tool_x", 0)),
        (format!("\n<think>a</think>{F}b"), message("a", "b", 1)),
        // without a think end: the text is reasoning, and calls in it are emitted
        ("a <think>b\n".to_owned(), message("b", "a", 0)),
        (format!("a <think>b {F} c"), message(&format!("b {F} c"), "a", 1)),
        (format!("{F}<think>b {F}"), message(&format!("b {F}"), "", 2)),
        (format!("<think>a</think>b<think>c{F}"), message(&format!("a\nc{F}"), "b", 1)),
        (format!("<think>a {}", &F[..19]), message(&format!("a {}", &F[..19]), "", 0)),
        ("<think>".to_owned(), message("", "", 0)),
        ("a <thin".to_owned(), message("", "a <thin", 0)),
        // without a think end inside a call: the think start is text of the call
        ("<tool_call>{\"name\": \"f\", \"x\": \"<think>\"}</tool_call> so".to_owned(), message("", "so", 1)),
        ("a <tool_call>b <think>c ".to_owned(), message("", "a <tool_call>b <think>c ", 0)),
    ];
    for (text, expected) in table {
        assert_message(&grammar(Format::Hermes), &text, &expected);
    }
}

#[test]
fn span_of_the_prompt_is_reasoning_without_calls() {
    let table = [
        ("hm</think>\n\nanswer\n".to_owned(), message("hm", "answer", 0)),
        ("hm\n</think>".to_owned(), message("hm", "", 0)),
        ("</think>answer".to_owned(), message("", "answer", 0)),
        (format!("{F}</think>{F}"), message(F, "", 1)),
        (format!("hm</think>a<think>b</think>c{F}"), message("hm\nb", "ac", 1)),
        // without a think end: all reasoning, no calls
        (format!("hm {F}"), message(&format!("hm {F}"), "", 0)),
        ("hm </thi".to_owned(), message("hm </thi", "", 0)),
        ("<thi".to_owned(), message("<thi", "", 0)),
        // the model repeats the think start
        (" \n<think>\nhm</think>answer".to_owned(), message("hm", "answer", 0)),
        ("a <think>hm</think>answer".to_owned(), message("a <think>hm", "answer", 0)),
        (format!("<think>{F}"), message(F, "", 0)),
        (String::new(), message("", "", 0)),
    ];
    for (text, expected) in table {
        assert_message(&Grammar { opened: true, ..grammar(Format::Hermes) }, &text, &expected);
    }
}

#[test]
fn end_marker_in_an_unfinished_string_ends_a_call_of_an_open_span() {
    let table = [
        (Format::Hermes, r#"<tool_call>{"name": "f", "arguments": {"a": "x</tool_call> y"#.to_owned()),
        (Format::QwenXml, "<tool_call><function=f><parameter=a>x</tool_call> y".to_owned()),
        (Format::Glm, "<tool_call>f<arg_key>a</arg_key><arg_value>x</tool_call> y".to_owned()),
        (Format::KimiK2, kimi_k2_section(r#"{"a": "x<|tool_call_end|> y"#)),
        (Format::KimiK2, kimi_k2_section(r#"{"a": "x<|tool_calls_section_end|> y"#)),
    ];
    for (format, text) in table {
        let Message { calls, .. } = grammar(format).parse(&text);
        assert!(calls.len() == 1 && calls[0].error, "{text}: {calls:?}");
        assert_message(&grammar(format), &format!("<think>{text}"), &Message { calls, ..message(&text, "", 0) });
    }
}

/// A section with one call, which has these arguments.
fn kimi_k2_section(arguments: &str) -> String {
    format!("<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{arguments}")
}

#[test]
fn missing_parts_of_a_grammar_are_not_parsed() {
    let text = format!(" <think>a</think> {F} ");
    let only_thinking = Grammar { format: None, ..grammar(Format::Hermes) };
    assert_message(&only_thinking, &text, &message("a", F, 0));
    let only_calls = Grammar { think: None, ..grammar(Format::Hermes) };
    assert_message(&only_calls, &text, &message("", " <think>a</think>", 1));
    let neither = Grammar { opened: true, ..Grammar::default() };
    assert_message(&neither, &text, &message("", &text, 0));
}

#[test]
fn custom_think_markers_are_parsed() {
    let think = Think { start: "[THINK]".to_owned(), end: "[/THINK]".to_owned() };
    let grammar = Grammar { think: Some(think), ..grammar(Format::Mistral) };
    assert_message(&grammar, "[THINK]a[/THINK]b[TOOL_CALLS]f[ARGS]{}", &message("a", "b", 1));
    let empty = Grammar { think: Some(Think { start: String::new(), end: String::new() }), ..grammar.clone() };
    assert_message(&empty, " <think>a", &message("", " <think>a", 0));
    assert_message(&Grammar { opened: true, ..empty }, " <think>a", &message("<think>a", "", 0));
}

#[test]
fn calls_without_a_marker_are_parsed_after_a_span() {
    for (format, text) in [(Format::Llama3, r#"{"name": "f", "parameters": {}}"#), (Format::Pythonic, "[f()]")] {
        assert_message(&grammar(format), &format!("<think>a</think>\n{text}"), &message("a", "", 1));
        assert_message(&grammar(format), &format!("<think>{text}"), &message(text, "", 0));
        let (begun, rest) = text.split_at(1);
        assert_message(&grammar(format), &format!("{begun}<think>a</think>{rest}"), &message("a", "", 1));
    }
}

#[test]
fn think_start_in_a_string_of_python_is_text() {
    let table = [
        (r#"[f(q="<think> hm </think>")]"#, r#"{"q": "<think> hm </think>"}"#, ""),
        (r#"[f(q='it\'s <think>')]"#, r#"{"q": "it's <think>"}"#, ""),
        ("[f(q=\"\"\"\"a\"\n<think>\\\"\"\"\")]", r#"{"q": "\"a\"\n<think>\""}"#, ""),
        (r#"[f(q="", r='')<think>hm</think>]"#, r#"{"q": "", "r": ""}"#, "hm"),
        (r#"[f(q=""<think>hm</think>)]"#, r#"{"q": ""}"#, "hm"),
        (r#"[f(q="""""", r="a")<think>hm</think>]"#, r#"{"q": "", "r": "a"}"#, "hm"),
    ];
    for (text, arguments, reasoning) in table {
        let expected = Message { calls: vec![call("f", arguments)], ..message(reasoning, "", 0) };
        assert_message(&grammar(Format::Pythonic), text, &expected);
    }
}
