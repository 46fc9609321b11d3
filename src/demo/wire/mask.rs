//! Encodes the sampling masks, for `return_sampling_mask`.

use super::logprobs::JsonWriter;

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

/// Writes the three members of sampling masks. `length` is the number of all tokens so far.
pub(super) fn write(writer: &mut JsonWriter<'_>, masks: &[Mask], length: usize) {
    writer.raw("\"output_token_sampling_mask\":");
    writer.list(masks, |writer, mask| writer.list(&mask.ids, |writer, id| writer.integer(*id as usize)));
    writer.raw(",\"output_token_sampling_logprobs\":");
    writer.list(masks, |writer, mask| match mask.whole {
        true => writer.list(&mask.logprobs, |writer, logprob| writer.float(f64::from(*logprob))),
        false => writer.float(f64::from(mask.logprobs[0])),
    });
    writer.raw(&format!(",\"output_token_sampling_mask_length\":{length},"));
}
