//! A reply as plain data.

use super::logprobs::Logprobs;
use super::mask::Mask;

/// Why a sequence ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// An end of turn or a stop token came.
    StopToken(u32),
    /// A stop string came.
    StopString(String),
    /// `max_new_tokens`, as clamped to the context, tokens.
    Length(usize),
    /// Somebody asked for it.
    Abort,
}

/// Output tokens `start..end` came from the weights labelled `version`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are SGLang's")]
pub struct Span {
    pub version: String,
    pub start: usize,
    pub end: usize,
}

/// When things happened to one sequence: seconds since the epoch, or seconds.
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs, reason = "the names are SGLang's")]
pub struct Timing {
    pub request_received_ts: f64,
    pub api_server_dispatch_finish_ts: f64,
    pub forward_entry_time: f64,
    pub prefill_finished_time: f64,
    pub queue_time: f64,
    pub request_finished_ts: f64,
    /// When its first byte went out.
    pub response_sent_to_client_ts: f64,
}

/// One reply object, or one event of a stream.
#[derive(Debug, Clone, Copy)]
pub struct Reply<'a> {
    /// The text, or what is new of it.
    pub text: &'a str,
    /// The ids, or the new ones.
    pub output_ids: &'a [u32],
    /// Everything else.
    pub meta: Meta<'a>,
    /// For `return_prompt_token_ids`.
    pub prompt_token_ids: Option<&'a [u32]>,
    /// Which item of a streamed batch this is.
    pub index: Option<usize>,
}

/// `meta_info`.
#[derive(Debug, Clone, Copy)]
pub struct Meta<'a> {
    /// The request id.
    pub id: &'a str,
    /// `None` in all events but the last.
    pub finish: Option<&'a Finish>,
    /// Tokens.
    pub prompt_tokens: usize,
    /// Tokens so far, also in incremental streams.
    pub completion_tokens: usize,
    /// Prompt tokens whose state was at hand.
    pub cached_tokens: usize,
    /// The label of the weights.
    pub weight_version: &'a str,
    /// Written at the finish by 0.5.23.
    pub weight_versions: &'a [Span],
    /// How often the sequence was put back into the queue.
    pub retractions: usize,
    /// For `return_logprob`.
    pub logprobs: Option<Logprobs<'a>>,
    /// For `return_sampling_mask`.
    pub masks: Option<&'a [Mask]>,
    /// How many tokens have a mask so far.
    pub masks_length: usize,
    /// The plugin's numbers.
    pub exact: Option<&'a [Option<f32>]>,
    /// When things happened.
    pub timing: Timing,
    /// Nothing of this sequence was sent before.
    pub first: bool,
}
