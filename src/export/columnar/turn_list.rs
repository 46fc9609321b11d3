// SPDX-License-Identifier: Apache-2.0
//! The list `turns` of a row: the facts of each call, and the JSON of its client.

use std::collections::BTreeMap;

use arrow_array::{ArrayRef, BooleanArray, Float64Array, Int64Array, ListArray, StringArray, StructArray};
use arrow_buffer::NullBuffer;
use arrow_schema::Field;

use super::arrays::{Named, counts, integers, list, maybe_counts, optional, required, structs, texts};
use crate::export::text::{Text, string_len};
use crate::export::{entry, facts};
use crate::session::{Fault, Labels, Path, SamplingSources, Step, TurnMetadata};

/// The limit of a row's extras, in bytes of JSON strings. An export step has about five copies of a row in memory. Routed experts, the
/// largest extras that trainers use, take 2 KB per sampled token and per prompt token.
const MAX_EXTRAS: u64 = 256 << 20;

/// The limit of a row's sampling parameters, in bytes of JSON strings.
const MAX_SAMPLING: u64 = 64 << 20;

/// The JSON of clients in the turns of a row.
pub(super) struct ClientJson {
    extras: Vec<Option<String>>,
    /// Whether the extras are too large to be written.
    omits_extras: bool,
    /// Whether the sampling parameters are too large to be written.
    omits_sampling: bool,
}

impl ClientJson {
    pub(super) fn new(row: &Path) -> Self {
        Self::within(row, MAX_EXTRAS, MAX_SAMPLING)
    }

    fn within(row: &Path, max_extras: u64, max_sampling: u64) -> Self {
        let abouts = || row.steps.iter().map(|step| &step.turn.about);
        let extras = abouts().flat_map(|about| &about.extras).map(|(name, value)| string_len(name) + string_len(value));
        let sampling = abouts().filter_map(|about| about.sampling.as_deref()).map(string_len);
        let (omits_extras, omits_sampling) = (extras.sum::<u64>() > max_extras, sampling.sum::<u64>() > max_sampling);
        let text = |about: &TurnMetadata| {
            let mut text = Text::default();
            entry::write_extras(about, &mut text);
            text.into_text()
        };
        let texts = abouts().map(|about| (!omits_extras && !about.extras.is_empty()).then(|| text(about)));
        Self { extras: texts.collect(), omits_extras, omits_sampling }
    }

    pub(super) fn flags(&self) -> impl Iterator<Item = &'static str> {
        let flags = [(self.omits_extras, "extras_omitted"), (self.omits_sampling, "sampling_omitted")];
        flags.into_iter().filter_map(|(holds, name)| holds.then_some(name))
    }

    /// The sampling parameters of the turns of the row.
    fn sampling<'a>(&self, row: &'a Path) -> impl Iterator<Item = Option<&'a str>> {
        let omits = self.omits_sampling;
        row.steps.iter().map(move |step| step.turn.about.sampling.as_deref().filter(|_| !omits))
    }
}

/// The facts of each call.
pub(super) fn turns(rows: &[Path], chosen: &[ClientJson]) -> ListArray {
    let all: Vec<&Step> = rows.iter().flat_map(|row| &row.steps).collect();
    let about = || all.iter().map(|step| &step.turn.about);
    let measured = || about().map(|about| about.measured.as_ref());
    let rewards = all.iter().map(|step| step.reward.as_ref().map(ToString::to_string));
    let sources: Vec<Option<String>> =
        about().map(|about| about.sampling_sources().map(SamplingSources::json)).collect();
    let changes: Vec<Vec<&str>> = about().map(|about| about.reply_changes().names().collect()).collect();
    let change_names = StringArray::from_iter_values(changes.iter().flatten());
    let superseded = integers(about().flat_map(|about| about.supersedes.iter().copied()));
    let items = structs(vec![
        required("id", integers(all.iter().map(|step| step.turn.id))),
        optional("parent", all.iter().map(|step| step.turn.parent.map(i64::from)).collect::<Int64Array>()),
        texts("rid", about().map(|about| about.rid.as_deref())),
        required("index", integers(about().map(|about| about.index))),
        required("cause", StringArray::from_iter_values(about().map(|about| about.cause.name()))),
        optional("predecessor", about().map(|about| about.predecessor.map(i64::from)).collect::<Int64Array>()),
        required("reply_changes", list(changes.iter().map(Vec::len), change_names, false)),
        texts("finish_reason", about().map(|about| about.finish.as_deref())),
        texts("fault", about().map(|about| about.fault.map(Fault::name))),
        required("trained", all.iter().map(|step| Some(step.trained)).collect::<BooleanArray>()),
        optional("reward", all.iter().map(|step| facts::reward(step.reward.as_ref())).collect::<Float64Array>()),
        optional("reward_json", rewards.collect::<StringArray>()),
        required("supersedes", list(about().map(|about| about.supersedes.len()), superseded, false)),
        texts("entropy_source", measured().map(|how| how.map(|how| &*how.source))),
        texts("entropy_estimator", measured().map(|how| how.map(|how| &*how.estimator))),
        optional(
            "entropy_top_k",
            measured().map(|how| how.and_then(|how| how.top_k.map(i64::from))).collect::<Int64Array>(),
        ),
        texts("entropy_reason", measured().map(|how| how.and_then(|how| how.reason.as_deref()))),
        optional("temperature", measured().map(|how| how.and_then(|how| how.temperature)).collect::<Float64Array>()),
        texts("sampling", rows.iter().zip(chosen).flat_map(|(row, chosen)| chosen.sampling(row))),
        texts("sampling_sources", sources.iter().map(Option::as_deref)),
        required("model", StringArray::from_iter_values(about().map(|about| &*about.model))),
        texts("lora_path", about().map(|about| about.lora_path.as_deref())),
        required("started_ms", counts(about().map(|about| about.started_ms))),
        optional("first_ms", maybe_counts(about().map(|about| about.first_ms))),
        required("elapsed_ms", counts(about().map(|about| about.elapsed_ms))),
        optional("cached_tokens", maybe_counts(about().map(|about| about.cached_tokens))),
        optional("labels", labels(about().map(|about| about.labels.as_deref()))),
        required("missing_columns", missing_columns(&all)),
        texts("extras", chosen.iter().flat_map(|chosen| &chosen.extras).map(Option::as_deref)),
    ]);
    list(rows.iter().map(|row| row.steps.len()), items, false)
}

fn missing_columns(turns: &[&Step]) -> ListArray {
    let missing = || turns.iter().map(|step| &step.turn.about.missing_columns);
    let items = structs(vec![
        required("name", StringArray::from_iter_values(missing().flatten().map(|(name, _)| name))),
        required("reason", StringArray::from_iter_values(missing().flatten().map(|(_, fault)| fault.name()))),
    ]);
    list(missing().map(BTreeMap::len), items, false)
}

/// The labels of turns; null for a turn without labels.
fn labels<'a>(turns: impl Iterator<Item = Option<&'a Labels>>) -> StructArray {
    let turns: Vec<Option<&Labels>> = turns.collect();
    let absent = Labels::default();
    let names = absent.texts().into_iter().enumerate();
    let text = |at: usize| turns.iter().map(move |labels| labels.and_then(|labels| labels.texts()[at].1));
    let mut columns: Vec<Named> = names.map(|(at, (name, _))| texts(name, text(at))).collect();
    let after = turns.iter().map(|labels| labels.map(|labels| labels.after_compaction)).collect::<BooleanArray>();
    columns.push(optional("after_compaction", after));
    let (fields, arrays): (Vec<Field>, Vec<ArrayRef>) = columns.into_iter().unzip();
    let present: NullBuffer = turns.iter().map(Option::is_some).collect();
    StructArray::new(fields.into(), arrays, Some(present))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::fixture::{rows_of, turns};

    /// The flags of a row whose client JSON may have at most this number of bytes.
    fn flags(row: &Path, max_extras: u64, max_sampling: u64) -> Vec<&'static str> {
        ClientJson::within(row, max_extras, max_sampling).flags().collect()
    }

    #[test]
    fn extras_above_the_limit_are_omitted_from_the_whole_row() {
        let mut turns = turns();
        turns[0].about.extras = [("a".into(), "[1]".into())].into();
        let row = rows_of(turns).swap_remove(0);
        let bytes = string_len("a") + string_len("[1]");
        assert_eq!(ClientJson::within(&row, bytes, 0).extras, [Some(r#"{"a":[1]}"#.to_owned()), None]);
        assert_eq!(ClientJson::within(&row, bytes - 1, 0).extras, [None, None]);
        assert_eq!(flags(&row, bytes - 1, 0), ["extras_omitted"]);
        assert!(flags(&row, bytes, 0).is_empty());
    }

    #[test]
    fn sampling_parameters_above_the_limit_are_omitted_from_the_whole_row() {
        let mut turns = turns();
        turns[1].about.sampling = Some("\u{1}".into());
        let row = rows_of(turns).swap_remove(0);
        let sampling = |limit| ClientJson::within(&row, 0, limit).sampling(&row).collect::<Vec<_>>();
        assert_eq!(sampling(8), [None, Some("\u{1}")]);
        assert_eq!(sampling(7), [None, None], "an escape has six bytes");
        assert_eq!((flags(&row, 0, 7), flags(&row, 0, 8)), (vec!["sampling_omitted"], vec![]));
    }
}
