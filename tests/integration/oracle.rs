// SPDX-License-Identifier: Apache-2.0
//! A naive reference: one row at a time, textbook formulas, library functions, `f64`.
//!
//! It is self-contained, so that any test can include it, and optimized neither for speed nor for vector units.

/// The numbers of a row, in nats; NaN if undefined.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Naive {
    pub(crate) renormalized: f64,
    pub(crate) lower: f64,
    pub(crate) upper: f64,
    pub(crate) estimate: f64,
    pub(crate) tail_mass: f64,
    pub(crate) varentropy: f64,
    pub(crate) margin: f64,
    pub(crate) confidence: f64,
    pub(crate) surprisal: f64,
    pub(crate) rank: u32,
    /// `1 - sum p` over all known tokens, and its error bound.
    pub(crate) residual: f64,
    pub(crate) error: f64,
    /// The largest possible mass of the tail.
    pub(crate) cap: f64,
}

const MASKED: f64 = -1e30;

/// Measures one row of logprobs.
pub(crate) fn measure(row: &[f32], chosen: f32, vocab: Option<u32>) -> Naive {
    let chosen = f64::from(chosen);
    let mut naive = Naive {
        renormalized: f64::NAN,
        lower: f64::NAN,
        upper: f64::NAN,
        estimate: f64::NAN,
        tail_mass: f64::NAN,
        varentropy: f64::NAN,
        margin: f64::NAN,
        confidence: f64::NAN,
        surprisal: if chosen <= MASKED { f64::INFINITY } else { -chosen },
        rank: 0,
        residual: f64::NAN,
        error: f64::NAN,
        cap: f64::NAN,
    };
    if row.iter().any(|l| l.is_nan() || *l == f32::INFINITY) {
        return naive;
    }
    let mut head: Vec<f64> = row.iter().map(|l| f64::from(*l)).filter(|l| *l > MASKED).collect();
    head.sort_by(|a, b| b.total_cmp(a));
    let (Some(&first), Some(&last)) = (head.first(), head.last()) else {
        return naive;
    };
    let masked = head.len() < row.len();
    let k = head.len() as f64;

    // The row alone.
    let scale: f64 = head.iter().map(|l| (l - first).exp()).sum();
    let inside: Vec<f64> = head.iter().map(|l| l - first - scale.ln()).collect();
    naive.renormalized = inside.iter().map(|l| -l * l.exp()).sum();
    naive.varentropy = inside.iter().map(|l| l.exp() * (l + naive.renormalized).powi(2)).sum();
    naive.confidence = -head.iter().sum::<f64>() / k;
    let known = chosen > MASKED && chosen < f64::INFINITY;
    if known && chosen >= last {
        naive.rank = 1 + head.iter().filter(|l| **l > chosen).count() as u32;
    }

    // The row within its vocabulary.
    let slots = if masked { 0.0 } else { vocab.map_or(2f64.powi(32), f64::from) - k };
    let whole = slots <= 0.0;
    naive.margin = match head.get(1) {
        Some(second) => first.exp() - second.exp(),
        None if whole => first.exp(),
        None => f64::NAN,
    };
    let mut truncated: f64 = head.iter().map(|l| -l * l.exp()).sum();
    let mut residual = -first.exp_m1() - head[1..].iter().map(|l| l.exp()).sum::<f64>();
    naive.tail_mass = if whole { 0.0 } else { residual.max(0.0) };
    let mut n = slots.max(0.0);
    if known && chosen < last && !whole {
        truncated += phi(chosen.exp());
        residual -= chosen.exp();
        n -= 1.0;
    }
    let bf16 = head.iter().all(|l| (*l as f32).to_bits() & 0xffff == 0);
    let bf16 = bf16 && head.iter().any(|l| *l != 0.0);
    let error = 1e-6 + if bf16 { 1.1 / 256.0 * truncated } else { 0.0 };
    (naive.residual, naive.error) = (residual, error);
    let too_wide = vocab.is_some_and(|vocab| head.len() > vocab as usize);
    let lacks_first = known && chosen > first + 1e-3;
    naive.cap = n * last.exp();
    let too_little = residual > naive.cap + error;
    if residual < -error || too_little || too_wide || lacks_first || (known && chosen < last && whole) {
        return naive;
    }
    if whole {
        naive.lower = naive.renormalized;
        naive.upper = naive.renormalized;
        naive.estimate = naive.renormalized;
        return naive;
    }
    let cap = last.exp();
    let fit = |mass: f64| max(0.0, mass).min(n * cap);
    let (least, most) = (fit(residual - error), fit(residual + error));
    naive.lower = truncated + concentrated(least, cap).min(concentrated(most, cap));
    if vocab.is_none() {
        return naive;
    }
    // Of all possible masses, the one whose uniform tail has the most entropy.
    let peak = (n / std::f64::consts::E).min(most);
    let peak = if peak > least { peak } else { least };
    naive.upper = truncated + uniform(peak, n);
    naive.lower = naive.lower.min(naive.upper);
    let tail = log_normal(fit(residual), last, k, slots + k);
    naive.estimate = (truncated + tail).max(naive.lower).min(naive.upper);
    naive
}

/// `-x ln x`
pub(crate) fn phi(x: f64) -> f64 {
    if x > 0.0 { -x * x.ln() } else { 0.0 }
}

/// Entropy of `mass` in the fewest tokens of at most `cap` each.
fn concentrated(mass: f64, cap: f64) -> f64 {
    if mass <= 0.0 {
        return 0.0;
    }
    let whole = (mass / cap).floor();
    whole * phi(cap) + phi(mass - whole * cap)
}

/// Entropy of `mass` spread evenly over `n` tokens.
fn uniform(mass: f64, n: f64) -> f64 {
    if mass > 0.0 { mass * (n.ln() - mass.ln()) } else { 0.0 }
}

/// Entropy of a tail of `mass` whose logits are a normal of any spread, cut where the likeliest `k` of `vocab` values begin, at `last`: by
/// bisection of the spread.
fn log_normal(mass: f64, last: f64, k: f64, vocab: f64) -> f64 {
    if mass <= 0.0 {
        return 0.0;
    }
    let (mut low, mut high) = (-40.0, 40.0);
    for _ in 0..200 {
        let t = 0.5 * (low + high);
        if 0.5 * libm::erfc(t / std::f64::consts::SQRT_2) > k / vocab { low = t } else { high = t }
    }
    let t = 0.5 * (low + high);
    // the mean of exp(s (u - t)) over u < t, with the spread s
    let ln_held = |s: f64| ln_mills(t - s) - ln_mills(t);
    let target = mass.ln() - last - (vocab - k).ln();
    let (mut low, mut high) = (0.0, 1.0);
    while ln_held(high) > target && high < 1e18 {
        high *= 2.0;
    }
    for _ in 0..200 {
        let s = 0.5 * (low + high);
        if ln_held(s) > target { low = s } else { high = s }
    }
    let s = 0.5 * (low + high);
    let z = t - s;
    // z plus the density at z divided by the probability below z, which cancel far below zero
    let above = if z > -25.0 { z + (-ln_mills(z)).exp() } else { z * far_below(z) / (1.0 + far_below(z)) };
    mass * (s * above - last)
}

/// The logarithm of the standard normal's probability below `z`, divided by its density at `z`.
fn ln_mills(z: f64) -> f64 {
    if z > -25.0 {
        let below = 0.5 * libm::erfc(-z / std::f64::consts::SQRT_2);
        return below.ln() + 0.5 * z * z + 0.5 * std::f64::consts::TAU.ln();
    }
    far_below(z).ln_1p() - (-z).ln()
}

/// The share by which that ratio differs from `-1/z`: the asymptotic series.
fn far_below(z: f64) -> f64 {
    let w = 1.0 / (z * z);
    -w * (1.0 - 3.0 * w * (1.0 - 5.0 * w * (1.0 - 7.0 * w)))
}

/// `f64::max` without NaN, which cannot occur here.
fn max(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

/// A seeded generator, for distributions that are awkward as strategies, and for rows too long to draw value by value.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn gauss(&mut self) -> f64 {
        (-2.0 * (1.0 - self.unit()).ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}
