//! Reads messages from sampled tokens.

use sha2::{Digest as _, Sha256};

use crate::json::Value;
use crate::parse::{Format, Grammar, Message as Parsed, Think, ToolCall};
use crate::session::{Reading, Turn};
use crate::tokenizer::{Renderer, TokenizerError};

use super::Conversation;
use super::canonical::dumps;
use super::message::{Call, Message};

/// The format of calls that were forced: the reply is a JSON list of them.
pub const CALLS_IN_JSON: &str = "json";

/// How the text of the reply will be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParserSettings {
    /// The format of tool calls.
    pub format: Option<Box<str>>,
    /// Reasoning is separated from the text.
    pub separate: bool,
}

impl ParserSettings {
    /// How the reply to this request is read, whose prompt has perhaps `opened` a thought.
    #[must_use]
    pub fn reading(&self, request: &Conversation, opened: bool) -> Reading {
        Reading {
            format: match request.tool_choice.is_forced() {
                true => Some(CALLS_IN_JSON.into()),
                false => self.format.clone().filter(|_| request.reads_calls()),
            },
            separate: self.separate && request.separates_reasoning,
            opened,
            skip_special: request.skips_special_tokens && !request.reads_calls(),
            keep_stop: request.keeps_stop,
        }
    }
}

/// How a reply ended, as far as its text depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending<'a> {
    /// It stopped, and was not cut.
    pub stopped: bool,
    /// The client's stop strings.
    pub stops: &'a [String],
    /// The client's stop tokens.
    pub stop_ids: &'a [u32],
}

/// Stop strings and stop tokens of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stops {
    /// `stop`.
    pub strings: Vec<String>,
    /// `stop_token_ids`.
    pub ids: Vec<u32>,
}

impl Stops {
    /// Those of the text of `sampling_params`.
    #[must_use]
    pub fn of(sampling: &[u8]) -> Self {
        let sampling = Value::parse(sampling).unwrap_or_default();
        Self::new(sampling.get("stop"), sampling.get("stop_token_ids"))
    }

    /// Those of these two members.
    #[must_use]
    pub fn new(stop: Option<&Value>, stop_token_ids: Option<&Value>) -> Self {
        let strings = match stop {
            Some(Value::String(stop)) => vec![stop.clone()],
            Some(Value::Array(stops)) => stops.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        let id = |value: &Value| if let Value::Number(text) = value { text.parse().ok() } else { None };
        let ids = stop_token_ids.and_then(Value::as_array).unwrap_or_default();
        Self { strings, ids: ids.iter().filter_map(id).collect() }
    }
}

/// The tokens whose text the client sees: all but the one that stopped the reply.
#[must_use]
pub fn shown<'a>(renderer: &Renderer, ids: &'a [u32], reading: &Reading, ending: Ending<'_>) -> &'a [u32] {
    match ids.split_last() {
        Some((last, before)) if ending.stopped && !reading.keep_stop && is_stop(renderer, *last, ending) => before,
        _ => ids,
    }
}

fn is_stop(renderer: &Renderer, id: u32, ending: Ending<'_>) -> bool {
    renderer.tokenizer().is_special(id) || ending.stop_ids.contains(&id)
}

/// The text up to the stop string that ended it: as the engine looks for them, the first of the list that is in it, not the one that
/// stands first.
#[must_use]
pub fn cut<'a>(text: &'a str, reading: &Reading, ending: Ending<'_>) -> &'a str {
    if !ending.stopped || reading.keep_stop {
        return text;
    }
    let found = ending.stops.iter().filter(|stop| !stop.is_empty()).find_map(|stop| text.find(stop.as_str()));
    found.map_or(text, |at| &text[..at])
}

/// What to look for in the text of a reply.
#[must_use]
pub fn grammar(renderer: &Renderer, reading: &Reading) -> Grammar {
    let format: Option<Format> = reading.format.as_deref().and_then(|name| name.parse().ok());
    let think = renderer.family().think().filter(|_| reading.separate || reading.format.is_some());
    let think = think.map(|(start, end)| Think { start: start.to_owned(), end: end.to_owned() });
    Grammar { format, think, opened: reading.opened }
}

/// Whether the reply is a list of calls.
#[must_use]
pub fn is_list(reading: &Reading) -> bool {
    reading.format.as_deref() == Some(CALLS_IN_JSON)
}

/// A reply that is a JSON list of calls, or one call; anything else is text.
#[must_use]
pub fn listed(message: Parsed) -> Parsed {
    let read = |call: &Value| {
        let arguments = call.get("parameters").or_else(|| call.get("arguments")).map_or("{}".to_owned(), dumps);
        Some(ToolCall { name: call.get("name")?.as_str()?.to_owned(), id: None, arguments, error: false })
    };
    let calls: Option<Vec<ToolCall>> = match Value::parse(message.content.trim().as_bytes()) {
        Ok(Value::Array(calls)) => calls.iter().map(read).collect(),
        Ok(call @ Value::Object(_)) => read(&call).map(|call| vec![call]),
        _ => None,
    };
    match calls.filter(|calls| !calls.is_empty()) {
        Some(calls) => Parsed { content: String::new(), calls, ..message },
        None => message,
    }
}

/// The message of a reply, from all of its tokens.
///
/// # Errors
/// When the tokenizer fails on them.
pub fn parsed(
    renderer: &Renderer,
    ids: &[u32],
    reading: &Reading,
    ending: Ending<'_>,
) -> Result<Parsed, TokenizerError> {
    let text = renderer.tokenizer().decode(shown(renderer, ids, reading, ending), reading.skip_special)?;
    let message = grammar(renderer, reading).parse(cut(&text, reading, ending));
    Ok(if is_list(reading) { listed(message) } else { message })
}

/// The message that a client has of a turn; `None` for a turn of another kind, or one that cannot be read.
#[must_use]
pub fn said(renderer: &Renderer, turn: &Turn) -> Option<Message> {
    let reading = &turn.about.chat.as_ref()?.reading;
    let stops = turn.about.sampling.as_ref().map(|sampling| Stops::of(sampling.as_bytes())).unwrap_or_default();
    let stopped = turn.about.finish.as_deref() == Some("stop");
    let ending = Ending { stopped, stops: &stops.strings, stop_ids: &stops.ids };
    let parsed = parsed(renderer, &turn.response, reading, ending).ok()?;
    Some(Message {
        role: "assistant".to_owned(),
        texts: vec![parsed.content],
        in_parts: false,
        reasoning: parsed.reasoning,
        calls: parsed
            .calls
            .into_iter()
            .enumerate()
            .map(|(at, call)| {
                let sequence = (turn.about.rid.as_deref().unwrap_or_default(), turn.about.index as usize);
                let id = call_id(&call, at, sequence, reading);
                Call { id: Some(id), name: call.name, arguments: call.arguments }
            })
            .collect(),
        answers: None,
        name: None,
    })
}

/// The id of a call: the model's own, or one that a replay of the same reply has again. `rid` and `index` name the sequence.
#[must_use]
pub fn call_id(call: &ToolCall, at: usize, (rid, index): (&str, usize), reading: &Reading) -> String {
    if let Some(id) = &call.id {
        return id.clone();
    }
    let mut hash = Sha256::new();
    hash.update(rid.as_bytes());
    hash.update((index as u64).to_le_bytes());
    hash.update((at as u64).to_le_bytes());
    let hash = hash.finalize();
    let digits: String = hash.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    match reading.format.as_deref() {
        // its templates refuse a conversation whose ids are not nine letters or digits
        Some(format) if format == Format::Mistral.name() => digits[..9].to_owned(),
        _ => format!("call_{digits}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_stop_string_of_the_list_cuts_as_in_the_engine() {
        let reading = Reading::default();
        for (stops, expected) in [(&["oo", "foo"][..], "xf"), (&["foo", "oo"], "x"), (&["", "y"], "xfoo")] {
            let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
            let ending = Ending { stopped: true, stops: &stops, stop_ids: &[] };
            assert_eq!(cut("xfoo", &reading, ending), expected, "{stops:?}");
            assert_eq!(cut("xfoo", &reading, Ending { stopped: false, ..ending }), "xfoo");
        }
    }
}
