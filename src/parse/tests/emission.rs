// SPDX-License-Identifier: Apache-2.0
//! When events are emitted, and how the time of parsing grows with the text.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::*;

/// The events of each piece, and those of the end of the text. Consecutive content events are joined.
fn events_by_piece(grammar: &Grammar, pieces: &[&str]) -> Vec<Vec<Event>> {
    let mut parser = grammar.stream();
    let mut by_piece: Vec<Vec<Event>> = pieces
        .iter()
        .map(|piece| {
            let mut events = Vec::new();
            parser.push(piece, &mut events);
            events
        })
        .collect();
    let mut last = Vec::new();
    parser.finish(&mut last);
    by_piece.push(last);
    for events in &mut by_piece {
        events.dedup_by(|next, event| match (event, next) {
            (Event::Content(text), Event::Content(more)) => {
                text.push_str(more);
                true
            }
            _ => false,
        });
    }
    by_piece
}

fn content(text: &str) -> Event {
    Event::Content(text.to_owned())
}

fn reasoning(text: &str) -> Event {
    Event::Reasoning(text.to_owned())
}

#[test]
fn only_a_possible_marker_delays_events() {
    let pieces = ["<thi", "nk>Well", ", ", "so</th", "en", "</think>", "\n\nIt is", " ", "a < b, <tool_", "x"];
    let expected = vec![
        vec![],
        vec![reasoning("Well")],
        vec![reasoning(",")],
        vec![reasoning(" so")],
        vec![reasoning("</then")],
        vec![],
        vec![content("It is")],
        vec![],
        vec![content(" a < b,")],
        vec![content(" <tool_x")],
        vec![],
    ];
    assert_eq!(events_by_piece(&grammar(Format::Hermes), &pieces), expected);
}

#[test]
fn call_is_emitted_when_its_block_is_complete() {
    let pieces = ["Now ", "<tool_call>{\"name\"", ": \"f\"}</tool_call", ">", " ", "then"];
    let expected = vec![
        vec![content("Now")],
        vec![],
        vec![],
        call("f", "{}").into_events().collect(),
        vec![],
        vec![content("  then")],
        vec![],
    ];
    assert_eq!(events_by_piece(&grammar(Format::Hermes), &pieces), expected);
}

#[test]
fn json_answer_is_buffered_until_its_first_object_ends() {
    let pieces = ["{\"name\": ", "\"Ada\"}", " was"];
    let expected = vec![vec![], vec![content("{\"name\": \"Ada\"}")], vec![content(" was")], vec![]];
    assert_eq!(events_by_piece(&grammar(Format::Llama3), &pieces), expected);
    let pieces = ["[see", " ", "there]"];
    let expected = vec![vec![], vec![], vec![content("[see there]")], vec![]];
    assert_eq!(events_by_piece(&grammar(Format::Pythonic), &pieces), expected);
}

/// The CPU time to parse a text of `length` bytes, one character at a time. The text is `first` and then repetitions of `repeated`.
fn parse_time(grammar: &Grammar, first: &str, repeated: &str, length: usize) -> Duration {
    let close = if first.starts_with("<tool_call>") { "</tool_call>" } else { "" };
    let text = format!("{first}{}{close}", repeated.repeat(length / repeated.len()));
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("CPU time is not negative");
    let start = now();
    let message = parse_pieces(grammar, characters(&text));
    let elapsed = now() - start;
    assert_eq!(message, grammar.parse(&text), "{first}{repeated}");
    elapsed
}

/// The repeated text of the case in which the prompt opened a span.
const IN_PROMPT_SPAN: &str = " <";

/// A call in the format `hermes`, up to its arguments.
macro_rules! hermes_call {
    () => {
        "<tool_call>{\"name\": \"f\", \"arguments\": "
    };
}

/// A section in the format `kimi_k2`, up to the arguments of its first call.
const KIMI_CALL: &str = "<|tool_calls_section_begin|><|tool_call_begin|>a<|tool_call_argument_begin|>";

#[test]
fn time_of_parsing_is_linear_in_the_text() {
    let texts = [
        (Format::Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"", "a<"),
        (Format::Hermes, "<think>", "a <"),
        (Format::Hermes, "<tool_call>a<think>", "a <"),
        (Format::Hermes, "", IN_PROMPT_SPAN),
        (Format::Hermes, "", " "),
        (Format::Hermes, "", "<think>a</think> "),
        (Format::Hermes, "", "<tool_call>{}</tool_call>\n"),
        (Format::QwenXml, "<tool_call><function=f>", "<parameter=a>"),
        (Format::QwenXml, "<tool_call>", "<function=>"),
        (Format::Glm, "<tool_call>f", "<arg_key></arg_key>"),
        (Format::KimiK2, "<|tool_calls_section_begin|>", "<|tool_call_begin|>a "),
        (Format::DeepSeek, "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
        (Format::Llama3, "{\"a\": \"", "a\\\""),
        (Format::Llama3, "", "{\"name\": \"f\", \"parameters\": {}};"),
        (Format::Llama3, "", "<|python_tag|>{"),
        (Format::Pythonic, "[f(a=", "[1, "),
        (Format::Mistral, "[TOOL_CALLS]f[ARGS]{", "{\"a\": "),
        (Format::Mistral, "", "[TOOL_CALLS]f "),
        (Format::Mistral, "", "[TOOL_CALLS]"),
        // calls that are emitted in parts
        (Format::Hermes, concat!(hermes_call!(), "{\"a\": ["), "1, "),
        (Format::Hermes, concat!(hermes_call!(), "{\"a\": "), "9"),
        (Format::Hermes, concat!(hermes_call!(), "{\"a\": "), " "),
        (Format::Hermes, concat!(hermes_call!(), "{\"a\": \""), "\\u00e9"),
        (Format::Hermes, concat!(hermes_call!(), "{\"a\": x"), "y "),
        (Format::Hermes, concat!(hermes_call!(), "{}, \"x\": \""), "y<"),
        (Format::Hermes, concat!(hermes_call!(), "{}}"), " "),
        (Format::Hermes, concat!(hermes_call!(), "{\"a\": \""), "</tool_call>"),
        (Format::Hermes, concat!(hermes_call!(), "{\"a\": ["), "\"</tool_call>\", "),
        (Format::Hermes, concat!(hermes_call!(), "{\"a\": \""), "<think>"),
        (Format::Hermes, "<tool_call>{\"name\": \"", "f"),
        (Format::Hermes, "<tool_call>", " "),
        (Format::Hermes, "<tool_call>{", "\"name\": 1, "),
        (Format::QwenXml, "<tool_call><function=", "f"),
        (Format::QwenXml, "<tool_call><function=f><parameter=a>", "x <"),
        (Format::QwenXml, "<tool_call><function=f><parameter=a>x", " "),
        (Format::QwenXml, "<tool_call><function=f><parameter=a>x ", "</parameter"),
        (Format::QwenXml, "<tool_call><function=f><parameter=a>", "[1, "),
        (Format::QwenXml, "<tool_call><function=f><parameter=a>1", " "),
        (Format::QwenXml, "<tool_call><function=f><parameter=a", "b"),
        (Format::QwenXml, "<tool_call><function=f>", "<parameter=>"),
        (Format::QwenXml, "<tool_call><function=f>", "<parameter=a>1</parameter>"),
        (Format::QwenXml, "<tool_call><function=f></function>", "<function=f>"),
        (Format::Glm, "<tool_call>", "f"),
        (Format::Glm, "<tool_call>f<arg_key>a</arg_key>", " "),
        (Format::Glm, "<tool_call>f<arg_key>", "a</arg_key> "),
        (Format::Glm, "<tool_call>f<arg_key>a</arg_key><arg_value>", "x <"),
        (Format::Glm, "<tool_call>f", "<arg_key>a</arg_key><arg_value>1</arg_value>"),
        (Format::KimiK2, KIMI_CALL, "{\"a\": ["),
        (Format::KimiK2, KIMI_CALL, "[<"),
        (Format::KimiK2, KIMI_CALL, " "),
        (Format::KimiK2, "<|tool_calls_section_begin|><|tool_call_begin|>", "a"),
        (
            Format::KimiK2,
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>a<|tool_call_argument_begin|>{}<|tool_call_end|>",
        ),
        (Format::KimiK2, "<|tool_calls_section_begin|>", "<|tool_call_begin|>a b<|tool_call_argument_begin|>{}"),
        (Format::DeepSeek, "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
        (Format::DeepSeek, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>", "f"),
        (Format::DeepSeek, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n", " "),
        (Format::Llama3, "<|python_tag|>", "{\"name\": \"f\", \"parameters\": {}};"),
        (Format::Llama3, "<|python_tag|>{\"name\": \"f\", \"parameters\": {x", "[y\" "),
        (Format::Llama3, "", "<|python_tag|>{\"name\": \"f\", \"parameters\": {}};{"),
        (Format::Mistral, "", "[TOOL_CALLS]f[ARGS]{}"),
        (Format::DeepSeekV32, "<｜DSML｜function_calls><｜DSML｜invoke name=\"f\">", "<｜DSML｜"),
        (Format::MiniMaxM2, "<minimax:tool_call>", "<invoke "),
        (Format::MiniMaxM2, "<minimax:tool_call>", "<invoke name=\"f\">"),
        (Format::MiniMaxM2, "<minimax:tool_call>", "<invoke name=\"f\"></invoke>"),
        (Format::MiniMaxM2, "<minimax:tool_call><invoke name=\"", "f"),
        (Format::MiniMaxM2, "<minimax:tool_call><invoke name=\"f\">", "{ <"),
        (Format::MiniMaxM2, "<minimax:tool_call><invoke name=\"f\">", "<parameter name=\"a\">1</parameter>"),
        (Format::MiniMaxM2, "<minimax:tool_call><invoke name=\"f\"><parameter name=\"a\">", "x <"),
        (Format::MiniMaxM2, "<minimax:tool_call><invoke name=\"f\"><parameter name=\"a\">", "</invoke>"),
        (Format::MiniMaxM2, "<minimax:tool_call><invoke name=\"f\"><parameter name=\"a\">", "</invoke><invoke"),
        (Format::Mistral, "[TOOL_CALLS]f[ARGS]{x", "[y\" "),
    ];
    for (format, first, repeated) in texts {
        let grammar = Grammar { opened: repeated == IN_PROMPT_SPAN, ..grammar(format) };
        // four times the text takes four times as long; it would take sixteen times as long if each piece read the buffered text again.
        // Other processes on the machine may disturb some of the tries
        let tries = std::iter::repeat_with(|| {
            let short = parse_time(&grammar, first, repeated, 20_000);
            (short, parse_time(&grammar, first, repeated, 80_000))
        });
        let times: Vec<_> =
            tries.take(5).take_while(|(short, long)| *long > *short * 8 + Duration::from_millis(50)).collect();
        assert!(times.len() < 5, "{format} {first}{repeated} took {times:?}");
    }
}
