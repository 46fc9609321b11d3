// SPDX-License-Identifier: Apache-2.0
//! Reads the payload of a column.

use super::{Alignment, Column, ColumnFault, ColumnSource, Encoding, ExpertShape, NumberType, Shape, Values};
use crate::json::Cursor;

/// The tokens of a turn, and what else decides how a payload is read.
#[derive(Debug, Clone, Copy, Default)]
pub struct TurnTokens {
    /// The number of tokens before the first sampled one, if it is known.
    pub prompt: Option<usize>,
    /// The number of sampled tokens.
    pub sampled: usize,
    /// The value of the request member that the alignment names, if it is known.
    pub start: Option<usize>,
    /// The routing of the model, if it is known.
    pub experts: Option<ExpertShape>,
    /// The values of a token in the column of an earlier turn of the path, if there is one.
    pub earlier_values: Option<u64>,
}

/// The rows of a payload in base64, one for each token.
#[derive(Debug, Clone, Copy)]
struct PayloadRows {
    /// Those from the requested start on.
    covered: usize,
    /// Those that an engine sends which ignores the start, as SGLang did before sglang#24851.
    all: usize,
    /// The values of a row, if they are known.
    width: Option<usize>,
}

/// Where the covered rows are in a payload.
#[derive(Debug, Clone, Copy)]
struct PayloadLayout {
    /// The values of a row.
    width: usize,
    /// The rows before the covered ones.
    before: usize,
}

impl PayloadRows {
    /// The layout of a payload with this many values. `None` if it has neither number of rows. `None` as well if the width is unknown and
    /// both numbers are possible: no value is better than that of another token.
    fn layout(self, values: usize) -> Option<PayloadLayout> {
        let width_of = |rows: usize| match (rows, self.width) {
            (0, _) => (values == 0).then_some(0),
            (_, Some(width)) => (width > 0 && rows.checked_mul(width) == Some(values)).then_some(width),
            (_, None) => (values > 0 && values.is_multiple_of(rows)).then(|| values / rows),
        };
        let before = self.all - self.covered;
        match (width_of(self.covered), width_of(self.all)) {
            (Some(_), Some(_)) if before > 0 => None,
            (Some(width), _) => Some(PayloadLayout { width, before: 0 }),
            (None, width) => Some(PayloadLayout { width: width?, before }),
        }
    }
}

impl ColumnSource {
    /// The column of a turn with this payload, the JSON text of the member; `None` if it covers no token.
    ///
    /// # Errors
    /// When the payload cannot be read, or does not have one row for each token that it should cover.
    pub fn read(&self, payload: &str, turn: TurnTokens) -> Result<Option<Column>, ColumnFault> {
        let tokens = self.alignment.tokens(turn.prompt, turn.sampled, turn.start).ok_or(ColumnFault::Unaligned)?;
        let covered = usize::try_from(tokens.end - tokens.start).map_err(|_| ColumnFault::Length)?;
        let experts = turn.experts.filter(|_| self.values == Values::Experts);
        let number = experts.map_or(self.number, ExpertShape::number);
        let (shape, data) = match self.encoding {
            Encoding::Lists => self.read_lists(payload, covered)?,
            Encoding::Base64(wire) => {
                let all = match self.alignment {
                    Alignment::Sampled => covered,
                    Alignment::Processed { .. } => (turn.prompt.unwrap_or(0) + turn.sampled).saturating_sub(1),
                };
                let width = experts.map(ExpertShape::values).or(turn.earlier_values);
                let width = width.map(usize::try_from).transpose().map_err(|_| ColumnFault::Length)?;
                self.read_base64(payload, wire, PayloadRows { covered, all: all.max(covered), width }, experts)?
            }
        };
        Ok((covered > 0).then(|| Column { name: self.name.into(), number, tokens, shape, data: data.into() }))
    }

    fn read_lists(&self, payload: &str, rows: usize) -> Result<(Shape, Vec<u8>), ColumnFault> {
        let mut lists = Lists { cursor: Cursor::new(payload.as_bytes()), number: self.number, values: Vec::new() };
        let counts = lists.read(self.values == Values::One).ok_or(ColumnFault::Encoding)?;
        if counts.len() != rows {
            return Err(ColumnFault::Length);
        }
        let values = lists.values;
        match self.values {
            Values::One => Ok((Shape::Fixed(Box::default()), values)),
            Values::Fixed | Values::Experts => {
                let width = counts.first().copied().unwrap_or_default();
                if counts.iter().any(|count| *count != width) || (width == 0 && rows > 0) {
                    return Err(ColumnFault::Length);
                }
                Ok((Shape::Fixed([width].into()), values))
            }
            Values::Ragged => {
                let counts = counts.iter().flat_map(|count| count.to_le_bytes());
                Ok((Shape::Ragged, counts.chain(values).collect()))
            }
        }
    }

    fn read_base64(
        &self,
        payload: &str,
        wire: NumberType,
        rows: PayloadRows,
        experts: Option<ExpertShape>,
    ) -> Result<(Shape, Vec<u8>), ColumnFault> {
        let text: &str = serde_json::from_str(payload).map_err(|_| ColumnFault::Encoding)?;
        let mut bytes = base64_simd::STANDARD.decode_to_vec(text).map_err(|_| ColumnFault::Encoding)?;
        if !bytes.len().is_multiple_of(wire.size()) {
            return Err(ColumnFault::Length);
        }
        let PayloadLayout { width, before } = rows.layout(bytes.len() / wire.size()).ok_or(ColumnFault::Length)?;
        bytes.drain(..before * width * wire.size());
        let rows = rows.covered;
        if self.values == Values::One && width > 1 {
            return Err(ColumnFault::Length);
        }
        let width = u32::try_from(width).map_err(|_| ColumnFault::Length)?;
        let (shape, number): (Box<[u32]>, _) = match (self.values, experts) {
            (Values::One, _) => (Box::default(), self.number),
            (Values::Experts, Some(experts)) => ([experts.layers, experts.per_token].into(), experts.number()),
            (Values::Fixed | Values::Experts, _) => ([width].into(), self.number),
            (Values::Ragged, _) => return Err(ColumnFault::Encoding),
        };
        // the experts of a token in a layer differ, so that a layer with one expert alone can have only zeros
        let is_one = experts.is_some_and(|experts| experts.per_token == 1);
        if self.values == Values::Experts && rows > 0 && !is_one && bytes.iter().all(|byte| *byte == 0) {
            return Err(ColumnFault::AllZero);
        }
        let limit = experts.map(|experts| experts.experts);
        let values = if wire == number { bytes } else { converted(&bytes, wire, number, limit)? };
        Ok((Shape::Fixed(shape), values))
    }
}

/// Integers of the type `wire` in the type `number`, all below `limit`.
fn converted(bytes: &[u8], wire: NumberType, number: NumberType, limit: Option<u32>) -> Result<Vec<u8>, ColumnFault> {
    let mut values = Vec::with_capacity(bytes.len() / wire.size() * number.size());
    if wire == NumberType::I32 && number == NumberType::U8 {
        // routed experts, whose payloads have megabytes
        let limit = limit.unwrap_or(0x100).min(0x100);
        for value in bytes.as_chunks::<4>().0 {
            let value = u32::from_le_bytes(*value);
            values.push(u8::try_from(value).ok().filter(|_| value < limit).ok_or(ColumnFault::Encoding)?);
        }
        return Ok(values);
    }
    for value in bytes.chunks_exact(wire.size()) {
        let integer = wire.integer(value).ok_or(ColumnFault::Encoding)?;
        let is_below = limit.is_none_or(|limit| integer < i128::from(limit));
        number.push_integer(integer, &mut values).filter(|()| is_below).ok_or(ColumnFault::Encoding)?;
    }
    Ok(values)
}

/// A reader of lists of numbers. It writes each value as it is read: a list may have millions.
struct Lists<'a> {
    cursor: Cursor<'a>,
    number: NumberType,
    values: Vec<u8>,
}

impl Lists<'_> {
    /// Reads the items up to the end of the text. Returns the number of values of each.
    fn read(&mut self, is_flat: bool) -> Option<Vec<u32>> {
        let mut counts = Vec::new();
        self.items(|lists| {
            counts.push(if is_flat {
                lists.value()?;
                1
            } else {
                lists.items(Self::value)?
            });
            Some(())
        })?;
        self.cursor.end().ok()?;
        Some(counts)
    }

    /// Reads a list with `item`. Returns the number of its items.
    fn items(&mut self, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<u32> {
        self.cursor.expect(b'[').ok()?;
        let mut count = 0_u32;
        if self.cursor.take(b']') {
            return Some(count);
        }
        loop {
            item(self)?;
            count = count.checked_add(1)?;
            if !self.cursor.take(b',') {
                self.cursor.expect(b']').ok()?;
                return Some(count);
            }
        }
    }

    fn value(&mut self) -> Option<()> {
        let text = self.cursor.number().ok()?;
        self.number.push(text, &mut self.values)
    }
}

impl NumberType {
    fn is_signed(self) -> bool {
        matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64)
    }

    fn is_integer(self) -> bool {
        self.is_signed() || matches!(self, Self::U8 | Self::U16 | Self::U32 | Self::U64)
    }

    /// The value of an integer type; `None` for another type.
    fn integer(self, bytes: &[u8]) -> Option<i128> {
        let is_negative = self.is_signed() && bytes.last()? >> 7 == 1;
        let mut wide = [if is_negative { u8::MAX } else { 0 }; 16];
        wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
        self.is_integer().then_some(i128::from_le_bytes(wide))
    }

    /// Appends an integer. `None` if the type cannot hold it.
    fn push_integer(self, integer: i128, values: &mut Vec<u8>) -> Option<()> {
        let bytes = &integer.to_le_bytes()[..self.size()];
        (self.integer(bytes)? == integer).then(|| values.extend_from_slice(bytes))
    }

    /// Appends the number of this JSON text. `None` if the type cannot hold it. Half floats are not in JSON.
    fn push(self, text: &str, values: &mut Vec<u8>) -> Option<()> {
        match self {
            Self::F32 => values.extend(text.parse::<f32>().ok().filter(|value| value.is_finite())?.to_le_bytes()),
            Self::F64 => values.extend(text.parse::<f64>().ok().filter(|value| value.is_finite())?.to_le_bytes()),
            _ => self.push_integer(text.parse().ok()?, values)?,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::columns::{COLUMNS, ROUTED_EXPERTS_AT, SAMPLING_MASK_AT};

    fn mask() -> &'static ColumnSource {
        COLUMNS.iter().find(|source| source.name == "sampling_mask").unwrap()
    }

    /// Routed experts as SGLang sends them: the base64 of an int32 array `[T - 1 - start, layers, k]`.
    const EXPERTS: ColumnSource = COLUMNS[ROUTED_EXPERTS_AT];

    /// Hidden states as lists of numbers.
    const STATES: ColumnSource =
        ColumnSource { number: NumberType::F32, values: Values::Fixed, alignment: Alignment::Sampled, ..MASK };
    const MASK: ColumnSource = COLUMNS[SAMPLING_MASK_AT];

    fn tokens(prompt: Option<usize>, sampled: usize, start: Option<usize>) -> TurnTokens {
        TurnTokens { prompt, sampled, start, ..TurnTokens::default() }
    }

    fn payload(numbers: &[i32]) -> String {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        format!("\"{}\"", base64_simd::STANDARD.encode_to_string(bytes))
    }

    fn values(column: &Column) -> Vec<Vec<u16>> {
        let value = |bytes: &[u8]| u16::from_le_bytes(bytes.try_into().unwrap());
        column.rows().unwrap().iter().map(|row| row.chunks(2).map(value).collect()).collect()
    }

    #[test]
    fn mask_is_a_ragged_column_of_the_sampled_tokens() {
        let column = mask().read("[[5, 9],[],[ 7 ]]", tokens(None, 3, None)).unwrap().unwrap();
        assert_eq!((column.tokens.clone(), &column.shape), (0..3, &Shape::Ragged));
        let ids = |row: &[u8]| row.chunks(4).map(|id| u32::from_le_bytes(id.try_into().unwrap())).collect::<Vec<_>>();
        let rows: Vec<Vec<u32>> = column.rows().unwrap().into_iter().map(ids).collect();
        assert_eq!(rows, [vec![5, 9], vec![], vec![7]]);
        assert_eq!(mask().read("[]", tokens(None, 0, None)), Ok(None));
    }

    #[test]
    fn payload_with_another_number_of_rows_or_other_values_is_not_a_column() {
        for (payload, fault) in [
            ("[[5]]", ColumnFault::Length),
            ("[[5],[6],[7]]", ColumnFault::Length),
            ("[[5],null]", ColumnFault::Encoding),
            ("[[5],6]", ColumnFault::Encoding),
            ("[[5],[-1]]", ColumnFault::Encoding),
            ("[[5],[4294967296]]", ColumnFault::Encoding),
            ("[[5],[0.5]]", ColumnFault::Encoding),
            ("[[5],[NaN]]", ColumnFault::Encoding),
            ("[[5],[6]", ColumnFault::Encoding),
            ("[[5],[6]] 7", ColumnFault::Encoding),
            ("[[5],[6,]]", ColumnFault::Encoding),
            ("\"AAA=\"", ColumnFault::Encoding),
            ("{}", ColumnFault::Encoding),
        ] {
            assert_eq!(mask().read(payload, tokens(Some(9), 2, None)), Err(fault), "{payload}");
        }
    }

    #[test]
    fn lists_of_one_length_are_a_fixed_shape() {
        let column = STATES.read("[[0.5,-1],[1e3,2]]", tokens(None, 2, None)).unwrap().unwrap();
        assert_eq!(column.shape, Shape::Fixed([2].into()));
        let numbers: Vec<f32> = column.data.chunks(4).map(|n| f32::from_le_bytes(n.try_into().unwrap())).collect();
        assert_eq!(numbers, [0.5, -1.0, 1e3, 2.0]);
        assert_eq!(STATES.read("[[0.5,-1],[1]]", tokens(None, 2, None)), Err(ColumnFault::Length));
        assert_eq!(
            STATES.read("[[1e39],[1]]", tokens(None, 2, None)),
            Err(ColumnFault::Encoding),
            "too large for float32"
        );
        let single = ColumnSource { values: Values::One, ..STATES };
        let column = single.read("[0.5,2]", tokens(None, 2, None)).unwrap().unwrap();
        assert_eq!((column.shape, column.data.len()), (Shape::Fixed([].into()), 8));
        assert_eq!(single.read("[[0.5],2]", tokens(None, 2, None)), Err(ColumnFault::Encoding));
    }

    /// Prompt 4, sampled 3: 6 processed tokens, of which `start` are left out.
    #[test]
    fn processed_tokens_begin_at_the_start_and_lack_the_last_one() {
        for (start, covered) in [(0, -4..2), (2, -2..2), (4, 0..2)] {
            let rows = usize::try_from(covered.end - covered.start).unwrap();
            let numbers: Vec<i32> = (0..i32::try_from(rows * 6).unwrap()).collect();
            let turn = TurnTokens { earlier_values: Some(6), ..tokens(Some(4), 3, Some(start)) };
            let column = EXPERTS.read(&payload(&numbers), turn).unwrap().unwrap();
            assert_eq!((column.tokens.clone(), &column.shape), (covered, &Shape::Fixed([6].into())));
            let flat: Vec<i32> = values(&column).concat().into_iter().map(i32::from).collect();
            assert_eq!(flat, numbers);
        }
        assert_eq!(
            EXPERTS.read("\"\"", tokens(Some(4), 1, Some(4))),
            Ok(None),
            "one sampled token, whose row the next turn has"
        );
        let prompt_only = EXPERTS.read(&payload(&[1, 2, 3]), tokens(Some(4), 0, Some(0))).unwrap().unwrap();
        assert_eq!((prompt_only.tokens.clone(), values(&prompt_only)), (-4..-1, vec![vec![1], vec![2], vec![3]]));
    }

    #[test]
    fn payload_of_processed_tokens_that_does_not_fit_is_not_a_column() {
        let read = |numbers: &[i32], prompt, start| EXPERTS.read(&payload(numbers), tokens(prompt, 3, Some(start)));
        assert_eq!(read(&[0; 13], Some(4), 0), Err(ColumnFault::Length));
        assert_eq!(read(&[], Some(4), 0), Err(ColumnFault::Length));
        assert_eq!(read(&[0; 12], None, 0), Err(ColumnFault::Unaligned));
        assert_eq!(EXPERTS.read(&payload(&[0; 12]), tokens(Some(4), 3, None)), Err(ColumnFault::Unaligned));
        assert_eq!(read(&[0; 12], Some(4), 5), Err(ColumnFault::Unaligned), "a start after the prompt");
        assert_eq!(read(&[-1; 6], Some(4), 0), Err(ColumnFault::Encoding), "not an expert");
        assert_eq!(read(&[1 << 16; 6], Some(4), 0), Err(ColumnFault::Encoding));
        assert_eq!(EXPERTS.read("\"AAA\"", tokens(Some(4), 3, Some(0))), Err(ColumnFault::Encoding));
        assert_eq!(EXPERTS.read("\"AAA=\"", tokens(Some(4), 3, Some(0))), Err(ColumnFault::Length), "half of a number");
        assert_eq!(EXPERTS.read("[[1]]", tokens(Some(4), 3, Some(0))), Err(ColumnFault::Encoding));
    }

    /// Prompt 9 and 8 sampled tokens: 16 rows of 6 values, which are also 8 rows of 12.
    #[test]
    fn payload_of_an_engine_that_ignores_the_start_lacks_its_first_rows() {
        let numbers: Vec<i32> = (0..16 * 6).map(|value| 1 + value % 250).collect();
        let turn = tokens(Some(9), 8, Some(8));
        assert_eq!(EXPERTS.read(&payload(&numbers), turn), Err(ColumnFault::Length), "6 or 12 values for a token");
        let column = EXPERTS.read(&payload(&numbers), TurnTokens { earlier_values: Some(6), ..turn }).unwrap().unwrap();
        let expected: Vec<Vec<u16>> =
            numbers[8 * 6..].chunks(6).map(|row| row.iter().map(|v| *v as u16).collect()).collect();
        assert_eq!((column.tokens.clone(), values(&column)), (-1..7, expected));
        let experts = Some(ExpertShape { layers: 3, per_token: 2, experts: 256 });
        let column = EXPERTS.read(&payload(&numbers), TurnTokens { experts, ..turn }).unwrap().unwrap();
        assert_eq!((column.shape, column.data.len(), column.data[0]), (Shape::Fixed([3, 2].into()), 48, 49));
        // no row is covered, and the engine sends all
        let turn = TurnTokens { earlier_values: Some(6), ..tokens(Some(16), 1, Some(16)) };
        assert_eq!(EXPERTS.read(&payload(&numbers), turn), Ok(None));
    }

    #[test]
    fn experts_have_the_shape_of_the_model_and_the_smallest_type() {
        let read = |numbers: &[i32], layers, per_token, experts| {
            let experts = Some(ExpertShape { layers, per_token, experts });
            EXPERTS.read(&payload(numbers), TurnTokens { experts, ..tokens(Some(2), 2, Some(1)) })
        };
        let column = read(&[0, 3, 7, 1, 255, 2, 4, 0], 2, 2, 256).unwrap().unwrap();
        assert_eq!((column.number, &column.shape), (NumberType::U8, &Shape::Fixed([2, 2].into())));
        assert_eq!((column.tokens, &column.data[..]), (-1..1, &[0, 3, 7, 1, 255, 2, 4, 0][..]));
        let wide = read(&[0, 3, 7, 1, 256, 2, 4, 0], 1, 4, 257).unwrap().unwrap();
        assert_eq!((wide.number, wide.shape), (NumberType::U16, Shape::Fixed([1, 4].into())));
        assert_eq!(wide.data[8..10], [0, 1]);
        assert_eq!(ExpertShape { layers: 1, per_token: 1, experts: 1 << 17 }.number(), NumberType::U32);
        assert_eq!(read(&[0, 3, 7, 1, 4, 2, 4, 0], 2, 1, 256), Err(ColumnFault::Length), "another shape");
        for outside in [8, -1, 256] {
            assert_eq!(read(&[0, 3, 7, outside], 2, 1, 8), Err(ColumnFault::Encoding), "{outside}");
            assert_eq!(read(&[0, 200, 7, outside], 2, 1, 257).is_err(), outside == -1, "{outside}");
        }
    }

    #[test]
    fn experts_that_are_all_zero_are_not_reported_by_the_kernel() {
        let read = |per_token| {
            let experts = Some(ExpertShape { layers: 2, per_token, experts: 8 });
            EXPERTS
                .read(&payload(&vec![0; 4 * per_token as usize]), TurnTokens { experts, ..tokens(Some(2), 2, Some(1)) })
        };
        assert_eq!(read(2), Err(ColumnFault::AllZero));
        assert!(read(1).is_ok_and(|column| column.is_some()), "one expert of each layer may be the first");
        assert_eq!(EXPERTS.read(&payload(&[0; 12]), tokens(Some(4), 3, Some(0))), Err(ColumnFault::AllZero));
    }

    proptest! {
        #[test]
        fn reading_arbitrary_text_does_not_panic(
            text in "[\\[\\]0-9,.\"eE-]{0,40}", sampled in 0_usize..4, prompt in prop::option::of(0_usize..4), start in prop::option::of(0_usize..5),
            experts in prop::option::of((0..3_u32, 0..3_u32, 0..300_u32)), earlier_values in prop::option::of(0..4_u64),
        ) {
            let experts = experts.map(|(layers, per_token, experts)| ExpertShape { layers, per_token, experts });
            for source in [MASK, STATES, EXPERTS] {
                let turn = TurnTokens { prompt, sampled, start, experts, earlier_values };
                if let Ok(Some(column)) = source.read(&text, turn) {
                    prop_assert!(column.rows().is_some_and(|rows| !rows.is_empty()));
                }
            }
        }

        /// For every length and start, also at an engine that ignores the start: each value belongs to its token or is absent.
        #[test]
        fn no_token_gets_the_experts_of_another(
            prompt in 1_usize..20, sampled in 0_usize..20, start in 0_usize..20, width in 1_usize..13, ignores in any::<bool>(),
            is_known in any::<bool>(),
        ) {
            let start = start.min(prompt);
            let all = prompt + sampled - 1;
            // each value names its token
            let first = if ignores { 0 } else { start.min(all) };
            let numbers: Vec<i32> = (first..all).flat_map(|token| vec![i32::try_from(token + 1).unwrap(); width]).collect();
            let earlier_values = is_known.then_some(width as u64);
            let turn = TurnTokens { earlier_values, ..tokens(Some(prompt), sampled, Some(start)) };
            let read = EXPERTS.read(&payload(&numbers), turn);
            let covered = all.saturating_sub(start);
            match read {
                Ok(Some(column)) => {
                    let expected: Vec<Vec<u16>> = (start..all).map(|token| vec![u16::try_from(token + 1).unwrap(); width]).collect();
                    prop_assert_eq!(values(&column), expected);
                }
                Ok(None) => prop_assert_eq!(covered, 0),
                Err(fault) => {
                    prop_assert_eq!(fault, ColumnFault::Length);
                    let is_ambiguous = start > 0 && numbers.len().is_multiple_of(covered) && numbers.len().is_multiple_of(all);
                    prop_assert!(!is_known && is_ambiguous, "refused without need");
                }
            }
        }

        #[test]
        fn integers_keep_their_value_or_are_refused(integer in any::<i64>(), at in 0_usize..8) {
            let number = NumberType::ALL[at];
            let mut bytes = Vec::new();
            if number.push_integer(integer.into(), &mut bytes).is_some() {
                prop_assert_eq!((number.integer(&bytes), bytes.len()), (Some(integer.into()), number.size()));
            } else {
                prop_assert!(bytes.is_empty() && number.size() < 8 || integer < 0);
            }
        }
    }

    #[test]
    fn table_can_be_read() {
        for of in [|source: &ColumnSource| source.name, |source: &ColumnSource| source.member] {
            let names: BTreeSet<&str> = COLUMNS.iter().map(of).collect();
            assert_eq!(names.len(), COLUMNS.len(), "{names:?}: a name or a member occurs twice");
        }
        assert_eq!(
            [SAMPLING_MASK_AT, ROUTED_EXPERTS_AT].map(|at| COLUMNS[at].name),
            ["sampling_mask", "routed_experts"]
        );
        for source in COLUMNS {
            let is_half = matches!(source.number, NumberType::F16 | NumberType::Bf16);
            match source.encoding {
                Encoding::Lists => assert!(!is_half, "{}: half floats are not in JSON", source.name),
                Encoding::Base64(wire) => {
                    assert_ne!(source.values, Values::Ragged, "{}: base64 has no counts", source.name);
                    let is_readable = wire == source.number || wire.is_integer() && source.number.is_integer();
                    assert!(is_readable, "{}: floats are not converted", source.name);
                }
            }
        }
    }
}
