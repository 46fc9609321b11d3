// SPDX-License-Identifier: Apache-2.0
//! slime: dictionaries for `Sample.from_dict`.

use super::experts::RoutedExperts;
use super::facts::{self, Status};
use super::per_token::{self, PerToken};
use super::row_text::RowText;
use super::text::{self, Text};
use super::{Batch, Export, ExportImages, ExportOption, Exporter, Needs, images, settle};
use super::{miles, versions};
use crate::columns::{Column, TEACHER_LOGPROBS};
use crate::session::Path;

/// The exporter.
pub(super) const EXPORTER: Exporter = Exporter {
    options: &[
        ExportOption::Text,
        ExportOption::Advantages,
        ExportOption::Scores,
        ExportOption::Images,
        ExportOption::Entropies,
    ],
    export,
};

/// One sample per row. Samples of one session share a `rollout_id`, samples of one prompt share a `group_index`.
fn export(batch: Batch) -> Export {
    let needs = Needs { logprobs: true, images: Some(batch.images), ..Needs::default() };
    let mut settled = settle(batch.rows, batch.refused, needs);
    let image_memory = images::memory(&settled.rows, batch.images);
    let (rows, groups) = (settled.rows.clone(), facts::groups(&settled.rows));
    // slime replays the routing of all samples of a batch, or of none
    let has_experts = RoutedExperts::common_shape(&rows, &mut settled.tally).is_some();
    let samples = text::list(r#"{"samples":["#, rows.len(), move |at, text| {
        let path = rows[at].path();
        text.object(|text| {
            text.key("index").integer(at);
            text.key("group_index").integer(groups[at]);
            sample(&path, &RowText::decode(&path, batch.decoder.as_ref()), batch.images, text);
            if let (true, Ok(experts)) = (has_experts, RoutedExperts::of(&path)) {
                experts.lists(text.key("rollout_routed_experts"));
            }
        });
    });
    text::samples(samples, text::REFUSED, settled.refused).counted(settled.tally).with_image_memory(image_memory)
}

fn sample(path: &Path, row_text: &RowText, images: ExportImages, text: &mut Text) {
    text.key("prompt").string(row_text.prompt().unwrap_or_default());
    text.key("response").string(row_text.response().unwrap_or_default());
    text.key("label").literal("null");
    PerToken::Ids { pad: 0 }.list(path.segments(), "0", text.key("tokens"));
    text.key("response_length").integer(path.response_len());
    PerToken::Mask.list(per_token::response(path), "0", text.key("loss_mask"));
    PerToken::Logprobs.list(per_token::response(path), "0.0", text.key("rollout_log_probs"));
    teacher_logprobs(path, text);
    pictures(path, images, text);
    text.key("weight_versions").strings(versions::labels(path));
    text.key("status").string(Status::new(path).name());
    text.key("reward").value(facts::raw_reward(path));
    text.key("rollout_id").string(&path.session);
    text.key("session_id").string(&path.session);
    text.key("remove_sample").literal("false");
    text.key("prefix_cache_info").object(|text| miles::prefix_cache(path, text));
    text.key("train_metadata").object(|text| {
        per_token::entropies(path, "rollout_entropys", text);
        per_token::advantages(path, per_token::response(path), text);
    });
    text.key("metadata").object(|text| {
        text.key("session").string(&path.session);
        text.key("version").integer(path.version);
        text.key("leaf").integer(path.leaf().id);
        text.key("flags").strings(facts::flags(path).into_iter().chain(row_text.flag()));
        facts::write_turn_rewards(path, "turn_rewards", text);
        images::describe(path, text);
    });
}

/// Writes the pictures of a path as data URIs if they are embedded, and how many are to be processed before training.
fn pictures(path: &Path, images: ExportImages, text: &mut Text) {
    let count = path.images().count();
    if count == 0 {
        return;
    }
    if images == ExportImages::Embed {
        text.key("multimodal_inputs").object(|text| {
            text.key("images").array(|list| {
                for image in path.images() {
                    // rows with pictures of unknown bytes are refused
                    list.data_uri(image.image.media_type.name(), image.image.bytes.as_deref().unwrap_or_default());
                }
            });
        });
    }
    // JSON has no tensors. With null slime would train on the ids alone; this name it does not know
    text.key("multimodal_train_inputs").object(|text| text.key("unprocessed_images").integer(count));
}

/// Writes the teacher's logprobs after the first prompt under slime's name, 0.0 where the mask is 0, if the export has them.
fn teacher_logprobs(path: &Path, text: &mut Text) {
    if path.steps.iter().all(|step| step.scores.is_none()) {
        return;
    }
    text.key("teacher_log_probs").array(|list| {
        for (at, step) in path.steps.iter().enumerate() {
            if at > 0 {
                list.repeat("0.0", step.turn.prompt.len());
            }
            let logprobs = step.scores.as_deref().and_then(|scores| Column::named(scores, TEACHER_LOGPROBS)?.floats());
            match logprobs.filter(|_| step.trained) {
                Some(logprobs) => list.floats(&logprobs),
                None if step.trained => list.repeat("null", step.turn.response.len()),
                None => list.repeat("0.0", step.turn.response.len()),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::export::fixture::{SETTINGS, batch, example, json as read, rows_of, turns, with_experts, with_pictures};
    use crate::export::{Decode, Decoder};

    #[test]
    fn sample_has_text_if_it_is_asked_for() {
        let texts = |model: &str| {
            let decode: Decode = Arc::new(|ids: &[u32]| Some(format!("{ids:?}")));
            let decoder = Decoder { tokenizer: "t".to_owned(), model: model.into(), decode };
            let whole = read(export(Batch { decoder: Some(decoder), ..example() }));
            let sample = &whole["samples"][0];
            let flags = sample["metadata"]["flags"].as_array().unwrap().contains(&json!("text_unavailable"));
            (sample["prompt"].clone(), sample["response"].clone(), flags)
        };
        assert_eq!(texts("m"), (json!("[1, 2, 3]"), json!("[4, 5, 6, 7, 8, 9]"), false));
        assert_eq!(texts("another"), (json!(""), json!(""), true));
    }

    #[test]
    fn row_is_one_sample() {
        let whole = read(export(example()));
        assert_eq!(whole["refused"], json!([]));
        assert_eq!(
            whole["samples"][0],
            json!({
                "index": 0, "group_index": 0, "prompt": "", "response": "", "label": null,
                "tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9], "response_length": 6, "loss_mask": [1, 1, 0, 1, 1, 1],
                "rollout_log_probs": [-0.5, -1.0, 0.0, -0.5, -1.0, -1.5], "weight_versions": ["w1", "w2"],
                "status": "truncated", "reward": 1.5, "rollout_id": "s", "session_id": "s", "remove_sample": false,
                "prefix_cache_info": {"cached_tokens": 0, "total_prompt_tokens": 9},
                "train_metadata": {"rollout_entropys": [0.25, 0.5, 0.0, 0.25, 0.5, 0.75]},
                "metadata": {
                    "session": "s", "version": 0, "leaf": 1, "flags": ["crosses_versions", "policy_uncertain"]
                },
            })
        );
        let second = &whole["samples"][1];
        assert_eq!(second["tokens"], json!([1, 2, 3, 4, 5, 10, 11]));
        assert_eq!(second["loss_mask"], json!([0, 0, 0, 1]));
        assert_eq!(second["rollout_log_probs"], json!([0.0, 0.0, 0.0, -0.5]));
        assert_eq!(second["train_metadata"], json!({"rollout_entropys": [0.0, 0.0, 0.0, 0.25]}));
        assert_eq!((&second["index"], &second["group_index"]), (&json!(1), &json!(0)), "two samples of one prompt");
        assert_eq!((&second["status"], &second["reward"]), (&json!("completed"), &json!({"score": 0.5})));
    }

    #[test]
    fn pictures_are_data_uris_if_they_are_embedded() {
        let mut batch = batch(rows_of(with_pictures(turns())));
        let whole = read(export(batch.clone()));
        let second = &whole["samples"][1];
        assert_eq!(second["multimodal_train_inputs"], json!({"unprocessed_images": 2}));
        assert_eq!(second.get("multimodal_inputs"), None);
        let images = &second["metadata"]["images"];
        assert_eq!((&images[0]["start"], &images[1]["start"], &images[1]["end"]), (&json!(1), &json!(5), &json!(6)));
        assert_eq!(second["metadata"]["image_settings"], json!(SETTINGS));
        batch.images = ExportImages::Embed;
        let whole = read(export(batch));
        assert_eq!(whole["refused"], json!([{"session": "s", "leaf": 2, "reason": "image_unavailable"}]));
        let first = &whole["samples"][0];
        assert_eq!(first["multimodal_inputs"], json!({"images": ["data:image/bmp;base64,Qk0gZmlyc3Q="]}));
        assert_eq!(first["loss_mask"], json!([1, 1, 0, 1, 1, 1]));
    }

    #[test]
    fn routed_experts_are_nested_lists() {
        let whole = read(export(batch(rows_of(with_experts(turns())))));
        let experts = &whole["samples"][1]["rollout_routed_experts"];
        assert_eq!(experts.as_array().unwrap().len(), 6, "all tokens but the last");
        assert_eq!((&experts[0], &experts[5]), (&json!([[0, 1]]), &json!([[10, 11]])));
    }

    #[test]
    fn missing_entropy_is_null_and_missing_logprob_refuses_the_row() {
        let mut turns = turns();
        turns[0].entropy[1] = f32::NAN;
        turns[1].logprobs[2] = f32::NEG_INFINITY;
        turns[2].entropy = Box::default();
        let whole = read(export(batch(rows_of(turns))));
        assert_eq!(whole["refused"], json!([{"session": "s", "leaf": 1, "reason": "missing_logprobs"}]));
        let sample = &whole["samples"][0];
        assert_eq!(sample["loss_mask"], json!([1, 1, 0, 1]), "the shared turn is trained here now");
        assert_eq!(sample["train_metadata"]["rollout_entropys"], json!([0.25, null, 0.0, null]));
    }

    #[test]
    fn unmeasured_entropies_are_null_and_an_empty_batch_is_valid() {
        let mut turns = turns();
        turns.iter_mut().for_each(|turn| turn.entropy = Box::default());
        let whole = read(export(batch(rows_of(turns))));
        assert_eq!(whole["samples"][0]["train_metadata"], json!({"rollout_entropys": null}));
        assert_eq!(read(export(Batch::default())), json!({"samples": [], "refused": []}));
    }
}
