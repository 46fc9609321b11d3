// SPDX-License-Identifier: Apache-2.0
//! Decodes the body of a Messages request.

use std::sync::Arc;

use bytes::Bytes;

use super::blocks::{append_message, system_prompt};
use super::{error, tools};
use crate::api::body::{RequestBody, SkippedParts, invalid, schema_constraint};
use crate::api::openai::{FIELDS, FieldTarget};
use crate::chat::message::Message;
use crate::chat::reply_reader::Stops;
use crate::chat::system_messages::fold_system_messages;
use crate::chat::{Conversation, RequestError, dumps};
use crate::engine::sglang::request::SamplingParam;
use crate::json::Value;

/// The body of a Messages request, and the fields that tokentap decodes.
#[derive(Debug)]
pub(super) struct MessagesRequest {
    pub(super) body: RequestBody,
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
        let (body, [messages, system]) = RequestBody::parse(bytes, ["messages", "system"])?;
        let system = system.filter(|system| *system != Value::Null);
        // a thread's request lacks the messages that the server is expected to know
        if body.present("thread").is_some() {
            return Err(invalid(error::NO_THREADS));
        }
        let model =
            body.text("model")?.filter(|model| !model.is_empty()).ok_or_else(|| invalid("model: Field required"))?;
        let Some(Value::Array(values)) = messages else { return Err(invalid("messages: must be a list")) };
        if values.is_empty() {
            return Err(invalid("messages: at least one message is required"));
        }
        let max_tokens = body.count("max_tokens");
        let max_tokens = max_tokens.map_err(|_| invalid("max_tokens: must be a whole number of at least 1"))?;
        if max_tokens.is_none() && !counts {
            return Err(invalid("max_tokens: Field required"));
        }
        let system = system_prompt(system, &mut skipped)?;
        let mut messages = Vec::with_capacity(values.len() + 1);
        messages.extend(system.text.map(|text| Message::new("system", text)));
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
        let effort = output.get_str("effort").map(str::to_owned);
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
            body,
        })
    }

    /// The fields that are copied to the /generate request, as JSON text: those of Anthropic's API, and those of SGLang's chat that
    /// researchers need.
    pub(super) fn fields(&self) -> Vec<(FieldTarget, &[u8])> {
        /// Fields of chats that have another meaning in Messages, or none.
        const OTHER_MEANING: [&str; 7] = ["n", "stop", "stop_token_ids", "no_stop_trim", "metadata", "user", "rid"];
        let fields = FIELDS.iter().copied().filter(|(name, _)| !OTHER_MEANING.contains(name));
        let fields = fields.chain([("stop_sequences", FieldTarget::Sampling(SamplingParam::Stop))]);
        fields.filter_map(|(name, target)| Some((target, self.body.present(name)?))).collect()
    }

    /// The grammar that constrains the reply.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] if a forced tool call and a schema exclude each other.
    pub(super) fn constraint(&self) -> Result<Option<(SamplingParam, String)>, RequestError> {
        schema_constraint(self.schema.as_ref(), &self.conversation, self.parallel_calls, "output_config.format")
    }
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
