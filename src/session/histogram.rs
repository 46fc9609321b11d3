// SPDX-License-Identifier: Apache-2.0
//! The distribution of entropies in a fixed number of bytes.

/// The exponent of the lower end of the first bucket above zero: 2^-7 nats.
const FIRST_EXPONENT: u32 = 127 - 7;

/// Buckets: one for entropies below 2^-7 nats, and four for each of the eleven octaves up to 16 nats, which is above the entropy of any
/// vocabulary.
const BUCKETS: usize = 1 + 4 * 11;

/// Counts entropies. A bucket is at most a quarter wider than its lower end, which bounds the error of a quantile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram([u32; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl Histogram {
    /// Adds an entropy in nats. A negative one, which rounding may give, counts as 0.
    pub fn add(&mut self, nats: f32) {
        let count = &mut self.0[bucket(nats)];
        *count = count.saturating_add(1);
    }

    /// Adds all counts of another one.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(&other.0) {
            *count = count.saturating_add(*more);
        }
    }

    /// The counts without those of a part of the entropies.
    pub(super) fn without(&self, part: &Self) -> Self {
        let mut rest = self.clone();
        for (count, less) in rest.0.iter_mut().zip(&part.0) {
            *count = count.saturating_sub(*less);
        }
        rest
    }

    /// The entropy below which this share of the entropies is, in nats, interpolated within its bucket; `None` without entropies.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let total: u64 = self.0.iter().map(|count| u64::from(*count)).sum();
        #[expect(clippy::cast_precision_loss, reason = "counts below 2^53 are exact")]
        let wanted = share * total as f64;
        let mut below = 0.0;
        let last = self.0.iter().rposition(|count| *count > 0)?;
        for (at, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = f64::from(*count);
            if below + count >= wanted || at == last {
                let (low, high) = (lower(at), lower(at + 1));
                return Some(low + (high - low) * ((wanted - below) / count).clamp(0.0, 1.0));
            }
            below += count;
        }
        None
    }
}

/// The bucket of an entropy: the octave and the two highest bits of the mantissa.
fn bucket(nats: f32) -> usize {
    if nats.is_nan() || nats <= lower_single() {
        return 0;
    }
    let step = (nats.to_bits() >> 21) - (FIRST_EXPONENT << 2);
    (step as usize + 1).min(BUCKETS - 1)
}

/// The lower end of the first bucket above zero.
fn lower_single() -> f32 {
    f32::from_bits(FIRST_EXPONENT << 23)
}

/// The lower end of a bucket in nats.
fn lower(bucket: usize) -> f64 {
    match u32::try_from(bucket).expect("there are few").checked_sub(1) {
        None => 0.0,
        Some(step) => f64::from(f32::from_bits(((FIRST_EXPONENT << 2) + step) << 21)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_at_most_a_quarter_wide() {
        for bucket in 1..BUCKETS {
            let (low, high) = (lower(bucket), lower(bucket + 1));
            assert!(high > low && high <= low * 1.25, "{low} to {high}");
        }
        assert_eq!((lower(0), lower(1), lower(BUCKETS)), (0.0, 1.0 / 128.0, 16.0));
    }

    #[test]
    fn quantiles_are_within_a_quarter_of_the_true_ones() {
        let mut histogram = Histogram::default();
        let mut other = Histogram::default();
        let nats = |at: u32| 9.0 * (at as f32 / 1000.0).powi(3);
        for at in 0..1000 {
            if at % 2 == 0 { &mut histogram } else { &mut other }.add(nats(at));
        }
        histogram.merge(&other);
        for at in [50, 100, 250, 500, 750, 900, 950] {
            let found = histogram.quantile(f64::from(at) / 1000.0).expect("it has entropies");
            let expected = f64::from(nats(at));
            assert!((found - expected).abs() <= (expected * 0.25).max(1.0 / 128.0), "{at}: {found}, not {expected}");
        }
    }

    #[test]
    fn extreme_entropies_are_counted() {
        assert_eq!(Histogram::default().quantile(0.5), None);
        for (nats, low, high) in [(0.0, 0.0, 0.008), (-1e-7, 0.0, 0.008), (1e9, 14.0, 16.0), (f32::NAN, 0.0, 0.008)] {
            let mut histogram = Histogram::default();
            histogram.add(nats);
            let found = histogram.quantile(0.5).expect("it has an entropy");
            assert!((low..=high).contains(&found), "{nats}: {found}");
        }
    }
}
