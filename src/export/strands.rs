// SPDX-License-Identifier: Apache-2.0
//! strands-sglang: the arrays and segments of its rollout.

use super::experts::RoutedExperts;
use super::per_token::{self, PerToken};
use super::text::{self, Text};
use super::{Batch, Export, ExportOption, Exporter, Needs, facts, settle};
use crate::engine::sglang::extras;
use crate::session::{Path, Turn};

/// The exporter.
pub(super) const EXPORTER: Exporter =
    Exporter { options: &[ExportOption::Advantages, ExportOption::Entropies], export };

/// One sample per row. strands-sglang allows null for a missing number, so no row is refused for one.
fn export(batch: Batch) -> Export {
    let mut settled = settle(batch.rows, batch.refused, Needs::default());
    RoutedExperts::count_incomplete(&settled.rows, &mut settled.tally);
    let rows = settled.rows;
    let count = rows.len();
    let samples =
        text::list(r#"{"samples":["#, count, move |at, text| text.object(|text| sample(&rows[at].path(), text)));
    text::samples(samples, text::REFUSED, settled.refused).counted(settled.tally)
}

fn sample(path: &Path, text: &mut Text) {
    text.key("session").string(&path.session);
    text.key("version").integer(path.version);
    text.key("leaf").integer(path.leaf().id);
    PerToken::Ids { pad: 0 }.list(path.segments(), "0", text.key("token_ids"));
    PerToken::Mask.list(path.segments(), "0", text.key("loss_mask"));
    PerToken::Logprobs.list(path.segments(), "null", text.key("logprobs"));
    prompt_logprobs(path, text);
    PerToken::Entropy.list(path.segments(), "null", text.key("entropy"));
    per_token::advantages(path, path.segments(), text);
    text.key("segment_info").array(|list| {
        for segment in path.segments() {
            list.array(|pair| {
                pair.literal(if segment.is_response { "true" } else { "false" });
                pair.integer(segment.ids.len());
            });
        }
    });
    text.key("initial_prompt_length").integer(path.prompt_len());
    text.key("finish_reason").maybe_string(path.leaf().about.finish.as_deref());
    text.key("reward").value(facts::raw_reward(path));
    facts::write_turn_rewards(path, "turn_rewards", text);
    routed_experts(path, text);
    text.key("flags").strings(facts::flags(path));
}

/// Writes the routed experts of each turn as the base64 of int32, or null. A turn has those from the last token before it to its last but
/// one, as strands-sglang requests them, so that the pieces join without an overlap.
fn routed_experts(path: &Path, text: &mut Text) {
    let Ok(experts) = RoutedExperts::of(path) else { return text.key("routed_experts").literal("null") };
    text.key("routed_experts").array(|list| {
        let (mut start, mut end) = (0, 0);
        for step in &path.steps {
            end += step.turn.prompt.len() + step.turn.response.len();
            list.base64(&experts.int32(start..end.saturating_sub(1)));
            start = end.saturating_sub(1);
        }
    });
}

/// Writes the prompt logprob of every token of the row, or null if none were requested.
fn prompt_logprobs(path: &Path, text: &mut Text) {
    let known: Vec<Option<Vec<f32>>> = path.steps.iter().map(|step| logprobs_of_prompt(&step.turn)).collect();
    if known.iter().all(Option::is_none) {
        return text.key("prompt_logprobs").literal("null");
    }
    text.key("prompt_logprobs").array(|list| {
        for (step, known) in path.steps.iter().zip(known) {
            match known {
                Some(logprobs) => list.floats(&logprobs),
                None => list.repeat("null", step.turn.prompt.len()),
            }
            list.repeat("null", step.turn.response.len());
        }
    });
}

/// The logprobs of the new tokens of the prompt, if the client requested them.
fn logprobs_of_prompt(turn: &Turn) -> Option<Vec<f32>> {
    extras::prompt_logprobs(|name| turn.about.extras.get(name).map(|text| &**text), &turn.prompt)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::export::fixture::{batch, example, json as read, rows_of, turns, with_experts};

    #[test]
    fn arrays_and_segments() {
        let whole = read(export(example()));
        assert_eq!(
            whole["samples"][0],
            json!({
                "session": "s", "version": 0, "leaf": 1, "token_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9],
                "loss_mask": [0, 0, 0, 1, 1, 0, 1, 1, 1],
                "logprobs": [null, null, null, -0.5, -1.0, null, -0.5, -1.0, -1.5], "prompt_logprobs": null,
                "entropy": [null, null, null, 0.25, 0.5, null, 0.25, 0.5, 0.75],
                "segment_info": [[false, 3], [true, 2], [false, 1], [true, 3]], "initial_prompt_length": 3,
                "finish_reason": "length", "reward": 1.5, "routed_experts": null, "flags": ["crosses_versions", "policy_uncertain"],
            })
        );
        let second = &whole["samples"][1];
        assert_eq!(second["loss_mask"], json!([0, 0, 0, 0, 0, 0, 1]));
        assert_eq!(second["logprobs"], json!([null, null, null, null, null, null, -0.5]));
        assert_eq!(second["segment_info"], json!([[false, 3], [true, 2], [false, 1], [true, 1]]));
    }

    #[test]
    fn routed_experts_are_one_piece_a_turn() {
        let whole = read(export(batch(rows_of(with_experts(turns())))));
        let pieces = whole["samples"][0]["routed_experts"].as_array().unwrap();
        let bytes = |piece: &Value| base64_simd::STANDARD.decode_to_vec(piece.as_str().unwrap()).unwrap();
        let joined: Vec<u8> = pieces.iter().flat_map(bytes).collect();
        let integers: Vec<u32> = joined.as_chunks().0.iter().map(|integer| u32::from_le_bytes(*integer)).collect();
        assert_eq!((pieces.len(), integers), (2, (0..16).collect()));
        assert_eq!(bytes(&pieces[0]).len(), 4 * 2 * 4, "5 tokens, the last one with the next turn");
    }

    #[test]
    fn prompt_logprobs_are_those_of_the_new_tokens() {
        let mut turns = turns();
        let extras = |text: &str| [("input_token_logprobs".into(), text.into())].into();
        turns[0].about.extras = extras("[[null,1,null],[-0.125,2,null],[-0.25,3,null]]");
        turns[1].about.extras = extras("[[-7.5,5,null],[-0.75,6,null]]");
        // the id of another token, so the entry is not of this prompt
        turns[2].about.extras = extras("[[-0.75,12,null]]");
        let whole = read(export(batch(rows_of(turns))));
        assert_eq!(
            whole["samples"][0]["prompt_logprobs"],
            json!([null, -0.125, -0.25, null, null, -0.75, null, null, null])
        );
        assert_eq!(whole["samples"][1]["prompt_logprobs"], json!([null, -0.125, -0.25, null, null, null, null]));
    }

    #[test]
    fn missing_values_are_null() {
        let mut turns = turns();
        turns[0].logprobs = Box::default();
        turns[1].entropy[0] = f32::INFINITY;
        let whole = read(export(batch(rows_of(turns))));
        assert_eq!(whole["refused"], json!([]));
        assert_eq!(whole["samples"][0]["logprobs"], json!([null, null, null, null, null, null, -0.5, -1.0, -1.5]));
        assert_eq!(whole["samples"][0]["entropy"], json!([null, null, null, 0.25, 0.5, null, null, 0.5, 0.75]));
        assert_eq!(read(export(Batch::default())), json!({"samples": [], "refused": []}));
    }
}
