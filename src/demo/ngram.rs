// SPDX-License-Identifier: Apache-2.0
//! Interpolated n-gram counts over token ids.

use std::collections::HashMap;

/// The maximum context length of the model, in tokens.
pub(super) const HISTORY: usize = 3;

/// By context length minus one: the weight of the shorter context per distinct following token (Witten-Bell smoothing uses 1). Small values
/// for long contexts make fixed phrases nearly certain, so that some entropies are near 0.
const BACKOFF: [f64; HISTORY] = [0.6, 0.12, 0.02];

/// Added to every unigram count, so that each token has a probability above 0.
const FLOOR: f64 = 0.4;

/// The tokens that follow a context, with their counts.
#[derive(Debug, Default)]
struct Followers {
    /// The sum of the counts.
    total: f64,
    counts: Vec<(u32, f64)>,
}

/// Counts of the tokens that follow each context of up to [`HISTORY`] tokens.
#[derive(Debug)]
pub(super) struct Ngram {
    unigram: Vec<f64>,
    followers: [HashMap<u64, Followers>; HISTORY],
}

impl Ngram {
    /// Counts the n-grams of `text`. Its ids must be below `vocab_size`.
    pub(super) fn train(text: &[u32], vocab_size: usize) -> Self {
        let mut unigram = vec![FLOOR; vocab_size];
        let mut followers: [HashMap<u64, Followers>; HISTORY] = Default::default();
        for (at, &next) in text.iter().enumerate() {
            unigram[next as usize] += 1.0;
            for (longer, table) in followers.iter_mut().enumerate() {
                let Some(start) = at.checked_sub(longer + 1) else {
                    break;
                };
                let entry = table.entry(key(&text[start..at])).or_default();
                entry.total += 1.0;
                match entry.counts.iter_mut().find(|(id, _)| *id == next) {
                    Some((_, count)) => *count += 1.0,
                    None => entry.counts.push((next, 1.0)),
                }
            }
        }
        let total: f64 = unigram.iter().sum();
        unigram.iter_mut().for_each(|p| *p /= total);
        Self { unigram, followers }
    }

    /// The probability of each id after `context`. The probabilities sum to 1, and none is 0.
    pub(super) fn probabilities(&self, context: &[u32]) -> Vec<f64> {
        let mut probabilities = self.unigram.clone();
        for (longer, table) in self.followers.iter().enumerate() {
            let Some(start) = context.len().checked_sub(longer + 1) else {
                break;
            };
            let Some(entry) = table.get(&key(&context[start..])) else {
                break;
            };
            let shorter = BACKOFF[longer] * entry.counts.len() as f64;
            let whole = entry.total + shorter;
            probabilities.iter_mut().for_each(|p| *p *= shorter / whole);
            for &(id, count) in &entry.counts {
                probabilities[id as usize] += count / whole;
            }
        }
        probabilities
    }
}

/// Packs a context into one number. Ids of the demo vocabulary fit 16 bits.
fn key(context: &[u32]) -> u64 {
    context.iter().fold(1, |key, &id| key << 16 | u64::from(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_and_none_is_zero() {
        let text: Vec<u32> = (0..400).map(|i| (i * i + i / 7) % 50).collect();
        let ngram = Ngram::train(&text, 64);
        for context in [&text[..0], &text[..1], &text[3..6], &[63, 63, 63], &text[..100]] {
            let probabilities = ngram.probabilities(context);
            let sum: f64 = probabilities.iter().sum();
            assert!((sum - 1.0).abs() < 1e-12, "sum {sum} after {context:?}");
            assert!(probabilities.iter().all(|p| *p > 0.0), "a zero after {context:?}");
        }
    }
}
