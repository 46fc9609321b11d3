// SPDX-License-Identifier: Apache-2.0
//! Parses `sampling_params`, the parameters of sampling and the stop conditions, and checks their values with SGLang's error messages.

use serde_json::{Map, Value};

use super::grammar::Grammar;
use super::options::Dialect;
use super::refusal::Refusal;

/// The keys, in the order in which SGLang's error about an unknown key lists them.
const KEYS: [&str; 28] = [
    "max_new_tokens",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_new_tokens",
    "n",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "no_stop_trim",
    "stream_interval",
    "logit_bias",
    "sampling_seed",
    "custom_params",
    "beam_width",
    "watermark",
    "choice",
];

/// A scripted output: the engine outputs these tokens in order, with the logprobs that the model assigns to them.
#[derive(Debug, Clone, PartialEq)]
pub enum ScriptedOutput {
    /// A text. The text of a special token becomes that token.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
}

impl ScriptedOutput {
    fn parse(value: &Value) -> Option<Self> {
        if let Some(text) = value.as_str() {
            return Some(Self::Text(text.to_owned()));
        }
        let ids = value.as_array()?.iter().map(|id| u32::try_from(id.as_u64()?).ok());
        ids.collect::<Option<_>>().map(Self::Ids)
    }
}

/// SGLang's sampling parameters, with its defaults.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the names are SGLang's")]
pub struct SamplingParams {
    /// `None`: up to the end of the context.
    pub max_new_tokens: Option<i64>,
    pub min_new_tokens: i64,
    pub temperature: f64,
    pub top_p: f64,
    /// `None`: the whole vocabulary.
    pub top_k: Option<usize>,
    pub min_p: f64,
    pub frequency_penalty: f64,
    pub presence_penalty: f64,
    pub repetition_penalty: f64,
    pub stop: Vec<String>,
    pub stop_token_ids: Vec<u32>,
    pub ignore_eos: bool,
    pub skip_special_tokens: bool,
    pub no_stop_trim: bool,
    pub n: usize,
    /// Token ids, each with the number that is added to its logit.
    pub logit_bias: Vec<(i64, f64)>,
    pub sampling_seed: Option<i64>,
    /// Tokens per event; `None`: the default of the server.
    pub stream_interval: Option<usize>,
    /// The grammar that constrains the output.
    pub grammar: Option<Grammar>,
    /// The output begins with thinking. The grammar begins after it.
    pub require_reasoning: bool,
    /// The error message for a feature that the engine does not support.
    pub unsupported: Option<String>,
    /// The output that replaces sampled tokens, for tests: `custom_params.say`.
    pub script: Option<ScriptedOutput>,
    /// The request asks the plugin for entropies; `Some(true)`: only for exact ones over the whole vocabulary.
    pub plugin: Option<bool>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            max_new_tokens: Some(128),
            min_new_tokens: 0,
            temperature: 1.0,
            top_p: 1.0,
            top_k: None,
            min_p: 0.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            skip_special_tokens: true,
            no_stop_trim: false,
            n: 1,
            logit_bias: Vec::new(),
            sampling_seed: None,
            stream_interval: None,
            grammar: None,
            require_reasoning: false,
            unsupported: None,
            script: None,
            plugin: None,
        }
    }
}

impl SamplingParams {
    /// Whether decoding is greedy: the most probable token is always chosen.
    pub fn is_greedy(&self) -> bool {
        self.top_k == Some(1)
    }

    /// The temperature of returned logprobs: that of the request, or 1 if it is greedy. SGLang returns the same for a greedy request if all
    /// requests of its batch are greedy.
    pub fn described_temperature(&self) -> f64 {
        if self.is_greedy() { 1.0 } else { self.temperature }
    }

    /// Normalises the parameters as SGLang does: temperature 0 becomes temperature 1 with `top_k` 1.
    pub fn normalised(mut self) -> Self {
        if (0.0..1e-6).contains(&self.temperature) {
            self.temperature = 1.0;
            self.top_k = Some(1);
        }
        self
    }

    /// Parses `sampling_params`. [`ParamsVerifier`] checks the values later.
    pub(super) fn parse(object: &Map<String, Value>, dialect: Dialect) -> Result<Self, Refusal> {
        let mut params = Self::default();
        for (key, value) in object {
            params.set(key, value).map_err(|message| match dialect {
                Dialect::Sglang0523 => Refusal::Schema(message),
                // SGLang 0.5.6 passes them as keyword arguments to a class, which raises an uncaught TypeError
                Dialect::Sglang056 => Refusal::Internal,
            })?;
        }
        if dialect == Dialect::Sglang056 {
            // measured: SGLang 0.5.6 accepts the parameter and does not apply it
            params.repetition_penalty = 1.0;
        }
        Ok(params)
    }

    fn set(&mut self, key: &str, value: &Value) -> Result<(), String> {
        if value.is_null() {
            if key == "max_new_tokens" {
                self.max_new_tokens = None;
            }
            return check_key(key);
        }
        match key {
            "max_new_tokens" => self.max_new_tokens = Some(integer(value)?),
            "min_new_tokens" => self.min_new_tokens = integer(value)?,
            "temperature" => self.temperature = float(value)?,
            "top_p" => self.top_p = float(value)?,
            "min_p" => self.min_p = float(value)?,
            "frequency_penalty" => self.frequency_penalty = float(value)?,
            "presence_penalty" => self.presence_penalty = float(value)?,
            "repetition_penalty" => self.repetition_penalty = float(value)?,
            // `verify` refuses 0
            "top_k" => {
                let top_k = integer(value)?;
                self.top_k = (top_k != -1).then_some(usize::try_from(top_k).unwrap_or(0));
            }
            "n" => self.n = usize::try_from(integer(value)?).unwrap_or(1).max(1),
            "stop" => self.stop = strings(value)?,
            "stop_token_ids" => {
                let ids = value.as_array().ok_or_else(|| mismatch(value, "a sequence"))?;
                let ids = ids.iter().filter(|id| !id.is_null()).map(integer);
                // an id outside the vocabulary is never sampled, so it is ignored
                self.stop_token_ids =
                    ids.filter_map(|id| id.map(|id| u32::try_from(id).ok()).transpose()).collect::<Result<_, _>>()?;
            }
            "ignore_eos" => self.ignore_eos = boolean(value)?,
            "skip_special_tokens" => self.skip_special_tokens = boolean(value)?,
            "no_stop_trim" => self.no_stop_trim = boolean(value)?,
            "stream_interval" => self.stream_interval = usize::try_from(integer(value)?).ok().filter(|n| *n > 0),
            "sampling_seed" => self.sampling_seed = Some(integer(value)?),
            "logit_bias" => {
                let biases = value.as_object().ok_or_else(|| mismatch(value, "a map"))?;
                let bias = |(id, bias): (&String, &Value)| {
                    let id = id.trim().parse().map_err(|_| mismatch(&Value::String(id.clone()), "i64"))?;
                    Ok::<_, String>((id, float(bias)?))
                };
                self.logit_bias = biases.iter().map(bias).collect::<Result<_, _>>()?;
            }
            "custom_params" => {
                self.script = value.get("say").and_then(ScriptedOutput::parse);
                self.plugin = match value.get("tokentap_entropy") {
                    Some(Value::Bool(true)) => Some(false),
                    Some(Value::String(text)) if text == "full" => Some(true),
                    _ => None,
                }
            }
            // an empty string means no grammar
            "regex" | "json_schema" | "ebnf" | "structural_tag" if value.as_str() == Some("") => {}
            "json_schema" => match Grammar::from_schema(value.as_str().ok_or_else(|| mismatch(value, "a string"))?) {
                Ok(grammar) => self.grammar = Some(grammar),
                Err(message) => self.unsupported = Some(message),
            },
            "regex" | "ebnf" | "structural_tag" | "stop_regex" | "beam_width" | "watermark" => {
                self.unsupported = Some(format!("sampling_params.{key} is not supported by the demo engine"));
            }
            _ => return check_key(key),
        }
        Ok(())
    }
}

fn check_key(key: &str) -> Result<(), String> {
    if KEYS.contains(&key) {
        return Ok(());
    }
    let keys: Vec<String> = KEYS.iter().map(|key| format!("`{key}`")).collect();
    Err(format!("unknown field `{key}`, expected one of {}", keys.join(", ")))
}

fn mismatch(value: &Value, expected: &str) -> String {
    let found = match value {
        Value::String(text) => format!("string {text:?}"),
        Value::Bool(flag) => format!("boolean `{flag}`"),
        Value::Number(number) if number.is_f64() => format!("floating point `{number}`"),
        Value::Number(number) => format!("integer `{number}`"),
        Value::Array(_) => "sequence".into(),
        Value::Object(_) => "map".into(),
        Value::Null => "null".into(),
    };
    format!("invalid type: {found}, expected {expected}")
}

fn integer(value: &Value) -> Result<i64, String> {
    value.as_i64().ok_or_else(|| mismatch(value, "i64"))
}

fn float(value: &Value) -> Result<f64, String> {
    value.as_f64().ok_or_else(|| mismatch(value, "f64"))
}

fn boolean(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| mismatch(value, "a boolean"))
}

fn strings(value: &Value) -> Result<Vec<String>, String> {
    let one = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| mismatch(value, "a string"));
    match value {
        Value::Array(all) => all.iter().map(one).collect(),
        _ => Ok(vec![one(value)?]),
    }
}

/// Checks parameters against the vocabulary and SGLang's limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct ParamsVerifier {
    pub(super) vocab_size: usize,
    /// Errors do not name the valid range of ids.
    pub(super) hide_vocab: bool,
    /// The limits and messages of SGLang 0.5.6.
    pub(super) older: bool,
}

impl ParamsVerifier {
    /// Checks the values in SGLang's order. The error names the first value that is out of range.
    pub(super) fn verify(&self, params: &SamplingParams) -> Result<(), Refusal> {
        let ensure = |holds: bool, message: String| {
            if holds { Ok(()) } else { Err(Refusal::Value(message)) }
        };
        let SamplingParams { temperature, top_p, min_p, .. } = params;
        let number = if self.older { "non-negative" } else { "a non-negative finite number" };
        ensure(*temperature >= 0.0, format!("temperature must be {number}, got {temperature}."))?;
        ensure(*top_p > 0.0 && *top_p <= 1.0, format!("top_p must be in (0, 1], got {top_p}."))?;
        ensure((0.0..=1.0).contains(min_p), format!("min_p must be in [0, 1], got {min_p}."))?;
        ensure(params.top_k != Some(0), "top_k must be -1 (disable) or at least 1, got 0.".into())?;
        let penalties = [("frequency", params.frequency_penalty), ("presence", params.presence_penalty)];
        for (name, penalty) in penalties {
            let fits = (-2.0..=2.0).contains(&penalty);
            ensure(fits, format!("{name}_penalty must be in [-2, 2], got {penalty}."))?;
        }
        let repetition = params.repetition_penalty;
        let message = format!("repetition_penalty must be in (0, 2] (1.0 = no penalty), got {repetition}.");
        ensure(repetition > 0.0 && repetition <= 2.0, message)?;
        let least = params.min_new_tokens;
        ensure(least >= 0, format!("min_new_tokens must be in [0, max_new_tokens], got {least}."))?;
        if let Some(most) = params.max_new_tokens {
            ensure(most >= 0, format!("max_new_tokens must be at least 0, got {most}."))?;
            let message = format!("min_new_tokens must be in [0, max_new_tokens({most})], got {least}.");
            ensure(least <= most, message)?;
        }
        for (id, _) in &params.logit_bias {
            let message = match self.hide_vocab {
                true => format!("logit_bias has an invalid key {id}."),
                false => format!("logit_bias must has keys in [0, {}], got {id}.", self.vocab_size - 1),
            };
            ensure(self.in_vocab(*id), message)?;
        }
        // a scripted output is assumed to follow the grammar
        match &params.unsupported {
            Some(message) if params.script.is_none() => Err(Refusal::value(message)),
            _ => Ok(()),
        }
    }

    /// Checks `token_ids_logprob`.
    pub(super) fn verify_ids(&self, ids: &[i64]) -> Result<(), Refusal> {
        // 0.5.6 does not check the ids; its behaviour with invalid ones is not emulated
        match ids.iter().find(|id| !self.in_vocab(**id)) {
            None => Ok(()),
            Some(_) if self.hide_vocab => {
                Err(Refusal::value("token_ids_logprob contains an out-of-vocabulary token id."))
            }
            Some(id) => Err(Refusal::Value(format!(
                "token_ids_logprob contains out-of-vocabulary token id {id}; valid range is [0, {}).",
                self.vocab_size
            ))),
        }
    }

    pub(super) fn in_vocab(&self, id: i64) -> bool {
        usize::try_from(id).is_ok_and(|id| id < self.vocab_size)
    }
}
