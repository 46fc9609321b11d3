// SPDX-License-Identifier: Apache-2.0
//! Apache Parquet: a file of compressed columns, for storage.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::Schema;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, LogicalType, ZstdLevel};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::ByteArrayType;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, KeyValue, ParquetMetaDataReader};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use parquet::file::serialized_reader::SerializedPageReader;

use super::columnar::{Bounds, Table};
use super::{Annotate, Batch, Export, ExportOption, Exporter, PIECE, pieces};
use crate::session::Path;

/// Larger than a message of `arrow`: each batch is a row group, in which every column takes a header and an entry in the footer.
const BOUNDS: Bounds = Bounds { bytes: 8 * PIECE as u64, rows: 512 };

/// The maximum rows that a read of a column returns.
const AT_ONCE: usize = 1024;

/// The exporter.
pub(super) const EXPORTER: Exporter = Exporter { options: ExportOption::OF_COLUMNS, export };

/// The columns of `columnar::Table`, with a row group per batch. The metadata is in the footer.
fn export(batch: Batch) -> Export {
    let table = Table::new(batch, "parquet", BOUNDS);
    let (tally, image_memory) = (table.tally.clone(), table.image_memory);
    let export = Export::new("application/vnd.apache.parquet", pieces(groups(table)));
    export.counted(tally).with_image_memory(image_memory)
}

/// A file with the same columns of paths whose trained turns are settled and which are valid, see [`super::verdict`].
#[must_use]
pub(crate) fn file(paths: Vec<Path>, annotate: Option<Annotate>) -> Vec<u8> {
    groups(Table::from_paths(paths, annotate, "parquet", BOUNDS)).flatten().collect()
}

/// The texts by which the rows of a file are identified.
#[derive(Debug, Default)]
pub(crate) struct RowTexts {
    /// The `row_key` of each row.
    pub keys: Vec<String>,
    /// The digests of the pictures of all rows.
    pub images: Vec<String>,
}

/// The texts of a file.
///
/// Reads their columns alone. A reader of record batches would add its code for every type to the binary, 2 MB.
///
/// # Errors
/// The error message if the content is not such a file.
pub(crate) fn row_texts(content: Bytes) -> Result<RowTexts, String> {
    let content = Arc::new(content);
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&*content).map_err(|error| error.to_string())?;
    let mut found = RowTexts::default();
    for group in metadata.row_groups() {
        let rows = usize::try_from(group.num_rows()).map_err(|_| "a row group has a negative number of rows")?;
        let read = |first: &str, last: &str| {
            let is_it = |parts: &[String]| {
                parts.first().is_some_and(|part| part == first) && parts.last().is_some_and(|part| part == last)
            };
            let column = group.columns().iter().find(|column| is_it(column.column_path().parts()));
            // files of earlier builds have no column images
            if column.is_none() && first == "images" {
                return Ok(Vec::new());
            }
            let column = column.filter(|column| column.column_descr().logical_type_ref() == Some(&LogicalType::String));
            let column = column.ok_or_else(|| format!("it has no texts {last} in a column {first}"))?;
            texts(&content, column, rows).map_err(|error| error.to_string())
        };
        found.keys.extend(read("row_key", "row_key")?);
        found.images.extend(read("images", "sha256")?);
    }
    Ok(found)
}

/// The texts of a column of a row group, without those that are null.
fn texts(content: &Arc<Bytes>, column: &ColumnChunkMetaData, rows: usize) -> Result<Vec<String>, ParquetError> {
    let pages = SerializedPageReader::new(Arc::clone(content), column, rows, None)?;
    let mut reader = ColumnReaderImpl::<ByteArrayType>::new(column.column_descr_ptr(), Box::new(pages));
    let (mut values, mut levels, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
    while reader.read_records(AT_ONCE, Some(&mut levels), Some(&mut repetitions), &mut values)?.0 > 0 {}
    values.iter().map(|value| value.as_utf8().map(str::to_owned)).collect()
}

/// The bytes of a file, in parts: a row group each, then the footer.
fn groups(table: Table) -> impl Iterator<Item = Vec<u8>> + Send {
    let properties = properties(&table.metadata).set_compression(Compression::ZSTD(ZstdLevel::default()));
    parts(table.described(), properties.build(), table)
}

/// The properties of a file with this metadata, which is in the footer.
pub(super) fn properties(metadata: &[(&'static str, String)]) -> WriterPropertiesBuilder {
    let metadata = metadata.iter().map(|(name, value)| KeyValue::new((*name).to_owned(), value.clone()));
    WriterProperties::builder()
        .set_created_by(concat!("tokentap ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(metadata.collect()))
}

/// The bytes of a file, in parts: a row group for each batch, then the footer. Readers such as pyarrow read the metadata from the stored
/// Arrow schema, others from the footer.
pub(super) fn parts(
    schema: Schema,
    properties: WriterProperties,
    mut batches: impl Iterator<Item = RecordBatch> + Send,
) -> impl Iterator<Item = Vec<u8>> + Send {
    let writer = ArrowWriter::try_new(Vec::new(), Arc::new(schema), Some(properties));
    let mut open = Some(writer.expect("Parquet has a type for each column"));
    std::iter::from_fn(move || {
        let mut writer = open.take()?;
        let Some(record) = batches.next() else {
            return Some(writer.into_inner().expect("the end of a file goes into memory"));
        };
        writer.write(&record).and_then(|()| writer.flush()).expect("a batch of this schema goes into memory");
        // the writer counts its bytes itself, so those that were written out may be taken
        let written = std::mem::take(writer.inner_mut());
        open = Some(writer);
        Some(written)
    })
}

/// The extras of each turn of a file.
#[cfg(test)]
pub(crate) fn turn_extras(content: Bytes) -> Vec<String> {
    use arrow_array::cast::AsArray;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    let reader = ParquetRecordBatchReaderBuilder::try_new(content).expect("a file").build().expect("its rows");
    let mut found = Vec::new();
    for batch in reader {
        let batch = batch.expect("a batch");
        let turns = batch.column_by_name("turns").expect("a column").as_list::<i32>().values().as_struct().clone();
        let extras = turns.column_by_name("extras").expect("a member").as_string::<i32>();
        found.extend(extras.iter().flatten().map(str::to_owned));
    }
    found
}

#[cfg(test)]
mod tests {
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use serde_json::Value;

    use super::*;
    use crate::export::columnar::fixture::{ROWS, json, rich};
    use crate::export::fixture::{batch, bytes, path, rows_of, settled, turn, turns};

    type Reader = ParquetRecordBatchReaderBuilder<bytes::Bytes>;

    fn read(export: Export) -> Reader {
        assert_eq!(export.content_type, "application/vnd.apache.parquet");
        Reader::try_new(bytes(export).into()).unwrap()
    }

    fn metadata(reader: &Reader, name: &str) -> String {
        let members = reader.metadata().file_metadata().key_value_metadata().unwrap();
        members.iter().find(|member| member.key == name).and_then(|member| member.value.clone()).expect(name)
    }

    #[test]
    fn rows_are_read_back() {
        let export = export(rich());
        assert_eq!((export.tally.rows, export.tally.refused["aborted"]), (2, 1));
        let reader = read(export);
        assert_eq!(metadata(&reader, "tokentap_schema_version"), "2");
        assert_eq!(metadata(&reader, "format"), "parquet");
        assert_eq!(metadata(&reader, "refused"), r#"[{"session":"t","leaf":7,"reason":"aborted"}]"#);
        let schema = reader.schema().metadata();
        assert_eq!((&*schema["tokentap_schema_version"], &*schema["entropy_unit"]), ("2", "nats"));
        assert!(reader.metadata().file_metadata().created_by().unwrap().starts_with("tokentap "));
        let compression = reader.metadata().row_group(0).column(3).compression();
        assert!(matches!(compression, Compression::ZSTD(_)), "{compression}");
        let mut reader = reader.build().unwrap();
        assert_eq!(json(reader.next().unwrap().unwrap()), serde_json::from_str::<Value>(ROWS).unwrap());
        assert!(reader.next().is_none(), "one batch has both");
    }

    #[test]
    fn file_of_settled_paths_equals_the_export() {
        let mut paths = settled(&rows_of(turns()));
        paths[0].reward = None;
        let export = bytes(export(batch(paths.clone())));
        assert_eq!(file(paths, None), export);
    }

    #[test]
    fn empty_batch_is_a_file_without_row_groups() {
        let reader = read(export(Batch::default()));
        assert_eq!((reader.metadata().num_row_groups(), metadata(&reader, "refused").as_str()), (0, "[]"));
        assert_eq!(reader.schema().fields(), read(export(rich())).schema().fields());
        assert!(reader.build().unwrap().next().is_none(), "no rows");
    }

    #[test]
    fn many_rows_fill_several_groups() {
        let many = || batch((0..BOUNDS.rows + 1).map(|_| path(&[&turn(0, None, &[1], &[7]).into()])).collect());
        let reader = read(export(many()));
        let groups: Vec<i64> = reader.metadata().row_groups().iter().map(|group| group.num_rows()).collect();
        assert_eq!(groups, [512, 1]);
        let rows: usize = reader.build().unwrap().map(|record| record.unwrap().num_rows()).sum();
        assert_eq!(rows, 513);
        assert_eq!(bytes(export(many())), bytes(export(many())), "equal bytes twice");
    }
}
