// SPDX-License-Identifier: Apache-2.0
//! The entropy of a distribution from the logprobs of all its tokens.

use crate::entropy::MASKED;

/// `-sum p ln p` in nats, from the logprobs of all tokens with any probability, normalised by their sum. NaN without a logprob, and if
/// they are not a distribution: one is NaN or above zero, or the sum of probabilities differs from 1 by more than 1 %.
///
/// Summed in f64, because a support has up to thousands of values, each rounded to f32.
#[must_use]
pub fn whole_entropy(logprobs: &[f32]) -> f32 {
    let (mut mass, mut own) = (0.0_f64, 0.0_f64);
    for &logprob in logprobs {
        if logprob.is_nan() || logprob > 1e-3 {
            return f32::NAN;
        }
        if logprob > MASKED {
            let logprob = f64::from(logprob);
            mass += logprob.exp();
            own -= logprob.exp() * logprob;
        }
    }
    if (mass - 1.0).abs() > 0.01 {
        return f32::NAN;
    }
    // the sum of rounded probabilities may be 1 + 1e-7, and the entropy of a certain token must not be negative
    ((own / mass + mass.ln()).max(0.0)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_distributions() {
        let halves = [0.5_f32.ln(); 2];
        assert!((whole_entropy(&halves) - 2.0_f32.ln()).abs() < 1e-6);
        assert_eq!(whole_entropy(&[0.0]).to_bits(), 0, "a certain token has entropy 0");
        assert!((whole_entropy(&[0.25_f32.ln(), 0.75_f32.ln(), f32::MIN]) - 0.562_335_1).abs() < 1e-6);
    }

    #[test]
    fn invalid_distribution_has_no_entropy() {
        for logprobs in [&[][..], &[f32::NAN], &[0.5], &[-1.0, -1.0], &[0.0, -1.0], &[f32::MIN], &[f32::NEG_INFINITY]] {
            assert!(whole_entropy(logprobs).is_nan(), "{logprobs:?}");
        }
    }
}
