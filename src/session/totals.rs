// SPDX-License-Identifier: Apache-2.0
//! Numbers over the turns of a session that are kept with it, so that tables of sessions read no tokens.

use super::histogram::Histogram;
use super::{Cause, Turn};
use crate::entropy::HIGH_ENTROPY;

/// Numbers over all turns of a session.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    /// Sampled tokens.
    pub sampled_tokens: u64,
    /// Turns with a fault.
    pub faults: u32,
    /// The entropies of sampled tokens.
    pub entropy: EntropyTotals,
    /// Which of [`TURN_FLAGS`] hold for a turn.
    flags: u8,
}

/// The entropies of the sampled tokens of a session, in nats.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EntropyTotals {
    /// The sum of the measured ones.
    pub sum: f64,
    /// The number of the measured ones.
    pub measured: u64,
    /// The number of those above [`HIGH_ENTROPY`].
    pub high: u64,
    /// Their distribution.
    pub histogram: Histogram,
}

/// The flags of a row that follow from a single turn of it.
pub(super) const TURN_FLAGS: [&str; 5] =
    ["policy_uncertain", "extends_length", "context_retokenised", "foreign_assistant_text", "inserted_end_of_turn"];

impl Totals {
    /// Adds a turn.
    pub(super) fn add(&mut self, turn: &Turn) {
        let about = &turn.about;
        self.sampled_tokens += turn.response.len() as u64;
        self.faults += u32::from(about.fault.is_some());
        turn.known_entropies().iter().for_each(|nats| self.entropy.add(*nats));
        let chat = about.chat.as_deref();
        let holds = [
            about.policy.iter().any(|span| !span.has_one_policy()),
            about.cause == Cause::ExtendsLength,
            chat.is_some_and(|chat| chat.retokenised),
            chat.is_some_and(|chat| chat.foreign_text),
            chat.is_some_and(|chat| chat.inserted_end_of_turn > 0),
        ];
        self.flags |= holds.into_iter().enumerate().fold(0, |flags, (at, holds)| flags | u8::from(holds) << at);
    }

    /// The flags that hold for a turn.
    pub fn flags(&self) -> impl Iterator<Item = &'static str> {
        let flags = self.flags;
        TURN_FLAGS.into_iter().enumerate().filter_map(move |(at, name)| (flags & 1 << at != 0).then_some(name))
    }
}

impl EntropyTotals {
    /// Adds that of a token, unless it is not a number, which an unknown one is.
    pub(super) fn add(&mut self, nats: f32) {
        if nats.is_finite() {
            self.sum += f64::from(nats);
            self.measured += 1;
            self.high += u64::from(f64::from(nats) > HIGH_ENTROPY);
            self.histogram.add(nats);
        }
    }

    /// Adds those of another session.
    pub(super) fn merge(&mut self, other: &Self) {
        self.sum += other.sum;
        self.measured += other.measured;
        self.high += other.high;
        self.histogram.merge(&other.histogram);
    }

    /// These without a part of them.
    #[must_use]
    pub fn without(&self, part: &Self) -> Self {
        Self {
            sum: self.sum - part.sum,
            measured: self.measured.saturating_sub(part.measured),
            high: self.high.saturating_sub(part.high),
            histogram: self.histogram.without(&part.histogram),
        }
    }

    /// The mean; `None` if no entropy was measured.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        self.share_of(self.sum)
    }

    /// The share of the measured tokens above [`HIGH_ENTROPY`], 0 to 1.
    #[must_use]
    pub fn high_share(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "counts below 2^53 are exact")]
        self.share_of(self.high as f64)
    }

    fn share_of(&self, sum: f64) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "counts below 2^53 are exact")]
        let measured = self.measured as f64;
        (self.measured > 0).then(|| sum / measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::{BOUNDLESS, draft, store};
    use crate::session::{Call, Fault};
    use std::sync::Arc;

    #[tokio::test]
    async fn totals_follow_the_turns() {
        let store = store(BOUNDLESS);
        let mut first = draft(&[1], &[2, 3, 4]);
        first.entropy = vec![0.5, 1.5, f32::NAN];
        let mut faulty = draft(&[9], &[2, 3]);
        (faulty.entropy, faulty.about.fault) = (vec![0.1, 0.1], Some(Fault::Aborted));
        let mut call = Call::new(Arc::clone(&store), "s".into());
        let _ = call.commit(first);
        let _ = call.commit(faulty);
        let session = store.session("s").expect("it has turns");
        let totals = session.totals();
        assert_eq!((totals.sampled_tokens, totals.faults), (5, 1));
        let mean = totals.entropy.mean().expect("it is measured");
        assert!((mean - 2.2 / 4.0).abs() < 1e-6, "{mean}");
        assert_eq!((totals.entropy.measured, totals.entropy.high_share()), (4, Some(0.25)));
    }

    #[test]
    fn absent_entropies_have_no_mean() {
        let totals = Totals::default();
        assert_eq!((totals.entropy.mean(), totals.entropy.high_share(), totals.flags().count()), (None, None, 0));
    }
}
