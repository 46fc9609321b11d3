// SPDX-License-Identifier: Apache-2.0
//! The content of a reply.

/// The finish reason of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-turn or a stop token was sampled.
    StopToken(u32),
    /// A stop string occurred in the text.
    StopString(String),
    /// The maximum length was reached: `max_new_tokens`, clamped to the context, in tokens.
    Length(usize),
    /// The sequence was aborted.
    Abort,
}

/// The output tokens `start..end`, which the weights with the label `version` sampled.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are SGLang's")]
pub struct Span {
    pub version: String,
    pub start: usize,
    pub end: usize,
}

/// The sampling mask of a token: the support from which the token was sampled.
#[derive(Debug, Clone, PartialEq)]
pub struct Mask {
    /// The ids of the support.
    pub ids: Vec<u32>,
    /// The renormalised logprobs of the support, or only that of the sampled token.
    pub logprobs: Vec<f32>,
    /// Whether `logprobs` are those of the whole support.
    pub whole: bool,
}

/// The times of a sequence, in seconds since the epoch; `queue_time` is a duration in seconds.
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs, reason = "the names are SGLang's")]
pub struct Timing {
    pub request_received_ts: f64,
    pub api_server_dispatch_finish_ts: f64,
    pub forward_entry_time: f64,
    pub prefill_finished_time: f64,
    pub queue_time: f64,
    pub request_finished_ts: f64,
    /// The time at which the first byte of the reply was sent.
    pub response_sent_to_client_ts: f64,
}

/// A reply object, or an event of a stream.
#[derive(Debug, Clone, Copy)]
pub struct Reply<'a> {
    /// The text, or its new part in an incremental stream.
    pub text: &'a str,
    /// The output ids, or the new ones in an incremental stream.
    pub output_ids: &'a [u32],
    /// The `meta_info` member.
    pub meta: Meta<'a>,
    /// The prompt ids, for `return_prompt_token_ids`.
    pub prompt_token_ids: Option<&'a [u32]>,
    /// The index of the item in a streamed batch.
    pub index: Option<usize>,
}

/// The content of `meta_info`.
#[derive(Debug, Clone, Copy)]
pub struct Meta<'a> {
    /// The request id.
    pub id: &'a str,
    /// The finish reason; `None` in all events except the last.
    pub finish: Option<&'a Finish>,
    /// The length of the prompt, in tokens.
    pub prompt_tokens: usize,
    /// The number of output tokens so far, also in incremental streams.
    pub completion_tokens: usize,
    /// The number of prompt tokens in the prefix cache.
    pub cached_tokens: usize,
    /// The label of the weights.
    pub weight_version: &'a str,
    /// The spans of weight versions, which 0.5.23 encodes when the sequence has finished.
    pub weight_versions: &'a [Span],
    /// How often the sequence was put back into the queue.
    pub retractions: usize,
    /// The logprobs, for `return_logprob`.
    pub logprobs: Option<Logprobs<'a>>,
    /// The sampling masks, for `return_sampling_mask`.
    pub masks: Option<&'a [Mask]>,
    /// The number of output tokens so far, each of which has a mask.
    pub masks_length: usize,
    /// The routed experts in base64; `None` in all events except the last, and if the request does not ask for them.
    pub experts: Option<&'a str>,
    /// The entropies of the plugin, in nats.
    pub exact: Option<&'a [Option<f32>]>,
    /// The times.
    pub timing: Timing,
    /// This is the first event of the sequence, or its only reply.
    pub first: bool,
}

/// A token and its logprob.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogprobRow {
    /// The logprob, natural logarithm. `None` for a token without one, such as the first token of a prompt; encoded as `null`.
    pub logprob: Option<f32>,
    /// The token id.
    pub id: u32,
}

/// Groups of rows, one group of equal size for each position. The first positions may have no group.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogprobTable<'a> {
    /// The number of positions at the start without a group; encoded as `null`.
    pub null_prefix: usize,
    /// The number of rows in a group.
    pub width: usize,
    /// The groups of the positions after the prefix, `width` rows each.
    pub rows: &'a [LogprobRow],
}

/// The encoding of top logprobs. Only SGLang 0.5.23 has the flat forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// A list of rows for each position.
    #[default]
    Nested,
    /// One list of values and one of ids.
    Flat,
    /// The same lists as little-endian float32 and int32 in base64.
    FlatBase64,
}

/// Logprobs of the prompt or of the output.
#[derive(Debug, Clone, Copy, Default)]
pub struct SideLogprobs<'a> {
    /// One row for each token.
    pub tokens: &'a [LogprobRow],
    /// The most probable tokens, if requested.
    pub top: Option<LogprobTable<'a>>,
    /// The encoding of `top`.
    pub form: Form,
    /// The logprobs of the ids in `token_ids_logprob`, if requested.
    pub ids: Option<LogprobTable<'a>>,
}

/// The logprobs of the prompt and the output, for a request with `return_logprob`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Logprobs<'a> {
    /// The prompt.
    pub input: SideLogprobs<'a>,
    /// The output, or its new part in an incremental stream.
    pub output: SideLogprobs<'a>,
    /// The number of all output tokens so far, also in incremental streams.
    pub output_length: usize,
    /// The text of every id, for `return_text_in_logprobs`.
    pub texts: Option<&'a [String]>,
}
