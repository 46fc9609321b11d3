//! Data of the tokens of a turn beyond their ids, logprobs and entropies.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// A token column: one value, or several, for each token of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: Box<str>,
    /// The type of its values.
    pub number: NumberType,
    /// The tokens that it covers.
    pub tokens: TokenRange,
    /// The values of a token.
    pub shape: Shape,
    /// The values, little-endian, token after token.
    pub data: Bytes,
}

/// The type of the values of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are those of NumPy, and bf16")]
pub enum NumberType {
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F16,
    Bf16,
    F32,
    F64,
}

/// Tokens of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenRange {
    /// Those of its prompt that its parent does not have.
    Prompt,
    /// Its sampled tokens.
    Response,
    /// Both, those of the prompt first.
    All,
}

/// The values of one token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// Another number for each token: the data begin with the number of values of each token, as `u32`.
    Ragged,
    /// The same dimensions for each token; none for a single value.
    #[serde(untagged)]
    Fixed(Box<[u32]>),
}

impl NumberType {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::F16,
        Self::Bf16,
        Self::F32,
        Self::F64,
    ];
}

impl Column {
    /// The bytes that it takes in memory.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.data.len()
    }
}
