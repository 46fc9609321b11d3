// SPDX-License-Identifier: Apache-2.0
//! Decodes the body of a completion request and builds its /generate request. It needs no tokenizer, because the engine encodes the prompt
//! and decodes the sampled tokens.

use bytes::Bytes;

use crate::api::body::{RequestBody, invalid};
use crate::api::generate_request::{unreadable, write_defaults, write_options, write_sampling};
use crate::api::openai::{TokenNames, lora_adapter, output_constraint};
use crate::budget::Work;
use crate::chat::RequestError;
use crate::engine::sglang::request::{GenerateRequest, PromptText, RequestBuilder, SamplingParam};
use crate::json::{Cursor, Value};
use crate::tokenizer::SamplingDefaults;

/// The body of a completion request, and the fields that tokentap decodes.
#[derive(Debug)]
pub struct CompletionRequest {
    pub(crate) body: RequestBody,
    /// `model`. The reply repeats it.
    pub model: String,
    /// `stream`.
    pub stream: bool,
    /// `stream_options.include_usage`.
    pub include_usage: bool,
    /// `stream_options.continuous_usage_stats`.
    pub continuous_usage: bool,
    /// `logprobs`: the number of likeliest tokens for each position of the reply.
    pub logprobs: Option<u32>,
    /// `return_tokens_as_token_ids`: what the tokens are called in logprobs.
    pub(crate) token_names: TokenNames,
    /// `return_token_ids`.
    pub token_ids: bool,
    /// `return_routed_experts`: the experts that processed each token, in `sglext`.
    pub routed_experts: bool,
    /// `echo`: the prompts, with which the texts of the reply begin. Empty if not requested.
    pub echo: Vec<String>,
    /// `n`.
    pub n: usize,
    /// The number of prompts.
    pub prompt_count: usize,
}

impl CompletionRequest {
    /// Decodes a body.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn parse(bytes: Bytes) -> Result<Self, RequestError> {
        let (body, []) = RequestBody::parse(bytes, [])?;
        body.check_fields(&["suffix", "return_sampling_mask"])?;
        let options = body.value("stream_options")?.unwrap_or_default();
        let option = |name: &str| options.get(name) == Some(&Value::Bool(true));
        let logprobs = match body.value("logprobs")? {
            None | Some(Value::Bool(false)) => None,
            Some(Value::Bool(true)) => Some(1),
            Some(Value::Number(count)) => Some(count.parse().map_err(|_| invalid("logprobs must be a count"))?),
            Some(_) => return Err(invalid("logprobs must be a count")),
        };
        let echo = match (body.flag("echo", false)?, logprobs) {
            (false, _) => Vec::new(),
            (true, Some(1..)) => return Err(RequestError::Unsupported("logprobs of the prompt".into())),
            (true, _) => echo(&body)?,
        };
        Ok(Self {
            model: body.text("model")?.unwrap_or_else(|| "default".to_owned()),
            stream: body.flag("stream", false)?,
            include_usage: option("include_usage"),
            continuous_usage: option("continuous_usage_stats"),
            token_names: TokenNames::of(body.flag("return_tokens_as_token_ids", false)?),
            token_ids: body.flag("return_token_ids", false)?,
            routed_experts: body.flag("return_routed_experts", false)?,
            n: body.samples()?,
            prompt_count: body.raw("prompt").map_or(1, prompt_count),
            logprobs,
            echo,
            body,
        })
    }

    /// Builds the /generate request. `loses_ids` is true if the engine's streams lose ids when events are merged, so that only logprobs
    /// list all of them. `work` counts the body until it is dropped.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn generate_request(
        &self,
        served_model: &str,
        loses_ids: bool,
        work: &Work,
    ) -> Result<Box<GenerateRequest>, RequestError> {
        let (body, fields) = (&self.body, self.body.fields());
        let prompt = body.present("prompt").ok_or_else(|| invalid("prompt is missing"))?;
        let inner = prompt.strip_prefix(b"[").map(<[u8]>::trim_ascii_start);
        let prompt = match inner.unwrap_or(prompt).first() {
            Some(b']') => return Err(invalid("Prompt cannot be empty")),
            Some(b'"') if prompt == b"\"\"" => return Err(invalid("Prompt cannot be empty")),
            Some(b'"') => PromptText::Text(prompt),
            Some(b'0'..=b'9' | b'[') if inner.is_some() => PromptText::Ids(prompt),
            _ => {
                return Err(invalid(
                    "prompt must be a string, a list of strings, a list of ids, or a list of such lists",
                ));
            }
        };
        let constraint = output_constraint(body)?;
        let mut request = RequestBuilder::from_prompt(prompt, body.bytes.len() + 256, work)?;
        request.sampling(|sampling| {
            sampling.set(SamplingParam::MaxNewTokens, body.present("max_tokens").unwrap_or(b"16"));
            if body.raw("skip_special_tokens") == Some(b"false") {
                sampling.keep_special_tokens();
            }
            match (&constraint, body.present("json_schema")) {
                (Some((grammar, value)), _) => sampling.set(*grammar, value.as_bytes()),
                (None, Some(schema)) => sampling.set(SamplingParam::JsonSchema, schema),
                (None, None) => {}
            }
            write_defaults(sampling, &fields, &SamplingDefaults::default());
            write_sampling(sampling, &fields);
        });
        write_options(&mut request, &fields, lora_adapter(&self.model, served_model));
        if self.stream {
            request.stream();
        }
        if let Some(count) = self.logprobs {
            request.top_logprobs(count.to_string().as_bytes());
            if self.token_names == TokenNames::Texts {
                request.text_in_logprobs();
            }
        } else if self.stream && self.token_ids && loses_ids {
            request.logprobs();
        }
        if self.token_ids {
            request.echo_prompt_ids();
        }
        request.finish().map_err(unreadable)
    }
}

/// The number of prompts: the elements of a list, unless they are ids.
fn prompt_count(prompt: &[u8]) -> usize {
    let first = prompt.strip_prefix(b"[").and_then(|inner| inner.trim_ascii_start().first());
    if matches!(first, None | Some(b'-' | b'0'..=b'9' | b'N' | b'I')) {
        return 1;
    }
    let mut count = 0;
    let counted = Cursor::new(prompt).elements(|cursor| {
        count += 1;
        cursor.skip().map(drop)
    });
    // the body is known to be JSON
    counted.map_or(1, |()| count)
}

/// The texts of the prompts.
///
/// # Errors
/// [`RequestError::Unsupported`] if a prompt is a list of ids, whose text only the engine can decode.
fn echo(body: &RequestBody) -> Result<Vec<String>, RequestError> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let texts = match body.value("prompt")? {
        Some(Value::String(prompt)) => Some(vec![prompt]),
        Some(Value::Array(prompts)) => prompts.iter().map(text).collect(),
        _ => None,
    };
    texts.ok_or_else(|| RequestError::Unsupported("the text of a prompt of ids".into()))
}
