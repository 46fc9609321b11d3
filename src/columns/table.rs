// SPDX-License-Identifier: Apache-2.0
//! The table of the token columns that tokentap records.

use std::ops::Range;

use super::{Column, NumberType, Shape};

/// A column that an engine can report: how it is requested, and how its payload is read.
#[derive(Debug, Clone, Copy)]
pub struct ColumnSource {
    /// The name of the column.
    pub name: &'static str,
    /// The member of a /generate request that asks for it.
    pub request: &'static str,
    /// The member of `meta_info` with the payload.
    pub member: &'static str,
    /// The beginning of the names of all members that the request adds to `meta_info`.
    pub members: &'static str,
    /// How the payload is encoded.
    pub encoding: Encoding,
    /// The type in which the values are recorded.
    pub number: NumberType,
    /// How many values a token has.
    pub values: Values,
    /// The tokens that the payload covers.
    pub alignment: Alignment,
    /// Its names in the formats of trainers: pairs of a format and a name.
    pub trainers: &'static [(&'static str, &'static str)],
}

/// The encoding of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// A JSON list with an item for each token: a number, or a list of numbers.
    Lists,
    /// The base64 of little-endian numbers of this type, token after token.
    Base64(NumberType),
}

/// How many values a token has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// One.
    One,
    /// The same number for each token, which follows from the length of the payload.
    Fixed,
    /// The experts of each layer: `[layers, experts per token]` of [`ExpertShape`]. Without it, the same number for each token.
    Experts,
    /// Another number for each token. Only of [`Encoding::Lists`].
    Ragged,
}

/// The tokens that a payload covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alignment {
    /// The sampled tokens.
    Sampled,
    /// The tokens that the engine has processed: all of prompt and response from `start` on, except the last one.
    Processed {
        /// The member of the request with the number of leading tokens that are left out. 0 without the member.
        start: &'static str,
    },
}

/// The routing of a mixture-of-experts model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertShape {
    /// The layers of the model, also those without experts.
    pub layers: u32,
    /// The experts that process a token in a layer.
    pub per_token: u32,
    /// The experts of a layer to choose from.
    pub experts: u32,
}

impl ExpertShape {
    /// The values of a token.
    #[must_use]
    pub fn values(self) -> u64 {
        u64::from(self.layers) * u64::from(self.per_token)
    }

    /// The smallest type that holds the number of any expert.
    #[must_use]
    pub fn number(self) -> NumberType {
        match self.experts {
            0..=0x100 => NumberType::U8,
            0x101..=0x1_0000 => NumberType::U16,
            _ => NumberType::U32,
        }
    }
}

/// The token columns that an engine reports. To add one, add a row.
pub const COLUMNS: &[ColumnSource] = &[SAMPLING_MASK, ROUTED_EXPERTS];

/// The position of the sampling masks in [`COLUMNS`].
pub const SAMPLING_MASK_AT: usize = 0;

/// The position of the routed experts in [`COLUMNS`].
pub const ROUTED_EXPERTS_AT: usize = 1;

const SAMPLING_MASK: ColumnSource = ColumnSource {
    name: "sampling_mask",
    request: "return_sampling_mask",
    member: "output_token_sampling_mask",
    members: "output_token_sampling_",
    encoding: Encoding::Lists,
    number: NumberType::U32,
    values: Values::Ragged,
    alignment: Alignment::Sampled,
    trainers: &[],
};

const ROUTED_EXPERTS: ColumnSource = ColumnSource {
    name: "routed_experts",
    request: "return_routed_experts",
    member: "routed_experts",
    members: "routed_experts",
    encoding: Encoding::Base64(NumberType::I32),
    // without an [`ExpertShape`]
    number: NumberType::U16,
    values: Values::Experts,
    alignment: Alignment::Processed { start: "routed_experts_start_len" },
    trainers: &[
        ("miles", "rollout_routed_experts"),
        ("slime", "rollout_routed_experts"),
        ("verl", "routed_experts"),
        ("strands", "routed_experts"),
        ("skyrl", "rollout_expert_indices"),
        ("nemo-rl", "routed_experts"),
        ("prime-rl", "routed_experts"),
    ],
};

/// The names of the columns with the likeliest tokens of each sampled one: their ids (`u32`), and their logprobs (`f32`).
pub const TOP_COLUMNS: [&str; 2] = ["top_ids", "top_logprobs"];

/// The name of the column with a teacher's logprob of each sampled token (`f32`).
pub const TEACHER_LOGPROBS: &str = "teacher_logprobs";

/// The names of the columns with a teacher's likeliest tokens at each sampled one, as [`TOP_COLUMNS`].
pub const TEACHER_TOP_COLUMNS: [&str; 2] = ["teacher_top_ids", "teacher_top_logprobs"];

/// The name of the column with a teacher's logprobs of the student's likeliest tokens (`f32`), in the shape and the order of their ids.
pub const TEACHER_LOGPROBS_OF_TOP_IDS: &str = "teacher_logprobs_of_top_ids";

/// The columns of these names with the likeliest tokens of a turn. `counts` is their number for each sampled token; `ids` and `logprobs` have all of them,
/// token after token. The shape is fixed if all tokens have the same number. `None` if no token has any.
#[must_use]
pub fn top_columns(names: [&str; 2], counts: &[u32], ids: &[u32], logprobs: &[f32]) -> Option<[Column; 2]> {
    let end = i32::try_from(counts.len()).ok()?;
    let first = *counts.first()?;
    if ids.is_empty() || ids.len() != logprobs.len() {
        return None;
    }
    let is_fixed = counts.iter().all(|count| *count == first);
    let heads = || counts.iter().filter(|_| !is_fixed).flat_map(|count| count.to_le_bytes());
    let column = |name: &str, number, values: Vec<u8>| Column {
        name: name.into(),
        number,
        tokens: 0..end,
        shape: if is_fixed { Shape::Fixed([first].into()) } else { Shape::Ragged },
        data: values.into(),
    };
    let [name_of_ids, name_of_logprobs] = names;
    Some([
        column(name_of_ids, NumberType::U32, heads().chain(ids.iter().flat_map(|id| id.to_le_bytes())).collect()),
        column(
            name_of_logprobs,
            NumberType::F32,
            heads().chain(logprobs.iter().flat_map(|l| l.to_le_bytes())).collect(),
        ),
    ])
}

impl Alignment {
    /// The request member with the start of the covered tokens, if they have another start than the sampled tokens.
    #[must_use]
    pub fn start_member(self) -> Option<&'static str> {
        match self {
            Self::Sampled => None,
            Self::Processed { start } => Some(start),
        }
    }

    /// The covered tokens of a turn with this number of sampled tokens, counted from the first sampled token. `prompt` is the number of
    /// tokens before it, and `start` the value of [`Self::start_member`]; `None` if they are unknown.
    pub(super) fn tokens(self, prompt: Option<usize>, sampled: usize, start: Option<usize>) -> Option<Range<i32>> {
        let sampled = i32::try_from(sampled).ok()?;
        match self {
            Self::Sampled => Some(0..sampled),
            Self::Processed { .. } => {
                let before = i32::try_from(prompt?.checked_sub(start?)?).ok()?;
                Some(-before..(sampled - 1).max(-before))
            }
        }
    }
}
