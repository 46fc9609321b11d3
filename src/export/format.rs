//! The exporter of each format.

use super::{
    Batch, Export, areal, arrow, jsonl, miles, nemo_rl, prime_rl, rllm, skyrl, slime, strands, tinker, trl, tunix, verl,
};
use crate::config::Format;

/// The properties and the code of a format.
#[derive(Debug)]
pub(super) struct Exporter {
    /// The format can hold decoded text.
    pub(super) has_text: bool,
    /// Its rows can hold advantages.
    pub(super) has_advantages: bool,
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
        }
    }

    /// Whether the format can hold decoded text.
    #[must_use]
    pub fn has_text(self) -> bool {
        self.exporter().has_text
    }

    /// Whether the rows can hold advantages.
    #[must_use]
    pub fn has_advantages(self) -> bool {
        self.exporter().has_advantages
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
        // `arrow` and `parquet` compress the rows of `jsonl`
        let texts = Format::all().iter().filter(|format| !matches!(format, Format::Arrow | Format::Parquet));
        for format in texts {
            let holds = |bytes: Vec<u8>| bytes.windows(8).any(|part| part == b"0.421875");
            assert!(holds(bytes(format.export(batch(rows.clone())))), "{format}");
            let without = bytes(format.export(example()));
            assert!(!holds(without.clone()) && !without.windows(5).any(|part| part == b"turn_"), "{format}");
        }
    }
}
