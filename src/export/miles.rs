// SPDX-License-Identifier: Apache-2.0
//! miles: the layout of its session server's reply to `/sessions/{id}/samples`.

use std::sync::Arc;

use super::experts::RoutedExperts;
use super::facts::{self, Status};
use super::per_token::PerToken;
use super::row_text::RowText;
use super::safetensors::{self, Dtype, Run, Sink, Split, Tensor};
use super::text::{self, Text};
use super::versions;
use super::{Batch, Decoder, ExcludedLeaf, Export, ExportImages, ExportOption, Exporter, Needs, images, settle};
use crate::session::{Path, Row};

/// The exporter.
pub(super) const EXPORTER: Exporter = Exporter {
    // miles' reader refuses tensors that it does not expect
    options: &[ExportOption::Text, ExportOption::Images, ExportOption::Entropies],
    export,
};

/// Tensors that miles knows and that the file may lack.
const TENSORS: [&str; 2] = ["rollout_routed_experts", "rollout_indexer_topk"];

/// `tokens.i` has the whole row, the other tensors the tokens after the first prompt; `_samples_meta` has the metadata.
///
/// miles refuses tensors that it does not expect, so `rollout_entropys.i` exists only if the batch requests entropies, and rows with pictures
/// only if it requests their bytes: miles would ignore references, and train such rows on the ids alone.
fn export(batch: Batch) -> Export {
    let images = Some(batch.images).filter(|images| *images == ExportImages::Embed);
    let needs = Needs { logprobs: true, entropy: batch.shape.entropies, images, ..Needs::default() };
    let mut settled = settle(batch.rows, batch.refused, needs);
    let rows = settled.rows;
    let tensor = |name: &str, at: usize, dtype, width, row: fn(&Row, usize, Sink<'_>)| {
        let paths = rows.clone();
        let row = Box::new(move |_: usize, sink: Sink<'_>| row(&paths[at], width, sink));
        Tensor { name: format!("{name}.{at}"), dtype, shape: vec![width], rows: Split::Even(1), row }
    };
    // miles replays the routing of all samples of a batch, or of none
    let experts = RoutedExperts::common_shape(&rows, &mut settled.tally);
    let mut tensors = Vec::with_capacity(5 * rows.len() + 1);
    for (at, row) in rows.iter().enumerate() {
        let width = row.response_len();
        tensors.push(tensor("tokens", at, Dtype::I64, row.len(), |row, width, sink| {
            PerToken::Ids { pad: 0 }.fill(row.segments(), width, sink);
        }));
        tensors.push(tensor("loss_mask", at, Dtype::U8, width, |row, width, sink| {
            PerToken::Mask.fill(row.response(), width, sink);
        }));
        tensors.push(tensor("rollout_log_probs", at, Dtype::F64, width, |row, width, sink| {
            PerToken::Logprobs.fill(row.response(), width, sink);
        }));
        if let Some([layers, per_token]) = experts {
            let (path, count) = (row.path(), row.len().saturating_sub(1));
            let shape = vec![count, layers, per_token];
            let row = Box::new(move |_: usize, sink: Sink<'_>| {
                if let Ok(experts) = RoutedExperts::of(&path) {
                    experts.fill(0..count, sink);
                }
            });
            let name = format!("rollout_routed_experts.{at}");
            tensors.push(Tensor { name, dtype: Dtype::I32, shape, rows: Split::Even(1), row });
        }
        if settled.entropy {
            tensors.push(tensor("rollout_entropys", at, Dtype::F32, width, |row, width, sink| {
                PerToken::Entropy.fill(row.response(), width, sink);
            }));
        }
    }
    tensors.extend(images::distinct(&rows).iter().filter_map(Tensor::of_image));
    let metadata = [("format", "miles".to_owned()), ("refused", text::refusals(&settled.refused))];
    let nulls: &[&str] = if experts.is_some() { &TENSORS[1..] } else { &TENSORS };
    let meta = SamplesMeta { rows: Arc::clone(&rows), refused: settled.refused, nulls, decoder: batch.decoder };
    tensors.push(meta.tensor());
    safetensors::export(tensors, &metadata).counted(settled.tally).with_size(&rows, 0)
}

/// The metadata of the samples: JSON as a tensor of bytes.
struct SamplesMeta {
    rows: Arc<[Row]>,
    refused: Vec<ExcludedLeaf>,
    /// The tensors that miles knows and the file lacks.
    nulls: &'static [&'static str],
    decoder: Option<Decoder>,
}

impl SamplesMeta {
    /// Each part is generated twice, once for its length and once for the file, so that none is kept in memory.
    fn tensor(self) -> Tensor {
        let lengths: Box<[usize]> = (0..=self.rows.len()).map(|at| self.part(at).len()).collect();
        let shape = vec![lengths.iter().sum()];
        let row = Box::new(move |at: usize, sink: Sink<'_>| sink(Run::Bytes(&self.part(at))));
        Tensor { name: "_samples_meta".to_owned(), dtype: Dtype::U8, shape, rows: Split::Each(lengths), row }
    }

    /// A sample, or the end after the last one.
    fn part(&self, at: usize) -> Vec<u8> {
        let mut text = Text::after(if at == 0 { r#"{"samples":["# } else { "," });
        if let Some(row) = self.rows.get(at) {
            let path = row.path();
            sample(&path, &RowText::decode(&path, self.decoder.as_ref()), self.nulls, &mut text);
            return text.into_bytes();
        }
        let mut text = Text::after(if at == 0 { r#"{"samples":[],"# } else { "]," });
        text.key("session_metadata").object(|text| {
            text.key("refused").array(|list| self.refused.iter().for_each(|leaf| text::refusal(list, leaf)));
        });
        text.key("empty_reason").maybe_string(self.rows.is_empty().then_some("no_records"));
        let mut bytes = text.into_bytes();
        bytes.push(b'}');
        bytes
    }
}

fn sample(path: &Path, row_text: &RowText, nulls: &[&str], list: &mut Text) {
    list.object(|text| {
        text.key("response").string(row_text.response().unwrap_or_default());
        text.key("response_length").integer(path.response_len());
        text.key("status").string(Status::new(path).name());
        weight_versions(path, text.key("weight_versions"));
        // empty, so that a reader that knows the member uses its defaults
        text.key("spec_info").object(|_| {});
        text.key("prefix_cache_info").object(|text| prefix_cache(path, text));
        text.key("metadata").object(|text| {
            text.key("session").string(&path.session);
            text.key("leaf").integer(path.leaf().id);
            text.key("flags").strings(facts::flags(path).into_iter().chain(row_text.flag()));
            facts::write_turn_rewards(path, "turn_rewards", text);
            images::describe(path, text);
        });
        text.key("reward").value(facts::raw_reward(path));
        text.key("nulls").strings(nulls);
    });
}

/// A list of spans for each call, in positions of the whole sample. miles reads this since `WeightVersionsPerCall` (miles#1891), which
/// checks that the spans are labelled, in order and inside the sample. Earlier versions accept any list, and labels instead of the lists.
fn weight_versions(path: &Path, text: &mut Text) {
    text.array(|calls| {
        for spans in versions::labelled_spans(path) {
            calls.array(|list| {
                for (version, start, end) in spans {
                    list.object(|text| {
                        text.key("version").string(&version);
                        text.key("abs_start").integer(start);
                        text.key("abs_end").integer(end);
                    });
                }
            });
        }
    });
}

/// Sums over all calls of the row. The prompt of a call is everything before its response.
pub(super) fn prefix_cache(path: &Path, text: &mut Text) {
    let (mut before, mut prompts, mut cached) = (0, 0, 0);
    for step in &path.steps {
        let prompt = before + step.turn.prompt.len();
        prompts += prompt;
        cached += step.turn.about.cached_tokens.unwrap_or(0);
        before = prompt + step.turn.response.len();
    }
    text.key("cached_tokens").integer(cached);
    text.key("total_prompt_tokens").integer(prompts);
}

#[cfg(test)]
mod tests {
    use ::safetensors::Dtype;
    use serde_json::{Value, json};

    use super::*;
    use crate::export::Decode;
    use crate::export::fixture::{File, SETTINGS, batch, example, rows_of, turns, with_experts, with_pictures};

    #[test]
    fn response_has_text_if_it_is_asked_for() {
        let decode: Decode = Arc::new(|ids: &[u32]| Some(format!("{ids:?}")));
        let decoder = Decoder { tokenizer: "t".to_owned(), model: "m".into(), decode };
        let file = File::of(export(Batch { decoder: Some(decoder), ..example() }));
        assert_eq!(samples_meta(&file)["samples"][0]["response"], "[4, 5, 6, 7, 8, 9]");
    }

    fn samples_meta(file: &File) -> Value {
        let bytes: Vec<u8> = file.integers("_samples_meta").iter().map(|byte| u8::try_from(*byte).unwrap()).collect();
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn rows_with_pictures_are_exported_with_their_bytes_only() {
        let mut batch = batch(rows_of(with_pictures(turns())));
        let file = File::of(export(batch.clone()));
        assert_eq!(file.names(), ["_samples_meta"]);
        let refused = samples_meta(&file)["session_metadata"]["refused"].clone();
        assert_eq!(
            (&refused[0]["reason"], &refused[1]["reason"]),
            (&json!("images_unsupported"), &json!("images_unsupported"))
        );
        batch.images = ExportImages::Embed;
        let file = File::of(export(batch));
        let metadata = samples_meta(&file)["samples"][0]["metadata"].clone();
        assert_eq!((&metadata["image_settings"], &metadata["images"][0]["end"]), (&json!(SETTINGS), &json!(3)));
        let name = format!("images.{}", metadata["images"][0]["sha256"].as_str().unwrap());
        assert_eq!(file.integers(&name), b"BM first".map(i64::from));
        assert_eq!(file.names().len(), 5, "the row of the picture whose bytes are not known is refused");
    }

    #[test]
    fn each_sample_has_its_tensors() {
        let mut turns = turns();
        turns[2].about.cached_tokens = Some(5);
        let file = File::of(export(batch(rows_of(turns))));
        let names = [
            "_samples_meta",
            "loss_mask.0",
            "loss_mask.1",
            "rollout_log_probs.0",
            "rollout_log_probs.1",
            "tokens.0",
            "tokens.1",
        ];
        assert_eq!(file.names(), names, "miles refuses a file with other tensors");
        assert_eq!(file.dtype("tokens.0"), Dtype::I64);
        assert_eq!(file.integers("tokens.0"), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(file.integers("tokens.1"), [1, 2, 3, 4, 5, 10, 11]);
        assert_eq!(file.dtype("loss_mask.0"), Dtype::U8);
        assert_eq!(file.integers("loss_mask.0"), [1, 1, 0, 1, 1, 1]);
        assert_eq!(file.integers("loss_mask.1"), [0, 0, 0, 1]);
        assert_eq!(file.dtype("rollout_log_probs.0"), Dtype::F64);
        assert_eq!(file.floats("rollout_log_probs.0"), [-0.5, -1.0, 0.0, -0.5, -1.0, -1.5]);
        assert_eq!(file.floats("rollout_log_probs.1"), [0.0, 0.0, 0.0, -0.5]);
        let meta = samples_meta(&file);
        assert_eq!(
            meta["samples"][1],
            json!({
                "response": "", "response_length": 4, "status": "completed",
                "weight_versions": [
                    [{"version": "w1", "abs_start": 3, "abs_end": 5}],
                    [{"version": "12", "abs_start": 6, "abs_end": 7}],
                ],
                "spec_info": {}, "prefix_cache_info": {"cached_tokens": 5, "total_prompt_tokens": 9},
                "metadata": {"session": "s", "leaf": 2, "flags": ["crosses_versions"]}, "reward": {"score": 0.5},
                "nulls": ["rollout_routed_experts", "rollout_indexer_topk"],
            })
        );
        assert_eq!(meta["samples"][0]["status"], "truncated");
        assert_eq!(
            meta["samples"][0]["weight_versions"],
            json!([
                [{"version": "w1", "abs_start": 3, "abs_end": 5}],
                [{"version": "11", "abs_start": 6, "abs_end": 7}, {"version": "w2", "abs_start": 7, "abs_end": 9}],
            ])
        );
        assert_eq!((&meta["session_metadata"], &meta["empty_reason"]), (&json!({"refused": []}), &Value::Null));
    }

    #[test]
    fn routed_experts_are_those_of_all_tokens_but_the_last() {
        let file = File::of(export(batch(rows_of(with_experts(turns())))));
        assert_eq!(file.dtype("rollout_routed_experts.0"), Dtype::I32);
        assert_eq!(
            (file.shape("rollout_routed_experts.0"), file.shape("rollout_routed_experts.1")),
            (vec![8, 1, 2], vec![6, 1, 2])
        );
        let experts = file.integers("rollout_routed_experts.0");
        assert_eq!(experts, (0..16).collect::<Vec<_>>());
        assert_eq!(samples_meta(&file)["samples"][0]["nulls"], json!(["rollout_indexer_topk"]));
        let mut turns = with_experts(turns());
        turns[2].about.columns.clear();
        let file = File::of(export(batch(rows_of(turns))));
        assert!(!file.names().iter().any(|name| name.contains("experts")), "of all samples, or of none");
        assert_eq!(
            samples_meta(&file)["samples"][0]["nulls"],
            json!(["rollout_routed_experts", "rollout_indexer_topk"])
        );
    }

    #[test]
    fn entropies_are_written_on_request() {
        let mut batch = example();
        batch.shape.entropies = true;
        let file = File::of(export(batch));
        assert_eq!(file.dtype("rollout_entropys.0"), Dtype::F32);
        assert_eq!(file.floats("rollout_entropys.0"), [0.25, 0.5, 0.0, 0.25, 0.5, 0.75]);
        assert_eq!(file.floats("rollout_entropys.1"), [0.0, 0.0, 0.0, 0.25]);
    }

    #[test]
    fn row_without_logprobs_is_refused_and_an_empty_file_has_a_reason() {
        let mut turns = turns();
        turns[0].logprobs = Box::default();
        let meta = samples_meta(&File::of(export(batch(rows_of(turns)))));
        let refused = |leaf| json!({"session": "s", "leaf": leaf, "reason": "missing_logprobs"});
        assert_eq!(
            meta,
            json!({
                "samples": [], "session_metadata": {"refused": [refused(1), refused(2)]}, "empty_reason": "no_records"
            })
        );
    }
}
