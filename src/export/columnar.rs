// SPDX-License-Identifier: Apache-2.0
//! Rows as columns: the record batches of `jsonl`, `arrow` and `parquet`.

mod arrays;
#[cfg(test)]
pub(super) mod fixture;
mod line;
mod record;
mod turn_list;

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Metadata, Schema, SchemaRef};

use super::{Annotate, Batch, Decoder, ExportImages, Needs, RowCounts, facts, images, settle, text};
use crate::session::{Path, Row, Turn, TurnMetadata};

/// The version of the schema. It rises when a column is removed, or its name, type or meaning changes, but not for a new column.
pub(crate) const SCHEMA_VERSION: i64 = 2;

/// The size limits of a record batch. A larger row is a separate batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) bytes: u64,
    pub(super) rows: usize,
}

/// What is computed from a path or left out, as the caller of the export chooses.
#[derive(Default)]
struct ComputedColumns {
    annotate: Option<Annotate>,
    decoder: Option<Decoder>,
    images: ExportImages,
}

/// The rows of a table.
enum Rows {
    /// The rows that an export selected.
    Selected(Arc<[Row]>),
    /// Paths whose trained turns are settled.
    Paths(Vec<Path>),
}

impl Rows {
    fn len(&self) -> usize {
        match self {
            Self::Selected(rows) => rows.len(),
            Self::Paths(paths) => paths.len(),
        }
    }

    /// The approximate bytes that a row adds to a batch.
    fn size(&self, at: usize) -> u64 {
        match self {
            Self::Selected(rows) => size(&rows[at]),
            Self::Paths(paths) => {
                let steps = &paths[at].steps;
                let rewards = steps.iter().filter_map(|step| step.reward.as_ref()).chain(&paths[at].reward);
                turns_size(steps.iter().map(|step| &step.turn), rewards)
            }
        }
    }

    /// The bytes of the pictures of a row in a line of `jsonl`.
    fn image_bytes(&self, at: usize) -> u64 {
        let of_turn = |turn: &Arc<Turn>| -> u64 {
            let images = turn.about.images.iter().flat_map(|images| &images.list);
            images.map(|image| base64_len(image.image.size)).sum()
        };
        match self {
            Self::Selected(rows) => rows[at].upwards().map(of_turn).sum(),
            Self::Paths(paths) => paths[at].steps.iter().map(|step| of_turn(&step.turn)).sum(),
        }
    }

    fn path(&self, at: usize) -> Path {
        match self {
            Self::Selected(rows) => rows[at].path(),
            Self::Paths(paths) => paths[at].clone(),
        }
    }
}

/// The exported rows as record batches, produced on demand.
pub(super) struct Table {
    rows: Rows,
    /// The first row of the next batch.
    at: usize,
    bounds: Bounds,
    computed: ComputedColumns,
    /// The metadata of the file, by name.
    pub(super) metadata: Vec<(&'static str, String)>,
    pub(super) tally: RowCounts,
    /// See [`Export::image_memory`](super::Export::image_memory).
    pub(super) image_memory: u64,
}

impl Table {
    /// A table of the rows. Refuses only inconsistent rows, and rows with ids above int32.
    pub(super) fn new(batch: Batch, format: &str, bounds: Bounds) -> Self {
        let needs = Needs { int32_ids: true, images: Some(batch.images), ..Needs::default() };
        let settled = settle(batch.rows, batch.refused, needs);
        let mut metadata = vec![
            ("tokentap_schema_version", SCHEMA_VERSION.to_string()),
            ("tokentap_version", env!("CARGO_PKG_VERSION").to_owned()),
            ("format", format.to_owned()),
            ("entropy_unit", "nats".to_owned()),
            ("logprobs_unit", "nats".to_owned()),
            ("refused", text::refusals(&settled.refused)),
        ];
        if let Some(decoder) = &batch.decoder {
            metadata.push(("tokenizer", decoder.tokenizer.clone()));
        }
        let computed = ComputedColumns { annotate: batch.annotate, decoder: batch.decoder, images: batch.images };
        let image_memory = images::memory(&settled.rows, batch.images);
        let rows = Rows::Selected(settled.rows);
        Self { tally: settled.tally, image_memory, rows, at: 0, bounds, computed, metadata }
    }

    /// A table of valid paths whose trained turns are settled.
    pub(super) fn from_paths(paths: Vec<Path>, annotate: Option<Annotate>, format: &str, bounds: Bounds) -> Self {
        let empty = Self::new(Batch { annotate, ..Batch::default() }, format, bounds);
        Self { tally: RowCounts::new(paths.len(), &[]), rows: Rows::Paths(paths), ..empty }
    }

    /// The columns, without the metadata.
    pub(super) fn schema(&self) -> SchemaRef {
        record::batch(&[], &self.computed).schema()
    }

    /// The columns with the metadata.
    pub(super) fn described(&self) -> Schema {
        let metadata = self.metadata.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        Schema::clone(&self.schema()).with_metadata(metadata.collect::<Metadata>())
    }

    /// The rows as lines of JSON.
    pub(super) fn lines(self) -> impl Iterator<Item = Vec<u8>> + Send {
        self.flat_map(line::lines)
    }
}

/// The approximate bytes that a row adds to a batch.
fn size(row: &Row) -> u64 {
    turns_size(row.upwards(), row.turn_rewards().chain(row.reward()))
}

fn turns_size<'a>(
    turns: impl Iterator<Item = &'a Arc<Turn>>,
    rewards: impl Iterator<Item = &'a Arc<serde_json::Value>>,
) -> u64 {
    let rewards: u64 = rewards.map(|reward| facts::json_len(reward)).sum();
    turns.map(|turn| turn.bytes() + json_len(&turn.about)).sum::<u64>() + rewards
}

/// Bytes of the client's JSON and of the token columns in a line of `jsonl`.
fn json_len(about: &TurnMetadata) -> u64 {
    let texts = about.extras.values().map(|text| &**text).chain(about.sampling.as_deref());
    let lengths = texts.map(text::string_len);
    let columns = about.columns.iter().map(|column| base64_len(column.data.len() as u64));
    lengths.chain(columns).sum()
}

/// Base64 takes four characters for three bytes.
fn base64_len(bytes: u64) -> u64 {
    bytes.div_ceil(3) * 4
}

impl Iterator for Table {
    type Item = RecordBatch;

    fn next(&mut self) -> Option<RecordBatch> {
        let (mut paths, mut bytes) = (Vec::new(), 0);
        for at in (self.at..self.rows.len()).take(self.bounds.rows) {
            bytes += self.rows.size(at);
            if self.computed.images == ExportImages::Embed {
                bytes += self.rows.image_bytes(at);
            }
            if bytes > self.bounds.bytes && !paths.is_empty() {
                break;
            }
            paths.push(self.rows.path(at));
        }
        self.at += paths.len();
        (!paths.is_empty()).then(|| record::batch(&paths, &self.computed))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::export::fixture::{batch, example, rows_of, turns};
    use crate::images::Image;
    use crate::session::PromptImages;

    fn lengths(bounds: Bounds) -> Vec<usize> {
        let mut batch = example();
        // two samples of one conversation in several sessions: rows that share no turn
        (0..2).for_each(|_| batch.rows.append(&mut example().rows));
        Table::new(batch, "arrow", bounds).map(|record| record.num_rows()).collect()
    }

    #[test]
    fn batches_are_bounded() {
        assert_eq!(lengths(Bounds { bytes: u64::MAX, rows: 4 }), [4, 2]);
        assert_eq!(lengths(Bounds { bytes: 0, rows: 4 }), [1; 6], "a row larger than a batch is a separate batch");
        let row = size(&example().rows[0]);
        assert_eq!(lengths(Bounds { bytes: 2 * row, rows: 4 }), [2; 3]);
    }

    /// The lengths of the batches if a batch may hold `more` bytes besides the turns of both rows.
    fn lengths_beside_turns(paths: &[Path], more: u64) -> Vec<usize> {
        let batch = batch(paths.to_vec());
        let turns: u64 = batch.rows.iter().flat_map(Row::upwards).map(|turn| turn.bytes()).sum();
        Table::new(batch, "arrow", Bounds { bytes: turns + more, rows: 4 }).map(|record| record.num_rows()).collect()
    }

    #[test]
    fn reward_counts_towards_the_bytes_of_a_batch() {
        let mut rows = rows_of(turns());
        rows.iter_mut().for_each(|row| row.reward = Some(Arc::new(json!({"note": "x".repeat(1000)}))));
        assert_eq!(lengths_beside_turns(&rows, 1500), [1, 1]);
        assert_eq!(lengths_beside_turns(&rows, 2500), [2]);
        let mut rows = rows_of(turns());
        rows.iter_mut().for_each(|row| row.steps[1].reward = Some(Arc::new(json!({"note": "x".repeat(1000)}))));
        assert_eq!(lengths_beside_turns(&rows, 1500), [1, 1], "also the reward of a turn");
        assert_eq!(lengths_beside_turns(&rows, 2500), [2]);
    }

    #[test]
    fn embedded_pictures_count_towards_the_bytes_of_a_batch() {
        let mut turns = turns();
        turns.iter_mut().skip(1).for_each(|turn| {
            let picture = Arc::new(Image::new(vec![7; 3000].into()));
            turn.about.images = Some(Box::new(PromptImages::new(&turn.prompt, [(picture, 0..1)])));
        });
        let lengths = |images, more| {
            let batch = Batch { images, ..batch(rows_of(turns.clone())) };
            let turns: u64 = batch.rows.iter().flat_map(Row::upwards).map(|turn| turn.bytes()).sum();
            let bounds = Bounds { bytes: turns + more, rows: 4 };
            Table::new(batch, "arrow", bounds).map(|record| record.num_rows()).collect::<Vec<_>>()
        };
        assert_eq!(lengths(ExportImages::Embed, 4500), [1, 1]);
        assert_eq!(lengths(ExportImages::Embed, 9000), [2]);
        assert_eq!(lengths(ExportImages::Refs, 100), [2]);
    }

    #[test]
    fn client_json_counts_with_its_escapes_towards_the_bytes_of_a_batch() {
        let control = "\u{1}".repeat(1000);
        let mut with_extras = turns();
        with_extras[1].about.extras = [("odd".into(), control.as_str().into())].into();
        let mut with_sampling = turns();
        with_sampling[1].about.sampling = Some(control.into());
        for turns in [with_extras, with_sampling] {
            assert_eq!(lengths_beside_turns(&rows_of(turns), 4000), [1, 1], "a control character is six bytes of JSON");
        }
    }

    /// Adds the expected rows of the document's table: the path of a column, its type and whether it may be null.
    fn documented(field: &arrow_schema::Field, before: &str, rows: &mut Vec<[String; 3]>) {
        use arrow_schema::DataType;
        let name = format!("{before}{}", field.name());
        let scalar = |kind: &DataType| match kind {
            DataType::Utf8 => "string".to_owned(),
            DataType::Binary => "bytes".to_owned(),
            other => other.to_string().to_lowercase(),
        };
        let (kind, members) = match field.data_type() {
            DataType::List(item) => match item.data_type() {
                DataType::Struct(members) => ("list of objects".to_owned(), Some(members)),
                kind => {
                    let null = if item.is_nullable() { ", or null" } else { "" };
                    (format!("list of {}{null}", scalar(kind)), None)
                }
            },
            DataType::Struct(members) => ("object".to_owned(), Some(members)),
            kind => (scalar(kind), None),
        };
        let null = if field.is_nullable() { "yes" } else { "no" };
        rows.push([format!("`{name}`"), kind, null.to_owned()]);
        for member in members.into_iter().flatten() {
            let inner = if matches!(field.data_type(), DataType::Struct(_)) { "." } else { "[]." };
            documented(member, &format!("{name}{inner}"), rows);
        }
    }

    #[test]
    fn document_has_every_column_with_its_type() {
        let document = include_str!("../../docs/reference/export-schema.md");
        let table = document.split("| member | type | null | what |").nth(1).expect("a table of the members");
        let lines = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let cells = |line: &str| -> Vec<String> { line.split('|').map(|cell| cell.trim().to_owned()).collect() };
        let found: Vec<[String; 3]> =
            lines.map(cells).map(|cells| [cells[1].clone(), cells[2].clone(), cells[3].clone()]).collect();
        let mut expected = Vec::new();
        let schema = Table::new(Batch::default(), "arrow", Bounds { bytes: 1, rows: 1 }).schema();
        schema.fields().iter().for_each(|field| documented(field, "", &mut expected));
        assert_eq!(found, expected);
        assert!(document.contains(&format!("The version of the schema is {SCHEMA_VERSION}:")), "{SCHEMA_VERSION}");
    }

    #[test]
    fn empty_batch_has_the_same_columns() {
        let empty = Table::new(Batch::default(), "arrow", Bounds { bytes: 1, rows: 1 });
        let full = Table::new(example(), "arrow", Bounds { bytes: 1, rows: 1 });
        assert_eq!(empty.schema(), full.schema());
        for record in full {
            assert_eq!(record.schema(), empty.schema());
        }
        assert_eq!(empty.count(), 0);
    }
}
