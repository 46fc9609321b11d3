// SPDX-License-Identifier: Apache-2.0
//! Apache Arrow: a stream of record batches, for readers that process rows incrementally.

use arrow_ipc::writer::StreamEncoder;

use super::columnar::{Bounds, Table};
use super::{Batch, Export, ExportOption, Exporter, PIECE, pieces};

/// A message is as large as a piece of an export.
const BOUNDS: Bounds = Bounds { bytes: PIECE as u64, rows: 64 };

/// The exporter.
pub(super) const EXPORTER: Exporter = Exporter { options: ExportOption::OF_COLUMNS, export };

/// The columns of `columnar::Table` in Arrow's IPC stream format. The schema comes first and has the metadata.
fn export(batch: Batch) -> Export {
    let mut table = Table::new(batch, "arrow", BOUNDS);
    let (tally, image_memory) = (table.tally.clone(), table.image_memory);
    let encoder = StreamEncoder::try_new(&table.described()).expect("Arrow's own types can be encoded");
    let mut open = Some(encoder);
    let messages = std::iter::from_fn(move || {
        let mut encoder = open.take()?;
        let buffers = match table.next() {
            Some(record) => {
                let buffers = encoder.encode(&record);
                open = Some(encoder);
                buffers
            }
            None => encoder.finish(),
        };
        let buffers = buffers.expect("a batch of this schema goes into memory");
        Some(buffers.iter().flat_map(|buffer| buffer.as_slice()).copied().collect())
    });
    Export::new("application/vnd.apache.arrow.stream", pieces(messages)).counted(tally).with_image_memory(image_memory)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use arrow_ipc::reader::StreamReader;
    use serde_json::json;

    use super::*;
    use crate::export::columnar::fixture::{ROWS, json, rich};
    use crate::export::fixture::{batch, bytes, example, path, turn};

    fn read(export: Export) -> StreamReader<Cursor<Vec<u8>>> {
        assert_eq!(export.content_type, "application/vnd.apache.arrow.stream");
        StreamReader::try_new(Cursor::new(bytes(export)), None).unwrap()
    }

    #[test]
    fn rows_are_read_back() {
        let export = export(rich());
        assert_eq!((export.tally.rows, export.tally.refused["aborted"]), (2, 1));
        let mut reader = read(export);
        let metadata = reader.schema().metadata().clone();
        assert_eq!((&*metadata["tokentap_schema_version"], &*metadata["format"]), ("2", "arrow"));
        assert_eq!((&*metadata["entropy_unit"], &*metadata["tokentap_version"]), ("nats", env!("CARGO_PKG_VERSION")));
        assert!(!metadata.contains_key("tokenizer"), "no text was decoded");
        assert_eq!(metadata["refused"], r#"[{"session":"t","leaf":7,"reason":"aborted"}]"#);
        let record = reader.next().unwrap().unwrap();
        assert_eq!(json(record), serde_json::from_str::<serde_json::Value>(ROWS).unwrap());
        assert!(reader.next().is_none(), "one batch has both");
    }

    #[test]
    fn empty_batch_is_a_stream_with_a_schema() {
        let mut reader = read(export(Batch::default()));
        assert_eq!(reader.schema().metadata()["refused"], "[]");
        assert_eq!(reader.schema().fields(), read(export(example())).schema().fields());
        assert!(reader.next().is_none(), "no rows, no batch");
    }

    #[test]
    fn long_rows_are_written_one_by_one() {
        let rows = (0..3).map(|_| path(&[&turn(0, None, &[1], &[7; 60_000]).into()])).collect();
        let export = export(batch(rows));
        let mut pieces = export.chunks;
        let first = pieces.next().unwrap();
        assert!(first.len() < 2 * PIECE, "{} bytes", first.len());
        let rest: Vec<u8> = pieces.flat_map(Vec::from).collect();
        let reader = StreamReader::try_new(Cursor::new([first.to_vec(), rest].concat()), None).unwrap();
        let records: Vec<_> = reader.map(Result::unwrap).collect();
        assert_eq!(records.iter().map(|record| record.num_rows()).collect::<Vec<_>>(), [1, 1, 1]);
        assert_eq!(json(records[2].clone())[0]["loss_mask"][60_000], json!(1));
    }
}
