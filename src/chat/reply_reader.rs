//! Parses messages from sampled tokens.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::engine::sglang::request::SamplingParam;
use crate::json::Value;
use crate::parse::{Event, Format, Grammar, Message as ParsedMessage, ParameterTypes, Think, parse_calls};
use crate::session::{ParseOptions, Turn};
use crate::tokenizer::{Renderer, TokenizerError};

use super::Conversation;
use super::message::{Message, MessageToolCall, call_key};
use super::sampled_text::SampledText;
use crate::session::{Digest, TurnKey};

/// The format of forced tool calls: the reply is a JSON list of calls.
pub const CALLS_IN_JSON: &str = "json";

/// How replies of a model are parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParserSettings {
    /// The format of tool calls; `None` if tool calls are not parsed.
    pub format: Option<Box<str>>,
    /// Whether reasoning is separated from the text. `None` if the API decides.
    pub separate: Option<bool>,
}

impl ParserSettings {
    /// The options for the reply to this request. `opened` is true if the prompt ends with an open thought.
    #[must_use]
    pub fn options(&self, request: &Conversation, opened: bool) -> ParseOptions {
        let format = match request.tool_choice.is_forced() {
            true => Some(CALLS_IN_JSON.into()),
            false => self.format.clone().filter(|_| request.parses_tool_calls()),
        };
        ParseOptions {
            parameters: parameter_types(format.as_deref(), request),
            format,
            separate: self.separate.unwrap_or(request.has_reasoning_items) && request.separates_reasoning,
            opened,
            skip_special: request.skips_special_tokens && !request.parses_tool_calls(),
            keep_stop: request.keeps_stop,
        }
    }
}

/// How a reply ended. It decides whether a stop token or a stop string is removed from its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyEnd<'a> {
    /// The finish reason, if it is known.
    pub finish: Option<&'a str>,
    /// The stop strings of the request.
    pub stops: &'a [String],
    /// The stop tokens of the request.
    pub stop_ids: &'a [u32],
}

impl ReplyEnd<'_> {
    fn stopped(&self) -> bool {
        self.finish == Some("stop")
    }

    /// The engine aborted the reply. Text that waits for what follows it, such as the start of a call, is then not part of the message.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.finish == Some("abort")
    }
}

/// The stop strings and stop tokens of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stops {
    /// `stop`.
    pub strings: Vec<String>,
    /// Stop tokens.
    pub ids: Vec<u32>,
}

impl Stops {
    /// Reads them from the sampling parameters of a request to the engine, which are JSON text.
    #[must_use]
    pub fn of(sampling: &[u8]) -> Self {
        let sampling = Value::parse(sampling).unwrap_or_default();
        let param = |param: SamplingParam| sampling.get(param.name());
        Self::new(param(SamplingParam::Stop), param(SamplingParam::StopTokenIds))
    }

    /// Reads them from a string or a list of strings, and from a list of ids.
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

/// Parses messages from the tokens that were sampled for one request.
#[derive(Debug, Clone)]
pub struct ReplyReader {
    /// Decodes tokens.
    pub renderer: Arc<Renderer>,
    /// How the text is parsed.
    pub options: ParseOptions,
    /// The stop strings and stop tokens of the request.
    pub stops: Stops,
}

impl ReplyReader {
    /// How a sequence with this finish reason ended.
    #[must_use]
    pub fn end<'a>(&'a self, finish: Option<&'a str>) -> ReplyEnd<'a> {
        ReplyEnd { finish, stops: &self.stops.strings, stop_ids: &self.stops.ids }
    }

    /// Parses the message of a whole sequence.
    ///
    /// # Errors
    /// If the tokenizer cannot decode a token.
    pub fn message(&self, ids: &[u32], finish: Option<&str>) -> Result<ParsedMessage, TokenizerError> {
        parse_reply(&self.renderer, ids, &self.options, self.end(finish))
    }

    /// The id of the call at index `at` of a message. `model_id` is the id that the model wrote, if any. `sequence` is the engine's request
    /// id and the index of the sequence.
    #[must_use]
    pub fn call_id(&self, model_id: Option<&str>, at: usize, sequence: (&str, usize)) -> String {
        call_id(model_id, at, sequence, &self.options)
    }
}

/// The tokens of a reply without the stop token that ended it, because the client does not get its text.
#[must_use]
pub fn without_stop_token<'a>(
    renderer: &Renderer,
    ids: &'a [u32],
    options: &ParseOptions,
    end: ReplyEnd<'_>,
) -> &'a [u32] {
    match ids.split_last() {
        Some((last, before)) if end.stopped() && !options.keep_stop && is_stop_token(renderer, *last, end) => before,
        _ => ids,
    }
}

fn is_stop_token(renderer: &Renderer, id: u32, end: ReplyEnd<'_>) -> bool {
    renderer.tokenizer().is_special(id) || end.stop_ids.contains(&id)
}

/// The text before the stop string that ended the reply. As in the engine, this is the first string of the list that occurs in the text,
/// not the string that occurs first in the text.
#[must_use]
pub fn without_stop_string<'a>(text: &'a str, options: &ParseOptions, end: ReplyEnd<'_>) -> &'a str {
    if !end.stopped() || options.keep_stop {
        return text;
    }
    let found = end.stops.iter().filter(|stop| !stop.is_empty()).find_map(|stop| text.find(stop.as_str()));
    found.map_or(text, |at| &text[..at])
}

/// The length in bytes of the text before a stop string, or before what may be the start of one.
#[must_use]
pub(super) fn length_without_stop(text: &str, stops: &[String], keep_stop: bool) -> usize {
    if keep_stop {
        return text.len();
    }
    let lengths = stops.iter().filter(|stop| !stop.is_empty()).map(|stop| {
        if let Some(at) = text.find(stop.as_str()) {
            return at;
        }
        let longest = text.len().min(stop.len());
        let start = (1..=longest).rev().find(|length| {
            text.is_char_boundary(text.len() - length)
                && stop.as_bytes().starts_with(&text.as_bytes()[text.len() - length..])
        });
        text.len() - start.unwrap_or(0)
    });
    lengths.min().unwrap_or(text.len())
}

/// The grammar by which the text of a reply is parsed.
#[must_use]
pub fn grammar(renderer: &Renderer, options: &ParseOptions) -> Grammar {
    let format: Option<Format> = options.format.as_deref().and_then(|name| name.parse().ok());
    let think = renderer.family().think().filter(|_| options.separate || options.format.is_some());
    let think = think.map(|(start, end)| Think { start: start.to_owned(), end: end.to_owned() });
    let parameters = options.parameters.as_ref().and_then(|types| types.parse().ok()).map(Arc::new);
    let grammar = Grammar { format, parameters, think, opened: options.opened, ..Grammar::default() };
    let has_token = |marker: &&str| renderer.tokenizer().is_added(marker);
    Grammar { tokens: grammar.markers().filter(has_token).map(Box::from).collect(), ..grammar }
}

/// The types of the parameters of the tools of a request; `None` if the format does not need them.
fn parameter_types(format: Option<&str>, request: &Conversation) -> Option<Arc<str>> {
    let format: Format = format?.parse().ok().filter(|format: &Format| format.has_text_values())?;
    let types = ParameterTypes::of(format, request.tools.as_deref().unwrap_or_default());
    Some(types.to_string().into())
}

/// Whether the reply is a JSON list of forced calls.
#[must_use]
pub fn is_call_list(options: &ParseOptions) -> bool {
    options.format.as_deref() == Some(CALLS_IN_JSON)
}

/// Parses the content of a message as a JSON list of calls, or as one call. Other content stays text.
#[must_use]
pub fn parse_call_list(message: ParsedMessage) -> ParsedMessage {
    match parse_calls(message.content.trim()) {
        Some(calls) => ParsedMessage { content: String::new(), calls, ..message },
        None => message,
    }
}

/// Parses the message of a reply from all its tokens.
///
/// # Errors
/// [`TokenizerError`] if a token cannot be decoded.
fn parse_reply(
    renderer: &Renderer,
    ids: &[u32],
    options: &ParseOptions,
    end: ReplyEnd<'_>,
) -> Result<ParsedMessage, TokenizerError> {
    let (tokenizer, grammar) = (renderer.tokenizer(), grammar(renderer, options));
    let mut text = SampledText::new(tokenizer, &grammar, options.skip_special);
    let (mut parser, mut events) = (grammar.stream(), Vec::new());
    text.push(tokenizer, without_stop_token(renderer, ids, options, end))?;
    if end.is_aborted() {
        let length = length_without_stop(text.text(), end.stops, options.keep_stop);
        text.parse(text.before_cut_marker(length), &mut parser, &mut events);
        events.retain(|event| !(is_call_list(options) && matches!(event, Event::Content(_))));
        return Ok(events.into_iter().collect());
    }
    text.finish(tokenizer)?;
    text.parse(without_stop_string(text.text(), options, end).len(), &mut parser, &mut events);
    parser.finish(&mut events);
    let message: ParsedMessage = events.into_iter().collect();
    Ok(if is_call_list(options) { parse_call_list(message) } else { message })
}

/// The reply of a turn, as the client received it.
#[derive(Debug, Clone)]
pub(super) struct RecordedReply {
    pub(super) message: Message,
    /// The digests of the keys in the message and in the ids of its calls; see [`Message::keys`]. An id that the model wrote is not a key,
    /// because models repeat ids.
    pub(super) keys: Vec<Digest>,
}

/// The reply of a turn. `None` if the turn is not part of a chat or cannot be decoded.
#[must_use]
pub(super) fn recorded_reply(renderer: &Renderer, turn: &Turn) -> Option<RecordedReply> {
    let options = &turn.about.chat.as_ref()?.reading;
    let stops = turn.about.sampling.as_ref().map(|sampling| Stops::of(sampling.as_bytes())).unwrap_or_default();
    let end = ReplyEnd { finish: turn.about.finish.as_deref(), stops: &stops.strings, stop_ids: &stops.ids };
    let parsed = parse_reply(renderer, &turn.response, options, end).ok()?;
    let sequence = (turn.about.rid.as_deref().unwrap_or_default(), turn.about.index as usize);
    let mut keys = vec![TurnKey::of(sequence.0, sequence.1).digest()];
    let calls = parsed.calls.into_iter().enumerate().map(|(at, call)| {
        let id = call_id(call.id.as_deref(), at, sequence, options);
        keys.extend(Some(call_key(&id)).filter(|key| call.id.is_none() && !keys.contains(key)));
        MessageToolCall { id: Some(id), name: call.name, arguments: call.arguments }
    });
    let calls = calls.collect();
    let message = Message { reasoning: parsed.reasoning, calls, ..Message::of("assistant", parsed.content) };
    Some(RecordedReply { message, keys })
}

/// The id of a call: the id that the model wrote, or a hash of the sequence and the index of the call, so that the same reply always gets
/// the same ids. `rid` and `index` identify the sequence.
fn call_id(model_id: Option<&str>, at: usize, (rid, index): (&str, usize), options: &ParseOptions) -> String {
    if let Some(id) = model_id {
        return id.to_owned();
    }
    match options.format.as_deref() {
        // Mistral's templates refuse ids that are not nine letters or digits
        Some(format) if format == Format::Mistral.name() => {
            let hash = Sha256::new().chain_update(rid.as_bytes()).chain_update((index as u64).to_le_bytes());
            let hash = hash.chain_update((at as u64).to_le_bytes()).finalize();
            hash.iter().take(5).map(|byte| format!("{byte:02x}")).collect::<String>()[..9].to_owned()
        }
        _ => TurnKey::of(rid, index).call_id(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_forced_calls_are_read_as_those_of_other_calls() {
        let table = [
            (r#"[{"name": "f", "parameters": {"q": 1}}]"#, r#"{"q": 1}"#, false),
            (r#" {"name": "f", "parameters": "{\"q\": 1}"} "#, r#"{"q": 1}"#, false),
            (r#"[{"name": "f", "arguments": null}]"#, "{}", false),
            (r#"[{"name": "f", "parameters": null, "arguments": {"q": 1}}]"#, r#"{"q": 1}"#, false),
            (r#"[{"name": "f", "parameters": [1]}]"#, "[1]", true),
        ];
        for (content, arguments, error) in table {
            let message = ParsedMessage { content: content.to_owned(), ..ParsedMessage::default() };
            let parsed = parse_call_list(message);
            assert_eq!((&*parsed.calls[0].arguments, parsed.calls[0].error), (arguments, error), "{content}");
            assert_eq!(parsed.content, "");
        }
        for content in ["[]", "[1]", r#"[{"parameters": {}}]"#, "text"] {
            let message = ParsedMessage { content: content.to_owned(), ..ParsedMessage::default() };
            assert_eq!(parse_call_list(message.clone()), message);
        }
    }

    #[test]
    fn text_ends_at_the_first_stop_string_of_the_list_as_in_the_engine() {
        let options = ParseOptions::default();
        for (stops, expected) in [(&["oo", "foo"][..], "xf"), (&["foo", "oo"], "x"), (&["", "y"], "xfoo")] {
            let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
            let end = ReplyEnd { finish: Some("stop"), stops: &stops, stop_ids: &[] };
            assert_eq!(without_stop_string("xfoo", &options, end), expected, "{stops:?}");
            assert_eq!(without_stop_string("xfoo", &options, ReplyEnd { finish: None, ..end }), "xfoo");
        }
    }
}
