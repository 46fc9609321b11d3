//! The body of `/generate`, read.

use serde_json::{Map, Value};

use super::options::Dialect;
use super::refusal::Refusal;
use super::sampling::SamplingParams;
use super::wire::Form;

/// A prompt, as the client gave it.
#[derive(Debug, Clone)]
pub(super) enum RequestPrompt {
    Text(String),
    Ids(Vec<i64>),
}

/// A value for all items of a batch, or one for each.
#[derive(Debug, Clone)]
pub(super) enum Each<T> {
    All(T),
    Listed(Vec<T>),
}

impl<T> Each<T> {
    /// The value of item `at` of a batch. A list that is too short, or given to
    /// a single prompt (`None`), is an uncaught exception.
    pub(super) fn of(&self, at: Option<usize>) -> Result<&T, Refusal> {
        match (self, at) {
            (Self::All(value), _) => Ok(value),
            (Self::Listed(values), Some(at)) => values.get(at).ok_or(Refusal::Internal),
            (Self::Listed(_), None) => Err(Refusal::Internal),
        }
    }
}

/// How the logprobs of all items are written.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReplyShape {
    pub(super) texts: bool,
    pub(super) input: Form,
    pub(super) output: Form,
    pub(super) prompt_token_ids: bool,
}

/// What `/generate` was asked.
#[derive(Debug)]
pub(super) struct GenerateRequest {
    pub(super) stream: bool,
    /// One object is answered rather than an array, as long as `n` is 1.
    pub(super) single: bool,
    pub(super) prompts: Vec<RequestPrompt>,
    pub(super) rid: Option<Each<String>>,
    pub(super) params: Each<SamplingParams>,
    pub(super) return_logprob: Each<bool>,
    pub(super) logprob_start_len: Each<i64>,
    pub(super) top_logprobs_num: Each<i64>,
    pub(super) token_ids_logprob: Each<Vec<i64>>,
    pub(super) return_sampling_mask: Each<bool>,
    /// The mask comes with the logprobs of all its tokens.
    pub(super) whole_support: bool,
    pub(super) shape: ReplyShape,
    /// A value error, which a stream hears about inside.
    pub(super) refused: Option<Refusal>,
}

impl GenerateRequest {
    /// Reads a body. Errors are those that even a stream hears about at once.
    pub(super) fn parse(body: &[u8], dialect: Dialect) -> Result<Self, Refusal> {
        let value: Value = serde_json::from_slice(body).map_err(|error| {
            Refusal::Types(format!(
                "1 validation error:\n  {{'type': 'json_invalid', 'msg': 'JSON decode error', 'error': '{error}'}}\n"
            ))
        })?;
        let object = value.as_object().ok_or_else(|| Refusal::field("", "dictionary"))?;
        let mut refused = None;
        let (single, prompts) = match prompts(object)? {
            Ok(prompts) => prompts,
            Err(refusal) => {
                refused = Some(refusal);
                (true, Vec::new())
            }
        };
        let stream = flag(object, "stream")?;
        let newer = dialect == Dialect::Sglang0523;
        let (shape, mixed) = shape(object, newer, stream)?;
        let refused = refused.or(mixed).or_else(|| switched_off(object, newer)).or_else(|| unsupported(object));
        let thinks = flag(object, "require_reasoning")? || flag(object, "reasoning")?;
        let number = |name, default| {
            let integer = |value: &Value| value.as_i64().ok_or_else(|| Refusal::field(name, "integer"));
            Ok::<_, Refusal>(each(object, name, integer)?.unwrap_or(Each::All(default)))
        };
        Ok(Self {
            stream,
            single,
            prompts,
            rid: each(object, "rid", |v| v.as_str().map(str::to_owned).ok_or_else(|| Refusal::field("rid", "string")))?,
            params: each(object, "sampling_params", |value| match value {
                Value::Object(params) => {
                    SamplingParams::parse(params, dialect).map(|params| SamplingParams { thinks, ..params })
                }
                _ => Err(Refusal::field("sampling_params", "dictionary")),
            })?
            .unwrap_or(Each::All(SamplingParams::default())),
            return_logprob: each(object, "return_logprob", |value| boolean("return_logprob", value))?
                .unwrap_or(Each::All(false)),
            logprob_start_len: number("logprob_start_len", -1)?,
            top_logprobs_num: number("top_logprobs_num", 0)?,
            token_ids_logprob: token_ids(object)?,
            return_sampling_mask: each(object, "return_sampling_mask", |value| boolean("return_sampling_mask", value))?
                .unwrap_or(Each::All(false)),
            whole_support: member(object, "sampling_logprobs_mode").and_then(Value::as_str) == Some("support"),
            shape,
            refused,
        })
    }
}

/// How logprobs are to be written, and what the flags for it cannot be combined
/// with. 0.5.6 does not know them.
fn shape(object: &Map<String, Value>, newer: bool, stream: bool) -> Result<(ReplyShape, Option<Refusal>), Refusal> {
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
    let shape = ReplyShape {
        texts: flag(object, "return_text_in_logprobs")?,
        input: form(flat_in),
        output: form(flat_out),
        prompt_token_ids: newer && flag(object, "return_prompt_token_ids")?,
    };
    Ok((shape, message.map(Refusal::value)))
}

/// Features of a request that need a flag at launch.
fn switched_off(object: &Map<String, Value>, newer: bool) -> Option<Refusal> {
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

/// What SGLang has and this engine does not.
const LACKS: [&str; 8] = [
    "input_embeds",
    "image_data",
    "video_data",
    "audio_data",
    "session_params",
    "return_routed_experts",
    "bootstrap_host",
    "bootstrap_room",
];

fn unsupported(object: &Map<String, Value>) -> Option<Refusal> {
    let asked = |name: &&&str| member(object, name).is_some_and(|value| *value != Value::Bool(false));
    let name = LACKS.iter().find(asked)?;
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

fn each<T>(
    object: &Map<String, Value>,
    name: &str,
    read: impl Fn(&Value) -> Result<T, Refusal>,
) -> Result<Option<Each<T>>, Refusal> {
    Ok(match member(object, name) {
        None => None,
        Some(Value::Array(values)) => Some(Each::Listed(values.iter().map(read).collect::<Result<_, _>>()?)),
        Some(value) => Some(Each::All(read(value)?)),
    })
}

fn ids(name: &str, value: &Value) -> Result<Vec<i64>, Refusal> {
    let ids = value.as_array().ok_or_else(|| Refusal::field(name, "list"))?;
    ids.iter().map(|id| id.as_i64().ok_or_else(|| Refusal::field(name, "integer"))).collect()
}

/// One list for all items, or a list of lists; an empty list asks for nothing.
fn token_ids(object: &Map<String, Value>) -> Result<Each<Vec<i64>>, Refusal> {
    let name = "token_ids_logprob";
    Ok(match member(object, name) {
        None => Each::All(Vec::new()),
        Some(Value::Array(lists)) if lists.iter().any(Value::is_array) => {
            // A null in place of a list is a type error, unlike in other fields.
            let lists = lists.iter().map(|list| ids(name, list));
            Each::Listed(lists.collect::<Result<_, _>>()?)
        }
        Some(value) => Each::All(ids(name, value)?),
    })
}

/// `text` decides whether it is a batch; `input_ids`, where given, are what is run.
#[allow(clippy::type_complexity, reason = "type errors and value errors come at different times")]
fn prompts(object: &Map<String, Value>) -> Result<Result<(bool, Vec<RequestPrompt>), Refusal>, Refusal> {
    let texts =
        each(object, "text", |v| v.as_str().map(str::to_owned).ok_or_else(|| Refusal::field("text", "string")))?;
    let given = match member(object, "input_ids") {
        None => None,
        Some(Value::Array(lists)) if lists.iter().any(Value::is_array) => {
            Some(Each::Listed(lists.iter().map(|list| ids("input_ids", list)).collect::<Result<_, _>>()?))
        }
        Some(value) => Some(Each::All(ids("input_ids", value)?)),
    };
    if let Some(Each::All(ids)) = &given
        && ids.is_empty()
    {
        return Ok(Err(Refusal::value("input_ids cannot be empty.")));
    }
    Ok(Ok(match (texts, given) {
        (None, None) => {
            return Ok(Err(Refusal::value("Either text, input_ids or input_embeds should be provided.")));
        }
        (None | Some(Each::All(_)), Some(Each::All(ids))) => (true, vec![RequestPrompt::Ids(ids)]),
        (None | Some(Each::Listed(_)), Some(Each::Listed(lists))) => {
            (false, lists.into_iter().map(RequestPrompt::Ids).collect())
        }
        (Some(Each::All(text)), None) => (true, vec![RequestPrompt::Text(text)]),
        (Some(Each::Listed(texts)), None) => (false, texts.into_iter().map(RequestPrompt::Text).collect()),
        (Some(_), Some(_)) => return Err(Refusal::Internal),
    }))
}
