// SPDX-License-Identifier: Apache-2.0
//! Turns for benches: tokens as frequent as in text, and random numbers.

use tokentap::session::{Draft, Span, TurnMetadata};

/// New tokens of each prompt, and sampled tokens of each turn.
pub(super) const TOKENS: usize = 512;

/// Turns of a session, each of which continues the one before.
pub(super) struct Turns {
    state: u64,
    context: Vec<u32>,
}

impl Turns {
    /// Turns from a seed.
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(88_172_645_463_325_253) | 1, context: Vec::new() }
    }

    /// A pseudo-random number (xorshift).
    fn random(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    /// Token ids. Small ones are frequent, as in text.
    fn tokens(&mut self) -> Vec<u32> {
        let token = |_| {
            // the logarithm of the rank is uniform
            let uniform = (self.random() >> 11) as f64 / (1_u64 << 53) as f64;
            (151_936_f64.powf(uniform) as u32).min(151_935)
        };
        (0..TOKENS).map(token).collect()
    }

    fn floats(&mut self) -> Vec<f32> {
        (0..TOKENS).map(|_| (self.random() >> 40) as f32 / 1e6).collect()
    }
}

impl Iterator for Turns {
    type Item = Draft;

    fn next(&mut self) -> Option<Draft> {
        let new = self.tokens();
        self.context.extend(new);
        let response = self.tokens();
        let logprobs = self.floats().iter().map(|value| -value).collect();
        let entropy = self.floats();
        let end = u32::try_from(TOKENS).expect("it is small");
        let span = Span {
            start: 0,
            end,
            epoch: 1,
            until: 1,
            weight_version: None,
            version: Some("1".into()),
            process: None,
            adapter: None,
        };
        let about = TurnMetadata {
            finish: Some("stop".into()),
            model: "m".into(),
            policy: vec![span],
            ..TurnMetadata::default()
        };
        let prompt = Some(self.context.as_slice().into());
        self.context.extend(&response);
        Some(Draft { prompt, response, logprobs, entropy, about, ..Draft::default() })
    }
}
