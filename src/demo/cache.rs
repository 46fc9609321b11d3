//! Computes `cached_tokens`: the length of the longest prefix that a prompt shares with an earlier sequence.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

const MAX_SEQUENCES: usize = 64;

/// The most recent sequences. They save no computation; only `cached_tokens` depends on them.
#[derive(Debug, Default)]
pub(super) struct PrefixCache {
    // held while prompts are compared, never across an await
    sequences: Mutex<VecDeque<Vec<u32>>>,
}

impl PrefixCache {
    /// The length of the longest prefix of `prompt` that a cached sequence begins with, at most `limit` tokens.
    pub(super) fn cached_prefix_len(&self, prompt: &[u32], limit: usize) -> usize {
        let sequences = self.sequences.lock().unwrap_or_else(PoisonError::into_inner);
        let common = |seen: &Vec<u32>| seen.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        sequences.iter().map(common).max().unwrap_or(0).min(limit)
    }

    pub(super) fn insert(&self, sequence: Vec<u32>) {
        let mut sequences = self.sequences.lock().unwrap_or_else(PoisonError::into_inner);
        if sequences.len() == MAX_SEQUENCES {
            sequences.pop_front();
        }
        sequences.push_back(sequence);
    }

    pub(super) fn flush(&self) {
        self.sequences.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
