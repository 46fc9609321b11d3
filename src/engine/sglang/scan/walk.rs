// SPDX-License-Identifier: Apache-2.0
//! Walks the structure of the lists: arrays of rows, rows of triples, arrays of ids. Generic over the readers of numbers.

use super::{Malformed, lex, number};
use crate::json::digits::short_integer;
use crate::logprobs::Rows;
use std::ops::Range;

/// The numbers of a triple. They are valid only if a comma follows at `end`.
pub(super) struct TripleNumbers {
    pub(super) logprob: f32,
    pub(super) id: u32,
    pub(super) end: usize,
}

/// A fast reader for triples in SGLang's usual format.
pub(super) trait TripleReader: Copy {
    /// Reads the triple whose `[` is at `at`; `None` if it is not a triple in this format. Without `IDS` the id may have any length and is
    /// returned as 0. The caller must check the byte after the id,
    /// which it reads anyway.
    fn numbers<const IDS: bool>(self, bytes: &[u8], at: usize) -> Option<TripleNumbers>;
}

/// A fast reader for ids in the usual formats.
pub(super) trait IdReader: Copy {
    /// Reads the ids from `at` on, where an element begins, while they are like `12,` or `12, `. Calls `each` with some of them at a time.
    /// Returns the index where the next element begins.
    fn run(self, bytes: &[u8], at: usize, each: impl FnMut(&[u32])) -> usize;
}

/// Reads ids eight bytes at a time. Has no fast path for triples: the general reader reads every triple.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl TripleReader for Portable {
    #[inline(always)]
    fn numbers<const IDS: bool>(self, _: &[u8], _: usize) -> Option<TripleNumbers> {
        None
    }
}

impl IdReader for Portable {
    #[inline(always)]
    fn run(self, bytes: &[u8], mut at: usize, mut each: impl FnMut(&[u32])) -> usize {
        while let Some((id, length)) = short_integer(bytes, at)
            && bytes.get(at + length) == Some(&b',')
        {
            each(&[id]);
            at += length + 1;
            at += usize::from(bytes.get(at) == Some(&b' '));
        }
        at
    }
}

/// See [`super::rows`].
#[inline(always)]
pub(super) fn rows<const IDS: bool>(
    fast: impl TripleReader,
    bytes: &[u8],
    at: usize,
    out: &mut Rows,
) -> Result<usize, Malformed> {
    let mut row = first(bytes, at);
    while let ArrayStep::Element(at) = row {
        let end = match lex::word(bytes, at, b"null") {
            Some(end) => end,
            None => {
                let mut triple = first(bytes, lex::byte(bytes, at, b'[')?);
                while let ArrayStep::Element(at) = triple {
                    let end = run::<IDS>(fast, bytes, at, |logprob, id| {
                        if IDS {
                            out.push_with_id(logprob, id);
                        } else {
                            out.push(logprob);
                        }
                    })?;
                    triple = next(bytes, end)?;
                }
                triple.end()
            }
        };
        out.end_row();
        row = next(bytes, end)?;
    }
    Ok(row.end())
}

/// See [`super::triples`].
#[inline(always)]
pub(super) fn triples(
    fast: impl TripleReader,
    bytes: &[u8],
    at: usize,
    logprobs: &mut Vec<f32>,
    ids: &mut Vec<u32>,
) -> Result<usize, Malformed> {
    let mut triple = first(bytes, at);
    while let ArrayStep::Element(at) = triple {
        let end = run::<true>(fast, bytes, at, |logprob, id| {
            logprobs.push(logprob);
            ids.push(id);
        })?;
        triple = next(bytes, end)?;
    }
    Ok(triple.end())
}

/// See [`super::cuts`].
pub(super) fn cuts(bytes: &[u8], at: usize, keep: usize, out: &mut Vec<Range<usize>>) -> Result<usize, Malformed> {
    let mut row = first(bytes, at);
    while let ArrayStep::Element(at) = row {
        let end = match lex::word(bytes, at, b"null") {
            Some(end) => end,
            None => cut(bytes, lex::byte(bytes, at, b'[')?, keep, out)?,
        };
        row = next(bytes, end)?;
    }
    Ok(row.end())
}

/// Appends the range after the first `keep` triples of the row whose `[` is just before `at`. Returns the index after the row.
fn cut(bytes: &[u8], at: usize, keep: usize, out: &mut Vec<Range<usize>>) -> Result<usize, Malformed> {
    let (mut read, mut kept) = (0, at);
    let mut step = first(bytes, at);
    while let ArrayStep::Element(at) = step {
        let end = triple::<false>(bytes, at, |_, _| ())?;
        if read < keep {
            kept = end;
        }
        read += 1;
        step = next(bytes, end)?;
    }
    let end = step.end();
    if read > keep {
        out.push(kept..end - 1);
    }
    Ok(end)
}

/// See [`super::ids`].
#[inline(always)]
pub(super) fn ids(
    fast: impl IdReader,
    bytes: &[u8],
    at: usize,
    mut each: impl FnMut(&[u32]),
) -> Result<usize, Malformed> {
    let mut step = first(bytes, at);
    while let ArrayStep::Element(at) = step {
        let at = lex::blank(bytes, fast.run(bytes, at, &mut each));
        let (id, end) = number::integer(bytes, at)?;
        each(&[id]);
        step = next(bytes, end)?;
    }
    Ok(step.end())
}

/// See [`super::numbers`].
pub(super) fn numbers(bytes: &[u8], at: usize, mut each: impl FnMut(f32)) -> Result<usize, Malformed> {
    let mut step = first(bytes, at);
    while let ArrayStep::Element(at) = step {
        let (number, end) = number::nullable(bytes, at)?;
        each(number);
        step = next(bytes, end)?;
    }
    Ok(step.end())
}

/// See [`super::lists`].
pub(super) fn lists(bytes: &[u8], at: usize, out: &mut Rows) -> Result<usize, Malformed> {
    let mut row = first(bytes, at);
    while let ArrayStep::Element(at) = row {
        let end = match lex::byte(bytes, at, b'[') {
            Ok(at) => numbers(bytes, at, |number| out.push(number))?,
            Err(_) => number::nullable(bytes, at)?.1,
        };
        out.end_row();
        row = next(bytes, end)?;
    }
    Ok(row.end())
}

/// The position in an array.
enum ArrayStep {
    /// Before the element at this index.
    Element(usize),
    /// At its end: this is the index after the `]`.
    End(usize),
}

impl ArrayStep {
    #[inline(always)]
    fn end(self) -> usize {
        match self {
            Self::Element(at) | Self::End(at) => at,
        }
    }
}

/// The first step from `at`, the index after an array's `[` or between two of its elements.
#[inline(always)]
fn first(bytes: &[u8], at: usize) -> ArrayStep {
    let opened = at.checked_sub(1).and_then(|before| bytes.get(before)) == Some(&b'[');
    let at = lex::blank(bytes, at);
    match bytes.get(at) {
        Some(b']') => ArrayStep::End(at + 1),
        Some(b',') if !opened => ArrayStep::Element(lex::blank(bytes, at + 1)),
        _ => ArrayStep::Element(at),
    }
}

/// The step after the element that ends at `at`.
#[inline(always)]
fn next(bytes: &[u8], at: usize) -> Result<ArrayStep, Malformed> {
    let at = lex::blank(bytes, at);
    match bytes.get(at) {
        Some(b',') => Ok(ArrayStep::Element(lex::blank(bytes, at + 1))),
        Some(b']') => Ok(ArrayStep::End(at + 1)),
        _ => Err(Malformed { at }),
    }
}

/// Reads the triple at `at` and those that follow while they are in SGLang's usual format. Returns the index after the last one.
#[inline(always)]
fn run<const IDS: bool>(
    fast: impl TripleReader,
    bytes: &[u8],
    mut at: usize,
    mut each: impl FnMut(f32, u32),
) -> Result<usize, Malformed> {
    while let Some(TripleNumbers { logprob, id, end }) = fast.numbers::<IDS>(bytes, at) {
        if bytes.get(end..).and_then(|rest| rest.first_chunk()) == Some(b",null],[") {
            each(logprob, id);
            at = end + 7;
        } else if bytes.get(end) == Some(&b',') {
            let end = rest(bytes, end)?;
            each(logprob, id);
            return Ok(end);
        } else {
            break;
        }
    }
    triple::<IDS>(bytes, at, each)
}

/// Reads the triple at `at` in any JSON format. Returns the index after it. Without `IDS` any number is accepted as an id.
#[inline(always)]
fn triple<const IDS: bool>(bytes: &[u8], at: usize, each: impl FnOnce(f32, u32)) -> Result<usize, Malformed> {
    let at = lex::blank(bytes, lex::byte(bytes, at, b'[')?);
    let (logprob, at) = number::nullable(bytes, at)?;
    let at = lex::comma(bytes, at)?;
    let (id, at) = match number::integer(bytes, at) {
        Err(_) if !IDS => (0, number::float(bytes, at)?.1),
        id => id?,
    };
    let end = rest(bytes, at)?;
    each(logprob, id);
    Ok(end)
}

/// Returns the index after the triple whose id ends at `at`.
#[inline(always)]
fn rest(bytes: &[u8], at: usize) -> Result<usize, Malformed> {
    let at = lex::text(bytes, lex::comma(bytes, at)?)?;
    lex::byte(bytes, lex::blank(bytes, at), b']')
}
