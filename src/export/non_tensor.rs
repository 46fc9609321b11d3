// SPDX-License-Identifier: Apache-2.0
//! The values of rows that are not tensors, as lists in the header of a file.

use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

use super::text::Text;
use super::versions;
use super::{ExcludedLeaf, facts, images, text};
use crate::session::Row;

/// The values of a row that are not tensors, computed in one pass over the turns of its path.
#[derive(Debug)]
pub(super) struct NonTensorRow {
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
    /// The rewards of its turns, if a turn has one.
    turn_rewards: Option<Vec<Option<Arc<Value>>>>,
    /// References to its pictures, a JSON list.
    images: String,
    has_images: bool,
    image_settings: Option<Arc<str>>,
}

/// The values of these rows. `cut` returns the flags for the ends of a row that do not fit into the tensors, and `place` the columns of
/// tokens of a row, unless they are cut off.
pub(super) fn rows(
    rows: &[Row],
    cut: impl Fn(&Row) -> [Option<&'static str>; 2],
    place: impl Fn(&Row, Range<usize>) -> Option<Range<usize>>,
) -> Vec<NonTensorRow> {
    let values = |(row, group): (&Row, usize)| {
        let path = row.path();
        let mut images = Text::default();
        let mut has_images = false;
        images.array(|list| {
            for image in path.images() {
                if let Some(columns) = place(row, image.tokens.clone()) {
                    images::write(&image, columns, list);
                    has_images = true;
                }
            }
        });
        NonTensorRow {
            images: images.into_text(),
            has_images,
            image_settings: images::settings(&path).cloned(),
            segments: path.segments().count(),
            prompt_name: facts::prompt_name(row),
            group,
            session: Arc::clone(&path.session),
            version: path.version,
            leaf: row.leaf(),
            steps: versions::range(&path),
            finish: path.leaf().about.finish.clone(),
            flags: facts::flags(&path).into_iter().chain(cut(row).into_iter().flatten()).collect(),
            turn_rewards: (path.steps.iter().any(|step| step.reward.is_some()))
                .then(|| path.steps.iter().map(|step| step.reward.clone()).collect()),
            reward: path.reward,
        }
    };
    rows.iter().zip(facts::groups(rows)).map(values).collect()
}

/// `non_tensor_batch`: an object of lists with one value per row.
fn non_tensor_batch(rows: &[NonTensorRow]) -> String {
    let mut text = Text::default();
    text.object(|text| {
        let mut list = |name: &str, item: &dyn Fn(&NonTensorRow, &mut Text)| {
            text.key(name).array(|list| rows.iter().for_each(|row| item(row, list)));
        };
        list("__num_turns__", &|row, text| text.integer(row.segments));
        list("uid", &|row, text| text.string(&row.prompt_name));
        list("group", &|row, text| text.integer(row.group));
        list("session", &|row, text| text.string(&row.session));
        list("version", &|row, text| text.integer(row.version));
        list("leaf", &|row, text| text.integer(row.leaf));
        list("min_global_steps", &|row, text| text.maybe(row.steps.map(|steps| steps.0)));
        list("max_global_steps", &|row, text| text.maybe(row.steps.map(|steps| steps.1)));
        list("finish_reason", &|row, text| text.maybe_string(row.finish.as_deref()));
        list("flags", &|row, text| text.strings(&row.flags));
        list("reward", &|row, text| text.value(row.reward.as_deref().unwrap_or(&Value::Null)));
        if rows.iter().any(|row| row.turn_rewards.is_some()) {
            // verl's name
            list("turn_scores", &|row, text| match &row.turn_rewards {
                Some(rewards) => text.array(|list| {
                    rewards.iter().for_each(|reward| list.value(reward.as_deref().unwrap_or(&Value::Null)));
                }),
                None => text.literal("null"),
            });
        }
        if rows.iter().any(|row| row.has_images) {
            list("images", &|row, text| text.literal(&row.images));
            list("image_settings", &|row, text| images::write_settings(row.image_settings.as_ref(), text));
        }
    });
    text.into_text()
}

/// The header's members.
pub(super) fn metadata(format: &str, rows: &[NonTensorRow], refused: &[ExcludedLeaf]) -> Vec<(&'static str, String)> {
    vec![
        ("format", format.to_owned()),
        ("rows", rows.len().to_string()),
        ("non_tensor_batch", non_tensor_batch(rows)),
        ("refused", text::refusals(refused)),
    ]
}
