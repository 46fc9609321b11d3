//! `sampling_params`: how tokens are drawn and when to stop.

use serde_json::{Map, Value};

use super::grammar::Grammar;
use super::options::Dialect;
use super::refusal::Refusal;

/// As the real one lists them, in its order, for the message about an unknown key.
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

/// A scripted output: its tokens are sampled in order, with the logprobs that the model gives them.
#[derive(Debug, Clone, PartialEq)]
pub enum ScriptedOutput {
    /// A text; the names of special tokens in it are those tokens.
    Text(String),
    /// Tokens.
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
    /// `None` goes on to the end of the context.
    pub max_new_tokens: Option<i64>,
    pub min_new_tokens: i64,
    pub temperature: f64,
    pub top_p: f64,
    /// `None` is the whole vocabulary.
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
    /// Token id and what is added to its logit.
    pub logit_bias: Vec<(i64, f64)>,
    pub sampling_seed: Option<i64>,
    /// Tokens an event; `None` is the server's.
    pub stream_interval: Option<usize>,
    /// What the text must be.
    pub grammar: Option<Grammar>,
    /// The request asks for a thought first; the grammar begins after it.
    pub thinks: bool,
    /// Why the request is refused: it asks for what this engine does not have.
    pub unsupported: Option<String>,
    /// What is sampled whatever the distribution, for tests: ids, or a text.
    pub say: Option<ScriptedOutput>,
    /// The plugin is asked; `Some(true)`: for the whole vocabulary alone.
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
            thinks: false,
            unsupported: None,
            say: None,
            plugin: None,
        }
    }
}

impl SamplingParams {
    /// Whether the most probable token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.top_k == Some(1)
    }

    /// The temperature that returned logprobs are at: the request's, or 1 where
    /// it is greedy (as SGLang answers while everything in its batch is).
    pub fn described_temperature(&self) -> f64 {
        if self.is_greedy() { 1.0 } else { self.temperature }
    }

    /// As SGLang rewrites them on arrival: temperature 0 is temperature 1 with `top_k` 1.
    pub fn normalised(mut self) -> Self {
        if (0.0..1e-6).contains(&self.temperature) {
            self.temperature = 1.0;
            self.top_k = Some(1);
        }
        self
    }

    /// Reads the request's object. Values are checked later, by `Limits`.
    pub(super) fn parse(object: &Map<String, Value>, dialect: Dialect) -> Result<Self, Refusal> {
        let mut params = Self::default();
        for (key, value) in object {
            params.set(key, value).map_err(|message| match dialect {
                Dialect::Sglang0523 => Refusal::Schema(message),
                // Keyword arguments of a Python class: an uncaught TypeError.
                Dialect::Sglang056 => Refusal::Internal,
            })?;
        }
        if dialect == Dialect::Sglang056 {
            // Measured: accepted and never applied there.
            params.repetition_penalty = 1.0;
        }
        Ok(params)
    }

    fn set(&mut self, key: &str, value: &Value) -> Result<(), String> {
        if value.is_null() {
            if key == "max_new_tokens" {
                self.max_new_tokens = None;
            }
            return known(key);
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
            // 0 is kept for verify to refuse: it is no size of a choice.
            "top_k" => {
                let top_k = integer(value)?;
                self.top_k = (top_k != -1).then_some(usize::try_from(top_k).unwrap_or(0));
            }
            "n" => self.n = usize::try_from(integer(value)?).unwrap_or(1).max(1),
            "stop" => self.stop = strings(value)?,
            "stop_token_ids" => {
                let ids = value.as_array().ok_or_else(|| mismatch(value, "a sequence"))?;
                let ids = ids.iter().filter(|id| !id.is_null()).map(integer);
                // An id that is no token's never comes up, so it may as well be dropped.
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
                self.say = value.get("say").and_then(ScriptedOutput::parse);
                self.plugin = match value.get("tokentap_entropy") {
                    Some(Value::Bool(true)) => Some(false),
                    Some(Value::String(text)) if text == "full" => Some(true),
                    _ => None,
                }
            }
            // An empty grammar is no grammar.
            "regex" | "json_schema" | "ebnf" | "structural_tag" if value.as_str() == Some("") => {}
            "json_schema" => match Grammar::of_schema(value.as_str().ok_or_else(|| mismatch(value, "a string"))?) {
                Ok(grammar) => self.grammar = Some(grammar),
                Err(message) => self.unsupported = Some(message),
            },
            "regex" | "ebnf" | "structural_tag" | "stop_regex" | "beam_width" | "watermark" => {
                self.unsupported = Some(format!("sampling_params.{key} is not supported by the demo engine"));
            }
            _ => return known(key),
        }
        Ok(())
    }
}

fn known(key: &str) -> Result<(), String> {
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
