//! Builds the /generate requests of the other APIs. Values are JSON text, most of it copied from the client's request.

use std::ops::Range;
use std::sync::Arc;

use super::GenerateRequest;
use crate::budget::{Share, Stopped, Work};
use crate::json::{Malformed, MemberWriter, write_ids};

/// The bytes of an id in a prompt: as a number, and as text.
const ID_BYTES: usize = 4 + 7;

/// A sampling parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SamplingParam {
    /// `temperature`.
    Temperature,
    /// `top_p`.
    TopP,
    /// `top_k`.
    TopK,
    /// `min_p`.
    MinP,
    /// `repetition_penalty`.
    RepetitionPenalty,
    /// `presence_penalty`.
    PresencePenalty,
    /// `frequency_penalty`.
    FrequencyPenalty,
    /// The most tokens of a reply; null for the rest of the context.
    MaxNewTokens,
    /// The fewest tokens of a reply.
    MinNewTokens,
    /// Samples per prompt.
    N,
    /// Stop strings.
    Stop,
    /// Stop tokens.
    StopTokenIds,
    /// Regular expressions that stop.
    StopRegex,
    /// The seed of the sampling.
    Seed,
    /// Added to logits, by id.
    LogitBias,
    /// A grammar: a JSON schema, as a JSON string.
    JsonSchema,
    /// A grammar: a structural tag, as a JSON string.
    StructuralTag,
    /// A grammar: a regular expression.
    Regex,
    /// A grammar in EBNF.
    Ebnf,
    /// The end-of-sequence token does not stop.
    IgnoreEos,
    /// The text keeps the stop string.
    NoStopTrim,
    /// The text has no special tokens.
    SkipSpecialTokens,
    /// The parameters of a logit processor.
    CustomParams,
}

/// A member of a request besides its prompt and its sampling parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestOption {
    /// The request id.
    Rid,
    /// A name of the session.
    SessionId,
    /// Another name of the session.
    ProxySessionId,
    /// Metadata, which may name the session.
    Metadata,
    /// The user, who may name the session.
    User,
    /// The adapter.
    LoraPath,
    /// A logit processor.
    CustomLogitProcessor,
    /// A part of the key of the prefix cache.
    ExtraKey,
    /// Another part of that key.
    CacheSalt,
    /// The scheduling priority.
    Priority,
    /// Prefill/decode disaggregation: the host of the prefill engine.
    BootstrapHost,
    /// Its port.
    BootstrapPort,
    /// Its room.
    BootstrapRoom,
    /// The rank that runs the request.
    DataParallelRank,
    /// The same, in newer versions.
    RoutedDpRank,
    /// The rank of the prefill engine.
    DisaggPrefillDpRank,
    /// Returns the routed experts.
    ReturnRoutedExperts,
    /// The first token with routed experts.
    RoutedExpertsStartLen,
    /// Asks for entropies.
    ReturnEntropy,
    /// The options of entropies.
    EntropyOptions,
}

impl SamplingParam {
    /// The name in `sampling_params`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Temperature => "temperature",
            Self::TopP => "top_p",
            Self::TopK => "top_k",
            Self::MinP => "min_p",
            Self::RepetitionPenalty => "repetition_penalty",
            Self::PresencePenalty => "presence_penalty",
            Self::FrequencyPenalty => "frequency_penalty",
            Self::MaxNewTokens => "max_new_tokens",
            Self::MinNewTokens => "min_new_tokens",
            Self::N => "n",
            Self::Stop => "stop",
            Self::StopTokenIds => "stop_token_ids",
            Self::StopRegex => "stop_regex",
            Self::Seed => "sampling_seed",
            Self::LogitBias => "logit_bias",
            Self::JsonSchema => "json_schema",
            Self::StructuralTag => "structural_tag",
            Self::Regex => "regex",
            Self::Ebnf => "ebnf",
            Self::IgnoreEos => "ignore_eos",
            Self::NoStopTrim => "no_stop_trim",
            Self::SkipSpecialTokens => "skip_special_tokens",
            Self::CustomParams => "custom_params",
        }
    }
}

impl RequestOption {
    /// The name of the member.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rid => "rid",
            Self::SessionId => "session_id",
            Self::ProxySessionId => "_proxy_session_id",
            Self::Metadata => "metadata",
            Self::User => "user",
            Self::LoraPath => "lora_path",
            Self::CustomLogitProcessor => "custom_logit_processor",
            Self::ExtraKey => "extra_key",
            Self::CacheSalt => "cache_salt",
            Self::Priority => "priority",
            Self::BootstrapHost => "bootstrap_host",
            Self::BootstrapPort => "bootstrap_port",
            Self::BootstrapRoom => "bootstrap_room",
            Self::DataParallelRank => "data_parallel_rank",
            Self::RoutedDpRank => "routed_dp_rank",
            Self::DisaggPrefillDpRank => "disagg_prefill_dp_rank",
            Self::ReturnRoutedExperts => "return_routed_experts",
            Self::RoutedExpertsStartLen => "routed_experts_start_len",
            Self::ReturnEntropy => "return_entropy",
            Self::EntropyOptions => "entropy_options",
        }
    }
}

/// A request that is being written: the prompt, then the sampling parameters, then the options.
#[derive(Debug)]
pub(crate) struct RequestBuilder {
    out: Vec<u8>,
    /// Counts the memory of the request.
    share: Share,
    /// The ids of the prompt, and the range of their list.
    ids: Option<(Arc<[u32]>, Range<usize>)>,
}

/// A prompt as JSON text.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PromptText<'a> {
    /// A string, or a list of strings.
    Text(&'a [u8]),
    /// A list of ids, or a list of such lists.
    Ids(&'a [u8]),
}

impl RequestBuilder {
    /// Begins the request of a prompt. `work` counts the memory of the request until its body is dropped.
    ///
    /// # Errors
    /// [`Stopped`] if the budget has no room for it.
    pub(crate) fn from_ids(ids: &Arc<[u32]>, work: &Work) -> Result<Self, Stopped> {
        let share = work.take(ID_BYTES * ids.len() + 512)?;
        let mut out = Vec::with_capacity(7 * ids.len() + 512);
        out.extend_from_slice(b"{\"input_ids\":");
        let start = out.len();
        out.push(b'[');
        write_ids(&mut out, ids);
        out.push(b']');
        let span = start..out.len();
        Ok(Self { out, share, ids: Some((Arc::clone(ids), span)) })
    }

    /// Begins the request of a prompt that is copied. `length` is the expected length of the request in bytes.
    ///
    /// # Errors
    /// [`Stopped`] if the budget has no room for it.
    pub(crate) fn from_prompt(prompt: PromptText<'_>, length: usize, work: &Work) -> Result<Self, Stopped> {
        let share = work.take(length)?;
        let mut out = Vec::with_capacity(length);
        out.push(b'{');
        let (name, value) = match prompt {
            PromptText::Text(text) => ("text", text),
            PromptText::Ids(ids) => ("input_ids", ids),
        };
        MemberWriter::new(&mut out).put(name, value);
        Ok(Self { out, share, ids: None })
    }

    /// Writes the sampling parameters.
    pub(crate) fn sampling(&mut self, write: impl FnOnce(&mut SamplingWriter<'_>)) {
        self.out.extend_from_slice(b",\"sampling_params\":{");
        write(&mut SamplingWriter(MemberWriter::new(&mut self.out)));
        self.out.push(b'}');
    }

    /// Writes an option.
    pub(crate) fn option(&mut self, option: RequestOption, value: &[u8]) {
        self.put(option.name(), value);
    }

    /// Requests that a grammar applies only after the thinking.
    pub(crate) fn require_reasoning(&mut self) {
        // SGLang 0.5.6 has the name `reasoning`
        self.put("require_reasoning", b"true");
        self.put("reasoning", b"true");
    }

    /// Requests a stream.
    pub(crate) fn stream(&mut self) {
        self.put("stream", b"true");
    }

    /// Requests the logprobs of the sampled tokens.
    pub(crate) fn logprobs(&mut self) {
        self.put("return_logprob", b"true");
    }

    /// Requests the logprobs of the sampled tokens, and those of the `k` likeliest tokens.
    pub(crate) fn top_logprobs(&mut self, k: &[u8]) {
        self.logprobs();
        self.put("top_logprobs_num", k);
    }

    /// Requests the text of each token with its logprob.
    pub(crate) fn text_in_logprobs(&mut self) {
        self.put("return_text_in_logprobs", b"true");
    }

    /// Requests the ids of the prompt in the reply.
    pub(crate) fn echo_prompt_ids(&mut self) {
        self.put("return_prompt_token_ids", b"true");
    }

    /// Ends the request.
    ///
    /// # Errors
    /// When a copied value makes it unreadable.
    pub(crate) fn finish(self) -> Result<Box<GenerateRequest>, Malformed> {
        let Self { mut out, mut share, ids } = self;
        out.push(b'}');
        match ids {
            Some((ids, span)) => {
                share.insist(4 * ids.len() + out.capacity());
                GenerateRequest::parse_with_ids(share.hold(out), ids, span).map(Box::new)
            }
            None => {
                share.insist(out.capacity());
                GenerateRequest::parse(share.hold(out)).map(Box::new)
            }
        }
    }

    fn put(&mut self, name: &str, value: &[u8]) {
        MemberWriter::after_members(&mut self.out).put(name, value);
    }
}

/// Writes sampling parameters.
#[derive(Debug)]
pub(crate) struct SamplingWriter<'a>(MemberWriter<'a>);

impl SamplingWriter<'_> {
    /// Writes a parameter.
    pub(crate) fn set(&mut self, param: SamplingParam, value: &[u8]) {
        self.0.put(param.name(), value);
    }

    /// Keeps special tokens in the text.
    pub(crate) fn keep_special_tokens(&mut self) {
        self.set(SamplingParam::SkipSpecialTokens, b"false");
    }
}

/// Sampling parameters alone, as a JSON object.
pub(crate) fn sampling_params(write: impl FnOnce(&mut SamplingWriter<'_>)) -> Box<str> {
    let mut out = b"{".to_vec();
    write(&mut SamplingWriter(MemberWriter::new(&mut out)));
    out.push(b'}');
    String::from_utf8_lossy(&out).into()
}
