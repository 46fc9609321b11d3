//! The values of rows that are not tensors, as lists in the header of a file.

use std::sync::Arc;

use serde_json::Value;

use super::text::Text;
use super::versions;
use super::{ExcludedLeaf, facts, text};
use crate::session::Row;

/// A row of the table, computed in one pass over the turns of a path.
#[derive(Debug)]
pub(super) struct TableEntry {
    segments: usize,
    prompt_name: String,
    group: usize,
    session: Arc<str>,
    version: u32,
    leaf: u32,
    steps: Option<(i64, i64)>,
    finish: Option<Box<str>>,
    flags: Vec<&'static str>,
    reward: Option<Arc<Value>>,
}

/// The table of these rows. `cut` returns the flags for the ends of a row that do not fit into the tensors.
pub(super) fn entries(rows: &[Row], cut: impl Fn(&Row) -> [Option<&'static str>; 2]) -> Vec<TableEntry> {
    let entry = |(row, group): (&Row, usize)| {
        let path = row.path();
        TableEntry {
            segments: path.segments().count(),
            prompt_name: facts::prompt_name(row),
            group,
            session: Arc::clone(&path.session),
            version: path.version,
            leaf: row.leaf(),
            steps: versions::range(&path),
            finish: path.leaf().about.finish.clone(),
            flags: facts::flags(&path).into_iter().chain(cut(row).into_iter().flatten()).collect(),
            reward: path.reward,
        }
    };
    rows.iter().zip(facts::groups(rows)).map(entry).collect()
}

/// `non_tensor_batch`: an object of lists with one value per row.
pub(super) fn non_tensor(entries: &[TableEntry]) -> String {
    let mut text = Text::default();
    text.object(|text| {
        let mut list = |name: &str, item: &dyn Fn(&TableEntry, &mut Text)| {
            text.key(name).array(|list| entries.iter().for_each(|entry| item(entry, list)));
        };
        list("__num_turns__", &|entry, text| text.integer(entry.segments));
        list("uid", &|entry, text| text.string(&entry.prompt_name));
        list("group", &|entry, text| text.integer(entry.group));
        list("session", &|entry, text| text.string(&entry.session));
        list("version", &|entry, text| text.integer(entry.version));
        list("leaf", &|entry, text| text.integer(entry.leaf));
        list("min_global_steps", &|entry, text| text.maybe(entry.steps.map(|steps| steps.0)));
        list("max_global_steps", &|entry, text| text.maybe(entry.steps.map(|steps| steps.1)));
        list("finish_reason", &|entry, text| text.maybe_string(entry.finish.as_deref()));
        list("flags", &|entry, text| text.strings(&entry.flags));
        list("reward", &|entry, text| text.value(entry.reward.as_deref().unwrap_or(&Value::Null)));
    });
    String::from_utf8(text.into_bytes()).expect("JSON that was written from strings is text")
}

/// The header's members.
pub(super) fn metadata(format: &str, entries: &[TableEntry], refused: &[ExcludedLeaf]) -> Vec<(&'static str, String)> {
    vec![
        ("format", format.to_owned()),
        ("rows", entries.len().to_string()),
        ("non_tensor_batch", non_tensor(entries)),
        ("refused", text::refusals(refused)),
    ]
}
