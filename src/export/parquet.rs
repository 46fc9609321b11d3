//! Apache Parquet: a file of compressed columns, for storage.

use std::sync::Arc;

use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;

use super::columnar::{Bounds, Table};
use super::{Batch, Export, PIECE, pieces};

/// Larger than a message of `arrow`: each batch is a row group, in which every column takes a header and an entry in the footer.
const BOUNDS: Bounds = Bounds { bytes: 8 * PIECE as u64, rows: 512 };

/// The columns of `columnar::Table`, with a row group per batch. The metadata is in the footer.
#[must_use]
pub(crate) fn export(batch: Batch) -> Export {
    let mut table = Table::new(batch, "parquet", BOUNDS);
    let tally = table.tally.clone();
    let metadata = table.metadata.iter().map(|(name, value)| KeyValue::new((*name).to_owned(), value.clone()));
    let properties = WriterProperties::builder()
        .set_created_by(concat!("tokentap ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_key_value_metadata(Some(metadata.collect()))
        .build();
    // pyarrow reads the metadata from the stored Arrow schema, other readers from the footer
    let writer = ArrowWriter::try_new(Vec::new(), Arc::new(table.described()), Some(properties));
    let mut open = Some(writer.expect("Parquet has a type for each column"));
    let groups = std::iter::from_fn(move || {
        let mut writer = open.take()?;
        let Some(record) = table.next() else {
            return Some(writer.into_inner().expect("the end of a file goes into memory"));
        };
        writer.write(&record).and_then(|()| writer.flush()).expect("a batch of this schema goes into memory");
        // the writer counts its bytes itself, so those that were written out may be taken
        let written = std::mem::take(writer.inner_mut());
        open = Some(writer);
        Some(written)
    });
    Export::new("application/vnd.apache.parquet", pieces(groups)).counted(tally)
}

#[cfg(test)]
mod tests {
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use serde_json::Value;

    use super::*;
    use crate::export::columnar::fixture::{ROWS, json, rich};
    use crate::export::fixture::{batch, bytes, path, turn};

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
