// SPDX-License-Identifier: Apache-2.0
//! Builds the /generate requests of the other APIs. Values are JSON text, most of it copied from the client's request.

use std::ops::Range;
use std::sync::Arc;

use super::GenerateRequest;
use super::images::{self, ImageData};
use crate::budget::{Share, Stopped, Work};
use crate::images::Image;
use crate::json::{Malformed, MemberWriter, write_ids};
use crate::named_enum::named_enum;

/// The bytes of an id in a prompt: as a number, and as text.
const ID_BYTES: usize = 4 + 7;

named_enum! {
    /// A sampling parameter.
    pub(crate) enum SamplingParam {
        Temperature = "temperature",
        TopP = "top_p",
        TopK = "top_k",
        MinP = "min_p",
        RepetitionPenalty = "repetition_penalty",
        PresencePenalty = "presence_penalty",
        FrequencyPenalty = "frequency_penalty",
        /// The most tokens of a reply; null for the rest of the context.
        MaxNewTokens = "max_new_tokens",
        /// The fewest tokens of a reply.
        MinNewTokens = "min_new_tokens",
        /// Samples per prompt.
        N = "n",
        Stop = "stop",
        StopTokenIds = "stop_token_ids",
        StopRegex = "stop_regex",
        Seed = "sampling_seed",
        /// Added to logits, by id.
        LogitBias = "logit_bias",
        /// A grammar: a JSON schema, as a JSON string.
        JsonSchema = "json_schema",
        /// A grammar: a structural tag, as a JSON string.
        StructuralTag = "structural_tag",
        /// A grammar: a regular expression.
        Regex = "regex",
        /// A grammar in EBNF.
        Ebnf = "ebnf",
        /// The end-of-sequence token does not stop.
        IgnoreEos = "ignore_eos",
        /// The text keeps the stop string.
        NoStopTrim = "no_stop_trim",
        /// The text has no special tokens.
        SkipSpecialTokens = "skip_special_tokens",
        CustomParams = "custom_params",
    }
}

named_enum! {
    /// A member of a request besides its prompt and its sampling parameters.
    pub(crate) enum RequestOption {
        Rid = "rid",
        /// A name of the session.
        SessionId = "session_id",
        /// Another name of the session.
        ProxySessionId = "_proxy_session_id",
        Metadata = "metadata",
        /// The user, who may name the session.
        User = "user",
        LoraPath = "lora_path",
        CustomLogitProcessor = "custom_logit_processor",
        /// A part of the key of the prefix cache.
        ExtraKey = "extra_key",
        /// Another part of that key.
        CacheSalt = "cache_salt",
        Priority = "priority",
        /// Prefill/decode disaggregation: the host of the prefill engine.
        BootstrapHost = "bootstrap_host",
        BootstrapPort = "bootstrap_port",
        BootstrapRoom = "bootstrap_room",
        /// The rank that runs the request.
        DataParallelRank = "data_parallel_rank",
        /// The same, in newer versions.
        RoutedDpRank = "routed_dp_rank",
        /// The rank of the prefill engine.
        DisaggPrefillDpRank = "disagg_prefill_dp_rank",
        ReturnRoutedExperts = "return_routed_experts",
        /// The first token with routed experts.
        RoutedExpertsStartLen = "routed_experts_start_len",
        ReturnSamplingMask = "return_sampling_mask",
        ReturnEntropy = "return_entropy",
        EntropyOptions = "entropy_options",
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
    /// The pictures of the prompt.
    images: ImageData,
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
    /// Begins the request of a prompt that has a placeholder for each of `images`. `work` counts the memory of the request until its body is
    /// dropped.
    ///
    /// # Errors
    /// [`Stopped`] if the budget has no room for it.
    pub(crate) fn from_ids(ids: &Arc<[u32]>, images: &[Arc<Image>], work: &Work) -> Result<Self, Stopped> {
        let written = images::written_bytes(images);
        let share = work.take(ID_BYTES * ids.len() + written + 512)?;
        let mut out = Vec::with_capacity(7 * ids.len() + written + 512);
        out.extend_from_slice(b"{\"input_ids\":");
        let start = out.len();
        out.push(b'[');
        write_ids(&mut out, ids);
        out.push(b']');
        let span = start..out.len();
        Ok(Self { out, share, ids: Some((Arc::clone(ids), span)), images: ImageData::default() })
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
        Ok(Self { out, share, ids: None, images: ImageData::default() })
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

    /// Writes the pictures of the prompt. `is_batch` with several samples.
    pub(crate) fn images(&mut self, images: &[Arc<Image>], is_batch: bool) {
        if images.is_empty() {
            return;
        }
        self.out.extend_from_slice(b",\"image_data\":");
        images::write_images(&mut self.out, images, is_batch);
        self.images = ImageData::decoded(images, is_batch);
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
        let Self { mut out, mut share, ids, images } = self;
        out.push(b'}');
        match ids {
            Some((ids, span)) => {
                share.insist(4 * ids.len() + out.capacity());
                let request = GenerateRequest::parse_with_ids(share.hold(out), ids, span)?;
                // the pictures need not be decoded from the body again
                Ok(Box::new(GenerateRequest { images, ..request }))
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
