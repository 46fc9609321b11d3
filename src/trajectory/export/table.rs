//! What tensors cannot hold: for each row a value, as lists in the header of a file.

use super::text::Text;
use super::versions;
use super::{Refused, facts, text};
use crate::trajectory::Path;

/// A row of the table as it is written: values that depend on the format come beside the path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'a> {
    pub(super) path: &'a Path,
    pub(super) group: usize,
    /// The names of the ends that did not fit into the tensors.
    pub(super) cut: [Option<&'static str>; 2],
}

/// `non_tensor_batch`: an object of lists, one value a row.
pub(super) fn non_tensor(entries: &[Entry<'_>]) -> String {
    let mut text = Text::default();
    text.object(|text| {
        let mut list = |name: &str, item: &dyn Fn(&Entry<'_>, &mut Text)| {
            text.key(name).array(|list| entries.iter().for_each(|entry| item(entry, list)));
        };
        list("__num_turns__", &|entry, text| text.integer(entry.path.segments().count()));
        list("uid", &|entry, text| text.string(&facts::prompt_name(entry.path)));
        list("group", &|entry, text| text.integer(entry.group));
        list("session", &|entry, text| text.string(&entry.path.session));
        list("version", &|entry, text| text.integer(entry.path.version));
        list("leaf", &|entry, text| text.integer(entry.path.leaf().id));
        list("min_global_steps", &|entry, text| text.maybe(versions::range(entry.path).map(|range| range.0)));
        list("max_global_steps", &|entry, text| text.maybe(versions::range(entry.path).map(|range| range.1)));
        list("finish_reason", &|entry, text| text.maybe_string(entry.path.leaf().about.finish.as_deref()));
        list("flags", &|entry, text| {
            text.strings(facts::flags(entry.path).into_iter().chain(entry.cut.into_iter().flatten()));
        });
        list("reward", &|entry, text| text.value(facts::reward_as_given(entry.path)));
    });
    String::from_utf8(text.into_bytes()).expect("JSON that was written from strings is text")
}

/// The header's members.
pub(super) fn metadata(format: &str, entries: &[Entry<'_>], refused: &[Refused]) -> Vec<(&'static str, String)> {
    vec![
        ("format", format.to_owned()),
        ("rows", entries.len().to_string()),
        ("non_tensor_batch", non_tensor(entries)),
        ("refused", text::refusals(refused)),
    ]
}
