//! Reads SGLang's logprob lists from the bytes of a JSON reply, without building a document.
//!
//! A reply with 20 logprobs for each of 512 tokens is 360 KB of numbers, and parsing them is most of the work there is
//! with it. So the numbers SGLang usually prints are read with vector instructions, and whatever looks different
//! (spaces, exponents, the last bytes of the buffer) by the plain code of the submodules. Both accept
//! what `serde_json` accepts, and besides the `NaN`, `Infinity` and `-Infinity` that other engines send.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod lex;
mod number;
#[cfg(test)]
mod tests;
mod walk;

use crate::logprobs::Rows;
use std::ops::Range;
use walk::Portable;

/// The bytes are not the array they were said to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed logprob list at byte {at}")]
pub struct Malformed {
    /// Where reading stopped, in bytes from the start of the slice.
    pub at: usize,
}

/// Reads the elements of an `output_top_logprobs` array: each is null or `[[logprob|null, id, text|null], …]`.
///
/// `at` points just behind the array's `[`, or at a `,` or `]` between its elements, so that a list that grows from
/// event to event is read on where it ended. Appends one row per element (none for null, NaN for a null logprob)
/// and returns the index just behind the closing `]`. After an error the rows that were ended are right, and values
/// of one that was not may follow them.
pub fn rows(bytes: &[u8], at: usize, out: &mut Rows) -> Result<usize, Malformed> {
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = avx2::Avx2::new() {
        return avx2.rows(bytes, at, out);
    }
    rows_portable(bytes, at, out)
}

/// [`rows`] without vector instructions, to be compared with it.
#[doc(hidden)]
pub fn rows_portable(bytes: &[u8], at: usize, out: &mut Rows) -> Result<usize, Malformed> {
    walk::rows(Portable, bytes, at, out)
}

/// Reads the elements of an `output_token_logprobs` array, `[[logprob|null, id, text|null], …]`, into two columns.
///
/// `at` and the result are those of [`rows`]; a null logprob is NaN. Both columns grow by the same length, also
/// when an error ends the reading.
pub fn triples(bytes: &[u8], at: usize, logprobs: &mut Vec<f32>, ids: &mut Vec<u32>) -> Result<usize, Malformed> {
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = avx2::Avx2::new() {
        return avx2.triples(bytes, at, logprobs, ids);
    }
    triples_portable(bytes, at, logprobs, ids)
}

/// [`triples`] without vector instructions, to be compared with it.
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

/// Reads the elements of an array of arrays of numbers, such as `output_token_sampling_logprobs` in its mode `support`: a row each,
/// none for null or for a number alone.
///
/// `at` and the result are those of [`rows`].
pub fn lists(bytes: &[u8], at: usize, out: &mut Rows) -> Result<usize, Malformed> {
    walk::lists(bytes, at, out)
}

/// Appends the elements of a flat array of token ids, such as `output_ids`.
///
/// `at` and the result are those of [`rows`].
pub fn ids(bytes: &[u8], at: usize, out: &mut Vec<u32>) -> Result<usize, Malformed> {
    walk::ids(bytes, at, out)
}
