// SPDX-License-Identifier: Apache-2.0
//! The pictures of the rows of an export as a Parquet file, each once.

use std::sync::Arc;

use arrow_array::{BinaryArray, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Metadata, Schema};
use parquet::basic::Compression;
use parquet::file::properties::EnabledStatistics;

use super::{Batch, Export, ExportImages, Exporter, Needs, PIECE, images, pieces, settle, text};
use crate::images::Image;

/// The exporter.
pub(super) const EXPORTER: Exporter = Exporter { options: &[], export };

/// Bytes of the pictures of a row group. A larger picture has its own.
const GROUP_BYTES: u64 = 8 * PIECE as u64;

/// Rows of a group.
const GROUP_ROWS: usize = 512;

/// The pictures of the rows that the columnar formats export.
fn export(batch: Batch) -> Export {
    let needs = Needs { int32_ids: true, images: Some(ExportImages::Refs), ..Needs::default() };
    let settled = settle(batch.rows, batch.refused, needs);
    let images = images::distinct(&settled.rows);
    let mut tally = settled.tally;
    tally.rows = images.len();
    let metadata = [("format", "images".to_owned()), ("refused", text::refusals(&settled.refused))];
    let schema =
        schema().with_metadata(metadata.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect::<Metadata>());
    // pictures are compressed already, and statistics of them would have parts of pictures
    let properties = super::parquet::properties(&metadata)
        .set_compression(Compression::UNCOMPRESSED)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None);
    let parts = super::parquet::parts(schema, properties.build(), groups(images));
    Export::new("application/vnd.apache.parquet", pieces(parts)).counted(tally)
}

fn schema() -> Schema {
    Schema::new(vec![
        Field::new("sha256", DataType::Utf8, false),
        Field::new("media_type", DataType::Utf8, false),
        Field::new("bytes", DataType::Int64, false),
        Field::new("data", DataType::Binary, true),
    ])
}

/// The row groups.
fn groups(images: Vec<Arc<Image>>) -> impl Iterator<Item = RecordBatch> + Send {
    let mut at = 0;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |image: &&Arc<Image>| {
            bytes += image.size;
            bytes <= GROUP_BYTES
        };
        let count = images[at..].iter().take(GROUP_ROWS).take_while(fits).count().max(1);
        let group = images.get(at..(at + count).min(images.len())).filter(|group| !group.is_empty())?;
        at += group.len();
        Some(record(group))
    })
}

fn record(images: &[Arc<Image>]) -> RecordBatch {
    let digests = StringArray::from_iter_values(images.iter().map(|image| image.digest.to_string()));
    let types = StringArray::from_iter_values(images.iter().map(|image| image.media_type.name()));
    let bytes = images.iter().map(|image| Some(i64::try_from(image.size).unwrap_or(i64::MAX))).collect::<Int64Array>();
    let data = images.iter().map(|image| image.bytes.as_deref()).collect::<BinaryArray>();
    let columns = vec![Arc::new(digests) as _, Arc::new(types) as _, Arc::new(bytes) as _, Arc::new(data) as _];
    RecordBatch::try_new(Arc::new(schema()), columns).expect("each column has the type and the length of its field")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use serde_json::{Value, json};

    use super::*;
    use crate::export::columnar::fixture::json as rows_of_record;
    use crate::export::fixture::{batch, bytes, path, rows_of, turn, turns, with_pictures};

    fn read(batch: Batch) -> Vec<Value> {
        let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(bytes(export(batch)))).unwrap();
        let rows = |record: Result<RecordBatch, _>| rows_of_record(record.unwrap()).as_array().unwrap().clone();
        reader.build().unwrap().flat_map(rows).collect()
    }

    #[test]
    fn each_picture_is_a_row() {
        let rows = batch(rows_of(with_pictures(turns())));
        assert_eq!(export(rows.clone()).tally.rows, 2);
        let found = read(rows);
        let sha256 = |content: &'static [u8]| Image::new(content.into()).digest.to_string();
        assert_eq!(
            json!(found),
            json!([
                {"sha256": sha256(b"BM first"), "media_type": "image/bmp", "bytes": 8, "data": "Qk0gZmlyc3Q="},
                {"sha256": sha256(b"gone"), "media_type": "application/octet-stream", "bytes": 4, "data": null},
            ])
        );
        assert_eq!(read(Batch::default()), Vec::<Value>::new());
    }

    #[test]
    fn groups_are_bounded_by_their_bytes() {
        let image = |content: u8, size: u64| Arc::new(Image { size, ..Image::new(vec![content].into()) });
        let sizes = [GROUP_BYTES + 1, 1, GROUP_BYTES - 1, 1, 1];
        let images = sizes.into_iter().zip(0..).map(|(size, content)| image(content, size)).collect();
        assert_eq!(groups(images).map(|group| group.num_rows()).collect::<Vec<_>>(), [1, 2, 2]);
        let rows = vec![path(&[&turn(0, None, &[1], &[2]).into()])];
        assert_eq!(read(batch(rows)), Vec::<Value>::new(), "no picture, no row");
    }
}
