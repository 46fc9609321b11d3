// SPDX-License-Identifier: Apache-2.0
//! The exporter of each format, and the options that it uses.

use super::{
    Batch, Export, areal, arrow, image_table, jsonl, miles, nemo_rl, prime_rl, rllm, skyrl, slime, strands, tinker,
    trl, tunix, verl,
};
use crate::config::Format;
use crate::named_enum::named_enum;

named_enum! {
    /// An option of an export that some formats have no place for.
    pub enum ExportOption {
        /// Decoded text.
        Text = "text",
        /// The advantages of the rows.
        Advantages = "advantages",
        /// The logprobs of a teacher.
        Scores = "scores",
        /// References to pictures, or pictures.
        Images = "images",
        /// Entropies. Formats that always have them accept the option too.
        Entropies = "entropies",
        /// The padding id.
        PadTokenId = "pad_token_id",
        /// The length of the prompt side.
        MaxPromptLength = "max_prompt_length",
        /// The length of the response side.
        MaxResponseLength = "max_response_length",
    }
}

impl ExportOption {
    /// The options of the formats with a column for each value.
    pub(super) const OF_COLUMNS: &'static [Self] =
        &[Self::Text, Self::Advantages, Self::Scores, Self::Images, Self::Entropies];
}

/// An option that a format would ignore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{format} does not use it, only {}", Format::names(|format| format.exporter().options.contains(option)))]
pub struct UnusedOption {
    /// The option.
    pub option: ExportOption,
    /// The format of the export.
    pub format: Format,
}

/// The options and the code of a format.
#[derive(Debug)]
pub(super) struct Exporter {
    /// The options that the format uses.
    pub(super) options: &'static [ExportOption],
    /// Exports the rows that meet the needs of the format, and the reasons why the others do not.
    pub(super) export: fn(Batch) -> Export,
}

impl Format {
    const fn exporter(self) -> Exporter {
        match self {
            Self::Verl => verl::EXPORTER,
            Self::Miles => miles::EXPORTER,
            Self::Areal => areal::EXPORTER,
            Self::Slime => slime::EXPORTER,
            Self::Tunix => tunix::EXPORTER,
            Self::Strands => strands::EXPORTER,
            Self::Rllm => rllm::EXPORTER,
            Self::Skyrl => skyrl::EXPORTER,
            Self::NemoRl => nemo_rl::EXPORTER,
            Self::PrimeRl => prime_rl::EXPORTER,
            Self::Trl => trl::EXPORTER,
            Self::Tinker => tinker::EXPORTER,
            Self::Jsonl => jsonl::EXPORTER,
            Self::Arrow => arrow::EXPORTER,
            // `super::`, because a crate has the same name
            Self::Parquet => super::parquet::EXPORTER,
            Self::Images => image_table::EXPORTER,
        }
    }

    /// Checks that the format uses each option that is set.
    ///
    /// # Errors
    /// The first option that it would ignore.
    pub fn check(self, is_set: impl Fn(ExportOption) -> bool) -> Result<(), UnusedOption> {
        let used = self.exporter().options;
        let unused = ExportOption::ALL.into_iter().find(|option| is_set(*option) && !used.contains(option));
        unused.map_or(Ok(()), |option| Err(UnusedOption { option, format: self }))
    }

    /// Exports the rows that meet the needs of the format, and the reasons why the others do not.
    #[must_use]
    pub fn export(self, batch: Batch) -> Export {
        (self.exporter().export)(batch)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::export::fixture::{batch, bytes, example, rows_of, turns};

    #[test]
    fn names_find_their_formats() {
        for format in Format::all() {
            assert_eq!(Format::from_name(&format.to_string()), Some(*format));
            assert!(!bytes(format.export(example())).is_empty(), "{format} exports");
        }
        assert_eq!(Format::from_name("Verl"), None);
    }

    #[test]
    fn each_format_has_the_rewards_of_turns() {
        let mut turns = turns();
        // prime-rl refuses a row without
        turns.iter_mut().for_each(|turn| turn.about.sampling = Some(r#"{"temperature":1}"#.into()));
        let mut rows = rows_of(turns);
        rows[0].steps[0].reward = Some(Arc::new(0.421_875.into()));
        // `arrow` and `parquet` compress the rows of `jsonl`, and `images` has pictures only
        let texts =
            Format::all().iter().filter(|format| !matches!(format, Format::Arrow | Format::Parquet | Format::Images));
        for format in texts {
            let holds = |bytes: Vec<u8>| bytes.windows(8).any(|part| part == b"0.421875");
            assert!(holds(bytes(format.export(batch(rows.clone())))), "{format}");
            let without = bytes(format.export(example()));
            assert!(!holds(without.clone()) && !without.windows(5).any(|part| part == b"turn_"), "{format}");
        }
    }
}
