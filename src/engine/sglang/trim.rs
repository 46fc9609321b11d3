// SPDX-License-Identifier: Apache-2.0
//! Removes from a reply the members that were forced on its request.

use crate::columns::COLUMNS;
use crate::engine::plan::{ExactSource, ItemPlan, Plan};
use crate::engine::sglang::flat::{self, TopLogprobsField};
use crate::engine::sglang::forcing::forces;
use crate::engine::sglang::scan;
use crate::json::{Edit, Malformed, Names, Object, Splice, Text};

/// The members that tokentap adds to a reply.
static ADDED_MEMBERS: Names<5> = Names::new([
    "output_token_entropy",
    "entropy_info",
    "output_token_entropy_lower",
    "output_token_entropy_upper",
    "output_token_stats",
]);

/// The members that a reply has only with logprobs.
static LOGPROBS: Names<5> = Names::new([
    "input_token_logprobs",
    "output_token_logprobs",
    "output_token_logprobs_length",
    "input_token_ids_logprobs",
    "output_token_ids_logprobs",
]);

/// Members that a reply has only with a top-k, also with a suffix that begins with `_`.
const TOP: [&str; 2] = ["input_top_logprobs", "output_top_logprobs"];

fn is_top(key: &Text<'_>) -> bool {
    let is = |key: &[u8]| {
        let is = |name: &str| key.starts_with(name.as_bytes()) && matches!(key.get(name.len()), None | Some(b'_'));
        TOP.into_iter().any(is)
    };
    match key.raw {
        _ if key.escaped => is(key.decode().as_bytes()),
        // most members are others
        [b'i', b'n', ..] | [b'o', b'u', ..] => is(key.raw),
        _ => false,
    }
}

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
        edit.remove_names(&ADDED_MEMBERS);
    }
    if item.forces_columns() {
        for (at, source) in COLUMNS.iter().enumerate() {
            if forces(&item.columns, at) {
                edit.remove(|key| key.starts_with(source.members));
            }
        }
    }
    if item.exact == Some(ExactSource::Support) && item.forces_exact() {
        edit.remove(|key| key.starts_with("output_token_sampling_"));
    }
    if !item.logprob || item.k == item.asked_k && item.asked {
        return Ok(());
    }
    if !item.asked {
        edit.remove_names(&LOGPROBS);
        edit.remove(is_top);
        return Ok(());
    }
    if item.asked_k == 0 {
        edit.remove(|key| is_top(key) || item.placeholder && key.is("input_token_logprobs"));
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
