// SPDX-License-Identifier: Apache-2.0
//! prime-rl: a `TrainingSample` per row.

use super::experts::RoutedExperts;
use super::per_token::{self, PerToken};
use super::text::{self, Text};
use super::validate::temperature;
use super::{Batch, Export, ExportOption, Exporter, Needs, facts, settle};
use crate::session::Path;

/// The exporter.
pub(super) const EXPORTER: Exporter = Exporter { options: &[ExportOption::Advantages], export };

/// The name of the environment, which prime-rl writes before its metrics.
const ENVIRONMENT: &str = "tokentap";

/// The temperature of context, which prime-rl masks.
const CONTEXT_TEMPERATURE: &str = "1.0";

/// `training_sample` has the members of the type by name. prime-rl divides the logits of a token by its temperature, so a row is refused if
/// a trained token has none.
fn export(batch: Batch) -> Export {
    let needs = Needs { logprobs: true, temperature: true, ..Needs::default() };
    let mut settled = settle(batch.rows, batch.refused, needs);
    RoutedExperts::count_incomplete(&settled.rows, &mut settled.tally);
    let rows = settled.rows.clone();
    let samples = text::list(r#"{"samples":["#, rows.len(), move |at, text| {
        let path = rows[at].path();
        text.object(|text| {
            text.key("training_sample").object(|text| training_sample(&path, text));
            facts::describe(&path, text);
        });
    });
    text::samples(samples, text::REFUSED, settled.refused).counted(settled.tally)
}

fn training_sample(path: &Path, text: &mut Text) {
    PerToken::Ids { pad: 0 }.list(path.segments(), "0", text.key("token_ids"));
    text.key("mask").array(|list| {
        for segment in path.segments() {
            list.repeat(if segment.trained { "true" } else { "false" }, segment.ids.len());
        }
    });
    PerToken::Logprobs.list(path.segments(), "0.0", text.key("logprobs"));
    text.key("temperatures").array(|list| {
        for segment in path.segments() {
            match temperature(segment.turn).filter(|_| segment.trained) {
                Some(temperature) => (0..segment.ids.len()).for_each(|_| list.float(temperature)),
                None => list.repeat(CONTEXT_TEMPERATURE, segment.ids.len()),
            }
        }
    });
    text.key("env_name").string(ENVIRONMENT);
    per_token::advantages(path, path.segments(), text);
    if let Ok(experts) = RoutedExperts::of(path) {
        // the members of prime-rl's type by position: data, shape, type
        text.key("routed_experts").array(|list| {
            let (bytes, number) = experts.with_last();
            list.base64(&bytes);
            list.array(|list| {
                [path.len(), experts.shape[0], experts.shape[1]].into_iter().for_each(|size| list.integer(size))
            });
            list.string(number);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::export::fixture::{batch, json as read, rows_of, turns, with_experts};
    use crate::session::{Advantages, EntropyMethod, Turn};

    fn measured(temperature: Option<f64>) -> Option<Arc<EntropyMethod>> {
        let (source, estimator) = ("top_k".into(), "estimate".into());
        Some(Arc::new(EntropyMethod { source, estimator, temperature, top_k: Some(20), reason: None }))
    }

    fn at_temperatures(temperatures: [Option<f64>; 3]) -> [Turn; 3] {
        let mut turns = turns();
        for (turn, temperature) in turns.iter_mut().zip(temperatures) {
            turn.about.measured = measured(temperature);
        }
        turns
    }

    #[test]
    fn row_is_a_training_sample() {
        let rows = rows_of(at_temperatures([Some(0.5), Some(1.0), Some(0.7)]));
        let mut batch = batch(rows);
        batch.rows[0].marks.advantages = Some(Advantages::Path(2.0));
        let whole = read(export(batch));
        let sample = &whole["samples"][0];
        assert_eq!(
            sample["training_sample"],
            json!({
                "token_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9],
                "mask": [false, false, false, true, true, false, true, true, true],
                "logprobs": [0.0, 0.0, 0.0, -0.5, -1.0, 0.0, -0.5, -1.0, -1.5],
                "temperatures": [1.0, 1.0, 1.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0],
                "env_name": "tokentap", "advantages": [0.0, 0.0, 0.0, 2.0, 2.0, 0.0, 2.0, 2.0, 2.0],
            })
        );
        assert_eq!((&sample["session"], &sample["reward"]), (&json!("s"), &json!(1.5)));
        assert_eq!(whole["samples"][1]["training_sample"]["temperatures"], json!([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.7]));
    }

    #[test]
    fn experts_are_bytes_with_their_shape_and_zeros_for_the_last_token() {
        let mut turns = with_experts(at_temperatures([Some(1.0); 3]));
        turns[2].about.columns.clear();
        let whole = read(export(batch(rows_of(turns))));
        let experts = &whole["samples"][0]["training_sample"]["routed_experts"];
        let bytes = base64_simd::STANDARD.decode_to_vec(experts[0].as_str().unwrap()).unwrap();
        assert_eq!(bytes, (0..16).chain([0, 0]).collect::<Vec<u8>>());
        assert_eq!((&experts[1], &experts[2]), (&json!([9, 1, 2]), &json!("uint8")));
        assert_eq!(
            whole["samples"][1]["training_sample"].get("routed_experts"),
            None,
            "not all of its tokens have them"
        );
    }

    #[test]
    fn temperature_of_an_unmeasured_turn_is_the_requested_one() {
        let mut turns = turns();
        for (turn, sampling) in turns.iter_mut().zip([r#"{"temperature":0.6}"#, r#"{"temperature":0}"#, "{}"]) {
            turn.about.sampling = Some(sampling.into());
        }
        let whole = read(export(batch(rows_of(turns))));
        assert_eq!(
            whole["samples"][0]["training_sample"]["temperatures"],
            json!([1.0, 1.0, 1.0, 0.6, 0.6, 1.0, 1.0, 1.0, 1.0])
        );
        assert_eq!(whole["refused"], json!([{"session": "s", "leaf": 2, "reason": "missing_temperature"}]));
    }

    #[test]
    fn unknown_temperature_refuses_the_row_that_trains_the_turn() {
        let whole = read(export(batch(rows_of(at_temperatures([Some(1.0), None, Some(1.0)])))));
        assert_eq!(whole["refused"], json!([{"session": "s", "leaf": 1, "reason": "missing_temperature"}]));
        assert_eq!(whole["samples"].as_array().unwrap().len(), 1);
        assert_eq!(read(export(Batch::default())), json!({"samples": [], "refused": []}));
    }
}
