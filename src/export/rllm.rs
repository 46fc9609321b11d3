// SPDX-License-Identifier: Apache-2.0
//! rLLM: the `TraceRecord`s of its model gateway, one per trained call.

use super::row_text;
use super::text::{self, Text};
use super::versions;
use super::{Batch, Decoder, Export, ExportOption, Exporter, Needs, facts, settle};
use crate::session::{Path, Row, Step, Turn};

/// The exporter.
pub(super) const EXPORTER: Exporter = Exporter {
    // its records are calls, which have no advantages
    options: &[ExportOption::Text, ExportOption::Entropies],
    export,
};

/// One record per trained turn, so that each trained token is in exactly one record. Unknown lists and objects are empty where rLLM's
/// type does not allow null.
fn export(batch: Batch) -> Export {
    let settled = settle(batch.rows, batch.refused, Needs { logprobs: true, ..Needs::default() });
    let rows = settled.rows;
    let steps = |(at, row): (usize, &Row)| -> Vec<(usize, usize)> {
        let steps = row.path().steps;
        (0..steps.len()).filter(|step| steps[*step].trained).map(|step| (at, step)).collect()
    };
    let calls: Vec<(usize, usize)> = rows.iter().enumerate().flat_map(steps).collect();
    let records = text::list(r#"{"samples":["#, calls.len(), move |at, text| {
        let (row, step) = calls[at];
        text.object(|text| record(&rows[row].path(), step, batch.decoder.as_ref(), text));
    });
    text::samples(records, text::REFUSED, settled.refused).counted(settled.tally)
}

fn record(path: &Path, step: usize, decoder: Option<&Decoder>, text: &mut Text) {
    let turn = &*path.steps[step].turn;
    let response = decoder.map(|decoder| row_text::of_turn(turn, decoder)).transpose();
    let before = &path.steps[..step];
    let prompt: usize = before.iter().map(|step| step.turn.prompt.len() + step.turn.response.len()).sum();
    text.key("trace_id").string(&trace_id(path, turn));
    text.key("session_id").string(&path.session);
    text.key("model").string(&turn.about.model);
    text.key("messages").array(|_| {});
    text.key("prompt_token_ids").array(|list| {
        for earlier in before {
            list.ids(&earlier.turn.prompt);
            list.ids(&earlier.turn.response);
        }
        list.ids(&turn.prompt);
    });
    text.key("prompt_delta_token_ids").literal("null");
    text.key("parent_trace_id").literal("null");
    text.key("response_message").object(|text| {
        if let Ok(Some(response)) = &response {
            text.key("role").string("assistant");
            text.key("content").string(response);
        }
    });
    text.key("completion_token_ids").array(|list| list.ids(&turn.response));
    text.key("logprobs").array(|list| list.floats(&turn.logprobs));
    text.key("routing_matrices").literal("null");
    text.key("finish_reason").maybe_string(turn.about.finish.as_deref());
    text.key("weight_version").maybe(versions::version_of_turn(turn));
    text.key("latency_ms").integer(turn.about.elapsed_ms);
    text.key("token_counts").object(|text| {
        text.key("prompt").integer(prompt + turn.prompt.len());
        text.key("completion").integer(turn.response.len());
    });
    text.key("timestamp").float(turn.about.started_ms as f64 / 1e3);
    text.key("metadata").object(|text| metadata(path, &path.steps[step], response.err(), text));
    text.key("raw_request").literal("null");
    text.key("raw_response").literal("null");
}

/// An id of the turn that is the same in every export of its session.
fn trace_id(path: &Path, turn: &Turn) -> String {
    format!("{}:{}:{}", path.session, path.version, turn.id)
}

fn metadata(path: &Path, step: &Step, flag: Option<&str>, text: &mut Text) {
    let turn = &*step.turn;
    text.key("turn").integer(turn.id);
    text.key("leaf").integer(path.leaf().id);
    text.key("version").integer(path.version);
    text.key("rid").maybe_string(turn.about.rid.as_deref());
    if turn.entropy.is_empty() {
        text.key("entropy").literal("null");
    } else {
        text.key("entropy").array(|list| list.floats(&turn.entropy));
    }
    text.key("reward").value(facts::raw_reward(path));
    if let Some(reward) = &step.reward {
        text.key("turn_reward").value(reward);
    }
    text.key("flags").strings(facts::flags(path).into_iter().chain(flag));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::export::Decode;
    use crate::export::fixture::{batch, json as read, rows_of, turns};

    #[test]
    fn record_has_text_if_it_is_asked_for() {
        let records = |model: &str| {
            let decode: Decode = Arc::new(|ids: &[u32]| Some(format!("{ids:?}")));
            let decoder = Decoder { tokenizer: "t".to_owned(), model: model.into(), decode };
            read(export(Batch { decoder: Some(decoder), ..batch(rows_of(turns())) }))["samples"][1].clone()
        };
        let record = records("m");
        assert_eq!(record["response_message"], json!({"role": "assistant", "content": "[7, 8, 9]"}));
        assert!(!record["metadata"]["flags"].as_array().unwrap().contains(&json!("text_unavailable")));
        let record = records("another");
        assert_eq!(record["response_message"], json!({}));
        assert!(record["metadata"]["flags"].as_array().unwrap().contains(&json!("text_unavailable")));
    }

    #[test]
    fn trained_turn_is_one_record() {
        let mut turns = turns();
        let turn = &mut turns[1];
        (turn.about.started_ms, turn.about.elapsed_ms, turn.about.rid) = (1500, 250, Some("r".into()));
        let whole = read(export(batch(rows_of(turns))));
        let records = whole["samples"].as_array().unwrap();
        let ids: Vec<&Value> = records.iter().map(|record| &record["trace_id"]).collect();
        assert_eq!(ids, ["s:0:0", "s:0:1", "s:0:2"], "the shared turn has one record");
        assert_eq!(
            records[1],
            json!({
                "trace_id": "s:0:1", "session_id": "s", "model": "m", "messages": [],
                "prompt_token_ids": [1, 2, 3, 4, 5, 6], "prompt_delta_token_ids": null, "parent_trace_id": null,
                "response_message": {}, "completion_token_ids": [7, 8, 9], "logprobs": [-0.5, -1.0, -1.5],
                "routing_matrices": null, "finish_reason": "length", "weight_version": 12, "latency_ms": 250,
                "token_counts": {"prompt": 6, "completion": 3}, "timestamp": 1.5,
                "metadata": {
                    "turn": 1, "leaf": 1, "version": 0, "rid": "r", "entropy": [0.25, 0.5, 0.75], "reward": 1.5,
                    "flags": ["crosses_versions", "policy_uncertain"],
                },
                "raw_request": null, "raw_response": null,
            })
        );
        assert_eq!(records[0]["prompt_token_ids"], json!([1, 2, 3]));
        assert_eq!(records[0]["weight_version"], 10, "the trainer's number");
        assert_eq!(records[2]["prompt_token_ids"], json!([1, 2, 3, 4, 5, 10]));
        assert_eq!(records[2]["completion_token_ids"], json!([11]));
    }

    #[test]
    fn missing_logprobs_refuse_a_row_and_an_empty_batch_is_valid() {
        let mut turns = turns();
        turns[1].logprobs = Box::default();
        turns[2].entropy = Box::default();
        let whole = read(export(batch(rows_of(turns))));
        assert_eq!(whole["refused"], json!([{"session": "s", "leaf": 1, "reason": "missing_logprobs"}]));
        assert_eq!(whole["samples"][0]["trace_id"], "s:0:0", "the shared turn comes with the second row");
        assert_eq!(whole["samples"][1]["metadata"]["entropy"], Value::Null);
        assert_eq!(read(export(Batch::default())), json!({"samples": [], "refused": []}));
    }
}
