//! Decodes the body of a Messages request.

use std::sync::Arc;

use bytes::Bytes;

use super::blocks::{append_message, system_prompt};
use super::{error, tools};
use crate::api::body::{RequestBody, invalid, is_present, two_constraints};
use crate::api::openai::{FIELDS, FieldTarget};
use crate::api::skipped_parts::SkippedParts;
use crate::chat::message::Message;
use crate::chat::reply_reader::Stops;
use crate::chat::system_messages::fold_system_messages;
use crate::chat::{Conversation, RequestError, dumps, quoted};
use crate::engine::sglang::request::{RequestOption, SamplingParam};
use crate::json::{Cursor, Object, Value};

/// The body of a Messages request, and the fields that tokentap decodes.
#[derive(Debug)]
pub(super) struct MessagesRequest {
    /// The body, unchanged.
    pub(super) bytes: Bytes,
    /// The spans of its members.
    pub(super) object: Object,
    /// `model`. The reply repeats it.
    pub(super) model: String,
    /// The messages, the tools, and the switches of the template.
    pub(super) conversation: Arc<Conversation>,
    /// `max_tokens`. `None` in a request to count tokens.
    pub(super) max_tokens: Option<u64>,
    /// `stream`.
    pub(super) stream: bool,
    /// Whether the model may call several tools at once.
    pub(super) parallel_calls: bool,
    /// `stop_sequences`.
    pub(super) stops: Stops,
    /// `output_config.format`: the JSON schema of the reply, as JSON text.
    pub(super) schema: Option<String>,
    /// The block with which the client describes itself.
    pub(super) attribution: Option<String>,
    /// `output_config.effort`.
    pub(super) effort: Option<String>,
    /// The blocks and tools that were skipped.
    pub(super) skipped: SkippedParts,
}

impl MessagesRequest {
    /// Decodes a body. `counts` is true for a request that counts the tokens of a prompt, which has no `max_tokens`.
    /// `shows_system_messages` is true if the template shows system messages between other messages.
    ///
    /// # Errors
    /// [`RequestError`].
    pub(super) fn parse(
        bytes: Bytes,
        counts: bool,
        shows_system_messages: bool,
        mut skipped: SkippedParts,
    ) -> Result<Self, RequestError> {
        let (mut messages, mut system) = (None, None);
        let mut cursor = Cursor::new(&bytes);
        let object = Object::read(&mut cursor, |key, cursor| {
            // the longest members are parsed in the same pass
            if key.is("messages") {
                messages = Some(Value::read(cursor)?);
            } else if key.is("system") {
                system = Some(Value::read(cursor)?).filter(|system| *system != Value::Null);
            } else {
                cursor.skip()?;
            }
            Ok(())
        });
        let object = object.and_then(|object| cursor.end().map(|()| object));
        let object = object.map_err(|error| invalid(format!("the body is {error}")))?;
        let body = RequestBody { bytes: &bytes, object: &object };
        // a thread's request lacks the messages that the server is expected to know
        if body.raw("thread").is_some_and(is_present) {
            return Err(invalid(error::NO_THREADS));
        }
        let model = body.value("model")?.and_then(|model| model.as_str().map(str::to_owned));
        let model = model.filter(|model| !model.is_empty()).ok_or_else(|| invalid("model: Field required"))?;
        let Some(Value::Array(values)) = messages else { return Err(invalid("messages: must be a list")) };
        if values.is_empty() {
            return Err(invalid("messages: at least one message is required"));
        }
        let max_tokens = max_tokens(&body, counts)?;
        let system = system_prompt(system, &mut skipped)?;
        let mut messages = Vec::with_capacity(values.len() + 1);
        messages.extend(system.text.map(|text| Message::of("system", text)));
        for (at, value) in values.into_iter().enumerate() {
            append_message(&mut messages, value, at, &mut skipped)?;
        }
        if !shows_system_messages {
            messages = fold_system_messages(messages);
        }
        if messages.is_empty() {
            return Err(invalid("messages: no message has content that can be rendered"));
        }
        let tools = tools::tools(body.value("tools")?, &mut skipped)?;
        let (tool_choice, parallel_calls) = tools::choice(body.value("tool_choice")?.as_ref(), tools.as_deref())?;
        let output = body.value("output_config")?.unwrap_or_default();
        let effort = output.get("effort").and_then(Value::as_str).map(str::to_owned);
        let schema = output.get("format").and_then(|format| format.get("schema")).map(dumps);
        let continues_last = messages.last().is_some_and(|message| message.is_assistant() && message.calls.is_empty());
        Ok(Self {
            conversation: Arc::new(Conversation {
                tools,
                tool_choice,
                template_variables: template_variables(body.value("thinking")?.as_ref(), effort.as_deref()),
                continues_last,
                prompt_ids: None,
                separates_reasoning: true,
                has_reasoning_items: true,
                skips_special_tokens: true,
                keeps_stop: false,
                messages,
            }),
            max_tokens,
            stream: body.flag("stream", false)?,
            parallel_calls,
            stops: Stops::new(body.value("stop_sequences")?.as_ref(), None),
            schema,
            attribution: system.attribution,
            effort,
            skipped,
            model,
            object,
            bytes,
        })
    }

    /// The sampling parameters of the body, as JSON text.
    pub(super) fn sampling(&self) -> Vec<(SamplingParam, &[u8])> {
        self.fields(|target| match target {
            FieldTarget::Sampling(param) => Some(param),
            FieldTarget::Top(_) => None,
        })
    }

    /// The other members of the body that become members of the /generate request, as JSON text.
    pub(super) fn options(&self) -> Vec<(RequestOption, &[u8])> {
        self.fields(|target| match target {
            FieldTarget::Top(option) => Some(option),
            FieldTarget::Sampling(_) => None,
        })
    }

    /// The fields with a target that `select` accepts: those of Anthropic's API, and those of SGLang's chat that researchers need.
    fn fields<T>(&self, select: impl Fn(FieldTarget) -> Option<T>) -> Vec<(T, &[u8])> {
        /// Fields of chats that have another meaning in Messages, or none.
        const OTHER_MEANING: [&str; 7] = ["n", "stop", "stop_token_ids", "no_stop_trim", "metadata", "user", "rid"];
        let body = RequestBody { bytes: &self.bytes, object: &self.object };
        let fields = FIELDS.iter().copied().filter(|(name, _)| !OTHER_MEANING.contains(name));
        let fields = fields.chain([("stop_sequences", FieldTarget::Sampling(SamplingParam::Stop))]);
        let value = |name| body.raw(name).filter(|value| is_present(value));
        fields.filter_map(|(name, target)| Some((select(target)?, value(name)?))).collect()
    }

    /// The JSON schema that constrains the reply, as a JSON string.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] if a forced tool call and a schema exclude each other.
    pub(super) fn constraint(&self) -> Result<Option<String>, RequestError> {
        match (&self.schema, self.conversation.forced_call_schema(self.parallel_calls)) {
            (Some(_), Some(_)) => Err(two_constraints("output_config.format")),
            (schema, forced) => Ok(schema.clone().or_else(|| forced.as_ref().map(dumps)).map(|text| quoted(&text))),
        }
    }
}

fn max_tokens(body: &RequestBody<'_>, counts: bool) -> Result<Option<u64>, RequestError> {
    let Some(raw) = body.raw("max_tokens").filter(|raw| is_present(raw)) else {
        return if counts { Ok(None) } else { Err(invalid("max_tokens: Field required")) };
    };
    let tokens = std::str::from_utf8(raw).ok().and_then(|text| text.parse().ok()).filter(|tokens| *tokens > 0);
    tokens.map(Some).ok_or_else(|| invalid("max_tokens: must be a whole number of at least 1"))
}

/// The switches of the template: whether it thinks, and its effort.
fn template_variables(thinking: Option<&Value>, effort: Option<&str>) -> Vec<(String, Value)> {
    let mut variables = Vec::new();
    if let Some(kind) = thinking.and_then(|thinking| thinking.get("type")).and_then(Value::as_str) {
        let thinks = Value::Bool(kind != "disabled");
        variables.extend(["thinking", "enable_thinking"].map(|name| (name.to_owned(), thinks.clone())));
    }
    if let Some(effort) = effort {
        let effort = if effort == "xhigh" { "max" } else { effort };
        variables.push(("reasoning_effort".to_owned(), effort.into()));
    }
    variables
}
