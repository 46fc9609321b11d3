//! `POST /v1/chat/completions` as clients write it, and what its fields become on /generate.

use bytes::Bytes;

use super::message::message;
use super::tool_choice::tool_choice;
use crate::api::openai::{RequestBody, UNSUPPORTED, is_non_default, is_present, wrong};
use crate::chat::reading::Stops;
use crate::chat::{Conversation, RequestError};
use crate::json::{Cursor, Object, Value};

/// A chat request as far as tokentap reads it.
#[derive(Debug)]
pub struct ChatRequest {
    /// The body, unchanged.
    pub bytes: Bytes,
    /// Its members.
    pub object: Object,
    /// `model`, as it is repeated to the client.
    pub model: String,
    /// `messages`, `tools`, and what decides over the prompt and the reading of the reply.
    pub conversation: Conversation,
    /// `stream`.
    pub stream: bool,
    /// Options of a stream.
    pub options: StreamOptions,
    /// `logprobs`.
    pub logprobs: bool,
    /// `parallel_tool_calls`.
    pub parallel_calls: bool,
    /// `stop` and `stop_token_ids`.
    pub stops: Stops,
    /// `n`.
    pub n: usize,
    /// Other members that the client wants.
    pub wants: ReplyExtras,
}

/// Options of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// `stream_options.include_usage`: tokens are counted at the end.
    pub usage: bool,
    /// `stream_options.continuous_usage_stats`: and in every chunk.
    pub running_usage: bool,
    /// `stream_reasoning` is false: a thought is sent when it is complete.
    pub whole_thoughts: bool,
}

/// Members of a reply that a client asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplyExtras {
    /// The prompt's ids.
    pub prompt_ids: bool,
    /// The sampled ids, and with them the prompt's.
    pub token_ids: bool,
    /// `meta_info`.
    pub meta_info: bool,
    /// `return_entropy` is true: `meta_info` with the members that tokentap adds.
    pub entropy: bool,
}

impl ReplyExtras {
    /// Whether the choices have the prompt's ids.
    #[must_use]
    pub fn prompt(&self) -> bool {
        self.prompt_ids || self.token_ids
    }
}

impl ChatRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn parse(bytes: Bytes) -> Result<Self, RequestError> {
        let mut messages = None;
        let mut cursor = Cursor::new(&bytes);
        let object = Object::read(&mut cursor, |key, cursor| {
            // the long part is read as it is passed
            if key.is("messages") {
                messages = Some(Value::read(cursor)?);
                return Ok(());
            }
            cursor.skip().map(drop)
        });
        let object = object.and_then(|object| cursor.end().map(|()| object));
        let object = object.map_err(|error| wrong(format!("the body is {error}")))?;
        let body = RequestBody { bytes: &bytes, object: &object };
        let Some(Value::Array(values)) = messages else {
            return Err(wrong("messages must be a list"));
        };
        if values.is_empty() {
            return Err(wrong("Messages cannot be empty."));
        }
        let read = |(at, value): (usize, Value)| message(value, at);
        let messages = values.into_iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
        let tools = match body.value("tools")? {
            None => None,
            Some(Value::Array(tools)) => Some(tools).filter(|tools| !tools.is_empty()),
            Some(_) => return Err(wrong("tools must be a list")),
        };
        for (older, newer) in [("functions", "tools"), ("function_call", "tool_choice")] {
            if body.raw(older).is_some_and(is_non_default) {
                return Err(wrong(format!("{older} is not served: it is the older form of {newer}; send {newer}")));
            }
        }
        let tool_choice = tool_choice(body.value("tool_choice")?.as_ref(), tools.as_deref())?;
        let options = body.value("stream_options")?.unwrap_or_default();
        let option = |name: &str| options.get(name) == Some(&Value::Bool(true));
        let wants = ReplyExtras {
            prompt_ids: body.flag("return_prompt_token_ids", false)?,
            token_ids: body.flag("return_token_ids", false)?,
            meta_info: body.flag("return_meta_info", false)?,
            entropy: body.flag("return_entropy", false)?,
        };
        Ok(Self {
            model: body.value("model")?.and_then(|model| model.as_str().map(str::to_owned)).unwrap_or("default".into()),
            conversation: Conversation {
                tools,
                tool_choice,
                template_variables: template_variables(&body)?,
                continues_last: body.flag("continue_final_message", false)?,
                prompt_ids: prompt_ids(&body)?,
                separates_reasoning: body.flag("separate_reasoning", true)?,
                skips_special_tokens: body.flag("skip_special_tokens", true)?,
                keeps_stop: body.flag("no_stop_trim", false)?,
                messages,
            },
            stream: body.flag("stream", false)?,
            options: StreamOptions {
                usage: option("include_usage"),
                running_usage: option("continuous_usage_stats"),
                whole_thoughts: !body.flag("stream_reasoning", true)?,
            },
            logprobs: body.flag("logprobs", false)?,
            parallel_calls: body.flag("parallel_tool_calls", true)?,
            stops: Stops::new(body.value("stop")?.as_ref(), body.value("stop_token_ids")?.as_ref()),
            n: body.count("n")?,
            wants,
            object,
            bytes,
        })
    }

    /// Whether it can be served from tokens.
    ///
    /// # Errors
    /// [`RequestError::Unsupported`], with the field that only the engine's own endpoint honours.
    pub fn check_fields(&self) -> Result<(), RequestError> {
        let body = RequestBody { bytes: &self.bytes, object: &self.object };
        let foreign = UNSUPPORTED.iter().find(|name| body.raw(name).is_some_and(is_non_default));
        foreign.map_or(Ok(()), |name| Err(RequestError::Unsupported(format!("the field {name:?}"))))
    }
}

/// `input_ids`.
fn prompt_ids(body: &RequestBody<'_>) -> Result<Option<Vec<u32>>, RequestError> {
    let Some(ids) = body.raw("input_ids").filter(|ids| is_present(ids)) else { return Ok(None) };
    let ids = serde_json::from_slice(ids);
    ids.map(Some).map_err(|error| wrong(format!("input_ids must be a list of ids: {error}")))
}

/// `chat_template_kwargs`, and `reasoning_effort` as SGLang hands it to templates.
fn template_variables(body: &RequestBody<'_>) -> Result<Vec<(String, Value)>, RequestError> {
    let mut extra = match body.value("chat_template_kwargs")? {
        None => Vec::new(),
        Some(Value::Object(members)) => members,
        Some(_) => return Err(wrong("chat_template_kwargs must be an object")),
    };
    const OURS: [&str; 5] = ["messages", "tools", "documents", "add_generation_prompt", "chat_template"];
    let is_ours = |name: &str| OURS.contains(&name) || name.ends_with("_token");
    if let Some((name, _)) = extra.iter().find(|(name, _)| is_ours(name)) {
        return Err(wrong(format!("chat_template_kwargs.{name} is not the client's to set")));
    }
    let has = |extra: &[(String, Value)], name: &str| extra.iter().any(|(known, _)| known == name);
    if let Some(effort) = body.value("reasoning_effort")? {
        let thinks = Value::Bool(effort.as_str() != Some("none"));
        for name in ["thinking", "enable_thinking"] {
            if !has(&extra, name) {
                extra.push((name.to_owned(), thinks.clone()));
            }
        }
        if !has(&extra, "reasoning_effort") {
            extra.push(("reasoning_effort".to_owned(), effort));
        }
    }
    Ok(extra)
}
