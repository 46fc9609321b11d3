//! What tokens were sampled from, for `return_sampling_mask`.

use super::logprobs::Writer;

/// What one token was sampled from.
#[derive(Debug, Clone, PartialEq)]
pub struct Mask {
    /// Every token that could have been.
    pub ids: Vec<u32>,
    /// Logprobs of all of them, renormalised, or of the sampled one alone.
    pub logprobs: Vec<f32>,
    /// Whether they are of all.
    pub whole: bool,
}

/// Writes the three members; `length` is how many tokens have a mask so far.
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
