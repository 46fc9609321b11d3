//! Rows as columns: the record batches of `arrow` and `parquet`.

#[cfg(test)]
pub(super) mod fixture;
mod record;

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Metadata, Schema, SchemaRef};

use super::{Batch, Needs, Tally, settle, text};
use crate::trajectory::Row;

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
    rows: Arc<[Row]>,
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
        let (mut paths, mut bytes) = (Vec::new(), 0);
        for row in self.rows[self.at..].iter().take(self.bounds.rows) {
            bytes += row.upwards().map(|turn| turn.bytes()).sum::<u64>();
            if bytes > self.bounds.bytes && !paths.is_empty() {
                break;
            }
            paths.push(row.path());
        }
        self.at += paths.len();
        (!paths.is_empty()).then(|| record::batch(&paths))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trajectory::export::fixture::example;

    fn lengths(bounds: Bounds) -> Vec<usize> {
        let mut batch = example();
        // two samples of one conversation in several sessions: rows that share no turn
        (0..2).for_each(|_| batch.rows.append(&mut example().rows));
        Table::new(batch, "arrow", bounds).map(|record| record.num_rows()).collect()
    }

    #[test]
    fn batches_are_bounded() {
        assert_eq!(lengths(Bounds { bytes: u64::MAX, rows: 4 }), [4, 2]);
        assert_eq!(lengths(Bounds { bytes: 0, rows: 4 }), [1; 6], "a row larger than a batch is one");
        let row: u64 = example().rows[0].upwards().map(|turn| turn.bytes()).sum();
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
