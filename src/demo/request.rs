// SPDX-License-Identifier: Apache-2.0
//! Parses the body of `/generate`.

use serde_json::{Map, Value};

use super::options::Dialect;
use super::refusal::Refusal;
use super::sampling::SamplingParams;
use super::wire::Form;

/// A prompt of a request, before tokenisation and checks.
#[derive(Debug, Clone)]
pub(super) enum RequestPrompt {
    Text(String),
    Ids(Vec<i64>),
}

/// A parameter of a batch.
#[derive(Debug, Clone)]
pub(super) enum BatchValue<T> {
    /// One value for all items.
    Same(T),
    /// A list with one value for each item.
    PerItem(Vec<T>),
}

impl<T> BatchValue<T> {
    /// The value of item `at` of a batch; `at` is `None` for a single prompt. A list that is too short, or a list for a single prompt, is
    /// an internal error, as in SGLang.
    pub(super) fn item(&self, at: Option<usize>) -> Result<&T, Refusal> {
        match (self, at) {
            (Self::Same(value), _) => Ok(value),
            (Self::PerItem(values), Some(at)) => values.get(at).ok_or(Refusal::Internal),
            (Self::PerItem(_), None) => Err(Refusal::Internal),
        }
    }
}

/// The format of the logprobs and the optional members of a reply, for all items.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReplyFormat {
    /// Logprobs have the text of each token.
    pub(super) texts: bool,
    pub(super) input: Form,
    pub(super) output: Form,
    pub(super) prompt_token_ids: bool,
}

/// The body of a request to `/generate`.
#[derive(Debug)]
pub(super) struct GenerateBody {
    pub(super) stream: bool,
    /// The request has a single prompt: the reply is an object instead of an array if `n` is 1.
    pub(super) single: bool,
    pub(super) prompts: Vec<RequestPrompt>,
    pub(super) rid: Option<BatchValue<String>>,
    pub(super) params: BatchValue<SamplingParams>,
    pub(super) return_logprob: BatchValue<bool>,
    pub(super) logprob_start_len: BatchValue<i64>,
    pub(super) top_logprobs_num: BatchValue<i64>,
    pub(super) token_ids_logprob: BatchValue<Vec<i64>>,
    pub(super) return_sampling_mask: BatchValue<bool>,
    /// The sampling mask has the logprobs of all its tokens.
    pub(super) whole_support: bool,
    /// The first token with routed experts; `None` if they are not requested.
    pub(super) experts_from: Option<i64>,
    pub(super) format: ReplyFormat,
    /// The first value error. A stream returns it as an event.
    pub(super) value_error: Option<Refusal>,
}

impl GenerateBody {
    /// Parses a body. The error is one that also a stream returns with its own status; other errors are in `value_error`.
    pub(super) fn parse(body: &[u8], dialect: Dialect) -> Result<Self, Refusal> {
        let value: Value = serde_json::from_slice(body).map_err(|error| {
            Refusal::Types(format!(
                "1 validation error:\n  {{'type': 'json_invalid', 'msg': 'JSON decode error', 'error': '{error}'}}\n"
            ))
        })?;
        let object = value.as_object().ok_or_else(|| Refusal::field("", "dictionary"))?;
        let mut value_error = None;
        let (single, prompts) = match prompts(object)? {
            Ok(prompts) => prompts,
            Err(refusal) => {
                value_error = Some(refusal);
                (true, Vec::new())
            }
        };
        let stream = flag(object, "stream")?;
        let newer = dialect == Dialect::Sglang0523;
        let (format, conflict) = reply_format(object, newer, stream)?;
        let value_error =
            value_error.or(conflict).or_else(|| needs_launch_flag(object, newer)).or_else(|| unsupported(object));
        let require_reasoning = flag(object, "require_reasoning")? || flag(object, "reasoning")?;
        let number = |name, default| {
            let integer = |value: &Value| value.as_i64().ok_or_else(|| Refusal::field(name, "integer"));
            Ok::<_, Refusal>(batch_value(object, name, integer)?.unwrap_or(BatchValue::Same(default)))
        };
        let flags = |name| {
            let flags = batch_value(object, name, |value| boolean(name, value))?;
            Ok::<_, Refusal>(flags.unwrap_or(BatchValue::Same(false)))
        };
        Ok(Self {
            stream,
            single,
            prompts,
            rid: batch_value(object, "rid", |v| {
                v.as_str().map(str::to_owned).ok_or_else(|| Refusal::field("rid", "string"))
            })?,
            params: batch_value(object, "sampling_params", |value| match value {
                Value::Object(params) => {
                    SamplingParams::parse(params, dialect).map(|params| SamplingParams { require_reasoning, ..params })
                }
                _ => Err(Refusal::field("sampling_params", "dictionary")),
            })?
            .unwrap_or(BatchValue::Same(SamplingParams::default())),
            return_logprob: flags("return_logprob")?,
            logprob_start_len: number("logprob_start_len", -1)?,
            top_logprobs_num: number("top_logprobs_num", 0)?,
            token_ids_logprob: token_ids(object)?,
            return_sampling_mask: flags("return_sampling_mask")?,
            whole_support: member(object, "sampling_logprobs_mode").and_then(Value::as_str) == Some("support"),
            experts_from: experts_from(object)?,
            format,
            value_error,
        })
    }
}

/// Parses the request for routed experts.
fn experts_from(object: &Map<String, Value>) -> Result<Option<i64>, Refusal> {
    let start = member(object, "routed_experts_start_len").map_or(Some(0), Value::as_i64);
    let start = start.ok_or_else(|| Refusal::field("routed_experts_start_len", "integer"))?;
    Ok(flag(object, "return_routed_experts")?.then_some(start))
}

/// Parses the format of logprobs. Also returns an error if its flags cannot be combined. 0.5.6 ignores the flags.
fn reply_format(
    object: &Map<String, Value>,
    newer: bool,
    stream: bool,
) -> Result<(ReplyFormat, Option<Refusal>), Refusal> {
    let flat_in = flag(object, "return_flat_raw_top_logprobs")?;
    let flat_out = flag(object, "return_flat_raw_output_top_logprobs")?;
    let b64 = flag(object, "return_flat_raw_top_logprobs_b64")?;
    let message = if newer && flat_out && stream {
        Some(
            "return_flat_raw_output_top_logprobs is only set on the finished response and does not support \
             stream=True.",
        )
    } else if newer && b64 && !flat_in && !flat_out {
        Some(
            "return_flat_raw_top_logprobs_b64 requires return_flat_raw_top_logprobs or \
             return_flat_raw_output_top_logprobs.",
        )
    } else {
        None
    };
    let form = |flat: bool| match (newer && flat, b64) {
        (false, _) => Form::Nested,
        (true, false) => Form::Flat,
        (true, true) => Form::FlatBase64,
    };
    let format = ReplyFormat {
        texts: flag(object, "return_text_in_logprobs")?,
        input: form(flat_in),
        output: form(flat_out),
        prompt_token_ids: newer && flag(object, "return_prompt_token_ids")?,
    };
    Ok((format, message.map(Refusal::value)))
}

/// The refusal of a request for a feature that needs a launch flag of SGLang; the engine emulates a server without these flags.
fn needs_launch_flag(object: &Map<String, Value>, newer: bool) -> Option<Refusal> {
    if member(object, "custom_logit_processor").is_some() {
        return Some(Refusal::value(
            "The server is not configured to enable custom logit processor. Please set \
             `--enable-custom-logit-processor` to enable this feature.",
        ));
    }
    if member(object, "return_hidden_states").is_some_and(|value| *value != Value::Bool(false)) {
        return Some(Refusal::value(match newer {
            true => {
                "The server is not configured to return hidden states. Please set `--return-hidden-states-mode last`, \
                 `--return-hidden-states-mode full`, or the legacy `--enable-return-hidden-states` flag."
            }
            false => {
                "The server is not configured to return the hidden states. Please set \
                 `--enable-return-hidden-states` to enable this feature."
            }
        }));
    }
    let lora = member(object, "lora_path").filter(|_| newer)?;
    let lora = lora.as_str().unwrap_or_default();
    Some(Refusal::Value(format!(
        "LoRA adapter '{lora}' was requested, but LoRA is not enabled. Please launch the server with --enable-lora \
         flag and preload adapters using --lora-paths or /load_lora_adapter endpoint."
    )))
}

/// Fields of SGLang that the demo engine does not support.
const UNSUPPORTED_FIELDS: [&str; 7] =
    ["input_embeds", "image_data", "video_data", "audio_data", "session_params", "bootstrap_host", "bootstrap_room"];

fn unsupported(object: &Map<String, Value>) -> Option<Refusal> {
    let is_set = |name: &&&str| member(object, name).is_some_and(|value| *value != Value::Bool(false));
    let name = UNSUPPORTED_FIELDS.iter().find(is_set)?;
    Some(Refusal::Value(format!("{name} is not supported by the demo engine")))
}

fn member<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|value| !value.is_null())
}

fn flag(object: &Map<String, Value>, name: &str) -> Result<bool, Refusal> {
    member(object, name).map_or(Ok(false), |value| boolean(name, value))
}

fn boolean(name: &str, value: &Value) -> Result<bool, Refusal> {
    value.as_bool().ok_or_else(|| Refusal::field(name, "boolean"))
}

fn batch_value<T>(
    object: &Map<String, Value>,
    name: &str,
    read: impl Fn(&Value) -> Result<T, Refusal>,
) -> Result<Option<BatchValue<T>>, Refusal> {
    Ok(match member(object, name) {
        None => None,
        Some(Value::Array(values)) => Some(BatchValue::PerItem(values.iter().map(read).collect::<Result<_, _>>()?)),
        Some(value) => Some(BatchValue::Same(read(value)?)),
    })
}

fn ids(name: &str, value: &Value) -> Result<Vec<i64>, Refusal> {
    let ids = value.as_array().ok_or_else(|| Refusal::field(name, "list"))?;
    ids.iter().map(|id| id.as_i64().ok_or_else(|| Refusal::field(name, "integer"))).collect()
}

/// Parses `token_ids_logprob`: one list for all items, or a list of lists. An empty list requests no ids.
fn token_ids(object: &Map<String, Value>) -> Result<BatchValue<Vec<i64>>, Refusal> {
    let name = "token_ids_logprob";
    Ok(match member(object, name) {
        None => BatchValue::Same(Vec::new()),
        Some(Value::Array(lists)) if lists.iter().any(Value::is_array) => {
            // unlike in other fields, null instead of a list is a type error
            let lists = lists.iter().map(|list| ids(name, list));
            BatchValue::PerItem(lists.collect::<Result<_, _>>()?)
        }
        Some(value) => BatchValue::Same(ids(name, value)?),
    })
}

/// Parses the prompts. Also returns whether the request has a single prompt instead of a batch. `input_ids` take precedence over `text`. It
/// is an internal error if only one of the two is a batch.
#[allow(clippy::type_complexity, reason = "the outer error is a type error, and the inner one is a value error")]
fn prompts(object: &Map<String, Value>) -> Result<Result<(bool, Vec<RequestPrompt>), Refusal>, Refusal> {
    let texts =
        batch_value(object, "text", |v| v.as_str().map(str::to_owned).ok_or_else(|| Refusal::field("text", "string")))?;
    let given = match member(object, "input_ids") {
        None => None,
        Some(Value::Array(lists)) if lists.iter().any(Value::is_array) => {
            Some(BatchValue::PerItem(lists.iter().map(|list| ids("input_ids", list)).collect::<Result<_, _>>()?))
        }
        Some(value) => Some(BatchValue::Same(ids("input_ids", value)?)),
    };
    if let Some(BatchValue::Same(ids)) = &given
        && ids.is_empty()
    {
        return Ok(Err(Refusal::value("input_ids cannot be empty.")));
    }
    Ok(Ok(match (texts, given) {
        (None, None) => {
            return Ok(Err(Refusal::value("Either text, input_ids or input_embeds should be provided.")));
        }
        (None | Some(BatchValue::Same(_)), Some(BatchValue::Same(ids))) => (true, vec![RequestPrompt::Ids(ids)]),
        (None | Some(BatchValue::PerItem(_)), Some(BatchValue::PerItem(lists))) => {
            (false, lists.into_iter().map(RequestPrompt::Ids).collect())
        }
        (Some(BatchValue::Same(text)), None) => (true, vec![RequestPrompt::Text(text)]),
        (Some(BatchValue::PerItem(texts)), None) => (false, texts.into_iter().map(RequestPrompt::Text).collect()),
        (Some(_), Some(_)) => return Err(Refusal::Internal),
    }))
}
