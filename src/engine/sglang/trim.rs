//! Removes from a reply the members that were forced on its request.

use crate::engine::plan::{ExactSource, ItemPlan, Plan};
use crate::engine::sglang::flat::{self, TopLogprobsField};
use crate::engine::sglang::scan;
use crate::json::{Edit, Malformed, Object, Splice, Text};

/// The members that tokentap adds to a reply.
const ADDED_MEMBERS: [&str; 5] = [
    "output_token_entropy",
    "entropy_info",
    "output_token_entropy_lower",
    "output_token_entropy_upper",
    "output_token_stats",
];

/// The members that a reply has only with logprobs.
const LOGPROBS: [&str; 5] = [
    "input_token_logprobs",
    "output_token_logprobs",
    "output_token_logprobs_length",
    "input_token_ids_logprobs",
    "output_token_ids_logprobs",
];

/// The members that a reply has only with a top-k: a name, and the prefix of further names.
const TOP: [(&str, &str); 2] =
    [("input_top_logprobs", "input_top_logprobs_"), ("output_top_logprobs", "output_top_logprobs_")];

/// Trims the `meta_info` of a sequence to what its client requested. The bytes of the remaining members are unchanged.
///
/// # Errors
/// When the lists to be cut are not in SGLang's format.
pub(crate) fn trim(
    plan: &Plan,
    item: &ItemPlan,
    bytes: &[u8],
    meta: &Object,
    edit: &mut Edit<'_>,
    splice: &mut Splice,
) -> Result<(), Malformed> {
    // those that tokentap adds replace those of the plugin, or of an upstream that is another tokentap; or the engine added them for another
    // item of the batch
    if plan.entropy_request.wanted || plan.plugin && !item.own_plugin {
        let may_be_added = |key: &Text<'_>| key.escaped || matches!(key.raw, [b'o', b'u', ..] | [b'e', b'n', ..]);
        edit.remove(|key| may_be_added(key) && ADDED_MEMBERS.iter().any(|name| key.is(name)));
    }
    if item.exact == Some(ExactSource::Support) && item.forces_exact() {
        edit.remove(|key| key.starts_with("output_token_sampling_"));
    }
    if !item.logprob || item.k == item.asked_k && item.asked {
        return Ok(());
    }
    // a quick test first, because most members are others
    let is_list = |key: &Text<'_>| key.escaped || matches!(key.raw, [b'i', b'n', ..] | [b'o', b'u', ..]);
    let top = |key: &Text<'_>| is_list(key) && TOP.iter().any(|(name, prefix)| key.is(name) || key.starts_with(prefix));
    if !item.asked {
        edit.remove(|key| is_list(key) && (LOGPROBS.iter().any(|name| key.is(name)) || top(key)));
        return Ok(());
    }
    if item.asked_k == 0 {
        edit.remove(|key| top(key) || item.placeholder && key.is("input_token_logprobs"));
        return Ok(());
    }
    let keep = item.asked_k as usize;
    for name in ["input_top_logprobs", "output_top_logprobs"] {
        let Some(span) = meta.value_span(bytes, name).filter(|span| bytes[span.start] == b'[') else { continue };
        let mut cuts = Vec::new();
        scan::cuts(bytes, span.start + 1, keep, &mut cuts).map_err(|error| Malformed::new(error.at))?;
        cuts.into_iter().for_each(|cut| splice.cut(cut));
    }
    for side in [TopLogprobsField::Input, TopLogprobsField::Output] {
        flat::keep_columns(side, keep, bytes, meta, edit)?;
    }
    Ok(())
}

/// Removes the echo of the prompt's ids from an object.
pub(crate) fn strip_echo(bytes: &[u8], object: &Object, splice: &mut Splice) {
    let mut edit = Edit::new(bytes, object);
    edit.remove(|key| key.is("prompt_token_ids"));
    edit.finish(splice);
}
