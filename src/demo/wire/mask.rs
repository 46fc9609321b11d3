//! The sampling masks, for `return_sampling_mask`.

use super::logprobs::Writer;

/// The tokens that one token was sampled from.
#[derive(Debug, Clone, PartialEq)]
pub struct Mask {
    /// The ids of all of them.
    pub ids: Vec<u32>,
    /// The renormalised logprobs of all of them, or of the sampled one only.
    pub logprobs: Vec<f32>,
    /// Whether the logprobs are those of all of them.
    pub whole: bool,
}

/// Writes the three members. `length` is the number of tokens that have a mask so far.
pub(super) fn write(writer: &mut Writer<'_>, masks: &[Mask], length: usize) {
    writer.raw("\"output_token_sampling_mask\":");
    writer.list(masks, |writer, mask| writer.list(&mask.ids, |writer, id| writer.integer(*id as usize)));
    writer.raw(",\"output_token_sampling_logprobs\":");
    writer.list(masks, |writer, mask| match mask.whole {
        true => writer.list(&mask.logprobs, |writer, logprob| writer.float(f64::from(*logprob))),
        false => writer.float(f64::from(mask.logprobs[0])),
    });
    writer.raw(&format!(",\"output_token_sampling_mask_length\":{length},"));
}
