//! Rows as columns: the record batches of `arrow` and `parquet`.

#[cfg(test)]
pub(super) mod fixture;
mod record;

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Metadata, Schema, SchemaRef};

use super::{Batch, Needs, Tally, settle, text};
use crate::trajectory::Path;

/// Changes when a reader of the columns would have to.
const SCHEMA_VERSION: &str = "1";

/// How much one record batch holds; a row that is larger than that is one of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) bytes: u64,
    pub(super) rows: usize,
}

/// What is exported, as record batches that are made as they are taken.
#[derive(Debug)]
pub(super) struct Table {
    rows: Arc<[Path]>,
    /// The first row of the next batch.
    at: usize,
    bounds: Bounds,
    /// What stands beside the columns, by name.
    pub(super) metadata: [(&'static str, String); 3],
    pub(super) tally: Tally,
}

impl Table {
    /// Whatever is known of each row; only what is not whole is refused.
    pub(super) fn new(batch: Batch, format: &str, bounds: Bounds) -> Self {
        let settled = settle(batch.rows, batch.refused, Needs::default());
        let metadata = [
            ("tokentap_schema_version", SCHEMA_VERSION.to_owned()),
            ("format", format.to_owned()),
            ("refused", text::refusals(&settled.refused)),
        ];
        Self { tally: settled.tally, rows: settled.rows, at: 0, bounds, metadata }
    }

    /// The columns, without the metadata.
    pub(super) fn schema(&self) -> SchemaRef {
        record::batch(&[]).schema()
    }

    /// The columns with the metadata.
    pub(super) fn described(&self) -> Schema {
        let metadata = self.metadata.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        Schema::clone(&self.schema()).with_metadata(metadata.collect::<Metadata>())
    }
}

impl Iterator for Table {
    type Item = RecordBatch;

    fn next(&mut self) -> Option<RecordBatch> {
        let rest = &self.rows[self.at..];
        let mut bytes = 0;
        let fits = |row: &&Path| {
            bytes += row.steps.iter().map(|step| step.turn.bytes()).sum::<u64>();
            bytes <= self.bounds.bytes
        };
        let count = rest.iter().take(self.bounds.rows).take_while(fits).count().max(1);
        let rows = rest.get(..count)?;
        self.at += count;
        Some(record::batch(rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trajectory::export::fixture::example;

    fn lengths(bounds: Bounds) -> Vec<usize> {
        let mut batch = example();
        // two samples of one conversation in several sessions: rows that share no turn
        for name in ["t", "u"] {
            let mut more = example().rows;
            more.iter_mut().for_each(|row| row.session = name.into());
            batch.rows.append(&mut more);
        }
        Table::new(batch, "arrow", bounds).map(|record| record.num_rows()).collect()
    }

    #[test]
    fn batches_are_bounded() {
        assert_eq!(lengths(Bounds { bytes: u64::MAX, rows: 4 }), [4, 2]);
        assert_eq!(lengths(Bounds { bytes: 0, rows: 4 }), [1; 6], "a row larger than a batch is one");
        let row: u64 = example().rows[0].steps.iter().map(|step| step.turn.bytes()).sum();
        assert_eq!(lengths(Bounds { bytes: 2 * row, rows: 4 }), [2; 3]);
    }

    #[test]
    fn an_empty_batch_has_the_same_columns() {
        let empty = Table::new(Batch::default(), "arrow", Bounds { bytes: 1, rows: 1 });
        let full = Table::new(example(), "arrow", Bounds { bytes: 1, rows: 1 });
        assert_eq!(empty.schema(), full.schema());
        for record in full {
            assert_eq!(record.schema(), empty.schema());
        }
        assert_eq!(empty.count(), 0);
    }
}
