// SPDX-License-Identifier: Apache-2.0
//! Parses messages from sampled tokens, whole or while they arrive.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::Conversation;
use super::message::{Message, MessageToolCall, call_key};
use super::sampled_text::SampledText;
use crate::engine::sglang::request::SamplingParam;
use crate::json::Value;
use crate::parse::{
    Event, Format, Grammar, Message as ParsedMessage, ParameterTypes, StreamingParser, Think, ToolCall, parse_calls,
};
use crate::session::{Digest, ParseOptions, Turn, TurnKey};
use crate::tokenizer::{Renderer, TokenizerError};

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

/// The types of the parameters of the tools of a request; `None` if the format does not need them.
fn parameter_types(format: Option<&str>, request: &Conversation) -> Option<Arc<str>> {
    let format: Format = format?.parse().ok().filter(|format: &Format| format.has_text_values())?;
    let types = ParameterTypes::new(format, request.tools.as_deref().unwrap_or_default());
    Some(types.to_string().into())
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
    pub fn from_sampling(sampling: &[u8]) -> Self {
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
    /// Parses the message of a whole sequence. `finish` is its finish reason.
    ///
    /// # Errors
    /// If the tokenizer cannot decode a token.
    pub fn message(&self, ids: &[u32], finish: Option<&str>) -> Result<ParsedMessage, TokenizerError> {
        self.rules().message(ids, finish)
    }

    /// The id of the call at index `at` of a message. `model_id` is the id that the model wrote, if any. The engine's request id and the
    /// `index` of the sequence identify the sequence.
    #[must_use]
    pub fn call_id(&self, model_id: Option<&str>, at: usize, rid: &str, index: usize) -> String {
        call_id(model_id, at, rid, index, &self.options)
    }

    fn rules(&self) -> ReplyRules<'_> {
        ReplyRules { renderer: &self.renderer, options: &self.options, stops: &self.stops }
    }
}

/// The fields of a [`ReplyReader`], borrowed.
#[derive(Debug, Clone, Copy)]
struct ReplyRules<'a> {
    renderer: &'a Renderer,
    options: &'a ParseOptions,
    stops: &'a Stops,
}

impl ReplyRules<'_> {
    fn message(self, ids: &[u32], finish: Option<&str>) -> Result<ParsedMessage, TokenizerError> {
        // a sequence without a finish reason has ended, too
        let events = ReplyStream::start(self).read(self, ids, Some(finish.unwrap_or_default()))?;
        Ok(events.into_iter().collect())
    }

    /// The tokens without the stop token that ended the reply, because the client does not get its text.
    fn without_stop_token<'i>(self, ids: &'i [u32], finish: Option<&str>) -> &'i [u32] {
        let is_stop = |id: u32| self.renderer.tokenizer().is_special(id) || self.stops.ids.contains(&id);
        match ids.split_last() {
            Some((last, before)) if finish == Some("stop") && !self.options.keep_stop && is_stop(*last) => before,
            _ => ids,
        }
    }

    /// The grammar of the text of a reply.
    fn grammar(self) -> Grammar {
        let Self { renderer, options, .. } = self;
        let format: Option<Format> = options.format.as_deref().and_then(|name| name.parse().ok());
        let think = renderer.family().think().filter(|_| options.separate || options.format.is_some());
        let think = think.map(|(start, end)| Think { start: start.to_owned(), end: end.to_owned() });
        let parameters = options.parameters.as_ref().and_then(|types| types.parse().ok()).map(Arc::new);
        let grammar = Grammar { format, parameters, think, opened: options.opened, ..Grammar::default() };
        let has_token = |marker: &&str| renderer.tokenizer().is_added(marker);
        Grammar { tokens: grammar.markers().filter(has_token).map(Box::from).collect(), ..grammar }
    }

    /// Whether the reply is a JSON list of forced calls.
    fn is_call_list(self) -> bool {
        self.options.format.as_deref() == Some(CALLS_IN_JSON)
    }
}

/// Parses the message of one sequence while its tokens arrive.
#[derive(Debug)]
pub(crate) struct ReplyStream {
    /// The text that is not parsed. It may be the start of a stop string.
    text: SampledText,
    /// `None` after the end of the sequence.
    parser: Option<StreamingParser>,
    /// Content that may be a JSON list of forced calls. It is parsed at the end.
    content: Vec<Event>,
}

impl ReplyStream {
    /// A parser at the start of a sequence.
    #[must_use]
    pub(crate) fn new(reader: &ReplyReader) -> Self {
        Self::start(reader.rules())
    }

    /// Parses new tokens. `finish` is the finish reason, if they are the last ones. Tokens after the end are ignored. The text of an aborted
    /// reply that waits for what follows it, such as the start of a call, is not part of the message.
    ///
    /// # Errors
    /// If the tokenizer cannot decode a token.
    pub(crate) fn push(
        &mut self,
        reader: &ReplyReader,
        ids: &[u32],
        finish: Option<&str>,
    ) -> Result<Vec<Event>, TokenizerError> {
        self.read(reader.rules(), ids, finish)
    }

    fn start(rules: ReplyRules<'_>) -> Self {
        let grammar = rules.grammar();
        Self {
            text: SampledText::new(rules.renderer.tokenizer(), &grammar, rules.options.skip_special),
            parser: Some(grammar.stream()),
            content: Vec::new(),
        }
    }

    fn read(&mut self, rules: ReplyRules<'_>, ids: &[u32], finish: Option<&str>) -> Result<Vec<Event>, TokenizerError> {
        let tokenizer = rules.renderer.tokenizer();
        self.text.push(tokenizer, rules.without_stop_token(ids, finish))?;
        let mut events = Vec::new();
        let Some(parser) = &mut self.parser else { return Ok(events) };
        let stops: &[String] = if rules.options.keep_stop { &[] } else { &rules.stops.strings };
        let is_last = !matches!(finish, None | Some("abort"));
        if is_last {
            self.text.finish(tokenizer)?;
            let length = length_before_stop(self.text.text(), stops, finish);
            self.text.parse(length, parser, &mut events);
            if let Some(parser) = self.parser.take() {
                parser.finish(&mut events);
            }
        } else {
            let length = length_before_possible_stop(self.text.text(), stops);
            self.text.parse(self.text.before_cut_marker(length), parser, &mut events);
        }
        if rules.is_call_list() {
            self.content.extend(events.extract_if(.., |event| matches!(event, Event::Content(_))));
            if is_last {
                events.extend(forced_calls(std::mem::take(&mut self.content)));
            }
        }
        Ok(events)
    }
}

/// Parses content as a JSON list of calls, or as one call. Other content stays text.
fn forced_calls(content: Vec<Event>) -> Vec<Event> {
    let message: ParsedMessage = content.into_iter().collect();
    match parse_calls(message.content.trim()) {
        Some(calls) => calls.into_iter().flat_map(ToolCall::into_events).collect(),
        None if message.content.is_empty() => Vec::new(),
        None => vec![Event::Content(message.content)],
    }
}

/// The length in bytes of the text before the stop string that ended the reply. As in the engine, this is the first string of the list that
/// occurs in the text, not the string that occurs first in the text.
fn length_before_stop(text: &str, stops: &[String], finish: Option<&str>) -> usize {
    let mut stops = stops.iter().filter(|stop| finish == Some("stop") && !stop.is_empty());
    stops.find_map(|stop| text.find(stop.as_str())).unwrap_or(text.len())
}

/// The length in bytes of the text before a stop string, or before what may be the start of one.
fn length_before_possible_stop(text: &str, stops: &[String]) -> usize {
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

/// The reply of a turn, as the client received it.
#[derive(Debug, Clone)]
pub(super) struct RecordedReply {
    pub(super) message: Message,
    /// The digests of the keys in the message and in the ids of its calls; see [`Message::keys`]. An id that the model wrote is not a key,
    /// because models repeat ids.
    pub(super) keys: Vec<Digest>,
}

impl RecordedReply {
    /// Parses the reply of a turn. `None` if the turn is not part of a chat or cannot be decoded.
    pub(super) fn parse(renderer: &Renderer, turn: &Turn) -> Option<Self> {
        let about = &turn.about;
        let options = &about.chat.as_ref()?.reading;
        let stops = about.sampling.as_ref().map(|sampling| Stops::from_sampling(sampling.as_bytes()));
        let rules = ReplyRules { renderer, options, stops: &stops.unwrap_or_default() };
        let parsed = rules.message(&turn.response, about.finish.as_deref()).ok()?;
        let (rid, index) = (about.rid.as_deref().unwrap_or_default(), about.index as usize);
        let mut keys = vec![TurnKey::of(rid, index).digest()];
        let calls = parsed.calls.into_iter().enumerate().map(|(at, call)| {
            let id = call_id(call.id.as_deref(), at, rid, index, options);
            keys.extend(Some(call_key(&id)).filter(|key| call.id.is_none() && !keys.contains(key)));
            MessageToolCall { id: Some(id), name: call.name, arguments: call.arguments }
        });
        let calls = calls.collect();
        let message = Message { reasoning: parsed.reasoning, calls, ..Message::new("assistant", parsed.content) };
        Some(Self { message, keys })
    }
}

/// The id of a call: the id that the model wrote, or a hash of the sequence and the index of the call, so that the same reply always gets
/// the same ids.
fn call_id(model_id: Option<&str>, at: usize, rid: &str, index: usize, options: &ParseOptions) -> String {
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
        let parsed = |content: &str| -> ParsedMessage {
            forced_calls(vec![Event::Content(content.to_owned())]).into_iter().collect()
        };
        let table = [
            (r#"[{"name": "f", "parameters": {"q": 1}}]"#, r#"{"q": 1}"#, false),
            (r#" {"name": "f", "parameters": "{\"q\": 1}"} "#, r#"{"q": 1}"#, false),
            (r#"[{"name": "f", "arguments": null}]"#, "{}", false),
            (r#"[{"name": "f", "parameters": null, "arguments": {"q": 1}}]"#, r#"{"q": 1}"#, false),
            (r#"[{"name": "f", "parameters": [1]}]"#, "[1]", true),
        ];
        for (content, arguments, error) in table {
            let parsed = parsed(content);
            assert_eq!((&*parsed.calls[0].arguments, parsed.calls[0].error), (arguments, error), "{content}");
            assert_eq!(parsed.content, "");
        }
        for content in ["[]", "[1]", r#"[{"parameters": {}}]"#, "text"] {
            let message = ParsedMessage { content: content.to_owned(), ..ParsedMessage::default() };
            assert_eq!(parsed(content), message);
        }
    }

    #[test]
    fn text_ends_at_the_first_stop_string_of_the_list_as_in_the_engine() {
        for (stops, expected) in [(&["oo", "foo"][..], "xf"), (&["foo", "oo"], "x"), (&["", "y"], "xfoo")] {
            let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
            let text = |finish| &"xfoo"[..length_before_stop("xfoo", &stops, finish)];
            assert_eq!(text(Some("stop")), expected, "{stops:?}");
            assert_eq!(text(None), "xfoo");
        }
    }
}
