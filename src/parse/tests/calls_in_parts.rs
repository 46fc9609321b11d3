// SPDX-License-Identifier: Apache-2.0
//! Calls that are emitted in parts: the parts of the arguments, and calls that become invalid or are cut off.

use super::*;

/// The events of each piece without those of content, and those of the end of the text.
pub(super) fn call_events(format: Format, pieces: &[&str]) -> Vec<Vec<Event>> {
    let (grammar, mut all) = (grammar(format), Vec::new());
    let mut parser = grammar.stream();
    for piece in pieces {
        let mut events = Vec::new();
        parser.push(piece, &mut events);
        all.push(events);
    }
    let mut last = Vec::new();
    parser.finish(&mut last);
    all.push(last);
    all
}

fn start(name: &str) -> Event {
    Event::CallStart { name: name.to_owned(), id: None }
}

fn arguments(text: &str) -> Event {
    Event::Arguments(text.to_owned())
}

const END: Event = Event::CallEnd { error: false };
const INVALID: Event = Event::CallEnd { error: true };

#[track_caller]
fn assert_parts(format: Format, parts: &[(&str, &[Event])]) {
    let (pieces, mut expected): (Vec<&str>, Vec<Vec<Event>>) =
        parts.iter().map(|(piece, events)| (*piece, events.to_vec())).unzip();
    if pieces.last() == Some(&"") {
        // the end of the text
        let events = call_events(format, &pieces[..pieces.len() - 1]);
        assert_eq!(events, expected, "{format}");
    } else {
        expected.push(Vec::new());
        assert_eq!(call_events(format, &pieces), expected, "{format}");
    }
}

#[test]
fn hermes_call_starts_at_its_arguments_and_is_emitted_in_parts() {
    assert_parts(
        Format::Hermes,
        &[
            ("<tool_call>\n{\"name\": \"f\", \"argu", &[]),
            ("ments\": ", &[]),
            ("{", &[start("f"), arguments("{")]),
            ("\"city\":\"Trom", &[arguments("\"city\": \"Trom")]),
            ("sø\\", &[arguments("s\\u00f8")]),
            ("u00", &[]),
            ("e9", &[arguments("\\u00e9")]),
            ("\",\"days\":1", &[arguments("\", \"days\": ")]),
            ("2", &[]),
            (".50, \"x\": tr", &[arguments("12.5, \"x\": ")]),
            ("ue", &[arguments("true")]),
            ("}", &[]),
            ("}\n</tool_", &[]),
            ("call>", &[arguments("}"), END]),
        ],
    );
}

#[test]
fn qwen_xml_call_starts_at_its_name_and_strings_are_emitted_in_parts() {
    assert_parts(
        Format::QwenXml,
        &[
            ("<tool_call>\n<function=", &[]),
            ("f", &[]),
            (">\n<parameter=a>", &[start("f"), arguments("{\"a\": ")]),
            ("\nThe l", &[arguments("\"The l")]),
            ("ight \"", &[arguments("ight \\\"")]),
            ("goes\n", &[arguments("goes")]),
            ("\nfar </par", &[arguments("\\n\\nfar")]),
            ("ameter>\n<parameter=b>1", &[arguments("\", \"b\": ")]),
            ("2", &[]),
            ("</parameter>", &[arguments("12")]),
            ("<parameter=c>[1, ", &[arguments(", \"c\": ")]),
            ("2] and", &[arguments("\"[1, 2] and")]),
            ("</parameter></function>", &[arguments("\"")]),
            ("</tool_call>", &[arguments("}"), END]),
        ],
    );
}

#[test]
fn glm_call_starts_at_its_first_key_and_strings_are_emitted_in_parts() {
    assert_parts(
        Format::Glm,
        &[
            ("<tool_call>f\n<arg_", &[]),
            ("key>", &[start("f"), arguments("{")]),
            ("a</arg_key>\n<arg", &[]),
            ("_value>The l", &[arguments("\"a\": \"The l")]),
            ("ight\n</arg_value><arg_key>b</arg_key><arg_value>1", &[arguments("ight\", \"b\": ")]),
            ("2</arg_value>\n", &[arguments("12")]),
            ("</tool_call>", &[arguments("}"), END]),
        ],
    );
    assert_parts(Format::Glm, &[("<tool_call>f</tool_call", &[]), (">", &[start("f"), arguments("{}"), END])]);
}

#[test]
fn minimax_call_starts_at_its_name_and_values_are_emitted_in_parts() {
    assert_parts(
        Format::MiniMaxM2,
        &[
            ("<minimax:tool_call>\n<invoke name=\"f", &[]),
            ("\">", &[start("f"), arguments("{")]),
            ("\n<parameter name=\"a\"", &[]),
            (">The l", &[arguments("\"a\": \"The l")]),
            ("ight \"</par", &[arguments("ight \\\"")]),
            ("a</invoke>", &[arguments("</para")]),
            ("b</parameter>", &[arguments("</invoke>b\"")]),
            ("</invoke>\n", &[arguments("}"), END]),
            ("<invoke name=\"g\">", &[start("g"), arguments("{")]),
            ("</invoke>", &[arguments("}"), END]),
            ("</minimax:tool_call>", &[]),
        ],
    );
}

#[test]
fn calls_of_other_formats_start_at_their_arguments() {
    let id = |name: &str, id: &str| Event::CallStart { name: name.to_owned(), id: Some(id.to_owned()) };
    assert_parts(
        Format::KimiK2,
        &[
            ("<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>", &[]),
            ("{\"a\"", &[id("f", "functions.f:0"), arguments("{\"a\"")]),
            (":1}", &[arguments(": 1")]),
            ("<|tool_call_end|>", &[arguments("}"), END]),
            (
                "<|tool_call_begin|>g<|tool_call_argument_begin|>[]<|tool_call_end|>",
                &[id("g", "g"), arguments("[]"), INVALID],
            ),
            ("<|tool_calls_section_end|>", &[]),
        ],
    );
    assert_parts(
        Format::DeepSeek,
        &[
            ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n", &[]),
            ("{\"a\"", &[start("f"), arguments("{\"a\"")]),
            (":1}\n``", &[arguments(": 1")]),
            ("`<｜tool▁call▁end｜>", &[arguments("}"), END]),
            ("<｜tool▁call▁begin｜>g<｜tool▁sep｜>{", &[start("g"), arguments("{")]),
            ("}<｜tool▁call▁end｜>", &[arguments("}"), END]),
            ("<｜tool▁calls▁end｜>", &[]),
        ],
    );
    assert_parts(
        Format::Llama3,
        &[
            ("<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\"", &[start("f"), arguments("{\"a\"")]),
            (":1}", &[arguments(": 1")]),
            ("}", &[arguments("}"), END]),
            ("; {\"name\": \"g\"}", &[start("g"), arguments("{}"), END]),
        ],
    );
    assert_parts(
        Format::Mistral,
        &[
            ("[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]", &[]),
            ("{\"a\"", &[id("f", "abc123def"), arguments("{\"a\"")]),
            (":1}", &[arguments(": 1}"), END]),
        ],
    );
}

#[test]
fn calls_that_cannot_be_emitted_in_parts_are_emitted_at_their_end() {
    let whole = |text: &str| [start("f"), arguments(text), END];
    let id = Event::CallStart { name: "f".into(), id: Some("abc123def".into()) };
    let a = whole("{\"a\": 1}");
    assert_parts(
        Format::Hermes,
        &[("<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call", &[]), (">", &a)],
    );
    assert_parts(Format::Pythonic, &[("[f(a=1)]", &[]), ("", &a)]);
    assert_parts(Format::Llama3, &[("{\"name\": \"f\", \"parameters\": {\"a\": 1}}", &[]), ("", &a)]);
    assert_parts(
        Format::Mistral,
        &[
            ("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"abc123def\"}", &[]),
            ("]", &[id, arguments("{\"a\": 1}"), END]),
        ],
    );
}

#[test]
fn invalid_call_ends_with_its_raw_text() {
    assert_parts(
        Format::Hermes,
        &[
            ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\":1, b", &[start("f"), arguments("{\"a\": 1, ")]),
            (": 2}}</tool_call>", &[arguments("b: 2}}"), INVALID]),
        ],
    );
    assert_parts(
        Format::Hermes,
        &[
            ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\":\"x", &[start("f"), arguments("{\"a\": \"x")]),
            ("\"}", &[arguments("\"")]),
            ("", &[INVALID]),
        ],
    );
    // text that exceeds a limit is valid for other parsers, so it is left out
    let number = "9".repeat(4301);
    let text = format!("<tool_call>{{\"name\": \"f\", \"arguments\": {{\"a\": {number}}}</tool_call>");
    assert_calls(Format::Hermes, &text, "", &[error("f", "{\"a\": ")]);
    let deep = format!("{{\"a\": {}1{}", "[".repeat(127), "]".repeat(127));
    assert_calls(Format::Mistral, &format!("[TOOL_CALLS]f[ARGS]{deep}}}"), "", &[call("f", &format!("{deep}}}"))]);
    let too_deep = format!("{{\"a\": [{}1]{}}}", "[".repeat(127), "]".repeat(127));
    let read = format!("{{\"a\": {}", "[".repeat(127));
    assert_calls(Format::Mistral, &format!("[TOOL_CALLS]f[ARGS]{too_deep}"), "", &[error("f", &read)]);
}

#[test]
fn span_in_a_started_call_is_emitted_after_the_call() {
    let reasoning = Event::Reasoning("hm".to_owned());
    assert_parts(
        Format::Hermes,
        &[
            ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ", &[start("f"), arguments("{\"a\": ")]),
            ("<think>hm</think>\"x", &[arguments("\"x")]),
            ("\"}}</tool_call>", &[arguments("\"}"), END, reasoning]),
        ],
    );
    // the think start is text of the call if the span is not closed
    assert_parts(
        Format::Hermes,
        &[
            ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ", &[start("f"), arguments("{\"a\": ")]),
            ("<think>\"hm\"}}</tool_call>", &[]),
            ("", &[arguments("<think>\"hm\"}}"), INVALID]),
        ],
    );
}

#[test]
fn string_that_contains_a_marker_is_emitted_when_its_end_is_certain() {
    assert_parts(
        Format::Hermes,
        &[
            ("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x", &[start("f"), arguments("{\"a\": \"x")]),
            ("<think>y</tool_call>", &[arguments("<think>y")]),
            ("z\" ", &[]),
            (", \"b\"", &[arguments("</tool_call>z\", \"b\"")]),
            (": \"</tool_call>", &[arguments(": \"")]),
            ("</tool_call>\"}", &[arguments("</tool_call></tool_call>\"")]),
            ("}</tool_call>", &[arguments("}"), END]),
        ],
    );
}

#[test]
fn call_that_is_cut_off_in_an_open_span_is_only_reasoning() {
    let whole = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let cut_off = "<tool_call>{\"name\": \"g\", \"arguments\": {\"a\": ";
    let text = format!("b {whole} {cut_off}");
    let expected =
        Message { reasoning: Some(text.trim_end().to_owned()), content: "a".to_owned(), calls: vec![call("f", "{}")] };
    assert_message(&grammar(Format::Hermes), &format!("a <think>{text}"), &expected);
}
