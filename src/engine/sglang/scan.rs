// SPDX-License-Identifier: Apache-2.0
//! Parses SGLang's logprob lists from the bytes of a JSON reply, without building a document.
//!
//! A reply with 20 logprobs for each of 512 tokens is 360 KB of numbers, and parsing them is most of the work per reply. So numbers in
//! SGLang's usual format are parsed with vector instructions, and other input (spaces, exponents, the last bytes of the buffer) by the
//! scalar code of the submodules. Both accept what `serde_json` accepts, and also `NaN`, `Infinity` and `-Infinity`, which other engines
//! send.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod lex;
mod number;
#[cfg(test)]
mod tests;
mod walk;

use crate::logprobs::Rows;
use std::ops::Range;
use walk::{IdReader as _, Portable};

/// The bytes are not an array of the expected type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed logprob list at byte {at}")]
pub struct Malformed {
    /// Where parsing stopped, in bytes from the start of the slice.
    pub at: usize,
}

/// Parses the elements of an `output_top_logprobs` array: each is null or `[[logprob|null, id, text|null], …]`.
///
/// `at` is the index after the array's `[`, or of a `,` or `]` between its elements, so that parsing of a list that grows from event to
/// event can resume. Appends one row per element (empty for null, NaN for a null logprob) and returns the index after the closing `]`.
/// After an error the complete rows are valid; values of an incomplete row may follow them. The ids are added if `out` keeps them.
pub fn rows(bytes: &[u8], at: usize, out: &mut Rows) -> Result<usize, Malformed> {
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = avx2::Avx2::new() {
        return if out.keeps_ids() { avx2.rows::<true>(bytes, at, out) } else { avx2.rows::<false>(bytes, at, out) };
    }
    rows_portable(bytes, at, out)
}

/// [`rows`] without vector instructions, for tests and benchmarks.
#[doc(hidden)]
pub fn rows_portable(bytes: &[u8], at: usize, out: &mut Rows) -> Result<usize, Malformed> {
    if out.keeps_ids() {
        walk::rows::<true>(Portable, bytes, at, out)
    } else {
        walk::rows::<false>(Portable, bytes, at, out)
    }
}

/// Parses the elements of an `output_token_logprobs` array, `[[logprob|null, id, text|null], …]`, into two columns.
///
/// `at` and the result are those of [`rows`]; a null logprob is NaN. Both columns grow by the same length, even on an error.
pub fn triples(bytes: &[u8], at: usize, logprobs: &mut Vec<f32>, ids: &mut Vec<u32>) -> Result<usize, Malformed> {
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = avx2::Avx2::new() {
        return avx2.triples(bytes, at, logprobs, ids);
    }
    triples_portable(bytes, at, logprobs, ids)
}

/// [`triples`] without vector instructions, for tests and benchmarks.
#[doc(hidden)]
pub fn triples_portable(
    bytes: &[u8],
    at: usize,
    logprobs: &mut Vec<f32>,
    ids: &mut Vec<u32>,
) -> Result<usize, Malformed> {
    walk::triples(Portable, bytes, at, logprobs, ids)
}

/// Appends the byte ranges whose removal leaves the first `keep` entries of every row of an `output_top_logprobs`
/// array, in ascending order.
///
/// `at` and the result are those of [`rows`].
pub fn cuts(bytes: &[u8], at: usize, keep: usize, out: &mut Vec<Range<usize>>) -> Result<usize, Malformed> {
    walk::cuts(bytes, at, keep, out)
}

/// Appends the elements of a flat array of numbers, such as the plugin's `output_token_entropy`; NaN for null.
///
/// `at` and the result are those of [`rows`].
pub fn numbers(bytes: &[u8], at: usize, out: &mut Vec<f32>) -> Result<usize, Malformed> {
    walk::numbers(bytes, at, |number| out.push(number))
}

/// Parses the elements of an array of arrays of numbers, such as `output_token_sampling_logprobs` in mode `support`: one row per element,
/// empty for null or a single number.
///
/// `at` and the result are those of [`rows`].
pub fn lists(bytes: &[u8], at: usize, out: &mut Rows) -> Result<usize, Malformed> {
    walk::lists(bytes, at, out)
}

/// Appends the elements of a flat array of token ids, such as `output_ids`.
///
/// `at` and the result are those of [`rows`].
pub fn ids(bytes: &[u8], at: usize, out: &mut Vec<u32>) -> Result<usize, Malformed> {
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = avx2::Avx2::new() {
        return avx2.ids(bytes, at, |ids| out.extend_from_slice(ids));
    }
    ids_portable(bytes, at, out)
}

/// [`ids`] without vector instructions, for tests and benchmarks.
#[doc(hidden)]
pub fn ids_portable(bytes: &[u8], at: usize, out: &mut Vec<u32>) -> Result<usize, Malformed> {
    walk::ids(Portable, bytes, at, |ids| out.extend_from_slice(ids))
}

/// Reads the ids from `at` on, where an element of an array begins, while they are like `12,` or `12, `. Calls `each` with up to eight of
/// them at a time. Returns the index where the next element begins.
pub(crate) fn id_run(bytes: &[u8], at: usize, each: impl FnMut(&[u32])) -> usize {
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = avx2::Avx2::new() {
        return avx2.id_run(bytes, at, each);
    }
    Portable.run(bytes, at, each)
}
