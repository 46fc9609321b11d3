//! The number for `cached_tokens`: tokens of a prompt that an earlier sequence begins with.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

const SEQUENCES: usize = 64;

/// The latest sequences. They save no work; clients read the number.
#[derive(Debug, Default)]
pub(super) struct PrefixCache {
    // locked while prompts are compared
    sequences: Mutex<VecDeque<Vec<u32>>>,
}

impl PrefixCache {
    /// Length of the longest known prefix of `prompt`, at most `limit` tokens.
    pub(super) fn matched(&self, prompt: &[u32], limit: usize) -> usize {
        let sequences = self.sequences.lock().unwrap_or_else(PoisonError::into_inner);
        let common = |seen: &Vec<u32>| seen.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        sequences.iter().map(common).max().unwrap_or(0).min(limit)
    }

    pub(super) fn insert(&self, sequence: Vec<u32>) {
        let mut sequences = self.sequences.lock().unwrap_or_else(PoisonError::into_inner);
        if sequences.len() == SEQUENCES {
            sequences.pop_front();
        }
        sequences.push_back(sequence);
    }

    pub(super) fn flush(&self) {
        self.sequences.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
