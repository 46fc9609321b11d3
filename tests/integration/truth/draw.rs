// SPDX-License-Identifier: Apache-2.0
//! Random requests from a fixed seed.

use tokentap::demo::SamplingParams;

/// SplitMix64.
#[derive(Debug)]
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number of `from..=to`.
    pub fn number(&mut self, from: usize, to: usize) -> usize {
        from + (self.next() % (to - from + 1) as u64) as usize
    }

    /// A number in a range, on a grid with few digits.
    pub fn between(&mut self, from: f64, to: f64) -> f64 {
        let share = self.number(0, 1000) as f64 / 1000.0;
        ((from + share * (to - from)) * 1000.0).round() / 1000.0
    }

    /// True with probability 1/n.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.number(1, n) == 1
    }

    /// `least..=most` ids below `vocab`.
    pub fn ids(&mut self, least: usize, most: usize, vocab: usize) -> Vec<u32> {
        (0..self.number(least, most)).map(|_| self.number(0, vocab - 1) as u32).collect()
    }

    /// A number of logprobs: few, some, or all.
    pub fn k(&mut self, vocab: usize) -> usize {
        match self.number(0, 5) {
            0 => vocab,
            1 => self.number(1, 6),
            2 => 20,
            3 => self.number(vocab - 3, vocab),
            _ => self.number(1, vocab),
        }
    }

    /// Sampling parameters of every kind, some of them together.
    pub fn params(&mut self, vocab: usize) -> SamplingParams {
        let mut params = SamplingParams {
            temperature: self.between(0.05, 3.0),
            max_new_tokens: Some(self.number(1, 24) as i64),
            sampling_seed: Some(self.number(0, 1 << 40) as i64),
            ..SamplingParams::default()
        };
        if self.once_in(8) {
            params.temperature = 0.0;
        }
        if self.once_in(8) {
            params.top_k = Some(1);
        } else if self.once_in(3) {
            params.top_k = Some(self.number(2, 100));
        }
        if self.once_in(3) {
            params.top_p = self.between(0.05, 1.0).max(0.01);
        }
        if self.once_in(3) {
            params.min_p = self.between(0.0, 1.0);
        }
        if self.once_in(3) {
            params.frequency_penalty = self.between(-2.0, 2.0);
        }
        if self.once_in(3) {
            params.presence_penalty = self.between(-2.0, 2.0);
        }
        if self.once_in(3) {
            params.repetition_penalty = self.between(0.1, 2.0);
        }
        if self.once_in(2) {
            let mut biased = self.ids(1, 5, vocab);
            biased.sort_unstable();
            biased.dedup();
            params.logit_bias = biased.into_iter().map(|id| (i64::from(id), self.between(-20.0, 12.0))).collect();
        }
        if self.once_in(3) {
            params.stop_token_ids = self.ids(1, 40, vocab);
        }
        if self.once_in(2) {
            params.min_new_tokens = self.number(0, params.max_new_tokens.unwrap_or(0) as usize) as i64;
        }
        params.ignore_eos = self.once_in(2);
        params
    }
}
