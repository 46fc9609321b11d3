// SPDX-License-Identifier: Apache-2.0
//! NeMo-RL: a message log of token ids per row, as its environments return it.

use std::ops::Range;

use super::experts::RoutedExperts;
use super::facts::{self, Status};
use super::text::{self, Text};
use super::{Batch, Export, Exporter, Needs, settle};
use crate::session::{Path, Segment};

/// The exporter.
pub(super) const EXPORTER: Exporter = Exporter {
    // NeMo-RL computes advantages from the rewards
    options: &[],
    export,
};

/// An expert that NeMo-RL's model chooses itself.
const UNKNOWN_EXPERT: &str = "-1";

/// NeMo-RL trains the messages of the assistant that have logprobs. Context, also a sampled turn that another row trains, is a message of
/// the user, as in NeMo-RL's own adapter for NeMo-Gym.
fn export(batch: Batch) -> Export {
    let mut settled = settle(batch.rows, batch.refused, Needs { logprobs: true, ..Needs::default() });
    RoutedExperts::count_incomplete(&settled.rows, &mut settled.tally);
    let (rows, groups) = (settled.rows.clone(), facts::groups(&settled.rows));
    let samples = text::list(r#"{"samples":["#, rows.len(), move |at, text| {
        text.object(|text| {
            text.key("idx").integer(groups[at]);
            sample(&rows[at].path(), text);
        });
    });
    text::samples(samples, text::REFUSED, settled.refused).counted(settled.tally)
}

fn sample(path: &Path, text: &mut Text) {
    let experts = RoutedExperts::of(path).ok();
    let mut start = 0;
    text.key("message_log").array(|log| {
        for segment in path.segments() {
            let tokens = start..start + segment.ids.len();
            start = tokens.end;
            message(&segment, experts.as_ref(), tokens, log);
        }
    });
    text.key("length").integer(path.len());
    text.key("loss_multiplier").literal("1.0");
    match facts::reward(path.reward.as_ref()) {
        Some(reward) => text.key("total_reward").float(reward),
        None => text.key("total_reward").literal("null"),
    }
    text.key("truncated").literal(if Status::new(path) == Status::Truncated { "true" } else { "false" });
    facts::describe(path, text);
}

/// Writes the message of these tokens of the path.
fn message(segment: &Segment<'_>, experts: Option<&RoutedExperts<'_>>, tokens: Range<usize>, log: &mut Text) {
    log.object(|text| {
        text.key("role").string(if segment.trained { "assistant" } else { "user" });
        // the export has tokens only
        text.key("content").string("");
        text.key("token_ids").array(|list| list.ids(segment.ids));
        if segment.trained {
            text.key("generation_logprobs").array(|list| list.floats(segment.logprobs));
        }
        if let Some(experts) = experts {
            experts.lists_with_last(tokens, UNKNOWN_EXPERT, text.key("routed_experts"));
        }
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::export::fixture::{batch, example, json as read, rows_of, turns, with_experts};

    #[test]
    fn row_is_a_message_log() {
        let whole = read(export(example()));
        let user = |ids: serde_json::Value| json!({"role": "user", "content": "", "token_ids": ids});
        assert_eq!(
            whole["samples"][0],
            json!({
                "idx": 0, "length": 9, "loss_multiplier": 1.0, "total_reward": 1.5, "truncated": true,
                "message_log": [
                    user(json!([1, 2, 3])),
                    {"role": "assistant", "content": "", "token_ids": [4, 5], "generation_logprobs": [-0.5, -1.0]},
                    user(json!([6])),
                    {
                        "role": "assistant", "content": "", "token_ids": [7, 8, 9],
                        "generation_logprobs": [-0.5, -1.0, -1.5],
                    },
                ],
                "session": "s", "version": 0, "leaf": 1, "reward": 1.5, "flags": ["crosses_versions", "policy_uncertain"],
            })
        );
        let second = &whole["samples"][1];
        let roles: Vec<_> = second["message_log"].as_array().unwrap().iter().map(|message| &message["role"]).collect();
        assert_eq!(roles, ["user", "user", "user", "assistant"], "the shared turn is trained in the first row");
        assert_eq!((&second["truncated"], &second["idx"]), (&json!(false), &json!(0)));
    }

    #[test]
    fn each_message_has_the_experts_of_its_tokens() {
        let whole = read(export(batch(rows_of(with_experts(turns())))));
        let log = whole["samples"][0]["message_log"].as_array().unwrap();
        let experts: Vec<&serde_json::Value> = log.iter().map(|message| &message["routed_experts"]).collect();
        assert_eq!(
            experts,
            [
                &json!([[[0, 1]], [[2, 3]], [[4, 5]]]),
                &json!([[[6, 7]], [[8, 9]]]),
                &json!([[[10, 11]]]),
                &json!([[[12, 13]], [[14, 15]], [[-1, -1]]]),
            ]
        );
    }

    #[test]
    fn missing_reward_is_null_and_missing_logprobs_refuse_a_row() {
        let mut turns = turns();
        turns[1].logprobs = Box::default();
        let mut rows = rows_of(turns);
        rows[1].reward = None;
        let whole = read(export(batch(rows)));
        assert_eq!(whole["refused"], json!([{"session": "s", "leaf": 1, "reason": "missing_logprobs"}]));
        assert_eq!(whole["samples"][0]["total_reward"], json!(null));
        assert_eq!(read(export(Batch::default())), json!({"samples": [], "refused": []}));
    }
}
