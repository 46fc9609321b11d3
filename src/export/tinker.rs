// SPDX-License-Identifier: Apache-2.0
//! Tinker: a `Datum` per row.

use super::per_token::PerToken;
use super::text::{self, Text};
use super::{Batch, Export, ExportOption, Exporter, Needs, facts, settle};
use crate::session::{Path, Segment};

/// The exporter.
pub(super) const EXPORTER: Exporter = Exporter { options: &[ExportOption::Advantages], export };

/// `datum` has the members of the type. The model reads all tokens but the last, and position i predicts token i + 1, so the lists of
/// `loss_fn_inputs` begin at the second token of the row.
fn export(batch: Batch) -> Export {
    let settled = settle(batch.rows, batch.refused, Needs { logprobs: true, ..Needs::default() });
    let rows = settled.rows.clone();
    let samples = text::list(r#"{"samples":["#, rows.len(), move |at, text| {
        let path = rows[at].path();
        text.object(|text| {
            text.key("datum").object(|text| datum(&path, text));
            facts::describe(&path, text);
        });
    });
    text::samples(samples, text::REFUSED, settled.refused).counted(settled.tally)
}

fn datum(path: &Path, text: &mut Text) {
    let targets = path.len() - 1;
    text.key("model_input").object(|text| {
        text.key("chunks").array(|chunks| {
            chunks.object(|text| {
                text.key("type").string("encoded_text");
                text.key("tokens").array(|list| {
                    let mut left = targets;
                    for segment in path.segments() {
                        let count = left.min(segment.ids.len());
                        list.ids(&segment.ids[..count]);
                        left -= count;
                    }
                });
            });
        });
    });
    text.key("loss_fn_inputs").object(|text| {
        let mut tensor = |name: &str, dtype: &str, values: PerToken<'_>| {
            text.key(name).object(|text| {
                values.list(after_first(path), "0.0", text.key("data"));
                text.key("dtype").string(dtype);
                text.key("shape").array(|list| list.integer(targets));
            });
        };
        tensor("target_tokens", "int64", PerToken::Ids { pad: 0 });
        tensor("logprobs", "float32", PerToken::Logprobs);
        tensor("mask", "float32", PerToken::Mask);
        if let Some(advantages) = &path.marks.advantages {
            tensor("advantages", "float32", PerToken::Advantage(advantages));
        }
    });
}

/// The segments without the first token of the row, which belongs to a prompt and so has no numbers.
fn after_first(path: &Path) -> impl Iterator<Item = Segment<'_>> {
    path.segments().enumerate().map(|(at, segment)| match at {
        0 => Segment { ids: &segment.ids[1..], ..segment },
        _ => segment,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::export::fixture::{batch, json as read, rows_of, turns};
    use crate::session::Advantages;

    #[test]
    fn row_is_a_datum_whose_targets_are_shifted() {
        let mut batch = batch(rows_of(turns()));
        batch.rows[0].marks.advantages = Some(Advantages::Path(2.0));
        let whole = read(export(batch));
        let tensor = |dtype: &str, data: serde_json::Value| json!({"dtype": dtype, "shape": [data.as_array().unwrap().len()], "data": data});
        assert_eq!(
            whole["samples"][0]["datum"],
            json!({
                "model_input": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3, 4, 5, 6, 7, 8]}]},
                "loss_fn_inputs": {
                    "target_tokens": tensor("int64", json!([2, 3, 4, 5, 6, 7, 8, 9])),
                    "logprobs": tensor("float32", json!([0.0, 0.0, -0.5, -1.0, 0.0, -0.5, -1.0, -1.5])),
                    "mask": tensor("float32", json!([0, 0, 1, 1, 0, 1, 1, 1])),
                    "advantages": tensor("float32", json!([0.0, 0.0, 2.0, 2.0, 0.0, 2.0, 2.0, 2.0])),
                },
            })
        );
        let second = &whole["samples"][1];
        assert_eq!(second["datum"]["loss_fn_inputs"]["mask"], tensor("float32", json!([0, 0, 0, 0, 0, 1])));
        assert!(second["datum"]["loss_fn_inputs"].get("advantages").is_none());
        assert_eq!(
            (&second["session"], &second["leaf"], &second["flags"]),
            (&json!("s"), &json!(2), &json!(["crosses_versions"]))
        );
    }

    #[test]
    fn missing_logprobs_refuse_a_row_and_an_empty_batch_is_valid() {
        let mut turns = turns();
        turns[1].logprobs[2] = f32::NAN;
        let whole = read(export(batch(rows_of(turns))));
        assert_eq!(whole["refused"], json!([{"session": "s", "leaf": 1, "reason": "missing_logprobs"}]));
        assert_eq!(read(export(Batch::default())), json!({"samples": [], "refused": []}));
    }
}
