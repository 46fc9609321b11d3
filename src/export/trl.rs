// SPDX-License-Identifier: Apache-2.0
//! TRL: the rows as the dictionary that a `rollout_func` of its GRPO trainer returns.

use super::row_lists::RowLists;
use super::{Batch, Export, Exporter, Needs, facts, settle, text};

/// The exporter.
pub(super) const EXPORTER: Exporter = Exporter {
    // TRL computes advantages from the rewards
    options: &[],
    export,
};

/// `rollout` has a list per member, with one item per row: `env_mask` is the loss mask, and `reward` reaches the reward functions, as all
/// members do that TRL does not know. `samples` says which row each item is.
fn export(batch: Batch) -> Export {
    let settled = settle(batch.rows, batch.refused, Needs { logprobs: true, ..Needs::default() });
    let lists = RowLists(settled.rows);
    let prompts = lists.prompts(r#"],"rollout":{"prompt_ids":["#);
    let completions = lists.responses(r#"],"completion_ids":["#);
    let masks = lists.masks(r#"],"env_mask":["#);
    let logprobs = lists.logprobs(r#"],"logprobs":["#);
    let rewards = lists.of_paths(r#"],"reward":["#, |path, text| match facts::reward(path.reward.as_ref()) {
        Some(reward) => text.float(reward),
        None => text.literal("null"),
    });
    let texts = lists.samples().chain(prompts).chain(completions).chain(masks).chain(logprobs).chain(rewards);
    text::samples(texts, r#"]},"refused":["#, settled.refused).counted(settled.tally)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::export::fixture::{batch, example, json as read, rows_of, turns};

    #[test]
    fn rows_are_one_rollout() {
        let whole = read(export(example()));
        assert_eq!(
            whole["rollout"],
            json!({
                "prompt_ids": [[1, 2, 3], [1, 2, 3]],
                "completion_ids": [[4, 5, 6, 7, 8, 9], [4, 5, 10, 11]],
                "env_mask": [[1, 1, 0, 1, 1, 1], [0, 0, 0, 1]],
                "logprobs": [[-0.5, -1.0, 0.0, -0.5, -1.0, -1.5], [0.0, 0.0, 0.0, -0.5]],
                "reward": [1.5, 0.5],
            })
        );
        assert_eq!((&whole["samples"][1]["leaf"], &whole["refused"]), (&json!(2), &json!([])));
    }

    #[test]
    fn missing_reward_is_null_and_missing_logprobs_refuse_a_row() {
        let mut turns = turns();
        turns[2].logprobs[0] = f32::NAN;
        let mut rows = rows_of(turns);
        rows[0].reward = None;
        let whole = read(export(batch(rows)));
        assert_eq!(whole["refused"], json!([{"session": "s", "leaf": 2, "reason": "missing_logprobs"}]));
        assert_eq!(whole["rollout"]["reward"], json!([null]));
        assert_eq!(read(export(Batch::default()))["rollout"]["prompt_ids"], json!([]));
    }
}
