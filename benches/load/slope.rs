// SPDX-License-Identifier: Apache-2.0
//! Detects growth: a straight line through means, with its confidence interval.

/// A slope per hour, and half of its 95 % interval.
#[derive(Debug, Clone, Copy)]
pub struct Slope {
    pub hourly: f64,
    pub spread: f64,
}

impl Slope {
    /// The line of least squares through the means of `blocks` equal parts of `values`, which were taken every second. Neighbouring
    /// seconds are correlated, which would make the interval too small; means of parts are not.
    fn of(values: &[f64], blocks: usize) -> Self {
        let length = (values.len() / blocks).max(1);
        let means = values.chunks_exact(length).map(|part| part.iter().sum::<f64>() / part.len() as f64);
        Self::through(means.enumerate().map(|(at, mean)| ((at * length) as f64 / 3600.0, mean)))
    }

    /// The line of least squares through pairs of an hour and a value.
    pub fn through(points: impl Iterator<Item = (f64, f64)>) -> Self {
        let points: Vec<(f64, f64)> = points.collect();
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (middle, level) = (mean(|point| point.0), mean(|point| point.1));
        let wide = points.iter().map(|(time, _)| (time - middle).powi(2)).sum::<f64>();
        let hourly = points.iter().map(|(time, value)| (time - middle) * (value - level)).sum::<f64>() / wide;
        let off = |(time, value): &(f64, f64)| (value - level - hourly * (time - middle)).powi(2);
        let rest = points.iter().map(off).sum::<f64>();
        let free = count - 2.0;
        // Student's quantile, to a hundredth from 5 degrees of freedom on
        let quantile = 1.96 + 2.4 / free + 3.2 / free.powi(2) + 4.0 / free.powi(3);
        Self { hourly, spread: quantile * (rest / free / wide).sqrt() }
    }

    /// Whether it is steeper than `bound`, beyond what chance explains.
    pub fn exceeds(self, bound: f64) -> bool {
        // NaN counts as growth, because nothing is known
        let least = self.hourly - self.spread;
        least.is_nan() || least > bound
    }
}

impl std::fmt::Display for Slope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:+.2} ± {:.2}", self.hourly, self.spread)
    }
}

/// Growth must be detected, and noise must not. It runs at the start of each soak, because a soak that cannot fail proves nothing.
pub fn check() {
    // a sawtooth of 3 MB, as an allocator's
    let noise = |second: usize| ((second * 7919) % 97) as f64 / 97.0 * 3.0;
    let flat: Vec<f64> = (0..600).map(|second| 100.0 + noise(second)).collect();
    let leaking: Vec<f64> = (0..600).map(|second| 100.0 + noise(second) + second as f64 * 10.0 / 3600.0).collect();
    let (flat, leaking) = (Slope::of(&flat, 20), Slope::of(&leaking, 20));
    assert!(!flat.exceeds(5.0) && leaking.exceeds(5.0), "10 MB an hour is detected, noise is not: {flat}, {leaking}");
}
