//! tokentap's own format: a line for each trajectory, then one for each leaf that is not exported.

use super::text::{Text, refusal};
use super::{Batch, Export, Needs, entry, pieces, settle};

/// Whatever is known of each row; only what is not whole is refused.
#[must_use]
pub fn export(batch: Batch) -> Export {
    let settled = settle(batch.rows, batch.refused, Needs::default());
    let (rows, refused, annotate) = (settled.rows, settled.refused, batch.annotate);
    let entries = (0..rows.len()).map(move |at| {
        let mut line = Vec::new();
        entry::write(&rows[at].path(), annotate.as_ref(), &mut line);
        line.push(b'\n');
        line
    });
    let refusals = refused.into_iter().map(|leaf| {
        let mut text = Text::default();
        text.object(|text| refusal(text.key("refused"), &leaf));
        let mut line = text.into_bytes();
        line.push(b'\n');
        line
    });
    let chunks = pieces(entries.chain(refusals));
    Export::new("application/x-ndjson", chunks).counted(settled.tally)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::trajectory::export::Refused;
    use crate::trajectory::export::fixture::{batch, bytes, rows_of, turns};

    #[test]
    fn entries_then_refusals() {
        let mut turns = turns();
        // as a client may write it: over several lines
        turns[1].about.sampling = Some("{\n  \"top_k\": 1\r\n}".into());
        let mut batch = batch(rows_of(turns));
        batch.refused.push(Refused { session: "t".into(), leaf: 7, reason: "aborted" });
        batch.annotate = Some(Arc::new(|path| vec![("egpo", format!("{{\"tokens\":{}}}", path.trained_tokens()))]));
        let export = export(batch);
        assert_eq!(export.content_type, "application/x-ndjson");
        let text = String::from_utf8(bytes(export)).unwrap();
        assert!(text.ends_with('\n'), "the last line ends too");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0]["loss_mask"], json!([0, 0, 0, 1, 1, 0, 1, 1, 1]));
        assert_eq!(lines[0]["turns"][1]["sampling"], json!({"top_k": 1}));
        assert_eq!(lines[1]["loss_mask"], json!([0, 0, 0, 0, 0, 0, 1]));
        assert_eq!((&lines[0]["egpo"], &lines[1]["egpo"]), (&json!({"tokens": 5}), &json!({"tokens": 1})));
        assert_eq!(lines[2], json!({"refused": {"session": "t", "leaf": 7, "reason": "aborted"}}));
    }

    #[test]
    fn nothing_is_no_line() {
        assert!(bytes(export(Batch::default())).is_empty(), "no entry, no line");
    }
}
