// SPDX-License-Identifier: Apache-2.0
//! The size limit of an export, which is checked before the first byte is written.

use std::fmt;
use std::sync::Arc;

use super::Export;
use crate::session::Row;

/// The longest row of an export. Tensors are padded to its length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Longest {
    /// Its session.
    pub session: Arc<str>,
    /// Its last turn.
    pub leaf: u32,
    /// Tokens of its first prompt.
    pub prompt: usize,
    /// Tokens after the first prompt.
    pub response: usize,
}

/// The error for a file above the size limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooLarge {
    /// The least size of the file in bytes.
    pub bytes: u64,
    /// The limit in bytes.
    pub limit: u64,
    /// The longest row, which the message names.
    pub longest: Option<Longest>,
}

impl std::error::Error for TooLarge {}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, limit, longest } = self;
        write!(f, "the file would have {bytes} bytes, more than the limit of {limit} bytes")?;
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
    /// Sets the longest of the rows, and the least number of bytes for a file of unknown length.
    pub(super) fn with_size(self, rows: &[Row], least: u64) -> Self {
        let longest = rows.iter().max_by_key(|row| row.len()).map(|row| Longest {
            session: Arc::clone(row.session()),
            leaf: row.leaf(),
            prompt: row.prompt_len(),
            response: row.response_len(),
        });
        Self { longest, least: self.length.unwrap_or(least), ..self }
    }

    /// Returns the export, unless its file would have more than `limit` bytes.
    ///
    /// # Errors
    /// [`TooLarge`]. Formats without padding are never refused, because their length is not known beforehand.
    pub fn within(self, limit: u64) -> Result<Self, TooLarge> {
        if self.least > limit {
            return Err(TooLarge { bytes: self.least, limit, longest: self.longest });
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Batch;
    use super::super::fixture::{batch, bytes, rows_of, turn, turns};
    use super::*;
    use crate::export::Format;
    use crate::export::fixture::path;

    /// Three short rows and a long one.
    fn uneven() -> Batch {
        let mut rows = rows_of(turns());
        rows.push(path(&[&turn(0, None, &[7; 900], &[8; 5000]).into()]));
        batch(rows)
    }

    #[test]
    fn size_of_a_padded_file_is_exact_and_the_error_names_its_longest_row() {
        for format in [Format::Verl, Format::Areal, Format::Miles] {
            let length = bytes(format.export(uneven())).len() as u64;
            assert!(format.export(uneven()).within(length).is_ok(), "{format} fits");
            let error = format.export(uneven()).within(length - 1).map(|_| ()).unwrap_err();
            let longest = Longest { session: "s".into(), leaf: 0, prompt: 900, response: 5000 };
            assert_eq!(error, TooLarge { bytes: length, limit: length - 1, longest: Some(longest) });
            let line = error.to_string();
            assert!(line.contains(&format!("more than the limit of {} bytes", length - 1)), "{line}");
            assert!(line.contains("path 0 of session \"s\"") && line.contains("export fewer sessions"), "{line}");
        }
    }

    #[test]
    fn padded_text_is_limited_and_unpadded_formats_are_not() {
        assert!(Format::Tunix.export(uneven()).within(1700).is_err(), "two prompts are padded to 900 tokens");
        for format in [Format::Jsonl, Format::Arrow, Format::Parquet, Format::Slime, Format::Strands, Format::Rllm] {
            assert!(format.export(uneven()).within(1).is_ok(), "{format} streams");
        }
    }
}
