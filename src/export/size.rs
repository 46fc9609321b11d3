//! How large a file becomes, before its first byte is written.

use std::fmt;
use std::sync::Arc;

use super::Export;
use crate::session::Row;

/// The longest row of an export, which decides how far tensors are padded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Longest {
    /// Its session.
    pub session: Arc<str>,
    /// Its last turn.
    pub leaf: u32,
    /// Tokens of its first prompt.
    pub prompt: usize,
    /// Tokens behind that.
    pub response: usize,
}

/// A file that would be larger than it may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooLarge {
    /// Bytes that it has at least.
    pub bytes: u64,
    /// Bytes that it may have.
    pub limit: u64,
    /// The row to look at first.
    pub longest: Option<Longest>,
}

impl std::error::Error for TooLarge {}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, limit, longest } = self;
        write!(f, "the file would have {bytes} bytes, more than --max-export-bytes ({limit})")?;
        if let Some(Longest { session, leaf, prompt, response }) = longest {
            write!(
                f,
                "; its longest row is path {leaf} of session {session:?} with {prompt} prompt and {response} response tokens"
            )?;
        }
        f.write_str(
            "; set max_prompt_length and max_response_length where the format pads, export fewer sessions, or use jsonl, arrow or \
             parquet, which do not pad",
        )
    }
}

impl Export {
    /// Notes the longest of the rows, and the bytes that the file has at least where its length is not known.
    pub(super) fn sized(self, rows: &[Row], least: u64) -> Self {
        let longest = rows.iter().max_by_key(|row| row.len()).map(|row| Longest {
            session: Arc::clone(row.session()),
            leaf: row.leaf(),
            prompt: row.prompt_len(),
            response: row.response_len(),
        });
        Self { longest, least: self.length.unwrap_or(least), ..self }
    }

    /// The export, unless its file would have more than `limit` bytes.
    ///
    /// # Errors
    /// [`TooLarge`]. Formats that write rows of any length as they come are never refused: their length is not known beforehand.
    pub fn within(self, limit: u64) -> Result<Self, TooLarge> {
        if self.least > limit {
            return Err(TooLarge { bytes: self.least, limit, longest: self.longest });
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{batch, bytes, rows_of, turn, turns};
    use super::super::{Batch, Format};
    use super::*;
    use crate::export::fixture::path;

    /// Three short rows and a long one.
    fn uneven() -> Batch {
        let mut rows = rows_of(turns());
        rows.push(path(&[&turn(0, None, &[7; 900], &[8; 5000]).into()]));
        batch(rows)
    }

    #[test]
    fn a_padded_file_is_estimated_to_the_byte_and_names_its_longest_row() {
        for format in [Format::Verl, Format::Areal, Format::Miles] {
            let length = bytes(format.export(uneven())).len() as u64;
            assert!(format.export(uneven()).within(length).is_ok(), "{} fits", format.name());
            let error = format.export(uneven()).within(length - 1).map(|_| ()).unwrap_err();
            let longest = Longest { session: "s".into(), leaf: 0, prompt: 900, response: 5000 };
            assert_eq!(error, TooLarge { bytes: length, limit: length - 1, longest: Some(longest) });
            let line = error.to_string();
            assert!(line.contains("--max-export-bytes") && line.contains("path 0 of session \"s\""), "{line}");
        }
    }

    #[test]
    fn padding_in_text_counts_and_rows_as_they_come_do_not() {
        assert!(Format::Tunix.export(uneven()).within(1700).is_err(), "two prompts are padded to 900 tokens");
        for format in [Format::Jsonl, Format::Arrow, Format::Parquet, Format::Slime, Format::Strands, Format::Rllm] {
            assert!(format.export(uneven()).within(1).is_ok(), "{} streams", format.name());
        }
    }
}
