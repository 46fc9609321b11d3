// SPDX-License-Identifier: Apache-2.0
//! Exports paths in the file formats of trainers.

use std::sync::Arc;

use bytes::Bytes;

use crate::session::{ExcludedLeaf, Path, Row};

mod areal;
mod arrow;
mod columnar;
pub(crate) mod entry;
mod exclude;
mod experts;
mod facts;
#[cfg(test)]
mod fixture;
mod format;
mod image_table;
mod images;
mod jsonl;
mod miles;
mod nemo_rl;
mod non_tensor;
pub(crate) mod parquet;
pub(crate) mod part;
mod path_columns;
mod per_token;
mod policies;
mod prime_rl;
mod repeats;
mod rllm;
mod row_lists;
mod row_text;
mod safetensors;
mod settle;
mod size;
mod skyrl;
mod slime;
mod strands;
mod text;
mod tinker;
mod trl;
mod tunix;
mod validate;
mod verl;
mod versions;

pub(crate) use self::parquet::{file as parquet_file, row_texts as parquet_row_texts};
pub use crate::config::{ExportImages, Format};
pub(crate) use columnar::SCHEMA_VERSION;
pub use exclude::{Exclusions, Lack};
#[cfg(test)]
pub(crate) use facts::flag_names;
pub use facts::flags;
pub(crate) use facts::{groups, reward as reward_number, row_key};
use format::Exporter;
pub use format::{ExportOption, UnusedOption};
pub(crate) use images::settings as image_settings;
pub(crate) use path_columns::PathColumn;
pub(crate) use repeats::{repeated_paths, repeated_rows};
pub use settle::{RowCounts, SelectedRows, settle};
pub use size::{Longest, TooLarge};
pub use validate::Needs;
pub(crate) use validate::{temperature as logprob_temperature, verdict};

/// Statistics of the thinking in a path. The caller of an export computes them, because the export does not know the think tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Thinking {
    /// Mean entropy of the thinking in nats; `None` if none of its tokens has an entropy.
    pub entropy_mean: Option<f64>,
    /// Tokens of the thinking; `None` if the think tokens are unknown.
    pub tokens: Option<u64>,
    /// Whether every span of thinking was closed; `None` without a span.
    pub closed: Option<bool>,
    /// Share of the sampled tokens with a high entropy, 0 to 1; `None` if no token has an entropy.
    pub high_entropy_share: Option<f64>,
}

impl Thinking {
    /// The members of an entry, each with its value as JSON text.
    #[must_use]
    pub fn members(&self) -> [(&'static str, String); 4] {
        [
            ("think_entropy_mean", json(self.entropy_mean)),
            ("think_token_count", json(self.tokens)),
            ("think_closed", json(self.closed)),
            ("high_entropy_share", json(self.high_entropy_share)),
        ]
    }
}

fn json(value: Option<impl Into<serde_json::Value>>) -> String {
    value.map_or(serde_json::Value::Null, Into::into).to_string()
}

/// Computes the statistics of a path's thinking.
pub type Annotate = Arc<dyn Fn(&Path) -> Thinking + Send + Sync>;

/// Decodes token ids into text, special tokens included; `None` where the tokenizer fails.
pub type Decode = Arc<dyn Fn(&[u32]) -> Option<String> + Send + Sync>;

/// A tokenizer for the text of rows.
#[derive(Clone)]
pub struct Decoder {
    /// The name of its folder.
    pub tokenizer: String,
    /// The served model of the tokenizer. Ids of another model are not decoded.
    pub model: Arc<str>,
    /// The decoding function.
    pub decode: Decode,
}

/// The rows to export, and the options of the export.
#[derive(Clone, Default)]
pub struct Batch {
    /// The rows in the order of the export; those of one session are adjacent.
    pub rows: Vec<Row>,
    /// Leaves that are not exported.
    pub refused: Vec<ExcludedLeaf>,
    /// How rows become tensors.
    pub shape: Shape,
    /// What it has of pictures.
    pub images: ExportImages,
    /// Fills the columns about thinking of `jsonl`, `arrow` and `parquet`; without it they are null.
    pub annotate: Option<Annotate>,
    /// Fills the text columns of the same formats; without it they are null.
    pub decoder: Option<Decoder>,
}

/// How rows become tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shape {
    /// The padding id.
    pub pad_token_id: u32,
    /// Tokens of the prompt side; `None` is the length of the longest. Longer prompts lose their beginning.
    pub max_prompt_length: Option<usize>,
    /// Tokens of the response side; `None` is the length of the longest. Longer responses lose their end.
    pub max_response_length: Option<usize>,
    /// miles: write entropies as well, in tensors that its own reader refuses because it does not expect them.
    pub entropies: bool,
}

/// The bytes of an export, produced on demand.
pub struct Export {
    /// The media type.
    pub content_type: &'static str,
    /// The number of bytes, if it is known beforehand.
    pub length: Option<u64>,
    /// The bytes, in pieces of at most about a megabyte.
    pub chunks: Box<dyn Iterator<Item = Bytes> + Send>,
    /// Counts of exported and refused rows.
    pub tally: RowCounts,
    /// The bytes that the embedded pictures of a row take while it is written; 0 without any.
    pub image_memory: u64,
    /// The least number of bytes, computed from the padding; see [`Export::within`].
    least: u64,
    /// The longest row of a file whose size depends on it.
    longest: Option<Longest>,
}

impl Export {
    fn new(content_type: &'static str, chunks: Box<dyn Iterator<Item = Bytes> + Send>) -> Self {
        Self {
            content_type,
            length: None,
            chunks,
            tally: RowCounts::default(),
            image_memory: 0,
            least: 0,
            longest: None,
        }
    }

    fn counted(self, tally: RowCounts) -> Self {
        Self { tally, ..self }
    }

    fn with_image_memory(self, image_memory: u64) -> Self {
        Self { image_memory, ..self }
    }
}

/// The most bytes of one piece of an export.
const PIECE: usize = 1 << 20;

/// Texts as pieces of an export. Longer texts are split.
fn pieces(texts: impl Iterator<Item = Vec<u8>> + Send + 'static) -> Box<dyn Iterator<Item = Bytes> + Send> {
    Box::new(texts.flat_map(|text| {
        let mut rest = Bytes::from(text);
        std::iter::from_fn(move || (!rest.is_empty()).then(|| rest.split_to(rest.len().min(PIECE))))
    }))
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = f.debug_struct("Batch");
        text.field("rows", &self.rows).field("refused", &self.refused).field("shape", &self.shape);
        text.field("images", &self.images);
        text.field("annotate", &self.annotate.is_some()).field("decoder", &self.decoder).finish()
    }
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder").field("tokenizer", &self.tokenizer).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = f.debug_struct("Export");
        text.field("content_type", &self.content_type).field("length", &self.length).field("tally", &self.tally);
        text.finish_non_exhaustive()
    }
}
