// SPDX-License-Identifier: Apache-2.0
//! The routed experts of a row, for the formats of trainers that replay the routing.

use std::ops::Range;

use super::safetensors::{Run, Sink, unsigned};
use super::text::Text;
use super::{Lack, PathColumn, RowCounts};
use crate::columns::{COLUMNS, NumberType, ROUTED_EXPERTS_AT};
use crate::session::{Path, Row};

/// The routed experts of each token of a path but the last, which no engine has processed yet.
#[derive(Debug)]
pub(super) struct RoutedExperts<'a> {
    /// Layers, and experts per token.
    pub(super) shape: [usize; 2],
    number: NumberType,
    /// The values of each token, token after token.
    rows: Vec<&'a [u8]>,
}

impl<'a> RoutedExperts<'a> {
    /// Those of a path.
    ///
    /// # Errors
    /// [`Lack`], unless every token but the last has them, all with one shape `[layers, experts per token]`.
    pub(super) fn of(path: &'a Path) -> Result<Self, Lack> {
        let mut columns = PathColumn::named(path, name()).into_iter();
        let column = columns.next().ok_or(Lack::RoutedExperts)?;
        let [layers, per_token] = *column.dimensions().unwrap_or_default() else { return Err(Lack::ShapeOfExperts) };
        if columns.next().is_some() {
            return Err(Lack::ShapeOfExperts);
        }
        let size = |number| usize::try_from(number).map_err(|_| Lack::ShapeOfExperts);
        let shape = [size(layers)?, size(per_token)?];
        if !column.covers(path.len().saturating_sub(1)) {
            return Err(Lack::PartOfExperts);
        }
        Ok(Self { shape, number: column.number, rows: column.into_rows() })
    }

    /// The shape of the experts of all rows; `None` unless every row has them, with one shape. If a row has experts, the rows without are
    /// counted.
    pub(super) fn common_shape(rows: &[Row], tally: &mut RowCounts) -> Option<[usize; 2]> {
        if !are_recorded(rows) {
            return None;
        }
        let shapes = rows.iter().map(|row| RoutedExperts::of(&row.path()).map(|experts| experts.shape));
        let mut shapes: Vec<Result<[usize; 2], Lack>> = shapes.collect();
        let first = shapes.iter().find_map(|shape| shape.ok());
        for shape in &mut shapes {
            if shape.is_ok_and(|shape| Some(shape) != first) {
                *shape = Err(Lack::ShapeOfExperts);
            }
        }
        tally.add_incomplete(shapes.iter().filter_map(|shape| shape.err()));
        first.filter(|_| shapes.iter().all(Result::is_ok))
    }

    /// If a row has experts, counts the rows without.
    pub(super) fn count_incomplete(rows: &[Row], tally: &mut RowCounts) {
        if are_recorded(rows) {
            tally.add_incomplete(rows.iter().filter_map(|row| RoutedExperts::of(&row.path()).err()));
        }
    }

    /// Writes the values of these tokens to a tensor of int32.
    pub(super) fn fill(&self, tokens: Range<usize>, sink: Sink<'_>) {
        for row in self.rows.get(tokens).unwrap_or_default() {
            sink(Run::Unsigned(row, self.number.size()));
        }
    }

    /// The values of these tokens as little-endian int32.
    pub(super) fn int32(&self, tokens: Range<usize>) -> Vec<u8> {
        let rows = self.rows.get(tokens).unwrap_or_default();
        rows.iter().flat_map(|row| self.integers(row)).flat_map(u32::to_le_bytes).collect()
    }

    /// The values of all tokens of the path, zeros for the last one, and the NumPy name of their type: uint8 if one byte holds each expert,
    /// otherwise int32 in little-endian order.
    pub(super) fn with_last(&self) -> (Vec<u8>, &'static str) {
        let (mut bytes, name) = match self.number.size() {
            1 => (self.rows.concat(), "uint8"),
            _ => (self.int32(0..self.rows.len()), "int32"),
        };
        bytes.resize(bytes.len() / self.rows.len().max(1) * (self.rows.len() + 1), 0);
        (bytes, name)
    }

    /// Writes nested lists: the layers of each token, and the experts of each layer.
    pub(super) fn lists(&self, text: &mut Text) {
        text.array(|tokens| self.rows.iter().for_each(|row| self.layers(row, tokens)));
    }

    /// The same for these tokens. The last token of the path has `missing` for each expert.
    pub(super) fn lists_with_last(&self, tokens: Range<usize>, missing: &str, text: &mut Text) {
        let [layers, per_token] = self.shape;
        text.array(|list| {
            for token in tokens {
                match self.rows.get(token) {
                    Some(row) => self.layers(row, list),
                    None => {
                        list.array(|list| (0..layers).for_each(|_| list.array(|list| list.repeat(missing, per_token))))
                    }
                }
            }
        });
    }

    fn layers(&self, row: &'a [u8], list: &mut Text) {
        let [_, per_token] = self.shape;
        let integers: Vec<u32> = self.integers(row).collect();
        list.array(|layers| {
            integers.chunks(per_token.max(1)).for_each(|experts| layers.array(|list| list.ids(experts)));
        });
    }

    fn integers(&self, row: &'a [u8]) -> impl Iterator<Item = u32> + use<'a> {
        row.chunks_exact(self.number.size()).map(unsigned)
    }
}

fn name() -> &'static str {
    COLUMNS[ROUTED_EXPERTS_AT].name
}

/// Whether a turn of a session of these rows has routed experts. Only then paths are joined.
fn are_recorded(rows: &[Row]) -> bool {
    let mut sessions = rows.chunk_by(Row::shares_turns).flat_map(|session| session[0].turns());
    sessions.any(|turn| turn.about.columns.iter().any(|column| *column.name == *name()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::columns::{Column, Shape};
    use crate::export::fixture::{path, turn};
    use crate::session::Turn;

    fn experts(tokens: Range<i32>, dimensions: &[u32], number: NumberType, data: &[u8]) -> Column {
        let shape = Shape::Fixed(dimensions.into());
        Column { name: "routed_experts".into(), number, tokens, shape, data: data.to_vec().into() }
    }

    /// A path of two turns, the first with prompt 2 and response 1, the second with prompt 1 and response 1.
    fn path_with(first: Vec<Column>, second: Vec<Column>) -> Path {
        let mut turns = [turn(0, None, &[1, 2], &[3]), turn(1, Some(0), &[4], &[5])];
        (turns[0].about.columns, turns[1].about.columns) = (first, second);
        let turns: Vec<Arc<Turn>> = turns.into_iter().map(Arc::new).collect();
        path(&turns.iter().collect::<Vec<_>>())
    }

    #[test]
    fn experts_are_those_of_all_tokens_but_the_last() {
        let first = experts(-2..0, &[1, 2], NumberType::U16, &[0, 0, 1, 1, 2, 0, 3, 0]);
        let second = experts(-2..0, &[1, 2], NumberType::U16, &[4, 0, 5, 0, 6, 0, 7, 0]);
        let path = path_with(vec![first.clone()], vec![second.clone()]);
        let found = RoutedExperts::of(&path).unwrap();
        let mut text = Text::default();
        found.lists(&mut text);
        assert_eq!(String::from_utf8(text.into_bytes()).unwrap(), "[[[0,257]],[[2,3]],[[4,5]],[[6,7]]]");
        let mut text = Text::default();
        found.lists_with_last(3..5, "-1", &mut text);
        assert_eq!(String::from_utf8(text.into_bytes()).unwrap(), "[[[6,7]],[[-1,-1]]]");
        let (bytes, number) = found.with_last();
        assert_eq!((bytes.len(), number, &bytes[4..12]), (5 * 2 * 4, "int32", &[1, 1, 0, 0, 2, 0, 0, 0][..]));
        assert!(bytes[32..].iter().all(|byte| *byte == 0), "the last token is unknown");
        assert_eq!(found.int32(1..2), [2, 0, 0, 0, 3, 0, 0, 0]);
        let lack = |first, second| RoutedExperts::of(&path_with(first, second)).unwrap_err();
        assert_eq!(lack(vec![first.clone()], vec![]), Lack::PartOfExperts);
        assert_eq!(lack(vec![], vec![second.clone()]), Lack::PartOfExperts);
        assert_eq!(lack(vec![], vec![]), Lack::RoutedExperts);
        let flat = experts(-2..0, &[2], NumberType::U16, &[0; 8]);
        assert_eq!(lack(vec![flat.clone()], vec![flat]), Lack::ShapeOfExperts, "the layers are unknown");
        let other = experts(-2..0, &[2, 1], NumberType::U16, &[0; 8]);
        assert_eq!(lack(vec![first], vec![other]), Lack::ShapeOfExperts, "two shapes");
    }
}
