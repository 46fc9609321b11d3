// SPDX-License-Identifier: Apache-2.0
//! AReaL's tensor dictionaries, concatenated and padded on the right.

use std::sync::Arc;

use super::exclude::Lack;
use super::non_tensor;
use super::per_token::{self, PerToken};
use super::safetensors::{self, Dtype, Run, Sink, Split, Tensor};
use super::versions::Numbering;
use super::{Batch, Export, ExportImages, ExportOption, Exporter, Needs, facts, images, settle};
use crate::session::{Row, Segment};

/// The exporter.
pub(super) const EXPORTER: Exporter = Exporter {
    options: &[ExportOption::Advantages, ExportOption::Images, ExportOption::Entropies, ExportOption::PadTokenId],
    export,
};

/// Whole rows, `[B, L]`. Integers are int64, as torch makes them from AReaL's Python lists.
fn export(batch: Batch) -> Export {
    let needs = Needs { logprobs: true, entropy: true, images: Some(batch.images), ..Needs::default() };
    let mut settled = settle(batch.rows, batch.refused, needs);
    let rows = settled.rows;
    let table = non_tensor::rows(&rows, |_| [None, None], |_, tokens| Some(tokens));
    let mut metadata = non_tensor::metadata("areal", &table, &settled.refused);
    metadata.push(("entropy", if settled.entropy { "nats" } else { "none" }.to_owned()));

    let width = rows.iter().map(Row::len).max().unwrap_or(0);
    let tensor = |name: &str, dtype, row: fn(&Row, usize, Sink<'_>)| {
        let (count, paths) = (rows.len(), rows.clone());
        let row = Box::new(move |at: usize, sink: Sink<'_>| row(&paths[at], width, sink));
        Tensor { name: name.to_owned(), dtype, shape: vec![count, width], rows: Split::Even(count), row }
    };
    let pad = batch.shape.pad_token_id;
    let paths = rows.clone();
    let ids = Box::new(move |at: usize, sink: Sink<'_>| PerToken::Ids { pad }.fill(paths[at].segments(), width, sink));
    let mut tensors = vec![
        Tensor {
            name: "input_ids".to_owned(),
            dtype: Dtype::I64,
            shape: vec![rows.len(), width],
            rows: Split::Even(rows.len()),
            row: ids,
        },
        tensor("loss_mask", Dtype::I64, |row, width, sink| PerToken::Mask.fill(row.segments(), width, sink)),
        tensor("logprobs", Dtype::F32, |row, width, sink| PerToken::Logprobs.fill(row.segments(), width, sink)),
        tensor("versions", Dtype::I64, |row, width, sink| {
            // a turn has at most one trained segment
            let segments: Vec<_> = row.segments().collect();
            let trained = segments.iter().filter(|segment| segment.trained);
            let numbering = Numbering::new(trained.flat_map(|segment| &segment.turn.about.policy));
            segments.into_iter().for_each(|segment| write_versions(&segment, numbering, sink));
            sink(Run::Integer(UNKNOWN, width - row.len()));
        }),
        tensor("attention_mask", Dtype::Bool, |row, width, sink| {
            sink(Run::Integer(1, row.len()));
            sink(Run::Integer(0, width - row.len()));
        }),
    ];
    if settled.entropy {
        tensors.push(tensor("entropy", Dtype::F32, |row, width, sink| {
            PerToken::Entropy.fill(row.segments(), width, sink);
        }));
    }
    let images = images::distinct(&rows);
    if !images.is_empty() {
        tensors.push(tensor("mm_token_type_ids", Dtype::I64, |row, width, sink| {
            let mut at = 0;
            for image in row.path().images() {
                sink(Run::Integer(0, image.tokens.start - at));
                sink(Run::Integer(1, image.tokens.len()));
                at = image.tokens.end;
            }
            sink(Run::Integer(0, width - at));
        }));
    }
    if batch.images == ExportImages::Embed {
        tensors.extend(images.iter().filter_map(Tensor::of_image));
    }
    if rows.iter().any(|row| row.marks.advantages.is_some()) {
        tensors.push(tensor("advantages", Dtype::F32, |row, width, sink| {
            per_token::fill_advantages(row, row.segments(), width, sink);
        }));
    }
    facts::count_unrewarded(&rows, Lack::PathReward, &mut settled.tally);
    if let Some(rewards) = facts::rewards(&rows).filter(|rewards| !rewards.is_empty()) {
        tensors.push(rewards_tensor(rewards.into()));
    }
    safetensors::export(tensors, &metadata).counted(settled.tally).with_size(&rows, 0)
}

/// The version of tokens that are not trained or whose policy is unknown.
const UNKNOWN: i64 = -1;

fn rewards_tensor(rewards: Arc<[f32]>) -> Tensor {
    let shape = vec![rewards.len()];
    let row = Box::new(move |_: usize, sink: Sink<'_>| sink(Run::Floats(&rewards)));
    Tensor { name: "rewards".to_owned(), dtype: Dtype::F32, shape, rows: Split::Even(1), row }
}

/// If several policies are possible, writes the earliest: for staleness checks it is the safe choice.
fn write_versions(segment: &Segment<'_>, numbering: Numbering, sink: Sink<'_>) {
    let mut at = 0;
    let spans = if segment.trained { segment.turn.about.policy.as_slice() } else { &[] };
    for span in spans {
        let start = (span.start as usize).clamp(at, segment.ids.len());
        let end = (span.end as usize).clamp(start, segment.ids.len());
        sink(Run::Integer(UNKNOWN, start - at));
        sink(Run::Integer(numbering.earliest(span).unwrap_or(UNKNOWN), end - start));
        at = end;
    }
    sink(Run::Integer(UNKNOWN, segment.ids.len() - at));
}

#[cfg(test)]
mod tests {
    use ::safetensors::Dtype;

    use super::*;
    use crate::export::fixture::{File, batch, example, rows_of, turns, with_pictures};

    #[test]
    fn rows_are_whole_and_padded_on_the_right() {
        let file = File::of(export(example()));
        assert_eq!(file.shape("input_ids"), [2, 9]);
        assert_eq!(file.integers("input_ids"), [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 10, 11, 99, 99]);
        assert_eq!(file.integers("loss_mask"), [0, 0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(
            file.floats("logprobs"),
            [0.0, 0.0, 0.0, -0.5, -1.0, 0.0, -0.5, -1.0, -1.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -0.5, 0.0, 0.0]
        );
        assert_eq!(file.integers("versions"), [-1, -1, -1, 10, 10, -1, 11, 12, 12, -1, -1, -1, -1, -1, -1, 12, -1, -1]);
        assert_eq!(file.dtype("versions"), Dtype::I64);
        assert_eq!(file.dtype("attention_mask"), Dtype::BOOL);
        assert_eq!(file.integers("attention_mask"), [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
        assert_eq!(
            file.floats("entropy"),
            [0.0, 0.0, 0.0, 0.25, 0.5, 0.0, 0.25, 0.5, 0.75, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.25, 0.0, 0.0]
        );
        assert_eq!(file.shape("rewards"), [2]);
        assert_eq!(file.floats("rewards"), [1.5, 0.5]);
        assert_eq!(file.metadata_json("non_tensor_batch")["leaf"], serde_json::json!([1, 2]));
    }

    #[test]
    fn tokens_of_an_unknown_policy_have_no_version() {
        let mut turns = turns();
        // a gap, and a span that is longer than the response
        turns[1].about.policy[1].start = 2;
        turns[1].about.policy[1].end = 7;
        turns[0].about.policy.clear();
        let file = File::of(export(batch(rows_of(turns.clone()))));
        assert_eq!(file.integers("versions")[..9], [-1, -1, -1, -1, -1, -1, 11, -1, 12]);
        // an epoch of one of several processes
        turns[1].about.policy[0].process = Some("00000000000000aa".parse().unwrap());
        let versions =
            |turns: &[crate::session::Turn; 3]| File::of(export(batch(rows_of(turns.clone())))).integers("versions");
        assert_eq!(versions(&turns)[..9], [-1; 9], "other epochs are not compared with it");
        turns[1].about.policy[1].version = Some("30".into());
        assert_eq!(versions(&turns)[..9], [-1, -1, -1, -1, -1, -1, -1, -1, 30]);
    }

    #[test]
    fn tokens_of_pictures_have_another_type() {
        let mut batch = batch(rows_of(with_pictures(turns())));
        let file = File::of(export(batch.clone()));
        let types = [0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0];
        assert_eq!(file.integers("mm_token_type_ids"), types);
        let masks = file.integers("loss_mask");
        assert!(types.iter().zip(&masks).all(|(kind, mask)| kind * mask == 0), "pictures are not trained");
        let images = file.metadata_json("non_tensor_batch")["images"].clone();
        assert_eq!((&images[1][1]["start"], &images[1][1]["end"]), (&serde_json::json!(5), &serde_json::json!(6)));
        assert!(!file.names().iter().any(|name| name.starts_with("images.")), "only references");
        batch.images = ExportImages::Embed;
        let file = File::of(export(batch));
        let pictures: Vec<_> = file.names().into_iter().filter(|name| name.starts_with("images.")).collect();
        assert_eq!((file.shape("input_ids")[0], pictures.len()), (1, 1));
        assert_eq!(file.integers(&pictures[0]), b"BM first".map(i64::from));
    }

    #[test]
    fn missing_columns_are_omitted() {
        let mut turns = turns();
        turns.iter_mut().for_each(|turn| turn.entropy = Box::default());
        let mut rows = rows_of(turns);
        rows[0].reward = None;
        let file = File::of(export(batch(rows)));
        assert_eq!(file.names(), ["attention_mask", "input_ids", "logprobs", "loss_mask", "versions"]);
        assert_eq!(File::of(export(Batch::default())).shape("versions"), [0, 0]);
    }
}
