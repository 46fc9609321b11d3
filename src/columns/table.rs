//! The table of the token columns that tokentap records.

use std::ops::Range;

use super::NumberType;

/// A column that an engine can report: how it is requested, and how its payload is read.
#[derive(Debug, Clone, Copy)]
pub struct ColumnSource {
    /// The name of the column.
    pub name: &'static str,
    /// The member of a /generate request that asks for it.
    pub request: &'static str,
    /// The member of `meta_info` with the payload.
    pub member: &'static str,
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

/// The token columns. To add one, add a row.
pub const COLUMNS: &[ColumnSource] = &[ColumnSource {
    name: "sampling_mask",
    request: "return_sampling_mask",
    member: "output_token_sampling_mask",
    encoding: Encoding::Lists,
    number: NumberType::U32,
    values: Values::Ragged,
    alignment: Alignment::Sampled,
    trainers: &[],
}];

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
