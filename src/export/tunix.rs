// SPDX-License-Identifier: Apache-2.0
//! tunix: the rows as token-mode trajectories and as one `RolloutOutput`.

use super::facts::{self, Status};
use super::per_token::{self, PerToken};
use super::text::{self, Text};
use super::versions;
use super::{Batch, Export, ExportOption, Exporter, Needs, settle};
use crate::session::{Path, Row};

/// The exporter.
pub(super) const EXPORTER: Exporter = Exporter {
    options: &[
        ExportOption::Advantages,
        ExportOption::Entropies,
        ExportOption::PadTokenId,
        ExportOption::MaxPromptLength,
    ],
    export,
};

/// `samples` has the dictionaries of token mode. `rollout_output` has a list per member, with one item per row.
fn export(batch: Batch) -> Export {
    let settled = settle(batch.rows, batch.refused, Needs { logprobs: true, ..Needs::default() });
    let (rows, count) = (settled.rows.clone(), settled.rows.len());
    let groups = facts::groups(&rows);
    let pad = batch.shape.pad_token_id.to_string();
    let pad_length = pad.len();
    let longest = rows.iter().map(Row::prompt_len).max().unwrap_or(0);
    let width = batch.shape.max_prompt_length.unwrap_or(longest);
    let each = |before: &'static str, write: fn(&Path, &mut Text)| {
        let rows = rows.clone();
        text::list(before, count, move |at, text| write(&rows[at].path(), text))
    };
    let paths = rows.clone();
    let samples = text::list(r#"{"samples":["#, count, move |at, text| {
        text.object(|text| {
            text.key("group_id").integer(groups[at]);
            trajectory(&paths[at].path(), text);
        });
    });
    let texts = each(r#"],"rollout_output":{"text":["#, |_, text| text.string(""));
    let tokens = each(r#"],"logits":null,"tokens":["#, |path, text| {
        PerToken::Ids { pad: 0 }.list(per_token::response(path), "0", text);
    });
    let paths = rows.clone();
    let prompts = text::list(r#"],"left_padded_prompt_tokens":["#, count, move |at, text| {
        let ids = paths[at].prompt();
        let kept = &ids[ids.len().saturating_sub(width)..];
        text.array(|list| {
            list.repeat(&pad, width - kept.len());
            list.ids(kept);
        });
    });
    let logprobs = each(r#"],"logprobs":["#, |path, text| {
        PerToken::Logprobs.list(per_token::response(path), "0.0", text);
    });
    let texts = samples.chain(texts).chain(tokens).chain(prompts).chain(logprobs);
    let padding: usize = settled.rows.iter().map(|row| width.saturating_sub(row.prompt_len())).sum();
    let least = (padding * (pad_length + 1)) as u64;
    let export = text::samples(texts, r#"]},"refused":["#, settled.refused).counted(settled.tally);
    export.with_size(&settled.rows, least)
}

/// Writes a trajectory without its group. `conversation_*` begin after the first prompt.
fn trajectory(path: &Path, text: &mut Text) {
    text.key("prompt_tokens").array(|list| list.ids(per_token::prompt(path)));
    PerToken::Ids { pad: 0 }.list(per_token::response(path), "0", text.key("conversation_tokens"));
    PerToken::Mask.list(per_token::response(path), "0", text.key("conversation_masks"));
    PerToken::Logprobs.list(per_token::response(path), "0.0", text.key("old_logprobs"));
    per_token::entropies(path, "entropies", text);
    per_token::advantages(path, per_token::response(path), text);
    // tunix has one version per trajectory: the policy at its start
    text.key("policy_version").maybe(versions::range(path).map(|range| range.0));
    text.key("status").string(match Status::new(path) {
        Status::Completed => "SUCCEEDED",
        Status::Truncated => "MAX_CONTEXT_LIMIT_REACHED",
        Status::Aborted | Status::Failed => "FAILED",
    });
    match facts::reward(path.reward.as_ref()) {
        Some(reward) => text.key("trajectory_reward").float(reward),
        None => text.key("trajectory_reward").literal("null"),
    }
    text.key("metadata").object(|text| {
        text.key("session").string(&path.session);
        text.key("version").integer(path.version);
        text.key("leaf").integer(path.leaf().id);
        text.key("flags").strings(facts::flags(path));
        text.key("reward").value(facts::raw_reward(path));
        facts::write_turn_rewards(path, "turn_rewards", text);
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::export::fixture::{batch, example, json as read, path, rows_of, turn, turns};

    #[test]
    fn rows_are_trajectories_and_one_output() {
        let mut rows = rows_of(turns());
        rows.push(path(&[&turn(0, None, &[20], &[21]).into()]));
        let whole = read(export(batch(rows)));
        assert_eq!(
            whole["samples"][0],
            json!({
                "group_id": 0, "prompt_tokens": [1, 2, 3], "conversation_tokens": [4, 5, 6, 7, 8, 9],
                "conversation_masks": [1, 1, 0, 1, 1, 1], "old_logprobs": [-0.5, -1.0, 0.0, -0.5, -1.0, -1.5],
                "entropies": [0.25, 0.5, 0.0, 0.25, 0.5, 0.75], "policy_version": 10,
                "status": "MAX_CONTEXT_LIMIT_REACHED", "trajectory_reward": 1.5,
                "metadata": {
                    "session": "s", "version": 0, "leaf": 1, "flags": ["crosses_versions", "policy_uncertain"],
                    "reward": 1.5,
                },
            })
        );
        let second = &whole["samples"][1];
        assert_eq!(second["conversation_masks"], json!([0, 0, 0, 1]));
        assert_eq!((&second["status"], &second["trajectory_reward"]), (&json!("SUCCEEDED"), &json!(0.5)));
        let third = &whole["samples"][2];
        assert_eq!((&third["group_id"], &third["policy_version"]), (&json!(1), &json!(null)));
        assert_eq!(
            whole["rollout_output"],
            json!({
                "text": ["", "", ""], "logits": null,
                "tokens": [[4, 5, 6, 7, 8, 9], [4, 5, 10, 11], [21]],
                "left_padded_prompt_tokens": [[1, 2, 3], [1, 2, 3], [99, 99, 20]],
                "logprobs": [[-0.5, -1.0, 0.0, -0.5, -1.0, -1.5], [0.0, 0.0, 0.0, -0.5], [-0.5]],
            })
        );
    }

    #[test]
    fn prompts_have_the_requested_length() {
        let mut short = example();
        short.shape.max_prompt_length = Some(2);
        assert_eq!(read(export(short))["rollout_output"]["left_padded_prompt_tokens"], json!([[2, 3], [2, 3]]));
        let mut long = example();
        long.shape.max_prompt_length = Some(4);
        assert_eq!(read(export(long))["rollout_output"]["left_padded_prompt_tokens"][0], json!([99, 1, 2, 3]));
    }

    #[test]
    fn missing_logprobs_refuse_a_row_and_an_empty_batch_is_valid() {
        let mut turns = turns();
        turns[1].logprobs[0] = f32::NAN;
        turns[2].entropy = Box::default();
        let whole = read(export(batch(rows_of(turns))));
        assert_eq!(whole["refused"], json!([{"session": "s", "leaf": 1, "reason": "missing_logprobs"}]));
        assert_eq!(whole["samples"][0]["entropies"], json!([0.25, 0.5, 0.0, null]));
        let nothing = read(export(Batch::default()));
        assert_eq!((&nothing["samples"], &nothing["rollout_output"]["tokens"]), (&json!([]), &json!([])));
    }
}
