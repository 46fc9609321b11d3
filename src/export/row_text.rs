// SPDX-License-Identifier: Apache-2.0
//! The text of a row, if the export has text.

use super::{Decoder, per_token};
use crate::session::{Path, Turn};

/// The text of a row.
pub(super) enum RowText {
    /// The export has no text.
    NotRequested,
    /// The tokenizer is that of another model, or fails.
    Unavailable,
    /// Prompt and response, special tokens included.
    Decoded { prompt: String, response: String },
}

impl RowText {
    pub(super) fn decode(row: &Path, decoder: Option<&Decoder>) -> Self {
        let Some(Decoder { model, decode, .. }) = decoder else { return Self::NotRequested };
        if row.steps.iter().any(|step| *step.turn.about.model != **model) {
            return Self::Unavailable;
        }
        let response: Vec<u32> = per_token::response(row).flat_map(|segment| segment.ids).copied().collect();
        let decoded = decode(per_token::prompt(row)).zip(decode(&response));
        decoded.map_or(Self::Unavailable, |(prompt, response)| Self::Decoded { prompt, response })
    }

    pub(super) fn prompt(&self) -> Option<&str> {
        if let Self::Decoded { prompt, .. } = self { Some(prompt) } else { None }
    }

    pub(super) fn response(&self) -> Option<&str> {
        if let Self::Decoded { response, .. } = self { Some(response) } else { None }
    }

    /// The flag of a row whose text is missing.
    pub(super) fn flag(&self) -> Option<&'static str> {
        matches!(self, Self::Unavailable).then_some(TEXT_UNAVAILABLE)
    }
}

/// The flag of a row whose text is missing.
pub(super) const TEXT_UNAVAILABLE: &str = "text_unavailable";

/// The text of the response of a turn. The error is the flag of a row whose text is missing.
pub(super) fn of_turn(turn: &Turn, decoder: &Decoder) -> Result<String, &'static str> {
    let is_of_model = turn.about.model == decoder.model;
    is_of_model.then(|| (decoder.decode)(&turn.response)).flatten().ok_or(TEXT_UNAVAILABLE)
}
