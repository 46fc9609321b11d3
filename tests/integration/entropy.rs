// SPDX-License-Identifier: Apache-2.0
//! Compares the lanes of every instruction set with the naive oracle and with full distributions.

use crate::oracle::{self, Numbers};

use proptest::prelude::*;
use tokentap::entropy::{Cpu, Flags, TokenStats, TopK};
use tokentap::logprobs::Rows;

/// The documented accuracy, in nats.
const TOLERANCE: f64 = 1e-5;

fn measure(cpu: &Cpu, rows: &Rows, chosen: &[f32], vocab: Option<u32>) -> Vec<TokenStats> {
    let mut out = Vec::new();
    cpu.top_k(&TopK { rows, chosen, vocab, stats: true }, &mut out);
    assert_eq!(out.len(), rows.len(), "one entry a row");
    out
}

/// Measures one row with the lanes of every instruction set and compares the results with the oracle.
fn check(row: &[f32], chosen: f32, vocab: Option<u32>) -> TokenStats {
    let mut rows = Rows::new();
    rows.push_row(row);
    let mut last = None;
    for cpu in Cpu::available() {
        let stats = measure(&cpu, &rows, &[chosen], vocab)[0];
        compare(&cpu, &stats, row, chosen, vocab);
        last = Some(stats);
    }
    last.expect("the portable lanes are always available")
}

fn compare(cpu: &Cpu, stats: &TokenStats, row: &[f32], chosen: f32, vocab: Option<u32>) {
    let naive = oracle::measure(row, chosen, vocab);
    let context = || format!("{}: k={} {vocab:?} chosen={chosen}\n{stats:?}\n{naive:?}", cpu.name(), row.len());
    let near = |got: f32, want: f64, tolerance: f64, what: &str| {
        let got = f64::from(got);
        let same = got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() <= tolerance;
        assert!(same, "{what}: {got} is not {want}; {}", context());
    };
    near(stats.renormalized, naive.renormalized, TOLERANCE, "renormalized");
    near(stats.surprisal, naive.surprisal, 0.0, "surprisal");
    near(stats.varentropy, naive.varentropy, 2e-4, "varentropy");
    near(stats.margin, naive.margin, 1e-6 * naive.margin.abs().max(1.0), "margin");
    near(stats.confidence, naive.confidence, 1e-6 * naive.confidence.abs().max(1.0), "confidence");
    assert_eq!(stats.rank, naive.rank, "rank; {}", context());
    near(stats.tail_mass, naive.tail_mass, 1e-6, "tail mass");
    let too_little = naive.residual - naive.cap - naive.error;
    let verge = (naive.residual + naive.error).abs() < 1e-6 || too_little.abs() < 1e-6 * naive.cap.max(1.0);
    if verge && stats.lower.is_nan() != naive.lower.is_nan() {
        return;
    }
    near(stats.lower, naive.lower, TOLERANCE, "lower");
    near(stats.upper, naive.upper, TOLERANCE, "upper");
    // With a small tail of very unlikely tokens, the rounding error of the head's sum is multiplied
    // by the surprisal of the tail.
    near(stats.estimate, naive.estimate, 2.0 * TOLERANCE, "estimate");
    if !stats.upper.is_nan() {
        assert!(stats.lower <= stats.estimate && stats.estimate <= stats.upper, "{}", context());
    }
}

#[derive(Debug, Clone, Copy)]
enum Family {
    Gaussian(f64),
    Zipf(f64),
    OneHot(f64),
    Uniform,
    TwoLevel(usize),
}

fn family() -> impl Strategy<Value = Family> {
    prop_oneof![
        (0.1..8.0).prop_map(Family::Gaussian),
        (0.5..3.0).prop_map(Family::Zipf),
        (1.0..60.0).prop_map(Family::OneHot),
        Just(Family::Uniform),
        (1usize..40).prop_map(Family::TwoLevel),
    ]
}

/// A full distribution in descending order: log-probabilities and their entropy.
fn distribution(family: Family, size: usize, temperature: f64, seed: u64) -> (Vec<f64>, f64) {
    let mut numbers = Numbers(seed);
    let mut logits: Vec<f64> = (0..size)
        .map(|i| match family {
            Family::Gaussian(sigma) => sigma * numbers.gauss(),
            Family::Zipf(exponent) => -exponent * (i as f64 + 1.0).ln(),
            Family::OneHot(gap) => if i == 0 { gap } else { numbers.unit() },
            Family::Uniform => 0.0,
            Family::TwoLevel(many) => if i < many { 3.0 } else { 0.0 },
        } / temperature)
        .collect();
    logits.sort_by(|a, b| b.total_cmp(a));
    let top = logits[0];
    let norm = top + logits.iter().map(|l| (l - top).exp()).sum::<f64>().ln();
    logits.iter_mut().for_each(|l| *l -= norm);
    let entropy = logits.iter().map(|l| oracle::phi(l.exp())).sum();
    (logits, entropy)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn interval_contains_the_true_entropy(
        family in family(),
        size in 1usize..3000,
        k in 1usize..200,
        masked in prop_oneof![3 => Just(0usize), 1 => 0usize..150],
        log_temperature in -3.0..4.6f64,
        sampled in 0.0..1.0f64,
        seed in any::<u64>(),
    ) {
        let (full, truth) = distribution(family, size, log_temperature.exp(), seed);
        let vocab = size + masked;
        let mut row: Vec<f32> = full.iter().take(k).map(|l| *l as f32).collect();
        row.resize(k.min(vocab), f32::MIN);
        // Either a likely token or any token.
        let mut remaining = sampled;
        let by_mass = full.iter().position(|l| { remaining -= l.exp(); remaining <= 0.0 }).unwrap_or(size - 1);
        let any = (sampled * size as f64) as usize;
        let chosen = full[if seed % 2 == 0 { by_mass } else { any }] as f32;
        let stats = check(&row, chosen, Some(vocab as u32));
        prop_assert!(stats.flags.is_measured());
        prop_assert!(!stats.flags.contains(Flags::INCONSISTENT), "{:?}", stats);
        let slack = 2e-4;
        prop_assert!(f64::from(stats.lower) <= truth + slack, "{truth} below {stats:?}");
        prop_assert!(f64::from(stats.upper) >= truth - slack, "{truth} above {stats:?}");
        prop_assert!(f64::from(stats.renormalized) <= truth + slack, "{truth} below {stats:?}");
        let unknown = check(&row, chosen, None);
        prop_assert!(f64::from(unknown.lower) <= truth + slack, "{truth} below {unknown:?}");
    }

    #[test]
    fn bf16_rows_are_detected_by_their_bits(
        size in 30usize..3000, sigma in 0.5..6.0f64, seed in any::<u64>(),
    ) {
        let (full, _) = distribution(Family::Gaussian(sigma), size, 1.0, seed);
        let row: Vec<f32> = full[..20].iter().map(|l| to_bf16(*l as f32)).collect();
        let stats = check(&row, row[0], Some(size as u32));
        prop_assert!(stats.flags.contains(Flags::BF16));
    }

    #[test]
    fn arbitrary_bits_do_not_panic(
        rows in prop::collection::vec(prop::collection::vec(odd_float(), 0..40), 0..80),
        chosen in prop::collection::vec(odd_float(), 0..80),
        vocab in prop::option::of(any::<u32>()),
    ) {
        let mut batch = Rows::new();
        rows.iter().for_each(|row| batch.push_row(row));
        for cpu in Cpu::available() {
            for (row, stats) in rows.iter().zip(measure(&cpu, &batch, &chosen, vocab)) {
                let nan = row.iter().any(|l| l.is_nan() || *l == f32::INFINITY);
                prop_assert_eq!(nan, stats.flags.contains(Flags::NAN));
                prop_assert_eq!(stats.flags.is_measured(), !stats.renormalized.is_nan(), "{:?}", stats);
            }
        }
    }

    #[test]
    fn result_does_not_depend_on_neighbouring_rows(seed in any::<u64>(), count in 1usize..120, widest in 1usize..200) {
        let mut numbers = Numbers(seed);
        let mut batch = Rows::new();
        for _ in 0..count {
            let width = (numbers.unit() * widest as f64) as usize;
            let temperature = 0.1 + 3.0 * numbers.unit();
            let (full, _) = distribution(Family::Zipf(1.1), 400, temperature, seed);
            let mut row: Vec<f32> = full[..width].iter().map(|l| *l as f32).collect();
            if numbers.unit() < 0.1 {
                row.reverse();
            }
            batch.push_row(&row);
        }
        let chosen: Vec<f32> = (0..count).map(|_| -8.0 * numbers.unit() as f32).collect();
        for cpu in Cpu::available() {
            let together = measure(&cpu, &batch, &chosen, Some(400));
            for (index, row) in batch.iter().enumerate() {
                let mut alone = Rows::new();
                alone.push_row(row);
                let stats = measure(&cpu, &alone, &chosen[index..=index], Some(400))[0];
                prop_assert_eq!(format!("{stats:?}"), format!("{:?}", together[index]));
            }
        }
    }
}

fn to_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    let even = (bits >> 16) & 1;
    f32::from_bits(bits.wrapping_add(0x7fff + even) & 0xffff_0000)
}

fn odd_float() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => -20f32..0.0,
        1 => any::<u32>().prop_map(f32::from_bits),
        1 => prop::sample::select(vec![
            0.0, -0.0, f32::NEG_INFINITY, f32::INFINITY, f32::NAN, f32::MIN, f32::MAX, -1e30, -1e-45,
            1e-7, 1.0, 88.0, -40.0, -87.5, -104.0, -750.0,
        ]),
    ]
}

const VOCAB: u32 = 151_936;

#[test]
fn missing_row_keeps_its_index() {
    let mut rows = Rows::new();
    rows.push_missing();
    rows.push_row(&[-0.5, -1.5]);
    rows.push_row(&[f32::MIN, f32::NEG_INFINITY]);
    for cpu in Cpu::available() {
        let stats = measure(&cpu, &rows, &[-0.25], Some(100));
        assert!(stats[0].flags == Flags::MISSING && stats[0].renormalized.is_nan());
        assert_eq!(stats[0].surprisal, 0.25, "the sampled token's logprob is known");
        assert!(stats[1].flags.is_measured());
        assert!(stats[1].surprisal.is_nan(), "no logprob was given for the sampled token");
        assert_eq!(stats[2].flags, Flags::MISSING | Flags::MASKED);
    }
}

#[test]
fn nan_and_infinity_are_not_measured() {
    for row in [&[f32::NAN][..], &[-0.1, f32::NAN], &[f32::NAN, -0.1], &[f32::INFINITY, -1.0]] {
        let stats = check(row, -0.1, Some(100));
        assert_eq!(stats.flags, Flags::NAN, "{row:?}");
        assert!(stats.lower.is_nan() && stats.upper.is_nan() && stats.estimate.is_nan());
    }
}

#[test]
fn row_as_wide_as_the_vocabulary_is_exact() {
    let (full, truth) = distribution(Family::Gaussian(2.0), 64, 1.0, 7);
    let row: Vec<f32> = full.iter().map(|l| *l as f32).collect();
    let stats = check(&row, row[3], Some(64));
    assert!((f64::from(stats.estimate) - truth).abs() < 1e-6);
    assert_eq!((stats.lower, stats.upper), (stats.renormalized, stats.renormalized));
    assert_eq!((stats.tail_mass, stats.rank), (0.0, 4));
    let narrower = check(&row, row[3], Some(50));
    assert!(narrower.flags.contains(Flags::INCONSISTENT), "more values than tokens");
}

#[test]
fn forced_tail_has_an_interval_of_zero_width() {
    let row = [0.25f32.ln(); 2];
    let stats = check(&row, row[0], Some(4));
    assert!((stats.lower - 4f32.ln()).abs() < 1e-4 && (stats.upper - 4f32.ln()).abs() < 1e-4);
}

#[test]
fn masked_values_leave_no_tail() {
    let (full, truth) = distribution(Family::Gaussian(2.0), 7, 1.0, 3);
    let mut row: Vec<f32> = full.iter().map(|l| *l as f32).collect();
    row.resize(20, f32::MIN);
    let stats = check(&row, row[0], Some(VOCAB));
    assert_eq!(stats.flags, Flags::MASKED);
    assert!((f64::from(stats.lower) - truth).abs() < 1e-6 && stats.lower == stats.upper);
    let unknown = check(&row, row[0], None);
    assert_eq!(unknown.upper, stats.upper, "no vocabulary is needed where there is no tail");
}

#[test]
fn sampled_token_outside_the_row_narrows_the_interval() {
    let (full, truth) = distribution(Family::Zipf(0.6), 50, 1.0, 0);
    let row: Vec<f32> = full[..20].iter().map(|l| *l as f32).collect();
    let without = check(&row, f32::NAN, Some(50));
    let with = check(&row, full[49] as f32, Some(50));
    assert_eq!((with.flags, with.rank), (Flags::CHOSEN_OUTSIDE, 0));
    assert!(with.upper - with.lower < without.upper - without.lower);
    assert!(f64::from(with.lower) <= truth && truth <= f64::from(with.upper));
    assert_eq!(with.tail_mass, without.tail_mass, "the tail mass of the row is unchanged");
}

#[test]
fn nearly_certain_row_keeps_its_tail_mass() {
    let row: Vec<f32> = [-1e-9f32].into_iter().chain((0..19).map(|i| -24.0 - i as f32 * 0.3)).collect();
    let stats = check(&row, row[0], Some(VOCAB));
    let rest: f64 = row[1..].iter().map(|l| f64::from(*l).exp()).sum();
    let want = 1e-9 - rest;
    assert!((f64::from(stats.tail_mass) - want).abs() < 1e-14, "{} is not {want}", stats.tail_mass);
    let naive = oracle::measure(&row, row[0], Some(VOCAB)).renormalized;
    assert!((f64::from(stats.renormalized) / naive - 1.0).abs() < 1e-5, "small but not wrong");
    let certain = check(&[0.0, -40.0], 0.0, Some(VOCAB));
    assert_eq!(certain.surprisal.to_bits(), 0, "surprisal is not minus zero");
}

#[test]
fn sums_above_one_leave_only_the_renormalized_entropy() {
    let stats = check(&[-0.5, -0.6, -0.7], -0.5, Some(100));
    assert!(stats.flags.contains(Flags::INCONSISTENT | Flags::NEGATIVE_RESIDUAL));
    assert!(stats.lower.is_nan() && (stats.renormalized - 3f32.ln()).abs() < 0.01);
    let little = check(&[-9.0, -9.0], -9.0, Some(4));
    assert!(little.flags.contains(Flags::INCONSISTENT), "two more tokens cannot hold the rest");
    assert!(little.lower.is_nan() && little.upper.is_nan() && little.estimate.is_nan(), "no interval: {little:?}");
    let rounded = check(&[1e-7, -20.0], 1e-7, Some(100));
    assert!(!rounded.flags.contains(Flags::INCONSISTENT), "rounding is not an error: {rounded:?}");
}

#[test]
fn inconsistent_rows_get_no_interval() {
    let (full, _) = distribution(Family::Zipf(1.0), 512, 1.0, 3);
    let top: Vec<f32> = full[..20].iter().map(|l| *l as f32).collect();
    let mut masked = top.clone();
    masked[1] = f32::NEG_INFINITY;
    let mut doubled = top.clone();
    doubled.insert(0, top[0]);
    let cases: [(&str, &[f32], f32, u32); 6] = [
        ("likeliest token missing", &top[1..], top[0], 512),
        ("mass above 1", &[-0.1, -0.2], -0.1, 512),
        ("masked token, mass missing", &masked, masked[0], 512),
        ("a token twice", &doubled, doubled[0], 20),
        ("two unlikely tokens of a small vocabulary", &[-3.0, -8.0], -3.0, 512),
        ("a whole row of too little mass", &[-1.0, -2.0], -1.0, 2),
    ];
    for (what, row, chosen, vocab) in cases {
        let stats = check(row, chosen, Some(vocab));
        assert!(stats.flags.contains(Flags::INCONSISTENT), "{what}: {stats:?}");
        assert!(stats.lower.is_nan() && stats.upper.is_nan() && stats.estimate.is_nan(), "{what}: {stats:?}");
        assert!(!stats.renormalized.is_nan(), "{what}: the row itself is measured");
    }
}

#[test]
fn zeros_are_not_detected_as_bf16() {
    assert_eq!(check(&[0.0, f32::MIN], 0.0, Some(10)).flags, Flags::MASKED);
    assert!(check(&[0.0, -17.25], 0.0, Some(10)).flags.contains(Flags::BF16));
}

#[test]
fn order_of_a_row_does_not_matter() {
    let sorted = [-0.4f32, -2.0, -2.5, -3.25, -4.1, -6.0];
    let mut shuffled = sorted;
    shuffled.swap(0, 4);
    shuffled.swap(1, 5);
    let (sorted, shuffled) = (check(&sorted, -2.5, Some(VOCAB)), check(&shuffled, -2.5, Some(VOCAB)));
    assert_eq!(sorted.rank, shuffled.rank);
    assert!((sorted.lower - shuffled.lower).abs() < 1e-6 && (sorted.upper - shuffled.upper).abs() < 1e-6);
}

#[test]
fn masked_wide_row_equals_the_narrow_row() {
    let (full, truth) = distribution(Family::Gaussian(2.0), 20, 1.0, 5);
    let live: Vec<f32> = full.iter().map(|l| *l as f32).collect();
    for width in [1, 19, 20, 1023, 1024, 1025, 3000] {
        let mut row = live.clone();
        row.resize(width, f32::MIN);
        // An ordinary row first, which leaves its terms in the buffers.
        check(&live, live[0], Some(VOCAB));
        let stats = check(&row, live[0], Some(VOCAB));
        if width > 20 {
            assert!((f64::from(stats.estimate) - truth).abs() < 1e-6, "{width}: {stats:?}");
        }
    }
}

#[test]
fn tail_of_tiny_terms_is_not_rounded_away() {
    // Each term of the tail is near the last bit of the head's sum, and all are equal.
    for (many, log_temperature) in [(6, -1.729_048_2), (7, -1.598_501_5), (6, -1.728_403_4), (7, -1.781_f64)] {
        let (full, _) = distribution(Family::TwoLevel(many), 458, log_temperature.exp(), 0);
        for k in [20, 64, 126, 172, 400] {
            let row: Vec<f32> = full[..k].iter().map(|l| *l as f32).collect();
            check(&row, row[0], Some(458));
        }
    }
}

#[test]
fn wide_rows_keep_their_precision() {
    for family in [Family::Gaussian(1.0), Family::Zipf(1.1), Family::Uniform, Family::OneHot(20.0)] {
        let (full, truth) = distribution(family, VOCAB as usize, 1.0, 11);
        let row: Vec<f32> = full.iter().map(|l| *l as f32).collect();
        for k in [1, 1023, 1024, 1025, 1026, 2048, 2049, 5000, 100_000, 151_935] {
            check(&row[..k], row[k / 2], Some(VOCAB));
        }
        let stats = check(&row, row[0], Some(VOCAB));
        assert!((f64::from(stats.estimate) - truth).abs() < TOLERANCE, "{family:?}");
    }
}
