//! The export formats and their names.

use super::{Batch, Export, areal, arrow, jsonl, miles, rllm, slime, strands, tunix, verl};

/// A format of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Safetensors with the keys of verl's `DataProto`.
    Verl,
    /// Safetensors in the layout of the reply of miles' session server.
    Miles,
    /// Safetensors with the keys of AReaL's tensor dictionaries.
    Areal,
    /// JSON with a dictionary for slime's `Sample.from_dict` for each sample.
    Slime,
    /// JSON with tunix' token-mode trajectories and one `RolloutOutput`.
    Tunix,
    /// JSON with the arrays and segments of a strands-sglang rollout.
    Strands,
    /// JSON with a `TraceRecord` of rLLM's model gateway for each trained call.
    Rllm,
    /// JSON Lines in tokentap's own schema: one trajectory per line.
    Jsonl,
    /// The columns of `jsonl` as an Arrow IPC stream.
    Arrow,
    /// The columns of `jsonl` as a Parquet file.
    Parquet,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 10] = [
        Self::Verl,
        Self::Miles,
        Self::Areal,
        Self::Slime,
        Self::Tunix,
        Self::Strands,
        Self::Rllm,
        Self::Jsonl,
        Self::Arrow,
        Self::Parquet,
    ];

    /// The name in requests and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Verl => "verl",
            Self::Miles => "miles",
            Self::Areal => "areal",
            Self::Slime => "slime",
            Self::Tunix => "tunix",
            Self::Strands => "strands",
            Self::Rllm => "rllm",
            Self::Jsonl => "jsonl",
            Self::Arrow => "arrow",
            Self::Parquet => "parquet",
        }
    }

    /// Whether the format can hold decoded text.
    #[must_use]
    pub fn has_text(self) -> bool {
        matches!(self, Self::Jsonl | Self::Arrow | Self::Parquet)
    }

    /// Whether the rows can hold advantages. miles' reader refuses tensors that it does not expect, and the records of rLLM are calls.
    #[must_use]
    pub fn has_advantages(self) -> bool {
        !matches!(self, Self::Miles | Self::Rllm)
    }

    /// The format with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Exports the rows that meet the needs of the format, and the reasons why the others do not.
    #[must_use]
    pub fn export(self, batch: Batch) -> Export {
        match self {
            Self::Verl => verl::export(batch),
            Self::Miles => miles::export(batch),
            Self::Areal => areal::export(batch),
            Self::Slime => slime::export(batch),
            Self::Tunix => tunix::export(batch),
            Self::Strands => strands::export(batch),
            Self::Rllm => rllm::export(batch),
            Self::Jsonl => jsonl::export(batch),
            Self::Arrow => arrow::export(batch),
            // `super::`, because a crate has the same name
            Self::Parquet => super::parquet::export(batch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::fixture::{bytes, example};

    #[test]
    fn names_find_their_formats() {
        for format in Format::ALL {
            assert_eq!(Format::from_name(format.name()), Some(format));
            assert!(!bytes(format.export(example())).is_empty(), "{} exports", format.name());
        }
        assert_eq!(Format::from_name("Verl"), None);
    }
}
