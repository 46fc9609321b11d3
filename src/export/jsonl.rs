// SPDX-License-Identifier: Apache-2.0
//! JSON Lines: one line per row, with the members of `columnar`'s schema.

use super::columnar::{Bounds, Table};
use super::{Batch, Export, ExportOption, Exporter, PIECE, pieces};

/// Lines are made from batches as large as a piece of an export.
const BOUNDS: Bounds = Bounds { bytes: PIECE as u64, rows: 64 };

/// The exporter.
pub(super) const EXPORTER: Exporter = Exporter { options: ExportOption::OF_COLUMNS, export };

/// Writes rows only: a line of another kind, such as a refusal, would add nulls or a second type to each column. Refused rows are only
/// counted.
fn export(batch: Batch) -> Export {
    let table = Table::new(batch, "jsonl", BOUNDS);
    let (tally, image_memory) = (table.tally.clone(), table.image_memory);
    Export::new("application/x-ndjson", pieces(table.lines())).counted(tally).with_image_memory(image_memory)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::export::columnar::fixture::{ROWS, rich};
    use crate::export::fixture::{batch, bytes, path, rows_of, turn, turns};
    use crate::export::{Decode, Decoder, ExcludedLeaf, Thinking};
    use crate::session::Path;

    fn lines(batch: Batch) -> Vec<Value> {
        let export = export(batch);
        assert_eq!(export.content_type, "application/x-ndjson");
        let text = String::from_utf8(bytes(export)).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'), "the last line has a line end");
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn lines_equal_the_columns() {
        assert_eq!(json!(lines(rich())), serde_json::from_str::<Value>(ROWS).unwrap());
    }

    #[test]
    fn refused_leaf_is_counted_and_has_no_line() {
        let mut batch = batch(rows_of(turns()));
        batch.refused.push(ExcludedLeaf { session: "t".into(), leaf: 7, reason: "aborted" });
        assert_eq!(export(batch.clone()).tally.refused["aborted"], 1);
        assert_eq!(lines(batch).len(), 2);
    }

    #[test]
    fn an_id_above_int32_refuses_its_row() {
        let rows = vec![path(&[&turn(0, None, &[1 << 31], &[2]).into()]), path(&[&turn(0, None, &[1], &[2]).into()])];
        let export = export(batch(rows));
        assert_eq!((export.tally.rows, export.tally.refused["token_id_too_large"]), (1, 1));
    }

    #[test]
    fn computed_columns_are_null_until_they_are_computed() {
        let names = ["think_entropy_mean", "think_token_count", "think_closed", "prompt_text", "response_text"];
        let mut batch = batch(rows_of(turns()));
        assert!(names.iter().all(|name| lines(batch.clone())[0][name].is_null()));
        batch.annotate = Some(Arc::new(|path: &Path| Thinking {
            entropy_mean: Some(1.0),
            tokens: Some(path.trained_tokens() as u64),
            closed: Some(false),
            high_entropy_share: Some(f64::NAN),
        }));
        let decode = Arc::new(|ids: &[u32]| Some(format!("{ids:?}")));
        batch.decoder = Some(Decoder { tokenizer: "m".to_owned(), model: "m".into(), decode });
        let row = &lines(batch)[0];
        assert_eq!(names.map(|name| row[name].clone())[..3], [json!(1.0), json!(5), json!(false)]);
        assert_eq!((&row["prompt_text"], &row["response_text"]), (&json!("[1, 2, 3]"), &json!("[4, 5, 6, 7, 8, 9]")));
        assert_eq!(row["high_entropy_share"], json!(null), "a number that is not finite is null");
    }

    #[test]
    fn text_that_cannot_be_decoded_is_null_and_flagged() {
        let texts = |model: &str, decode: Decode| {
            let mut batch = batch(rows_of(turns()));
            batch.decoder = Some(Decoder { tokenizer: "m".to_owned(), model: model.into(), decode });
            let row = lines(batch).swap_remove(0);
            let is_flagged = row["flags"].as_array().unwrap().contains(&json!("text_unavailable"));
            (row["prompt_text"].clone(), row["response_text"].clone(), is_flagged)
        };
        let decode: Decode = Arc::new(|ids: &[u32]| Some(format!("{ids:?}")));
        let only_short: Decode = Arc::new(|ids: &[u32]| (ids.len() < 4).then(String::new));
        assert!(!texts("m", Arc::clone(&decode)).2);
        assert_eq!(texts("m", only_short), (Value::Null, Value::Null, true), "the tokenizer fails");
        assert_eq!(texts("another", decode), (Value::Null, Value::Null, true), "the ids are those of another model");
    }

    /// Collects the type of each member by its path. Null has no type.
    fn types(value: &Value, name: &str, found: &mut HashMap<String, &'static str>) {
        let kind = match value {
            Value::Null => return,
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(items) => {
                items.iter().for_each(|item| types(item, &format!("{name}[]"), found));
                "list"
            }
            Value::Object(members) => {
                members.iter().for_each(|(member, value)| types(value, &format!("{name}.{member}"), found));
                "object"
            }
        };
        assert_eq!(*found.entry(name.to_owned()).or_insert(kind), kind, "{name} has two types");
    }

    #[test]
    fn each_member_has_one_type_in_every_line() {
        let mut turns = turns();
        // values that a client chooses: numbers, lists, nothing
        turns[0].about.extras =
            [("routed_experts".into(), r#""AAA=""#.into()), ("rows".into(), "[1,null]".into())].into();
        turns[1].about.extras = [("routed_experts".into(), "[[1,2]]".into()), ("odd".into(), "NaN".into())].into();
        turns[1].about.sampling = Some("{\n  \"stop\": 1\r\n}".into());
        turns[2].about.sampling = Some(r#"{"stop": ["a"]}"#.into());
        let mut rows = rows_of(turns);
        rows[0].reward = Some(Arc::new(json!(1)));
        rows[1].reward = Some(Arc::new(json!({"score": 0.5, "why": "style"})));
        let (all, mut found) = (lines(batch(rows)), HashMap::new());
        let names = |line: &Value| line.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        for line in &all {
            types(line, "", &mut found);
            assert_eq!(names(line), names(&all[0]), "every line has every member");
        }
        assert_eq!(
            (found[".turns[].extras"], found[".turns[].sampling"], found[".reward"]),
            ("string", "string", "number")
        );
        assert_eq!(all[0]["turns"][1]["extras"], r#"{"odd":"NaN","routed_experts":[[1,2]]}"#);
    }

    #[test]
    fn empty_batch_has_no_line() {
        assert!(bytes(export(Batch::default())).is_empty(), "no entry, no line");
    }
}
