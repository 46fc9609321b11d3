//! Decodes the body of a completion request and builds its /generate request. It needs no tokenizer, because the engine encodes the prompt
//! and decodes the sampled tokens.

use bytes::Bytes;

use crate::api::body::{RequestBody, invalid, is_non_default, is_present};
use crate::api::generate_request::unreadable;
use crate::api::openai::{UNSUPPORTED, lora_adapter, output_constraint};
use crate::budget::Work;
use crate::chat::RequestError;
use crate::engine::sglang::request::{GenerateRequest, PromptText, RequestBuilder, SamplingParam, SessionNames};
use crate::json::{Cursor, Malformed, Object, Value};
use crate::tokenizer::SamplingDefaults;

/// The body of a completion request, and the fields that tokentap decodes.
#[derive(Debug)]
pub struct CompletionRequest {
    bytes: Bytes,
    /// The spans of the members of the body.
    object: Object,
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
    /// `return_token_ids`.
    pub token_ids: bool,
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
        let object = Object::parse(&bytes).map_err(|error| invalid(format!("the body is {error}")))?;
        let body = RequestBody { bytes: &bytes, object: &object };
        let unsupported = UNSUPPORTED.iter().chain(&["suffix"]).find(|name| body.raw(name).is_some_and(is_non_default));
        if let Some(name) = unsupported {
            return Err(RequestError::Unsupported(format!("the field {name:?}")));
        }
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
            model: body.value("model")?.and_then(|model| model.as_str().map(str::to_owned)).unwrap_or("default".into()),
            stream: body.flag("stream", false)?,
            include_usage: option("include_usage"),
            continuous_usage: option("continuous_usage_stats"),
            token_ids: body.flag("return_token_ids", false)?,
            n: body.count("n")?,
            prompt_count: body.raw("prompt").map_or(1, prompt_count),
            logprobs,
            echo,
            object,
            bytes,
        })
    }

    /// The members of the body that may name its session.
    #[must_use]
    pub fn session_names(&self) -> SessionNames {
        SessionNames::decode(&self.bytes, &self.object)
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
        let body = RequestBody { bytes: &self.bytes, object: &self.object };
        let prompt =
            body.raw("prompt").filter(|prompt| is_present(prompt)).ok_or_else(|| invalid("prompt is missing"))?;
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
        let constraint = output_constraint(&body)?;
        let mut request = RequestBuilder::from_prompt(prompt, self.bytes.len() + 256, work)?;
        request.sampling(|sampling| {
            let max_tokens = body.raw("max_tokens").filter(|value| is_present(value)).unwrap_or(b"16");
            sampling.set(SamplingParam::MaxNewTokens, max_tokens);
            if body.raw("skip_special_tokens") == Some(b"false") {
                sampling.keep_special_tokens();
            }
            let schema = || body.raw("json_schema").filter(|schema| is_present(schema));
            match &constraint {
                Some((grammar, value)) => sampling.set(*grammar, value.as_bytes()),
                None => schema().iter().for_each(|schema| sampling.set(SamplingParam::JsonSchema, schema)),
            }
            body.write_sampling(sampling, &SamplingDefaults::default());
        });
        body.write_options(&mut request, lora_adapter(&self.model, served_model));
        if self.stream {
            request.stream();
        }
        if let Some(count) = self.logprobs {
            request.top_logprobs(count.to_string().as_bytes());
            request.text_in_logprobs();
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
    let mut cursor = Cursor::new(prompt);
    let mut count = 0;
    let mut read = || {
        cursor.expect(b'[')?;
        let has_ids = matches!(cursor.peek(), Some(b'-' | b'0'..=b'9' | b'N' | b'I'));
        while !has_ids && !cursor.take(b']') {
            cursor.take(b',');
            cursor.skip()?;
            count += 1;
        }
        Ok::<_, Malformed>(!has_ids)
    };
    // the body is known to be JSON
    if read().unwrap_or(false) { count } else { 1 }
}

/// The texts of the prompts.
///
/// # Errors
/// [`RequestError::Unsupported`] if a prompt is a list of ids, whose text only the engine can decode.
fn echo(body: &RequestBody<'_>) -> Result<Vec<String>, RequestError> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let texts = match body.value("prompt")? {
        Some(Value::String(prompt)) => Some(vec![prompt]),
        Some(Value::Array(prompts)) => prompts.iter().map(text).collect(),
        _ => None,
    };
    texts.ok_or_else(|| RequestError::Unsupported("the text of a prompt of ids".into()))
}
