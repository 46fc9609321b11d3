// SPDX-License-Identifier: Apache-2.0
//! The synthetic routing of the demo engine: which experts process a token. It depends on the tokens up to it and on the weights.

use super::rng::mix;

/// The layers of the routing.
pub const LAYERS: usize = 3;
/// The experts that process a token in a layer.
pub const EXPERTS_PER_TOKEN: usize = 2;
/// The experts of a layer.
pub const EXPERTS: usize = 8;

/// The experts of each layer for one token.
pub type ExpertRow = [i32; LAYERS * EXPERTS_PER_TOKEN];

/// The routing of the tokens of a sequence, token after token.
#[derive(Debug, Default)]
pub struct ExpertRouter {
    /// A hash of the tokens so far.
    state: u64,
    rows: Vec<ExpertRow>,
}

impl ExpertRouter {
    /// Processes a token with the weights of this number.
    pub fn process(&mut self, token: u32, weights: u64) {
        self.state = mix(self.state ^ u64::from(token).wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut row = ExpertRow::default();
        for (layer, experts) in row.chunks_mut(EXPERTS_PER_TOKEN).enumerate() {
            let draw = mix(self.state ^ mix(weights.wrapping_add(layer as u64)));
            let first = draw as usize % EXPERTS;
            // the experts of a token differ
            let second = (first + 1 + (draw >> 32) as usize % (EXPERTS - 1)) % EXPERTS;
            experts.copy_from_slice(&[first as i32, second as i32]);
        }
        self.rows.push(row);
    }

    /// The rows of the tokens so far.
    #[must_use]
    pub fn rows(&self) -> &[ExpertRow] {
        &self.rows
    }
}
