// SPDX-License-Identifier: Apache-2.0
//! The members of `meta_info` that are recorded with a turn, under their names.

use crate::columns::{Alignment, COLUMNS, Encoding};
use crate::engine::plan::{ColumnPlan, ItemPlan};
use crate::json::{Member, Names, Object, Text};

/// Members that are recorded even without logprobs: the engine sends them only on request. The first ones are the token columns.
static ON_REQUEST: Names<{ COLUMNS.len() + 3 }> = {
    let mut names = [""; COLUMNS.len() + 3];
    let mut at = 0;
    while at < COLUMNS.len() {
        names[at] = COLUMNS[at].member;
        at += 1;
    }
    let [.., sparse, states, support] = &mut names;
    (*sparse, *states) = ("indexer_topk", "hidden_states");
    *support = "output_token_sampling_logprobs";
    Names::new(names)
};

/// How often the engine put the sequence back into its queue and processed its tokens again. Recorded with the columns of processed tokens,
/// if it is not 0.
pub(crate) const RETRACTIONS: &str = "num_retractions";

/// Whether a member of a sequence with these columns says that processed tokens may be those of several weights.
#[must_use]
pub(crate) fn is_retraction(name: &str, value: &[u8], item: &ItemPlan) -> bool {
    let is_processed = |at: usize| COLUMNS[at].alignment != Alignment::Sampled;
    let has = |(at, plan): (usize, &ColumnPlan)| {
        matches!(plan, ColumnPlan::Requested | ColumnPlan::Forced) && is_processed(at)
    };
    name == RETRACTIONS && value != b"0" && item.columns.iter().enumerate().any(has)
}

/// The logprobs of the prompt's tokens.
const PROMPT_LOGPROBS: &str = "input_token_logprobs";

/// Members that are recorded with logprobs.
const WITH_LOGPROBS: [&str; 3] = [PROMPT_LOGPROBS, "input_token_ids_logprobs", "output_token_ids_logprobs"];

/// The beginnings of the names that are recorded with a top-k.
const WITH_TOP: [&str; 2] = ["input_top_logprobs", "output_top_logprobs"];

/// A quick test: whether a member of `meta_info` may have to be recorded.
#[inline]
#[must_use]
pub(crate) fn may_be_recorded(meta: &Object, bytes: &[u8], member: &Member, item: &ItemPlan) -> bool {
    item.asked || item.has_columns() || meta.is_one_of(bytes, member, &ON_REQUEST)
}

/// The position in the table of the token column whose payload is this member.
#[must_use]
pub(crate) fn column_at(name: &str) -> Option<usize> {
    COLUMNS.iter().position(|source| source.member == name)
}

/// Whether another member is recorded: only if the client requested it.
#[must_use]
pub(crate) fn is_recorded(name: &str, item: &ItemPlan) -> bool {
    ON_REQUEST.contains(&Text { raw: name.as_bytes(), escaped: false })
        || item.asked && WITH_LOGPROBS.contains(&name)
        || item.asked_k > 0 && WITH_TOP.iter().any(|top| name.starts_with(top))
}

/// Whether a member has one entry per sampled token, so that the lists of an incremental stream are joined.
#[must_use]
pub(crate) fn is_per_sampled_token(name: &str) -> bool {
    match COLUMNS.iter().find(|source| source.member == name) {
        Some(source) => source.alignment == Alignment::Sampled && source.encoding == Encoding::Lists,
        None => name.starts_with("output_"),
    }
}

/// The logprobs of the last `ids.len()` tokens of the prompt among the recorded members; NaN for null. `None` if they are not recorded, or
/// are of other tokens than `ids`.
#[must_use]
pub(crate) fn prompt_logprobs<'a>(get: impl FnOnce(&str) -> Option<&'a str>, ids: &[u32]) -> Option<Vec<f32>> {
    let entries: Vec<serde_json::Value> = serde_json::from_str(get(PROMPT_LOGPROBS)?).ok()?;
    let new = entries.get(entries.len().checked_sub(ids.len())?..)?;
    let of_token = |(entry, id): (&serde_json::Value, &u32)| {
        let is_same = entry.get(1).and_then(serde_json::Value::as_u64) == Some((*id).into());
        #[expect(clippy::cast_possible_truncation, reason = "the engine computed it as a float32")]
        is_same.then(|| entry.get(0).and_then(serde_json::Value::as_f64).map_or(f32::NAN, |logprob| logprob as f32))
    };
    new.iter().zip(ids).map(of_token).collect()
}
