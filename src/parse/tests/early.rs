//! When events are emitted, and what parsing costs.

use std::time::{Duration, Instant};

use super::*;

/// The events of each piece, and last those of the end; consecutive parts of content are joined.
fn told(grammar: &Grammar, pieces: &[&str]) -> Vec<Vec<Event>> {
    let mut streaming = grammar.stream();
    let mut told: Vec<Vec<Event>> = pieces
        .iter()
        .map(|piece| {
            let mut events = Vec::new();
            streaming.push(piece, &mut events);
            events
        })
        .collect();
    let mut last = Vec::new();
    streaming.finish(&mut last);
    told.push(last);
    for events in &mut told {
        events.dedup_by(|next, event| match (event, next) {
            (Event::Content(text), Event::Content(more)) => {
                text.push_str(more);
                true
            }
            _ => false,
        });
    }
    told
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
    assert_eq!(told(&grammar(Format::Hermes), &pieces), expected);
}

#[test]
fn a_call_is_emitted_when_its_block_is_complete() {
    let pieces = ["Now ", "<tool_call>{\"name\"", ": \"f\"}</tool_call", ">", " ", "then"];
    let expected = vec![
        vec![content("Now")],
        vec![],
        vec![],
        vec![Event::Call(call("f", "{}"))],
        vec![],
        vec![content("  then")],
        vec![],
    ];
    assert_eq!(told(&grammar(Format::Hermes), &pieces), expected);
}

#[test]
fn an_answer_in_json_waits_for_the_end_of_its_first_object() {
    let pieces = ["{\"name\": ", "\"Ada\"}", " was"];
    let expected = vec![vec![], vec![content("{\"name\": \"Ada\"}")], vec![content(" was")], vec![]];
    assert_eq!(told(&grammar(Format::Llama3), &pieces), expected);
    let pieces = ["[see", " ", "there]"];
    let expected = vec![vec![], vec![], vec![content("[see there]")], vec![]];
    assert_eq!(told(&grammar(Format::Pythonic), &pieces), expected);
}

/// How long a text takes that begins with `first` and goes on with `again`, one character at a time.
fn cost(grammar: &Grammar, first: &str, again: &str, length: usize) -> Duration {
    let close = if first.starts_with("<tool_call>") { "</tool_call>" } else { "" };
    let text = format!("{first}{}{close}", again.repeat(length / again.len()));
    let start = Instant::now();
    let message = streamed(grammar, characters(&text));
    let took = start.elapsed();
    assert_eq!(message, grammar.parse(&text), "{first}{again}");
    took
}

/// What the text goes on with where the prompt opened a span.
const OPENED: &str = " <";

#[test]
fn a_character_costs_the_same_however_much_is_held() {
    let texts = [
        (Format::Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"", "a<"),
        (Format::Hermes, "<think>", "a <"),
        (Format::Hermes, "<tool_call>a<think>", "a <"),
        (Format::Hermes, "", OPENED),
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
    ];
    for (format, first, again) in texts {
        let grammar = Grammar { opened: again == OPENED, ..grammar(format) };
        // four times the text takes four times as long, and sixteen times where what is held is read again each time; some of the
        // tries may be disturbed by others on the machine
        let tries = std::iter::repeat_with(|| {
            let short = cost(&grammar, first, again, 20_000);
            (short, cost(&grammar, first, again, 80_000))
        });
        let costs: Vec<_> =
            tries.take(5).take_while(|(short, long)| *long > *short * 8 + Duration::from_millis(50)).collect();
        assert!(costs.len() < 5, "{format} {first}{again} took {costs:?}");
    }
}
