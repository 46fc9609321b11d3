// SPDX-License-Identifier: Apache-2.0
//! Encodes the numbers of a slice as JSON or safetensors.

use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Map, Value, json};

use crate::entropy::RowStats;

/// Columns with one entry per row. An unknown number is NaN, and `null` in JSON.
#[derive(Debug)]
pub struct RowNumbers {
    columns: Vec<(&'static str, Vec<f64>)>,
    flagged: Vec<(&'static str, usize)>,
}

impl RowNumbers {
    /// The columns of `stats`. `surprisal` is true if token ids were sent.
    #[must_use]
    pub fn new(stats: &[RowStats], surprisal: bool) -> Self {
        let column = |name, of: fn(&RowStats) -> f64| (name, stats.iter().map(of).collect::<Vec<f64>>());
        let mut columns = vec![
            column("entropy", |row| row.entropy),
            column("log_z", |row| row.log_z),
            column("p_max", |row| row.p_max),
            column("varentropy", |row| row.varentropy),
        ];
        if surprisal {
            columns.push(column("surprisal", |row| row.surprisal));
        }
        let mut flagged: Vec<(&'static str, usize)> = Vec::new();
        for name in stats.iter().flat_map(|row| row.flags.names()) {
            match flagged.iter_mut().find(|(known, _)| *known == name) {
                Some((_, count)) => *count += 1,
                None => flagged.push((name, 1)),
            }
        }
        Self { columns, flagged }
    }

    /// `{"rows", "unit", "entropy": [..], …, "flagged": {name: rows}}`.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let rows = self.columns.first().map_or(0, |(_, column)| column.len());
        let mut object = Map::new();
        object.insert("rows".to_owned(), json!(rows));
        object.insert("unit".to_owned(), json!("nats"));
        for (name, column) in &self.columns {
            object.insert((*name).to_owned(), json!(column));
        }
        let flagged: Map<String, Value> =
            self.flagged.iter().map(|(name, count)| ((*name).to_owned(), json!(count))).collect();
        object.insert("flagged".to_owned(), Value::Object(flagged));
        Value::Object(object).to_string().into_bytes()
    }

    /// Tensors of `F64`, `[rows]` each.
    ///
    /// # Panics
    /// Never: the shapes are those of the bytes.
    #[must_use]
    pub fn to_safetensors(&self) -> Vec<u8> {
        let bytes: Vec<Vec<u8>> = self
            .columns
            .iter()
            .map(|(_, column)| column.iter().flat_map(|value| value.to_le_bytes()).collect())
            .collect();
        let views = self.columns.iter().zip(&bytes).map(|((name, column), bytes)| {
            let view = TensorView::new(Dtype::F64, vec![column.len()], bytes);
            ((*name).to_owned(), view.expect("eight bytes per value"))
        });
        serialize(views.collect::<Vec<_>>(), None).expect("names and shapes are valid by construction")
    }
}
