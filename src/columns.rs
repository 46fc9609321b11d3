// SPDX-License-Identifier: Apache-2.0
//! Token columns: data of the tokens of a turn beyond their ids, logprobs and entropies, and the table of those that tokentap records.

mod payload;
mod table;

use std::ops::Range;

use bytes::Bytes;

use crate::named_enum::named_enum;
pub use payload::TurnTokens;
pub use table::{
    Alignment, COLUMNS, ColumnSource, Encoding, ExpertShape, ROUTED_EXPERTS_AT, SAMPLING_MASK_AT, TEACHER_LOGPROBS,
    TEACHER_LOGPROBS_OF_TOP_IDS, TEACHER_TOP_COLUMNS, TOP_COLUMNS, Values, top_columns,
};

/// A token column: one value, or several, for each of some consecutive tokens of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: Box<str>,
    /// The type of its values.
    pub number: NumberType,
    /// The tokens that it covers, counted from the first sampled token of the turn. Tokens before that one have negative numbers.
    pub tokens: Range<i32>,
    /// The values of a token.
    pub shape: Shape,
    /// The values, little-endian, token after token.
    pub data: Bytes,
}

named_enum! {
    /// The type of the values of a column.
    #[expect(missing_docs, reason = "the names are those of NumPy, and bf16")]
    pub enum NumberType {
        U8 = "u8",
        U16 = "u16",
        U32 = "u32",
        U64 = "u64",
        I8 = "i8",
        I16 = "i16",
        I32 = "i32",
        I64 = "i64",
        F16 = "f16",
        Bf16 = "bf16",
        F32 = "f32",
        F64 = "f64",
    }
}

/// The values of one token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// Another number for each token: the data begin with the number of values of each token, as `u32`.
    Ragged,
    /// The same dimensions for each token; none for a single value.
    Fixed(Box<[u32]>),
}

named_enum! {
    /// Why a turn lacks a requested column, or tokens of it.
    pub enum ColumnFault {
        /// The payload does not have one row for each token that it should cover, or the number of values of a token is unknown, and the payload
        /// does not show whether the engine ignored the start in the request.
        Length = "length",
        /// The payload is encoded in another way than the table says, or a value does not fit into the type of the column.
        Encoding = "encoding",
        /// The covered tokens are unknown: the engine did not report the ids of the prompt, or the start in the request cannot be read.
        Unaligned = "unaligned",
        /// The engine did not return the column: it lacks the feature, or the launch flag that enables it, or a router dropped the client's
        /// request for it.
        NotReturned = "not_returned",
        /// tokentap did not ask for it: the router before the engines drops the member of the request that asks for it.
        Dropped = "dropped_by_router",
        /// The reply was cut off before the event that has the payload, or the engine aborted the request in its queue.
        CutOff = "cut_off",
        /// The start in the client's request leaves out tokens that no earlier turn has. The turn has the column of the others.
        ClientStart = "client_start",
        /// All values are zero: the kernel of the engine does not report its routing.
        AllZero = "all_zero",
        /// tokentap did not ask for it, because the expected reply would be too large.
        ReplyBudget = "reply_budget",
        /// tokentap did not ask for it: the support is unlimited, because the request has no `top_k`, or one above half of the engine's limit.
        OpenSupport = "open_support",
        /// tokentap did not ask for it: the engine has not been probed yet, or `turns[].measured.reason` says why no top-k was requested.
        NotRequested = "not_requested",
        /// The engine refused the request with it, and answered without it.
        Refused = "refused",
    }
}

impl NumberType {
    /// The bytes of a value.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }
}

impl Column {
    /// The bytes that it takes in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.data.len()
    }

    /// The values of a token; `None` if each token has another number of them.
    #[must_use]
    pub fn values(&self) -> Option<u64> {
        match &self.shape {
            Shape::Ragged => None,
            Shape::Fixed(dimensions) => {
                dimensions.iter().try_fold(1_u64, |values, length| values.checked_mul(u64::from(*length)))
            }
        }
    }

    /// A column of one float32 for each sampled token.
    #[must_use]
    pub fn of_floats(name: &str, values: &[f32]) -> Self {
        Self {
            name: name.into(),
            number: NumberType::F32,
            tokens: 0..i32::try_from(values.len()).unwrap_or(i32::MAX),
            shape: Shape::Fixed(Box::default()),
            data: values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into(),
        }
    }

    /// The column of this name.
    #[must_use]
    pub fn named<'a>(columns: &'a [Self], name: &str) -> Option<&'a Self> {
        columns.iter().find(|column| *column.name == *name)
    }

    /// The values of a column of one float32 for each token; `None` for another one.
    #[must_use]
    pub fn floats(&self) -> Option<Vec<f32>> {
        let is_scalar = matches!(&self.shape, Shape::Fixed(dimensions) if dimensions.is_empty());
        let (values, rest) = self.data.as_chunks::<4>();
        let fits = self.number == NumberType::F32 && is_scalar && rest.is_empty();
        fits.then(|| values.iter().map(|value| f32::from_le_bytes(*value)).collect())
    }

    /// The values of each token. `None` if the data do not have the length that the description says.
    #[must_use]
    pub fn rows(&self) -> Option<Vec<&[u8]>> {
        let count = usize::try_from(self.tokens.end.checked_sub(self.tokens.start)?).ok()?;
        let size = self.number.size();
        let mut rows = Vec::new();
        match &self.shape {
            Shape::Ragged => {
                let (counts, mut values) = self.data.split_at_checked(count.checked_mul(4)?)?;
                rows.reserve(count);
                for values_of_token in counts.as_chunks().0 {
                    let bytes = usize::try_from(u32::from_le_bytes(*values_of_token)).ok()?.checked_mul(size)?;
                    let (row, rest) = values.split_at_checked(bytes)?;
                    rows.push(row);
                    values = rest;
                }
                values.is_empty().then_some(rows)
            }
            Shape::Fixed(dimensions) => {
                let width = dimensions
                    .iter()
                    .try_fold(size, |bytes, length| bytes.checked_mul(usize::try_from(*length).ok()?))?;
                if count.checked_mul(width)? != self.data.len() || width == 0 {
                    return None;
                }
                rows.extend(self.data.chunks_exact(width));
                Some(rows)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(tokens: Range<i32>, shape: Shape, data: &[u8]) -> Column {
        Column { name: "c".into(), number: NumberType::U16, tokens, shape, data: Bytes::copy_from_slice(data) }
    }

    #[test]
    fn names_are_those_of_records() {
        for number in NumberType::ALL {
            assert_eq!(serde_json::to_value(number).unwrap(), number.name());
        }
        for fault in ColumnFault::ALL {
            assert_eq!(serde_json::to_value(fault).unwrap(), fault.name());
        }
    }

    #[test]
    fn rows_are_the_values_of_each_token() {
        let fixed = |tokens, dimensions: &[u32], data| column(tokens, Shape::Fixed(dimensions.into()), data);
        assert_eq!(fixed(-1..1, &[2], &[1, 0, 2, 0, 3, 0, 4, 0]).rows().unwrap(), [[1, 0, 2, 0], [3, 0, 4, 0]]);
        assert_eq!(fixed(0..2, &[], &[1, 0, 2, 0]).rows().unwrap(), [[1, 0], [2, 0]]);
        let ragged = column(0..2, Shape::Ragged, &[0, 0, 0, 0, 1, 0, 0, 0, 7, 0]);
        assert_eq!(ragged.rows().unwrap(), [&[][..], &[7, 0]]);
    }

    #[test]
    fn rows_of_data_of_another_length_are_not_read() {
        let is_read =
            |tokens, dimensions: &[u32], data| column(tokens, Shape::Fixed(dimensions.into()), data).rows().is_some();
        assert!(is_read(0..1, &[], &[1, 0]));
        assert!(!is_read(0..2, &[], &[1, 0]));
        assert!(!is_read(0..1, &[u32::MAX, u32::MAX, u32::MAX], &[1, 0]));
        assert!(!is_read(0..1 << 30, &[0], &[]), "rows without bytes would have any number");
        #[expect(clippy::reversed_empty_ranges, reason = "a damaged record")]
        let reversed = is_read(2..1, &[], &[]);
        assert!(!reversed);
        assert!(!is_read(i32::MIN..i32::MAX, &[], &[]));
        assert_eq!(column(0..1, Shape::Ragged, &[2, 0, 0, 0, 1, 0]).rows(), None);
        assert_eq!(column(0..1, Shape::Ragged, &[0, 0, 0, 0, 1, 0]).rows(), None);
        assert_eq!(column(0..1, Shape::Ragged, &[0, 0]).rows(), None);
    }
}
