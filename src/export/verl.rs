// SPDX-License-Identifier: Apache-2.0
//! verl: the tensors of a `DataProto`, with its `non_tensor_batch` in the header.

use std::ops::Range;
use std::sync::Arc;

use super::exclude::Lack;
use super::experts::RoutedExperts;
use super::non_tensor;
use super::per_token::{self, PerToken};
use super::safetensors::{self, Dtype, Run, Sink, Split, Tensor};
use super::{Batch, Export, ExportImages, ExportOption, Exporter, Needs, Shape, facts, images, settle};
use crate::session::{Row, Segment};

/// The exporter.
pub(super) const EXPORTER: Exporter = Exporter {
    options: &[
        ExportOption::Advantages,
        ExportOption::Images,
        ExportOption::Entropies,
        ExportOption::PadTokenId,
        ExportOption::MaxPromptLength,
        ExportOption::MaxResponseLength,
    ],
    export,
};

/// Prompts are padded on the left and responses on the right, each to the same length in all rows.
///
/// The entropies are written twice: as `rollout_entropys`, in verl's spelling, and as `rollout_entropy`. The name `entropys` is not used,
/// because verl's actor writes its own entropies under it.
///
/// If a row has pictures, `position_ids` is left out: verl's have three more dimensions then, which a processor computes from pictures.
fn export(batch: Batch) -> Export {
    let needs = Needs {
        logprobs: true,
        entropy: true,
        kept: batch.shape.max_response_length,
        kept_prompt: batch.shape.max_prompt_length,
        images: Some(batch.images),
        ..Needs::default()
    };
    let mut settled = settle(batch.rows, batch.refused, needs);
    let frame = Frame::new(settled.rows, batch.shape);
    let table = non_tensor::rows(&frame.rows, |row| frame.cut(row), |row, tokens| frame.columns(row, tokens));
    let mut metadata = non_tensor::metadata("verl", &table, &settled.refused);
    metadata.push(("entropy", if settled.entropy { "nats" } else { "none" }.to_owned()));

    let pad = frame.shape.pad_token_id;
    let mut tensors = vec![
        frame.tensor("prompts", Dtype::I64, frame.prompts, |frame, row, sink| frame.prompt(row, sink)),
        frame.column("responses", Dtype::I64, PerToken::Ids { pad }),
        frame.column("response_mask", Dtype::I64, PerToken::Mask),
        frame.tensor("input_ids", Dtype::I64, frame.prompts + frame.responses, move |frame, row, sink| {
            frame.prompt(row, sink);
            PerToken::Ids { pad }.fill(frame.response(row), frame.responses, sink);
        }),
        frame.tensor("attention_mask", Dtype::I64, frame.prompts + frame.responses, |frame, row, sink| {
            let (before, tokens, behind) = frame.extent(row);
            sink(Run::Integer(0, before));
            sink(Run::Integer(1, tokens));
            sink(Run::Integer(0, behind));
        }),
        frame.column("rollout_log_probs", Dtype::F32, PerToken::Logprobs),
    ];
    let images = images::distinct(&frame.rows);
    if images.is_empty() {
        tensors.push(frame.tensor("position_ids", Dtype::I64, frame.prompts + frame.responses, |frame, row, sink| {
            let (before, tokens, behind) = frame.extent(row);
            sink(Run::Integer(0, before));
            sink(Run::Ramp(0, tokens));
            // like cumsum(attention_mask) - 1: the padding repeats the last position
            sink(Run::Integer(tokens.saturating_sub(1) as i64, behind));
        }));
    }
    if batch.images == ExportImages::Embed {
        tensors.extend(images.iter().filter_map(Tensor::of_image));
    }
    if settled.entropy {
        tensors.push(frame.column("rollout_entropys", Dtype::F32, PerToken::Entropy));
        tensors.push(frame.column("rollout_entropy", Dtype::F32, PerToken::Entropy));
    }
    if frame.rows.iter().any(|row| row.marks.advantages.is_some()) {
        tensors.push(frame.tensor("advantages", Dtype::F32, frame.responses, |frame, row, sink| {
            per_token::fill_advantages(row, frame.response(row), frame.responses, sink);
        }));
    }
    if let Some(shape) = RoutedExperts::common_shape(&frame.rows, &mut settled.tally) {
        tensors.push(frame.experts(shape));
    }
    facts::count_unrewarded(&frame.rows, Lack::Reward, &mut settled.tally);
    if facts::have_scores(&frame.rows) {
        tensors
            .push(frame.tensor("rm_scores", Dtype::F32, frame.responses, |frame, row, sink| frame.scores(row, sink)));
    }
    safetensors::export(tensors, &metadata).counted(settled.tally).with_size(&frame.rows, 0)
}

/// The rows, and the lengths of the prompt side and the response side.
#[derive(Clone)]
struct Frame {
    rows: Arc<[Row]>,
    shape: Shape,
    /// Tokens of the prompt side.
    prompts: usize,
    /// Tokens of the response side.
    responses: usize,
}

impl Frame {
    fn new(rows: Arc<[Row]>, shape: Shape) -> Self {
        let longest = |length: fn(&Row) -> usize| rows.iter().map(length).max().unwrap_or(0);
        let prompts = shape.max_prompt_length.unwrap_or_else(|| longest(Row::prompt_len));
        let responses = shape.max_response_length.unwrap_or_else(|| longest(Row::response_len));
        Self { rows, shape, prompts, responses }
    }

    fn tensor(
        &self,
        name: &str,
        dtype: Dtype,
        width: usize,
        row: impl Fn(&Self, &Row, Sink<'_>) + Send + 'static,
    ) -> Tensor {
        let (count, frame) = (self.rows.len(), self.clone());
        let row = Box::new(move |at: usize, sink: Sink<'_>| row(&frame, &frame.rows[at], sink));
        Tensor { name: name.to_owned(), dtype, shape: vec![count, width], rows: Split::Even(count), row }
    }

    /// A tensor of the response side.
    fn column(&self, name: &str, dtype: Dtype, column: PerToken<'static>) -> Tensor {
        self.tensor(name, dtype, self.responses, move |frame, row, sink| {
            column.fill(frame.response(row), frame.responses, sink);
        })
    }

    /// The reward of each turn at its last token, and the reward of the path at the last token of the response. What would be at a token
    /// that is cut off is at the last one that is not, so the sum of the row stays the same.
    fn scores(&self, row: &Row, sink: Sink<'_>) {
        let kept = self.kept(row).end - row.prompt_len();
        let mut scores = facts::scores(row, kept).into_iter().peekable();
        let mut at = 0;
        while let Some((position, mut score)) = scores.next() {
            while let Some((_, other)) = scores.next_if(|(next, _)| *next == position) {
                score += other;
            }
            sink(Run::Float(0.0, position - at));
            sink(Run::Float(score, 1));
            at = position + 1;
        }
        sink(Run::Float(0.0, self.responses - at));
    }

    /// The routed experts of the tokens of both sides; zeros for the padding and for the last token of a row, as verl pads them.
    fn experts(&self, [layers, per_token]: [usize; 2]) -> Tensor {
        let (count, width, frame) = (self.rows.len(), layers * per_token, self.clone());
        let row = Box::new(move |at: usize, sink: Sink<'_>| {
            let row = &frame.rows[at];
            let path = row.path();
            let (before, tokens, behind) = frame.extent(row);
            let first = frame.kept(row).start;
            let known = (first..first + tokens).end.min(row.len().saturating_sub(1)).max(first);
            sink(Run::Integer(0, before * width));
            if let Ok(experts) = RoutedExperts::of(&path) {
                experts.fill(first..known, sink);
            }
            sink(Run::Integer(0, (first + tokens - known + behind) * width));
        });
        let shape = vec![count, self.prompts + self.responses, layers, per_token];
        Tensor { name: "routed_experts".to_owned(), dtype: Dtype::I32, shape, rows: Split::Even(count), row }
    }

    /// The first prompt, padded or truncated on the left.
    fn prompt(&self, row: &Row, sink: Sink<'_>) {
        let kept = &row.prompt()[self.kept(row).start..];
        sink(Run::Integer(self.shape.pad_token_id.into(), self.prompts - kept.len()));
        sink(Run::Ids(kept));
    }

    /// The segments after the first prompt that are kept, the last of them perhaps in part.
    fn response<'a>(&self, row: &'a Row) -> impl Iterator<Item = Segment<'a>> + use<'a> {
        let mut room = self.kept(row).end - row.prompt_len();
        row.response().take_while(move |segment| {
            let is_kept = room > 0;
            room = room.saturating_sub(segment.ids.len());
            is_kept
        })
    }

    /// The tokens of a row that are kept: those that fit, without a part of a picture.
    fn kept(&self, row: &Row) -> Range<usize> {
        let prompt = row.prompt_len();
        let (start, end) = (prompt.saturating_sub(self.prompts), prompt.saturating_add(self.responses));
        images::without_parts(row, start..end.min(row.len()))
    }

    /// The lengths of the padding before, the tokens, and the padding after.
    fn extent(&self, row: &Row) -> (usize, usize, usize) {
        let (prompt, kept) = (row.prompt_len(), self.kept(row));
        (self.prompts + kept.start - prompt, kept.len(), self.responses + prompt - kept.end)
    }

    /// The columns of `input_ids` that have these tokens of a row; `None` if they are cut off.
    fn columns(&self, row: &Row, tokens: Range<usize>) -> Option<Range<usize>> {
        let (kept, (before, ..)) = (self.kept(row), self.extent(row));
        let fits = kept.contains(&tokens.start) && tokens.end <= kept.end;
        fits.then(|| before + tokens.start - kept.start..before + tokens.end - kept.start)
    }

    fn cut(&self, row: &Row) -> [Option<&'static str>; 2] {
        let prompt = (row.prompt_len() > self.prompts).then_some("truncated_prompt");
        let response = (row.response_len() > self.responses).then_some("truncated_response");
        [prompt, response]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::export::fixture::{
        File, SETTINGS, add_picture, batch, example, rows_of, turns, with_experts, with_pictures,
    };
    use crate::images::Image;

    #[test]
    fn two_rows_become_tensors() {
        let file = File::of(export(example()));
        assert_eq!(file.shape("prompts"), [2, 3]);
        assert_eq!(file.shape("input_ids"), [2, 9]);
        assert_eq!(file.integers("prompts"), [1, 2, 3, 1, 2, 3]);
        assert_eq!(file.integers("responses"), [4, 5, 6, 7, 8, 9, 4, 5, 10, 11, 99, 99]);
        assert_eq!(
            file.integers("response_mask"),
            [1, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0, 0],
            "the first turn is trained in the first row only"
        );
        assert_eq!(file.integers("input_ids"), [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 10, 11, 99, 99]);
        assert_eq!(file.integers("attention_mask"), [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
        assert_eq!(file.integers("position_ids"), [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3, 4, 5, 6, 6, 6]);
        assert_eq!(
            file.floats("rollout_log_probs"),
            [-0.5, -1.0, 0.0, -0.5, -1.0, -1.5, 0.0, 0.0, 0.0, -0.5, 0.0, 0.0]
        );
        let entropies = [0.25, 0.5, 0.0, 0.25, 0.5, 0.75, 0.0, 0.0, 0.0, 0.25, 0.0, 0.0];
        assert_eq!(file.floats("rollout_entropys"), entropies);
        assert_eq!(file.floats("rollout_entropy"), entropies);
        assert_eq!(file.floats("rm_scores"), [0.0, 0.0, 0.0, 0.0, 0.0, 1.5, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0]);
        assert!(!file.names().contains(&"entropys".to_owned()), "verl's actor uses that name");
        assert_eq!(file.metadata("entropy"), "nats");
        assert_eq!(file.metadata_json("refused"), json!([]));
        assert_eq!(
            file.metadata_json("non_tensor_batch"),
            json!({
                "__num_turns__": [4, 4], "uid": ["fd1f0f4381eb0395", "fd1f0f4381eb0395"], "group": [0, 0], "session": ["s", "s"], "version": [0, 0],
                "leaf": [1, 2], "min_global_steps": [10, 12], "max_global_steps": [13, 12],
                "finish_reason": ["length", "stop"],
                "flags": [["crosses_versions", "policy_uncertain"], ["crosses_versions"]],
                "reward": [1.5, {"score": 0.5}],
            })
        );
    }

    #[test]
    fn routed_experts_are_padded_with_zeros() {
        let mut batch = batch(rows_of(with_experts(turns())));
        (batch.shape.max_prompt_length, batch.shape.max_response_length) = (Some(2), Some(5));
        let file = File::of(export(batch));
        assert_eq!(file.shape("routed_experts"), [2, 7, 1, 2]);
        let experts = file.integers("routed_experts");
        // the first prompt loses its first token, the response its last one
        assert_eq!(experts[..14], (2..16).collect::<Vec<_>>()[..]);
        assert_eq!(experts[14..], [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 0, 0, 0]);
        let file = File::of(export(example()));
        assert!(!file.names().contains(&"routed_experts".to_owned()), "the rows have none");
    }

    #[test]
    fn pictures_are_references_and_bytes_if_they_are_embedded() {
        let mut batch = batch(rows_of(with_pictures(turns())));
        (batch.shape.max_prompt_length, batch.shape.max_response_length) = (Some(5), Some(7));
        let file = File::of(export(batch.clone()));
        assert!(!file.names().contains(&"position_ids".to_owned()), "verl's positions depend on the pictures");
        let table = file.metadata_json("non_tensor_batch");
        let first = json!({
            "sha256": "aac20c13d41b7d6ed15b10fc19b44037320e9e200d269e824e083fa6b6795080", "media_type": "image/bmp",
            "bytes": 8, "start": 3, "end": 5, "turn": 0, "available": true,
        });
        let gone = Image::new(b"gone"[..].into()).digest.to_string();
        let second = json!({
            "sha256": gone, "media_type": "application/octet-stream", "bytes": 4, "start": 7, "end": 8, "turn": 2, "available": false,
        });
        assert_eq!(table["images"], json!([[first], [first, second]]));
        assert_eq!(table["image_settings"], json!([SETTINGS, SETTINGS]));
        assert_eq!(export(batch.clone()).tally.incomplete, [("image_unavailable", 1)].into());

        batch.images = ExportImages::Embed;
        let file = File::of(export(batch.clone()));
        let refused = json!([{"session": "s", "leaf": 2, "reason": "image_unavailable"}]);
        assert_eq!(file.metadata_json("refused"), refused);
        let name = format!("images.{}", first["sha256"].as_str().unwrap());
        assert_eq!(file.integers(&name), b"BM first".map(i64::from));

        // the response loses its second turn
        (batch.shape.max_prompt_length, batch.shape.max_response_length) = (Some(4), Some(2));
        batch.images = ExportImages::Refs;
        let file = File::of(export(batch.clone()));
        let table = file.metadata_json("non_tensor_batch");
        assert_eq!((&table["images"][0][0]["start"], &table["images"][0][0]["end"]), (&json!(2), &json!(4)));
    }

    #[test]
    fn cut_inside_a_picture_is_moved_so_that_the_picture_is_cut_off() {
        // 1 2 [4 5] 6 12 13 14 [7 8 9], with pictures of the tokens 1 and 13 14
        let mut turns = turns();
        turns[0].prompt = [1, 2].into();
        turns[1].prompt = [6, 12, 13, 14].into();
        add_picture(&mut turns[0], Image::new(b"first"[..].into()), 0..1);
        add_picture(&mut turns[1], Image::new(b"second"[..].into()), 2..4);
        let of = |prompts, responses| {
            let mut batch = batch(rows_of(turns.clone()));
            (batch.shape.max_prompt_length, batch.shape.max_response_length) = (Some(prompts), Some(responses));
            File::of(export(batch))
        };
        let responses = |responses: usize| of(2, responses).integers("responses")[..responses].to_vec();
        assert_eq!(responses(6), [4, 5, 6, 12, 13, 14], "the picture is whole");
        assert_eq!(responses(5), [4, 5, 99, 99, 99], "the turn of the picture is cut off");
        assert_eq!(responses(4), [4, 5, 99, 99], "so is the token that starts it");
        assert_eq!(responses(3), [4, 5, 6]);
        let file = of(2, 5);
        assert_eq!(file.integers("attention_mask")[..7], [1, 1, 1, 1, 0, 0, 0]);
        assert_eq!(file.integers("response_mask")[..5], [1, 1, 0, 0, 0]);
        assert_eq!(file.floats("rm_scores")[..5], [0.0, 1.5, 0.0, 0.0, 0.0], "at the last token that is kept");
        let table = file.metadata_json("non_tensor_batch");
        assert_eq!(table["images"][0].as_array().map(Vec::len), Some(1), "{table}");
        assert!(table["flags"][0].as_array().unwrap().contains(&json!("truncated_response")));

        turns[0].prompt = [1, 2, 3, 12].into();
        add_picture(&mut turns[0], Image::new(b"first"[..].into()), 1..3);
        let of = |prompts| {
            let mut batch = batch(rows_of(turns.clone()));
            batch.shape.max_prompt_length = Some(prompts);
            File::of(export(batch))
        };
        for (prompts, expected) in [(4, &[1, 2, 3, 12][..]), (3, &[99, 99, 12]), (2, &[99, 12]), (1, &[12])] {
            let file = of(prompts);
            assert_eq!(file.integers("prompts")[..prompts], *expected);
            let mask: Vec<_> = expected.iter().map(|id| i64::from(*id != 99)).collect();
            assert_eq!(file.integers("attention_mask")[..prompts], mask);
        }
        let images = of(3).metadata_json("non_tensor_batch")["images"].clone();
        assert_eq!(images[0].as_array().map(Vec::len), Some(1), "that of the second prompt");
        assert_eq!((&images[0][0]["start"], &images[0][0]["end"]), (&json!(7), &json!(9)));

        // the picture is the end of the prompt
        add_picture(&mut turns[0], Image::new(b"first"[..].into()), 2..4);
        let mut batch = batch(rows_of(turns));
        batch.shape.max_prompt_length = Some(1);
        let refused = json!({"session": "s", "leaf": 1, "reason": "truncated_image"});
        assert_eq!(File::of(export(batch)).metadata_json("refused")[0], refused);
    }

    #[test]
    fn longer_sides_are_padded() {
        let mut batch = example();
        (batch.shape.max_prompt_length, batch.shape.max_response_length) = (Some(5), Some(7));
        let file = File::of(export(batch));
        assert_eq!(file.integers("prompts"), [99, 99, 1, 2, 3, 99, 99, 1, 2, 3]);
        assert_eq!(file.integers("responses"), [4, 5, 6, 7, 8, 9, 99, 4, 5, 10, 11, 99, 99, 99]);
        assert_eq!(file.integers("attention_mask")[..12], [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
        assert_eq!(file.integers("position_ids")[..12], [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 8]);
        assert_eq!(file.floats("rm_scores")[..7], [0.0, 0.0, 0.0, 0.0, 0.0, 1.5, 0.0]);
    }

    #[test]
    fn shorter_sides_truncate_the_outer_ends() {
        let mut batch = example();
        (batch.shape.max_prompt_length, batch.shape.max_response_length) = (Some(2), Some(4));
        let file = File::of(export(batch));
        assert_eq!(file.integers("prompts"), [2, 3, 2, 3]);
        assert_eq!(file.integers("responses"), [4, 5, 6, 7, 4, 5, 10, 11]);
        assert_eq!(file.integers("response_mask"), [1, 1, 0, 1, 0, 0, 0, 1]);
        assert_eq!(file.integers("input_ids"), [2, 3, 4, 5, 6, 7, 2, 3, 4, 5, 10, 11]);
        assert_eq!(file.integers("position_ids"), [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]);
        assert_eq!(file.floats("rollout_log_probs"), [-0.5, -1.0, 0.0, -0.5, 0.0, 0.0, 0.0, -0.5]);
        assert_eq!(file.floats("rollout_entropys"), [0.25, 0.5, 0.0, 0.25, 0.0, 0.0, 0.0, 0.25]);
        assert_eq!(file.floats("rm_scores"), [0.0, 0.0, 0.0, 1.5, 0.0, 0.0, 0.0, 0.5]);
        let table = file.metadata_json("non_tensor_batch");
        assert_eq!(
            table["flags"][0],
            json!(["crosses_versions", "policy_uncertain", "truncated_prompt", "truncated_response"])
        );
        assert_eq!(table["flags"][1], json!(["crosses_versions", "truncated_prompt"]));
    }

    #[test]
    fn without_any_entropy_the_tensors_are_left_out() {
        let mut turns = turns();
        turns.iter_mut().for_each(|turn| turn.entropy = Box::default());
        turns[1].entropy = [f32::NAN; 3].into();
        let file = File::of(export(batch(rows_of(turns))));
        assert_eq!(file.metadata("entropy"), "none");
        assert!(!file.names().iter().any(|name| name.contains("entropy")), "{:?}", file.names());
        assert_eq!(file.shape("prompts"), [2, 3], "no row is refused");
    }

    #[test]
    fn turn_of_a_row_without_entropies_is_trained_in_another_row() {
        let mut turns = turns();
        turns[1].entropy[1] = f32::NAN;
        let file = File::of(export(batch(rows_of(turns))));
        assert_eq!(file.metadata_json("refused"), json!([{"session": "s", "leaf": 1, "reason": "missing_entropy"}]));
        assert_eq!(file.integers("responses"), [4, 5, 10, 11]);
        assert_eq!(file.integers("response_mask"), [1, 1, 0, 1]);
    }

    #[test]
    fn scores_need_a_number_in_every_row() {
        let mut rows = rows_of(turns());
        rows[1].reward = Some(Arc::new(json!({"style": 3})));
        let file = File::of(export(batch(rows)));
        assert!(!file.names().contains(&"rm_scores".to_owned()), "one row has no number");
        assert_eq!(file.metadata_json("non_tensor_batch")["reward"], json!([1.5, {"style": 3}]));
    }

    #[test]
    fn reward_of_a_turn_is_at_its_last_token() {
        let mut rows = rows_of(turns());
        for row in &mut rows {
            row.steps[0].reward = Some(Arc::new(json!({"score": 0.25})));
        }
        rows[0].steps[1].reward = Some(Arc::new(json!(2)));
        rows[1].reward = None;
        let file = File::of(export(batch(rows.clone())));
        let scores = [0.0, 0.25, 0.0, 0.0, 0.0, 3.5, 0.0, 0.25, 0.0, 0.0, 0.0, 0.0];
        assert_eq!(file.floats("rm_scores"), scores, "the last token has the rewards of its turn and of the path");
        let table = file.metadata_json("non_tensor_batch");
        assert_eq!(table["turn_scores"], json!([[{"score": 0.25}, 2], [{"score": 0.25}, null]]));
        assert_eq!(table["reward"], json!([1.5, null]));
        let mut cut = batch(rows.clone());
        (cut.shape.max_prompt_length, cut.shape.max_response_length) = (Some(3), Some(4));
        let scores = [0.0, 0.25, 0.0, 3.5, 0.0, 0.25, 0.0, 0.0];
        assert_eq!(File::of(export(cut)).floats("rm_scores"), scores, "the sum of a row stays the same");
        rows[1].steps[0].reward = None;
        rows[0].steps[0].reward = None;
        assert!(
            !File::of(export(batch(rows.clone()))).names().contains(&"rm_scores".to_owned()),
            "a row has no reward"
        );
        rows[1].reward = Some(Arc::new(json!(1)));
        rows[0].steps[1].reward = Some(Arc::new(json!({"style": 1})));
        assert!(!File::of(export(batch(rows))).names().contains(&"rm_scores".to_owned()), "a reward has no number");
    }

    #[test]
    fn empty_batch_is_a_valid_file() {
        let file = File::of(export(Batch::default()));
        assert_eq!(file.shape("input_ids"), [0, 0]);
        assert_eq!(file.metadata("rows"), "0");
        let mut batch = batch(Vec::new());
        (batch.shape.max_prompt_length, batch.shape.max_response_length) = (Some(2), Some(3));
        assert_eq!(File::of(export(batch)).shape("input_ids"), [0, 5]);
    }
}
