// SPDX-License-Identifier: Apache-2.0
//! The statistics of one row, from the columns of its group.

use super::bounds::ROWS;
use super::scratch::Scratch;
use super::{Flags, TokenStats};

impl Scratch {
    /// The statistics of the row at `slot`.
    #[inline(always)]
    pub(crate) fn report<const STATS: bool>(&self, slot: usize) -> TokenStats {
        let slot = slot % ROWS;
        let (known, found) = (&self.known, &self.found);
        let surprisal = found.surprisal[slot];
        let flags = Flags::from_bits(known.flags[slot] as u8);
        if !flags.is_measured() {
            return TokenStats { surprisal, ..TokenStats::unmeasured(flags) };
        }
        let mut stats = TokenStats {
            renormalized: found.renormalized[slot],
            lower: found.lower[slot],
            upper: found.upper[slot],
            estimate: found.estimate[slot],
            tail_mass: found.tail_mass[slot],
            surprisal,
            ..TokenStats::unmeasured(Flags::from_bits(found.flags[slot] as u8))
        };
        if STATS {
            let note = &self.notes[slot];
            stats.varentropy = found.varentropy[slot];
            stats.confidence = note.confidence;
            stats.rank = note.rank;
            stats.margin = match (note.k, known.tail[slot] == 0.0) {
                (1, true) => f64::from(known.first[slot]).exp() as f32,
                (1, false) => f32::NAN,
                _ => found.margin[slot],
            };
        }
        stats
    }
}
