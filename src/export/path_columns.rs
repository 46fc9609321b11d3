// SPDX-License-Identifier: Apache-2.0
//! The token columns of a path: those of its turns, joined along its tokens.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::columns::{Column, NumberType, Shape};
use crate::session::Path;

/// A token column of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathColumn<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// The type of its values.
    pub(crate) number: NumberType,
    /// The values of a token.
    pub(crate) shape: &'a Shape,
    /// The tokens of the path that have values: ascending ranges with gaps between them.
    pub(crate) tokens: Vec<Range<usize>>,
    /// The values of each of these tokens.
    rows: Vec<&'a [u8]>,
}

/// A turn's values of one token.
type Value<'a> = (NumberType, &'a Shape, &'a [u8]);

impl<'a> PathColumn<'a> {
    /// The columns of a path, ordered by name. If turns give different values for one token, the earliest turn counts: the engine
    /// computed the later ones again, possibly with other weights. A name occurs twice if its type or its shape changes along the path.
    pub(crate) fn all(path: &'a Path) -> Vec<Self> {
        Self::selected(path, |_| true)
    }

    /// The columns of this name, as in [`Self::all`].
    pub(crate) fn named(path: &'a Path, name: &str) -> Vec<Self> {
        Self::selected(path, |other| other == name)
    }

    /// Whether the path has this column of processed tokens, in one type and shape, for each token but the last, which no engine has
    /// processed yet.
    pub(crate) fn is_whole(path: &Path, name: &str) -> bool {
        let columns = PathColumn::named(path, name);
        let processed = path.len().saturating_sub(1);
        processed == 0 || matches!(&columns[..], [column] if column.covers(processed))
    }

    /// Whether it has values of the first `count` tokens of the path, and of no others.
    pub(crate) fn covers(&self, count: usize) -> bool {
        matches!(&self.tokens[..], [tokens] if *tokens == (0..count))
    }

    fn selected(path: &'a Path, is_selected: impl Fn(&str) -> bool) -> Vec<Self> {
        let mut by_name: BTreeMap<&str, Vec<Option<Value<'a>>>> = BTreeMap::new();
        let length = path.len();
        let mut end = 0;
        for step in &path.steps {
            let start = end + step.turn.prompt.len();
            end = start + step.turn.response.len();
            for column in step.turn.about.columns.iter().chain(step.scores.iter().flat_map(|scores| &**scores)) {
                if !is_selected(&column.name) {
                    continue;
                }
                let Column { name, number, tokens, shape, .. } = column;
                let Some(rows) = column.rows() else { continue };
                let values = by_name.entry(name).or_insert_with(|| vec![None; length]);
                for (token, row) in tokens.clone().zip(rows) {
                    let position = usize::try_from(token.unsigned_abs()).ok().and_then(|distance| {
                        if token < 0 { start.checked_sub(distance) } else { start.checked_add(distance) }
                    });
                    // a turn has no values of tokens after its own
                    let value = position.filter(|position| *position < end).and_then(|at| values.get_mut(at));
                    if let Some(value) = value {
                        value.get_or_insert((*number, shape, row));
                    }
                }
            }
        }
        by_name.into_iter().flat_map(|(name, values)| Self::of_name(name, &values)).collect()
    }

    /// The columns of one name: one for each type and shape.
    fn of_name(name: &'a str, values: &[Option<Value<'a>>]) -> Vec<Self> {
        let mut columns: Vec<Self> = Vec::new();
        let known = values.iter().enumerate().filter_map(|(at, value)| Some((at, (*value)?)));
        for (at, (number, shape, row)) in known {
            let known = columns.iter().position(|column| (column.number, column.shape) == (number, shape));
            let index = known.unwrap_or_else(|| {
                columns.push(Self { name, number, shape, tokens: Vec::new(), rows: Vec::new() });
                columns.len() - 1
            });
            let column = &mut columns[index];
            match column.tokens.last_mut().filter(|last| last.end == at) {
                Some(last) => last.end = at + 1,
                None => column.tokens.push(at..at + 1),
            }
            column.rows.push(row);
        }
        columns
    }

    /// The dimensions of the values of a token; `None` if each token has another number of values.
    pub(crate) fn dimensions(&self) -> Option<&'a [u32]> {
        match self.shape {
            Shape::Ragged => None,
            Shape::Fixed(dimensions) => Some(dimensions),
        }
    }

    /// The values, token after token, as in a [`Column`] of this shape.
    pub(crate) fn data(&self) -> Vec<u8> {
        let mut data = Vec::with_capacity(self.bytes());
        if *self.shape == Shape::Ragged {
            for row in &self.rows {
                // a row is a part of a column whose counts have 32 bits
                let count = u32::try_from(row.len() / self.number.size()).unwrap_or(u32::MAX);
                data.extend_from_slice(&count.to_le_bytes());
            }
        }
        self.rows.iter().for_each(|row| data.extend_from_slice(row));
        data
    }

    /// The values of each of [`Self::tokens`].
    pub(crate) fn into_rows(self) -> Vec<&'a [u8]> {
        self.rows
    }

    /// The bytes of [`Self::data`].
    pub(crate) fn bytes(&self) -> usize {
        let counts = if *self.shape == Shape::Ragged { 4 * self.rows.len() } else { 0 };
        counts + self.rows.iter().map(|row| row.len()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::export::fixture::{path, turn};
    use crate::session::Turn;

    fn column(name: &str, tokens: Range<i32>, shape: Shape, data: Vec<u8>) -> Column {
        Column { name: name.into(), number: NumberType::U8, tokens, shape, data: data.into() }
    }

    fn scalars(name: &str, start: i32, values: &[u8]) -> Column {
        let end = start + i32::try_from(values.len()).unwrap();
        column(name, start..end, Shape::Fixed(Box::default()), values.into())
    }

    /// A path of turns with these numbers of prompt tokens, sampled tokens and columns.
    fn path_of(turns: Vec<(usize, usize, Vec<Column>)>) -> Path {
        let turns: Vec<Arc<Turn>> = turns
            .into_iter()
            .enumerate()
            .map(|(id, (prompt, response, columns))| {
                let id = u32::try_from(id).unwrap();
                let mut turn = turn(id, id.checked_sub(1), &vec![1; prompt], &vec![2; response]);
                turn.about.columns = columns;
                Arc::new(turn)
            })
            .collect();
        path(&turns.iter().collect::<Vec<_>>())
    }

    /// Routed experts: the row of the last token of a turn comes with the next turn.
    #[test]
    fn pieces_of_processed_tokens_fit_together() {
        let path =
            path_of(vec![(2, 2, vec![scalars("c", -2, &[1, 2, 3])]), (1, 2, vec![scalars("c", -2, &[4, 5, 6])])]);
        let [column] = &PathColumn::all(&path)[..] else { panic!("one column") };
        assert_eq!((&column.tokens[..], column.data()), (std::slice::from_ref(&(0..6)), vec![1, 2, 3, 4, 5, 6]));
        assert_eq!((path.len(), column.dimensions()), (7, Some(&[][..])), "the last token has no row");
    }

    #[test]
    fn earlier_turn_counts_and_tokens_without_values_are_absent() {
        let mask = |data: &[u8]| column("m", 0..2, Shape::Ragged, data.into());
        let path = path_of(vec![
            (2, 2, vec![scalars("c", 0, &[1, 2]), mask(&[1, 0, 0, 0, 0, 0, 0, 0, 9])]),
            (1, 2, vec![scalars("c", -4, &[7, 7, 7, 7, 5]), mask(&[0, 0, 0, 0, 2, 0, 0, 0, 8, 7])]),
        ]);
        let columns = PathColumn::all(&path);
        let [c, m] = &columns[..] else { panic!("two columns") };
        assert_eq!((c.name, &c.tokens[..], c.data()), ("c", std::slice::from_ref(&(1..6)), vec![7, 1, 2, 7, 5]));
        let counts = [[1, 0, 0, 0], [0; 4], [0; 4], [2, 0, 0, 0]].concat();
        assert_eq!((m.name, m.tokens.clone(), m.data()), ("m", vec![2..4, 5..7], [counts, vec![9, 8, 7]].concat()));
    }

    #[test]
    fn another_shape_is_another_column() {
        let pair = column("c", 0..1, Shape::Fixed([2].into()), vec![3, 4]);
        let path = path_of(vec![(1, 1, vec![scalars("c", 0, &[1])]), (1, 1, vec![pair])]);
        let columns = PathColumn::all(&path);
        let tokens: Vec<_> = columns.iter().map(|column| (column.tokens[0].clone(), column.shape)).collect();
        let [one, two] = [Shape::Fixed([].into()), Shape::Fixed([2].into())];
        assert_eq!(tokens, [(1..2, &one), (3..4, &two)]);
    }

    #[test]
    fn column_whose_data_are_damaged_is_left_out() {
        let damaged = column("c", 0..2, Shape::Ragged, vec![1]);
        assert_eq!(PathColumn::all(&path_of(vec![(1, 2, vec![damaged])])), []);
    }

    fn columns() -> impl Strategy<Value = Vec<Column>> {
        let values = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3), 1..6);
        let column = (prop::sample::select(vec!["a", "b"]), -8..6_i32, values, any::<bool>()).prop_map(
            |(name, start, rows, is_ragged)| {
                let end = start + i32::try_from(rows.len()).unwrap();
                if is_ragged {
                    let counts = rows.iter().flat_map(|row| u32::try_from(row.len()).unwrap().to_le_bytes());
                    let data = counts.chain(rows.iter().flatten().copied()).collect();
                    column(name, start..end, Shape::Ragged, data)
                } else {
                    let first = rows.iter().map(|row| row.first().copied().unwrap_or_default());
                    column(name, start..end, Shape::Fixed(Box::default()), first.collect())
                }
            },
        );
        prop::collection::vec(column, 0..3)
    }

    proptest! {
        #[test]
        fn each_token_has_the_values_of_the_earliest_turn(
            turns in prop::collection::vec((0..3_usize, 0..4_usize, columns()), 1..5),
        ) {
            let path = path_of(turns);
            let mut expected: BTreeMap<(&str, usize), (&Shape, &[u8])> = BTreeMap::new();
            let mut start = 0_i32;
            for step in &path.steps {
                let (prompt, response) = (step.turn.prompt.len() as i32, step.turn.response.len() as i32);
                for column in step.turn.about.columns.iter().chain(step.scores.iter().flat_map(|scores| &**scores)) {
                    for (token, row) in column.tokens.clone().zip(column.rows().unwrap()) {
                        let at = start + prompt + token;
                        if (0..start + prompt + response).contains(&at) {
                            expected.entry((&column.name, at as usize)).or_insert((&column.shape, row));
                        }
                    }
                }
                start += prompt + response;
            }
            let mut found = BTreeMap::new();
            let joined = PathColumn::all(&path);
            for column in &joined {
                prop_assert!(column.tokens.iter().all(|range| range.start < range.end && range.end <= path.len()));
                prop_assert!(column.tokens.is_sorted_by(|one, next| one.end < next.start), "{:?}", column.tokens);
                // the data are read again as those of a column
                let count: usize = column.tokens.iter().map(Range::len).sum();
                let data = column.data();
                prop_assert_eq!(data.len(), column.bytes());
                let whole = super::tests::column(column.name, 0..count as i32, column.shape.clone(), data);
                let rows = whole.rows().expect("the data fit the shape");
                for (at, row) in column.tokens.iter().cloned().flatten().zip(rows) {
                    let again = found.insert((column.name, at), (column.shape.clone(), row.to_vec()));
                    prop_assert!(again.is_none(), "one value for a token");
                }
            }
            let expected: BTreeMap<_, _> =
                expected.into_iter().map(|(at, (shape, row))| (at, (shape.clone(), row.to_vec()))).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
