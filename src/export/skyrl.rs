// SPDX-License-Identifier: Apache-2.0
//! SkyRL: the rows as one `GeneratorOutput`.

use std::collections::HashMap;

use super::exclude::Lack;
use super::experts::RoutedExperts;
use super::row_lists::RowLists;
use super::text::{self, Text};
use super::{Batch, Export, Exporter, Needs, facts, settle};
use crate::session::Row;

/// The exporter.
pub(super) const EXPORTER: Exporter = Exporter {
    // SkyRL computes advantages from the rewards
    options: &[],
    export,
};

/// `generator_output` has a list per member, with one item per row; what only its generator knows is null. `samples` says which row each
/// item is. `rewards` is null unless every row has one, because SkyRL has no absent reward.
fn export(batch: Batch) -> Export {
    let mut settled = settle(batch.rows, batch.refused, Needs { logprobs: true, ..Needs::default() });
    let lists = RowLists(settled.rows);
    let prompts = lists.prompts(r#"],"generator_output":{"prompt_token_ids":["#);
    let responses = lists.responses(r#"],"response_ids":["#);
    let masks = lists.masks(r#"],"loss_masks":["#);
    let logprobs = lists.logprobs(r#"],"rollout_logprobs":["#);
    let stops =
        lists.of_paths(r#"],"stop_reasons":["#, |path, text| text.maybe_string(path.leaf().about.finish.as_deref()));
    let names = trajectories(&lists.0);
    let trajectories = lists.of_rows(r#"],"trajectory_ids":["#, move |at, text| {
        let (prompt, repetition) = &names[at];
        text.object(|text| {
            text.key("instance_id").string(prompt);
            text.key("repetition_id").integer(*repetition);
        });
    });
    facts::count_unrewarded(&lists.0, Lack::Reward, &mut settled.tally);
    let rest = std::iter::once(rest(&lists.0));
    let texts = lists.samples().chain(prompts).chain(responses).chain(masks).chain(logprobs).chain(stops);
    // SkyRL replays the routing of all rows of a batch, or of none
    let experts = RoutedExperts::common_shape(&lists.0, &mut settled.tally).map(|_| {
        lists.of_paths(r#","rollout_expert_indices":["#, |path, text| match RoutedExperts::of(path) {
            Ok(experts) => experts.lists(text),
            Err(_) => text.literal("null"),
        })
    });
    let end = if experts.is_some() { r#"]},"refused":["# } else { r#","rollout_expert_indices":null},"refused":["# };
    let experts = experts.into_iter().flatten();
    text::samples(texts.chain(trajectories).chain(rest).chain(experts), end, settled.refused).counted(settled.tally)
}

/// For each row the name of its first prompt, and how many rows before it have the same.
fn trajectories(rows: &[Row]) -> Vec<(String, usize)> {
    let mut seen: HashMap<usize, usize> = HashMap::new();
    let numbered = rows.iter().zip(facts::groups(rows)).map(|(row, group)| {
        let repetitions = seen.entry(group).or_default();
        *repetitions += 1;
        (facts::prompt_name(row), *repetitions - 1)
    });
    numbered.collect()
}

/// Writes the rewards of the tokens after the first prompt of a row.
fn token_rewards(row: &Row, list: &mut Text) {
    let mut rewards = vec![0.0; row.response_len()];
    facts::scores(row, rewards.len()).into_iter().for_each(|(position, score)| rewards[position] += score);
    list.floats(&rewards);
}

/// The end of the list before, and the members that are written whole.
fn rest(rows: &[Row]) -> Vec<u8> {
    let mut text = Text::after("],");
    let has_turn_rewards = rows.iter().any(|row| row.turn_rewards().next().is_some());
    match facts::rewards(rows).filter(|_| !has_turn_rewards) {
        Some(rewards) => text.key("rewards").array(|list| list.floats(&rewards)),
        // a list for each row is rewards of its tokens (SkyRL#109)
        None if has_turn_rewards && facts::have_scores(rows) => {
            text.key("rewards").array(|list| rows.iter().for_each(|row| list.array(|list| token_rewards(row, list))));
        }
        None => text.key("rewards").literal("null"),
    }
    let unknown = [
        "rollout_metrics",
        "trajectory_generation_times",
        "is_last_step",
        "env_metrics",
        "pixel_values",
        "image_grid_thw",
    ];
    unknown.iter().for_each(|name| text.key(name).literal("null"));
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::export::fixture::{batch, example, json as read, path, rows_of, turn, turns, with_experts};

    #[test]
    fn experts_are_those_of_all_rows_or_of_none() {
        let whole = read(export(batch(rows_of(with_experts(turns())))));
        let experts = &whole["generator_output"]["rollout_expert_indices"];
        assert_eq!((experts[0].as_array().unwrap().len(), experts[1].as_array().unwrap().len()), (8, 6));
        assert_eq!((&experts[0][0], &experts[1][5]), (&json!([[0, 1]]), &json!([[10, 11]])));
        let mut turns = with_experts(turns());
        turns[2].about.columns.clear();
        let whole = read(export(batch(rows_of(turns))));
        assert_eq!(whole["generator_output"]["rollout_expert_indices"], json!(null));
    }

    #[test]
    fn rows_are_one_output() {
        let mut rows = rows_of(turns());
        rows.push(path(&[&turn(0, None, &[20], &[21]).into()]));
        rows[2].reward = Some(std::sync::Arc::new(json!(0)));
        let whole = read(export(batch(rows)));
        let output = &whole["generator_output"];
        assert_eq!(output["prompt_token_ids"], json!([[1, 2, 3], [1, 2, 3], [20]]));
        assert_eq!(output["response_ids"], json!([[4, 5, 6, 7, 8, 9], [4, 5, 10, 11], [21]]));
        assert_eq!(output["loss_masks"], json!([[1, 1, 0, 1, 1, 1], [0, 0, 0, 1], [1]]));
        assert_eq!(
            output["rollout_logprobs"],
            json!([[-0.5, -1.0, 0.0, -0.5, -1.0, -1.5], [0.0, 0.0, 0.0, -0.5], [-0.5]])
        );
        assert_eq!(output["rewards"], json!([1.5, 0.5, 0.0]));
        assert_eq!(output["stop_reasons"], json!(["length", "stop", "stop"]));
        let ids = output["trajectory_ids"].as_array().unwrap();
        assert_eq!(ids[0]["instance_id"], ids[1]["instance_id"], "two samples of one prompt");
        assert_ne!(ids[0]["instance_id"], ids[2]["instance_id"]);
        let repetitions: Vec<_> = ids.iter().map(|id| &id["repetition_id"]).collect();
        assert_eq!(repetitions, [0, 1, 0]);
        assert_eq!(
            whole["samples"][0],
            json!({
                "session": "s", "version": 0, "leaf": 1, "reward": 1.5, "flags": ["crosses_versions", "policy_uncertain"]
            })
        );
        assert_eq!(output["is_last_step"], json!(null));
    }

    #[test]
    fn rewards_of_turns_are_rewards_of_tokens() {
        let mut rows = rows_of(turns());
        rows.iter_mut().for_each(|row| row.steps[0].reward = Some(std::sync::Arc::new(json!(0.25))));
        let output = &read(export(batch(rows)))["generator_output"];
        assert_eq!(output["rewards"], json!([[0.0, 0.25, 0.0, 0.0, 0.0, 1.5], [0.0, 0.25, 0.0, 0.5]]));
    }

    #[test]
    fn a_missing_reward_makes_the_list_null_and_missing_logprobs_refuse_a_row() {
        let mut rows = rows_of(turns());
        rows[0].reward = None;
        assert_eq!(read(export(batch(rows)))["generator_output"]["rewards"], json!(null));
        let mut turns = turns();
        turns[1].logprobs[0] = f32::NAN;
        let whole = read(export(batch(rows_of(turns))));
        assert_eq!(whole["refused"], json!([{"session": "s", "leaf": 1, "reason": "missing_logprobs"}]));
        assert_eq!(
            whole["generator_output"]["loss_masks"],
            json!([[1, 1, 0, 1]]),
            "the shared turn is trained here now"
        );
        let nothing = read(export(Batch::default()));
        assert_eq!(nothing["generator_output"]["response_ids"], json!([]));
        assert!(!read(export(example()))["generator_output"].as_object().unwrap().contains_key("refused"));
    }
}
