// SPDX-License-Identifier: Apache-2.0
//! Decodes the body of a chat request.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;

use super::message::decode_message;
use super::tools::ChatTools;
use crate::api::body::{RequestBody, invalid, two_constraints};
use crate::api::generate_request::{ClientParams, GenerateInputs};
use crate::api::openai::{TokenNames, lora_adapter, output_constraint};
use crate::budget::Work;
use crate::chat::reply_reader::Stops;
use crate::chat::{Conversation, RequestError, dumps, quoted};
use crate::engine::sglang::request::{GenerateRequest, SamplingParam};
use crate::json::Value;

/// The body of a chat request, and the fields that tokentap decodes.
#[derive(Debug)]
pub struct ChatRequest {
    pub(crate) body: RequestBody,
    /// `model`. The reply repeats it.
    pub model: String,
    /// `messages`, `tools`, and the other fields that decide how the prompt is rendered and the reply is parsed.
    pub conversation: Arc<Conversation>,
    /// `stream`.
    pub stream: bool,
    /// Options of a stream.
    pub options: StreamOptions,
    /// `logprobs`.
    pub logprobs: bool,
    /// `return_tokens_as_token_ids`.
    pub(crate) token_names: TokenNames,
    /// `parallel_tool_calls`.
    pub parallel_calls: bool,
    /// The names of the custom tools, whose calls have a text as their input.
    pub custom_tools: Arc<HashSet<String>>,
    /// `stop` and `stop_token_ids`.
    pub stops: Stops,
    /// `n`.
    pub n: usize,
    /// Additional members of the reply that the client asks for.
    pub extras: ReplyExtras,
}

/// Options of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// `stream_options.include_usage`: the last chunk has `usage`.
    pub include_usage: bool,
    /// `stream_options.continuous_usage_stats`: each chunk has `usage`.
    pub continuous_usage: bool,
    /// `stream_reasoning` is false: each reasoning text is sent in one piece when it is complete.
    pub join_reasoning: bool,
}

/// Additional members of a reply that a client asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplyExtras {
    /// `return_prompt_token_ids`: the ids of the prompt.
    pub prompt_ids: bool,
    /// `return_token_ids`: the sampled ids and the ids of the prompt.
    pub token_ids: bool,
    /// `return_meta_info`: `meta_info`.
    pub meta_info: bool,
    /// `return_entropy`: `meta_info` with the members that tokentap adds.
    pub entropy: bool,
    /// `return_routed_experts`: the experts that processed each token, in `sglext`.
    pub routed_experts: bool,
}

impl ReplyExtras {
    /// Whether the choices include the ids of the prompt.
    #[must_use]
    pub fn includes_prompt_ids(&self) -> bool {
        self.prompt_ids || self.token_ids
    }
}

impl ChatRequest {
    /// Decodes a body.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn parse(bytes: Bytes) -> Result<Self, RequestError> {
        let (body, [messages]) = RequestBody::parse(bytes, ["messages"])?;
        let Some(Value::Array(values)) = messages else {
            return Err(invalid("messages must be a list"));
        };
        if values.is_empty() {
            return Err(invalid("Messages cannot be empty."));
        }
        let messages = values
            .into_iter()
            .enumerate()
            .map(|(at, value)| decode_message(value, at))
            .collect::<Result<Vec<_>, _>>()?;
        let tools = ChatTools::parse(body.value("tools")?)?;
        for (older, newer) in [("functions", "tools"), ("function_call", "tool_choice")] {
            if body.is_set(older) {
                return Err(invalid(format!("{older} is deprecated and not supported; send {newer}")));
            }
        }
        let tool_choice = tools.choice(body.value("tool_choice")?.as_ref())?;
        let options = body.value("stream_options")?.unwrap_or_default();
        let option = |name: &str| options.get(name) == Some(&Value::Bool(true));
        let extras = ReplyExtras {
            prompt_ids: body.flag("return_prompt_token_ids", false)?,
            token_ids: body.flag("return_token_ids", false)?,
            meta_info: body.flag("return_meta_info", false)?,
            entropy: body.flag("return_entropy", false)?,
            routed_experts: body.flag("return_routed_experts", false)?,
        };
        if body.flag("return_sampling_mask", false)? && !extras.meta_info {
            return Err(invalid("return_sampling_mask requires return_meta_info=true."));
        }
        Ok(Self {
            model: body.text("model")?.unwrap_or_else(|| "default".to_owned()),
            conversation: Arc::new(Conversation {
                tools: tools.definitions,
                tool_choice,
                template_variables: body.template_variables(body.value("reasoning_effort")?)?,
                continues_last: body.flag("continue_final_message", false)?,
                prompt_ids: prompt_ids(&body)?,
                separates_reasoning: body.flag("separate_reasoning", true)?,
                has_reasoning_items: false,
                skips_special_tokens: body.flag("skip_special_tokens", true)?,
                keeps_stop: body.flag("no_stop_trim", false)?,
                messages,
            }),
            stream: body.flag("stream", false)?,
            options: StreamOptions {
                include_usage: option("include_usage"),
                continuous_usage: option("continuous_usage_stats"),
                join_reasoning: !body.flag("stream_reasoning", true)?,
            },
            logprobs: body.flag("logprobs", false)?,
            token_names: TokenNames::of(body.flag("return_tokens_as_token_ids", false)?),
            parallel_calls: body.flag("parallel_tool_calls", true)?,
            custom_tools: tools.custom,
            stops: Stops::new(body.value("stop")?.as_ref(), body.value("stop_token_ids")?.as_ref()),
            n: body.samples()?,
            extras,
            body,
        })
    }

    /// Checks that a reply of text is what the client asks for.
    ///
    /// # Errors
    /// [`RequestError::Invalid`].
    pub fn check_modalities(&self) -> Result<(), RequestError> {
        let Some(Value::Array(modalities)) = self.body.value("modalities")? else { return Ok(()) };
        if modalities.is_empty() || modalities.iter().any(|modality| modality.as_str() == Some("text")) {
            return Ok(());
        }
        Err(invalid("modalities must contain \"text\": replies have no audio"))
    }

    /// Builds the /generate request. `work` counts its memory.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn generate_request(
        &self,
        inputs: GenerateInputs<'_>,
        echoes_prompt: bool,
        work: &Work,
    ) -> Result<Box<GenerateRequest>, RequestError> {
        let body = &self.body;
        let mut limits = ["max_completion_tokens", "max_tokens"].into_iter().filter_map(|name| body.present(name));
        let constraint = match (output_constraint(body)?, self.conversation.forced_call_schema(self.parallel_calls)) {
            (Some(_), Some(_)) => return Err(two_constraints("response_format")),
            (constraint, schema) => constraint.or_else(|| Some((SamplingParam::JsonSchema, quoted(&dumps(&schema?))))),
        };
        let client = ClientParams {
            max_new_tokens: limits.find(|limit| *limit != b"0").unwrap_or(b"null"),
            constraint,
            fields: body.fields(),
            adapter: lora_adapter(&self.model, inputs.served_model),
            stream: self.stream,
            echoes_prompt,
            top_logprobs: self.logprobs.then(|| body.present("top_logprobs").unwrap_or(b"0")),
        };
        inputs.build(client, work)
    }
}

/// `input_ids`: the prompt, if the client has rendered the conversation itself.
fn prompt_ids(body: &RequestBody) -> Result<Option<Vec<u32>>, RequestError> {
    let Some(ids) = body.present("input_ids") else { return Ok(None) };
    let ids = serde_json::from_slice(ids);
    ids.map(Some).map_err(|error| invalid(format!("input_ids must be a list of ids: {error}")))
}
