// SPDX-License-Identifier: Apache-2.0
//! What an engine sends: the objects of a reply, parsed.
//!
//! Only numbers are copied. Other members are ranges of the raw bytes, which `generation` splices.

use std::borrow::Cow;
use std::ops::Range;

use crate::json::Object;
use crate::logprobs::Rows;

/// One object of a reply.
#[derive(Debug, Default)]
pub struct Chunk {
    /// The members of `meta_info`; `None` in an error event.
    pub meta: Option<Object>,
    /// `index`; 0 if absent.
    pub index: usize,
    /// `meta_info.id`.
    pub rid: Option<String>,
    /// `meta_info.finish_reason`; `None` if absent or null.
    pub finish: Option<Finish>,
    /// `meta_info.prompt_tokens`.
    pub prompt_tokens: Option<u64>,
    /// `meta_info.completion_tokens`, counted from the start of the sequence in every streaming mode.
    pub completion_tokens: Option<u64>,
    /// `output_token_logprobs`.
    pub chosen: Option<Array>,
    /// `output_top_logprobs` in its nested form.
    pub top: Option<Array>,
    /// The plugin's `output_token_entropy`.
    pub exact: Option<Array>,
    /// Whether the object has `output_token_sampling_logprobs`.
    pub has_support: bool,
    /// The range of `output_ids`, including brackets.
    pub output_ids: Option<Range<usize>>,
    /// The range of `prompt_token_ids`, including brackets.
    pub prompt_ids: Option<Range<usize>>,
    /// The members of the object itself.
    pub object: Object,
}

/// How a sequence ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// `stop`, `length`, `abort`, or another name of the engine.
    pub kind: Cow<'static, str>,
    /// The range of `matched`, if it is present and not null.
    pub matched: Option<Range<usize>>,
    /// `status_code`, if it is an HTTP status: the engine failed. An abort that was requested has none.
    pub status_code: Option<u16>,
    /// The range of `message`, if it is present and not null.
    pub message: Option<Range<usize>>,
}

impl Finish {
    /// The name of a kind, without an allocation if it is a usual one.
    #[must_use]
    pub(crate) fn kind(name: &str) -> Cow<'static, str> {
        match ["stop", "length", "abort"].into_iter().find(|known| *known == name) {
            Some(known) => known.into(),
            None => name.to_owned().into(),
        }
    }
}

/// An array that was parsed after its known prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// The range between the brackets.
    pub content: Range<usize>,
    /// The length of the known prefix, in bytes, from an earlier event.
    pub known: usize,
}

/// The numbers of one object, in reusable buffers.
#[derive(Debug, Default)]
pub struct Numbers {
    /// Logprobs of the chosen tokens, NaN for null.
    pub chosen: Vec<f32>,
    /// Their ids.
    pub ids: Vec<u32>,
    /// Top-k rows.
    pub rows: Rows,
    /// Entropies that the engine's plugin measured, in nats; NaN for null.
    pub exact: Vec<f32>,
    /// Logprobs of the support from which each token was sampled.
    pub support: Rows,
}

impl Numbers {
    /// Removes all numbers.
    pub(crate) fn clear(&mut self) {
        self.chosen.clear();
        self.ids.clear();
        self.rows.clear();
        self.exact.clear();
        self.support.clear();
    }
}

/// Resumes parsing in a cumulative stream: returns how many leading bytes of an array's content were parsed in an earlier event.
pub trait KnownPrefix {
    /// For `output_token_logprobs`; `bytes` begins after the bracket.
    fn chosen(&self, bytes: &[u8]) -> usize;
    /// For `output_top_logprobs`; `bytes` begins after the bracket.
    fn top(&self, bytes: &[u8]) -> usize;
    /// For the plugin's `output_token_entropy`; `bytes` begins after the bracket.
    fn exact(&self, bytes: &[u8]) -> usize;
}

/// No known prefix, as in a reply that does not stream.
#[derive(Debug, Clone, Copy)]
pub struct NoKnownPrefix;

impl KnownPrefix for NoKnownPrefix {
    fn chosen(&self, _: &[u8]) -> usize {
        0
    }
    fn top(&self, _: &[u8]) -> usize {
        0
    }
    fn exact(&self, _: &[u8]) -> usize {
        0
    }
}
