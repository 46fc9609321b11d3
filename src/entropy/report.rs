//! Computes the statistics of one row from the columns of its group.

use super::scratch::Scratch;
use super::tail::Table;
use super::{Flags, MASKED, TokenStats};

impl Scratch {
    /// The statistics of the row at `slot`. `bounded` is true if the vocabulary size is known.
    #[inline(always)]
    pub(crate) fn report<const STATS: bool>(&self, slot: usize, table: &Table, bounded: bool) -> TokenStats {
        let (note, found) = (&self.notes[slot], &self.found);
        let surprisal = surprisal(note.chosen);
        if !note.flags.is_measured() {
            return TokenStats { surprisal, ..TokenStats::unmeasured(note.flags) };
        }
        let mut flags = note.flags;
        let (residual, error) = (found.residual[slot], found.error[slot]);
        let outside_row = found.outside_row[slot];
        let too_much = residual < -error;
        let too_little = residual > found.cap[slot] + error;
        // The residual of a whole row is only the rounding of its sum, of either sign.
        let negative = if note.whole { too_much } else { residual < 0.0 };
        flags |= Flags::NEGATIVE_RESIDUAL.when(negative) | Flags::INCONSISTENT.when(too_much | too_little);

        let renormalized = found.renormalized[slot];
        let (mut lower, mut upper) = (found.lower[slot], found.upper[slot]);
        let mass = found.estimate_mass[slot];
        let excess = table.excess(found.x[slot], found.ln_x[slot], note.quantile);
        let estimate = found.truncated[slot] + mass * (excess - self.known.last[slot]);
        let mut estimate = estimate.max(lower).min(upper);
        let mut tail_mass = outside_row.max(0.0);
        if note.whole {
            (lower, estimate, upper) = (renormalized, renormalized, renormalized);
            tail_mass = 0.0;
        } else if !bounded {
            (estimate, upper) = (f64::NAN, f64::NAN);
        }
        let mut stats = TokenStats {
            renormalized: renormalized as f32,
            lower: lower as f32,
            upper: upper as f32,
            estimate: estimate as f32,
            tail_mass: tail_mass as f32,
            surprisal,
            ..TokenStats::unmeasured(flags)
        };
        if STATS {
            stats.varentropy = found.varentropy[slot] as f32;
            stats.confidence = note.confidence;
            stats.rank = note.rank;
            stats.margin = match (note.k, note.whole) {
                (1, true) => self.known.first[slot].exp() as f32,
                (1, false) => f32::NAN,
                _ => found.margin[slot] as f32,
            };
        }
        stats.checked()
    }
}

#[inline(always)]
pub(crate) fn surprisal(chosen: f32) -> f32 {
    match chosen {
        f32::INFINITY => f32::NAN,
        masked if masked <= MASKED => f32::INFINITY,
        // Not `-l`: a certain token has surprisal 0, not -0.
        known => 0.0 - known,
    }
}
