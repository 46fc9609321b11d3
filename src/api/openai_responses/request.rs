// SPDX-License-Identifier: Apache-2.0
//! Decodes the body of a Responses request.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, header};

use super::error;
use super::input::{self, Input};
use super::tools::Tools;
use crate::api::body::{RequestBody, SkippedParts, invalid, schema_constraint};
use crate::api::to_json;
use crate::chat::reply_reader::Stops;
use crate::chat::{Conversation, RequestError, dumps, quoted};
use crate::engine::sglang::request::SamplingParam;
use crate::json::{Cursor, Value, elements};
use crate::session::TurnKey;
use crate::tokenizer::TemplateFeatures;

/// The JSON type of a member that the reply repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemberType {
    Flag,
    Number,
    Text,
    Object,
    TextOrObject,
    List,
}

/// Members of the request that the reply repeats, with their types and their defaults as JSON text. The model may have other defaults of
/// `temperature` and `top_p`.
const ECHOED: &[(&str, MemberType, &str)] = &[
    ("background", MemberType::Flag, "false"),
    ("instructions", MemberType::Text, "null"),
    ("max_output_tokens", MemberType::Number, "null"),
    ("max_tool_calls", MemberType::Number, "null"),
    ("metadata", MemberType::Object, "{}"),
    ("parallel_tool_calls", MemberType::Flag, "true"),
    ("previous_response_id", MemberType::Text, "null"),
    ("prompt_cache_key", MemberType::Text, "null"),
    ("reasoning", MemberType::Object, r#"{"effort":null,"summary":null}"#),
    ("safety_identifier", MemberType::Text, "null"),
    ("text", MemberType::Object, r#"{"format":{"type":"text"}}"#),
    ("tool_choice", MemberType::TextOrObject, r#""auto""#),
    ("tools", MemberType::List, "[]"),
    ("top_logprobs", MemberType::Number, "0"),
    ("truncation", MemberType::Text, r#""disabled""#),
    ("user", MemberType::Text, "null"),
    ("presence_penalty", MemberType::Number, "0"),
    ("frequency_penalty", MemberType::Number, "0"),
    ("temperature", MemberType::Number, "1"),
    ("top_p", MemberType::Number, "1"),
];

/// The body of a Responses request, and the fields that tokentap decodes.
#[derive(Debug, Clone)]
pub(super) struct ResponsesRequest {
    pub(super) body: RequestBody,
    /// `model`. The reply repeats it.
    pub(super) model: String,
    /// The messages, the tools, and the switches of the template.
    pub(super) conversation: Arc<Conversation>,
    /// The tools, with the names that the client knows.
    pub(super) tools: Arc<Tools>,
    /// `parallel_tool_calls`.
    parallel_calls: bool,
    /// The JSON schema of the text, as JSON text.
    text_schema: Option<String>,
    /// `max_output_tokens`.
    pub(super) max_tokens: Option<u64>,
    /// `stream`.
    pub(super) stream: bool,
    /// `stop` and `stop_token_ids`, which are not in OpenAI's API.
    pub(super) stops: Stops,
    /// `store`: the client may return to the response by its id.
    pub(super) stores: bool,
    /// The id in `previous_response_id`: the response that this one continues.
    pub(super) previous: Option<String>,
    /// The input has items that add tools.
    pub(super) adds_tools: bool,
    /// It refers to stored items, which the conversation does not have yet.
    pub(super) refers: bool,
    /// The key of the last turn whose items are in the input.
    pub(super) last_key: Option<TurnKey>,
    /// `include` has `reasoning.encrypted_content`.
    pub(super) includes_encrypted_reasoning: bool,
    /// `include` has `message.output_text.logprobs`.
    pub(super) includes_logprobs: bool,
    /// The items of the input with those to which it refers, as JSON texts. `None` if it refers to none.
    all_items: Option<Vec<Arc<str>>>,
    /// The items and tools that were skipped.
    pub(super) skipped: SkippedParts,
    pub(super) options: DecodeOptions,
}

/// An item of an input. References to one item share it.
#[derive(Debug, Clone)]
pub(super) struct InputItem {
    /// Its JSON text.
    pub(super) text: Arc<str>,
    /// The parsed text.
    pub(super) value: Arc<Value>,
}

/// How a request is decoded.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecodeOptions {
    pub(super) template: TemplateFeatures,
    /// The client is Codex.
    pub(super) is_codex: bool,
    /// `--strict`.
    pub(super) is_strict: bool,
    /// The items of earlier responses to which the request refers are in its input.
    pub(super) is_complete: bool,
}

impl ResponsesRequest {
    /// Decodes a body. Items of earlier responses to which it refers are missing; see [`Self::with_items`].
    ///
    /// # Errors
    /// [`RequestError`].
    pub(super) fn parse(bytes: Bytes, options: DecodeOptions) -> Result<Self, RequestError> {
        let (body, [input]) = RequestBody::parse(bytes, ["input"])?;
        // these members may stand for an input
        check_members(&body)?;
        let Some(input) = input else { return Err(invalid("input is required")) };
        let input = match input {
            Value::String(text) => Input::Text(text),
            Value::Array(ref items) => Input::Items(items.iter().collect()),
            _ => Input::Other,
        };
        Self::with_input(body, input, options)
    }

    /// The request with these items as its input: all items of the responses that it continues, and its own.
    ///
    /// # Errors
    /// [`RequestError`].
    pub(super) fn with_items(&self, items: Vec<InputItem>) -> Result<Self, RequestError> {
        let input = Input::Items(items.iter().map(|item| &*item.value).collect());
        let options = DecodeOptions { is_complete: true, ..self.options };
        let request = Self::with_input(self.body.clone(), input, options)?;
        Ok(Self { all_items: Some(items.into_iter().map(|item| item.text).collect()), ..request })
    }

    fn with_input(body: RequestBody, input: Input<'_>, options: DecodeOptions) -> Result<Self, RequestError> {
        let DecodeOptions { template, is_strict, is_complete, .. } = options;
        let mut skipped = SkippedParts::new(is_strict);
        let previous = body.text("previous_response_id")?.filter(|id| !id.is_empty());
        let refers = previous.is_some() || input::has_references(&input);
        let last_key = input::last_key(&input);
        let mut tools = Tools::default();
        tools.add(body.value("tools")?.as_ref(), "tools", &mut skipped)?;
        let adds_tools = input::add_tools(&input, &mut tools, &mut skipped)?;
        // the tools of earlier responses are not known yet
        let choice = body.value("tool_choice")?.filter(|_| is_complete || !refers);
        let tool_choice = tools.choice(choice.as_ref())?;
        let messages = input::messages(body.text("instructions")?, input, template, &tools, &mut skipped);
        let messages = messages.map_err(|error| match error {
            RequestError::Unsupported(_) if refers && !is_of_engine(previous.as_deref()) => error::not_for_engine(),
            error => error,
        })?;
        if messages.is_empty() && (is_complete || !refers) {
            return Err(invalid("input: no item has content that can be rendered"));
        }
        let effort = body.value("reasoning")?.and_then(|reasoning| reasoning.get("effort").cloned());
        let effort = effort.filter(|effort| *effort != Value::Null);
        let include = body.value("include")?.unwrap_or_default();
        let includes =
            |name: &str| include.as_array().unwrap_or_default().iter().any(|item| item.as_str() == Some(name));
        Ok(Self {
            model: body.text("model")?.filter(|model| !model.is_empty()).unwrap_or_else(|| "default".to_owned()),
            conversation: Arc::new(Conversation {
                tools: tools.definitions(),
                tool_choice,
                template_variables: body.template_variables(effort)?,
                continues_last: false,
                prompt_ids: None,
                separates_reasoning: true,
                has_reasoning_items: true,
                skips_special_tokens: true,
                keeps_stop: body.flag("no_stop_trim", false)?,
                messages,
            }),
            parallel_calls: body.flag("parallel_tool_calls", true)?,
            text_schema: text_schema(body.value("text")?.as_ref())?,
            tools: Arc::new(tools),
            max_tokens: body.count("max_output_tokens")?,
            stream: body.flag("stream", false)?,
            stops: Stops::new(body.value("stop")?.as_ref(), body.value("stop_token_ids")?.as_ref()),
            stores: body.flag("store", true)?,
            previous,
            adds_tools,
            refers: refers && !is_complete,
            last_key,
            all_items: None,
            options,
            includes_encrypted_reasoning: includes("reasoning.encrypted_content"),
            includes_logprobs: includes("message.output_text.logprobs"),
            skipped,
            body,
        })
    }

    /// Whether it refers to what only tokentap has stored.
    pub(super) fn refers_to_session(&self) -> bool {
        self.refers && !is_of_engine(self.previous.as_deref())
    }

    /// The items of the input, as JSON texts.
    pub(super) fn items(&self) -> Vec<Arc<str>> {
        if let Some(items) = &self.all_items {
            return items.clone();
        }
        // bytes that are not UTF-8 are U+FFFD in the prompt too
        let input = String::from_utf8_lossy(self.body.raw("input").unwrap_or_default());
        if !input.starts_with('[') {
            return vec![format!(r#"{{"role":"user","content":{input}}}"#).into()];
        }
        // callers have parsed the array before
        elements(&input).unwrap_or_default().into_iter().map(Into::into).collect()
    }

    /// The members of the body except the input, as the text of a JSON object.
    pub(super) fn members(&self) -> String {
        let mut members = "{".to_owned();
        let RequestBody { bytes, object } = &self.body;
        for member in &object.members {
            let key = object.key(bytes, member);
            if ["input", "previous_response_id"].iter().any(|name| key.is(name)) {
                continue;
            }
            let separator = if members.len() > 1 { "," } else { "" };
            let value = String::from_utf8_lossy(&bytes[member.value.clone()]);
            members.extend([separator, &quoted(&key.decode()), ":", &value]);
        }
        members + "}"
    }

    /// The grammar that constrains the reply.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] if a forced tool call and a schema exclude each other.
    pub(super) fn constraint(&self) -> Result<Option<(SamplingParam, String)>, RequestError> {
        schema_constraint(self.text_schema.as_ref(), &self.conversation, self.parallel_calls, "text.format")
    }

    /// The members that the reply repeats, as JSON text with a leading comma and without line ends. `defaults` are the sampling parameters
    /// that apply if the request has none.
    pub(super) fn echo(&self, defaults: &[(SamplingParam, String)]) -> String {
        let mut echo = String::new();
        for (name, _, default) in ECHOED {
            let default =
                defaults.iter().find(|(known, _)| known.name() == *name).map_or(*default, |(_, value)| value.as_str());
            let value = self.body.value(name).ok().flatten().map(|value| completed(name, value));
            echo.extend([",\"", name, "\":", value.as_deref().unwrap_or(default)]);
        }
        // there are no tiers
        echo.push_str(",\"service_tier\":\"default\"");
        echo
    }
}

impl MemberType {
    /// Checks that a member has this type, if the body has it, and that its numbers are finite, because JSON has no others.
    ///
    /// # Errors
    /// [`RequestError::Invalid`].
    fn check(self, body: &RequestBody, name: &str) -> Result<(), RequestError> {
        let Some(raw) = body.present(name) else { return Ok(()) };
        let first = raw.first().copied().unwrap_or_default();
        let (fits, expected) = match self {
            Self::Flag => (matches!(raw, b"true" | b"false"), "true or false"),
            Self::Number => (matches!(first, b'-' | b'N' | b'I') || first.is_ascii_digit(), "a number"),
            Self::Text => (first == b'"', "a string"),
            Self::Object => (first == b'{', "an object"),
            Self::TextOrObject => (matches!(first, b'"' | b'{'), "a string or an object"),
            Self::List => (first == b'[', "a list"),
        };
        if !fits {
            return Err(invalid(format!("{name} must be {expected}")));
        }
        let mut cursor = Cursor::new(raw);
        match cursor.skip() {
            Ok(_) if cursor.non_finite().is_none() => Ok(()),
            _ => Err(invalid(format!("{name} has a number that is not finite"))),
        }
    }
}

/// The member `name` of the response, as JSON text. It has the members that OpenAI's API always returns, also where the request omits them.
fn completed(name: &str, value: Value) -> String {
    let value = match (name, value) {
        ("reasoning", value) => with_defaults(value, &[("effort", "null"), ("summary", "null")]),
        ("text", value) => with_defaults(value, &[("format", r#"{"type":"text"}"#)]),
        (_, Value::Array(tools)) => Value::Array(tools.into_iter().map(completed_tool).collect()),
        (_, value) => value,
    };
    to_json(&value)
}

fn completed_tool(tool: Value) -> Value {
    let is_function = tool.get_str("type") == Some("function") && tool.get("name").is_some();
    if !is_function {
        return tool;
    }
    with_defaults(tool, &[("description", "null"), ("parameters", "null"), ("strict", "null")])
}

/// An object with these members, as JSON texts, where it has none of that name.
fn with_defaults(value: Value, defaults: &[(&str, &str)]) -> Value {
    let Value::Object(mut members) = value else { return value };
    for (name, default) in defaults {
        if members.iter().all(|(member, _)| member != name) {
            members.push(((*name).to_owned(), Value::parse(default.as_bytes()).unwrap_or_default()));
        }
    }
    Value::Object(members)
}

/// Whether the id of a previous response is not tokentap's: the engine may have stored that response.
fn is_of_engine(previous: Option<&str>) -> bool {
    previous.is_some_and(|id| TurnKey::in_response_id(id).is_none())
}

/// Refuses members that change the meaning of the request and are not supported.
fn check_members(body: &RequestBody) -> Result<(), RequestError> {
    for (name, hint) in [
        (
            "conversation",
            "tokentap stores no conversations; send previous_response_id, or the whole conversation in input",
        ),
        ("background", "send the request without it"),
        ("prompt", "tokentap stores no prompt templates; send instructions and input"),
    ] {
        if body.is_set(name) {
            return Err(invalid(format!("{name} is not supported: {hint}")));
        }
    }
    for (name, kind, _) in ECHOED {
        kind.check(body, name)?;
    }
    if body.present("model").is_some_and(|model| !model.starts_with(b"\"")) {
        return Err(invalid("model must be a string"));
    }
    if body.samples()? > 1 {
        return Err(invalid("n is not supported: a response has one reply"));
    }
    Ok(())
}

/// The JSON schema of `text.format`, as JSON text. `None` if the format is free text.
fn text_schema(text: Option<&Value>) -> Result<Option<String>, RequestError> {
    let format = text.and_then(|text| text.get("format")).filter(|format| **format != Value::Null);
    let Some(format) = format else { return Ok(None) };
    match format.get_str("type") {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(r#"{"type": "object"}"#.to_owned())),
        Some("json_schema") => match format.get("schema") {
            Some(schema @ Value::Object(_)) => Ok(Some(dumps(schema))),
            _ => Err(invalid("text.format.schema must be an object")),
        },
        _ => Err(invalid("text.format.type must be text, json_object or json_schema")),
    }
}

/// Whether the client is Codex. Its headers begin with names such as `codex_exec` and `codex_cli_rs`.
pub(super) fn is_codex(headers: &HeaderMap) -> bool {
    let begins =
        |value: &http::HeaderValue| value.as_bytes().get(..5).is_some_and(|start| start.eq_ignore_ascii_case(b"codex"));
    headers.get("originator").is_some_and(begins) || headers.get(header::USER_AGENT).is_some_and(begins)
}
