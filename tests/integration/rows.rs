// SPDX-License-Identifier: Apache-2.0
//! Whole rows of logits: every SIMD kernel compared with a reference in `f64`.

use crate::oracle::Numbers;

use proptest::prelude::*;
use tokentap::entropy::{Cpu, Dtype, Flags, Logits, RowStats};

/// The documented accuracy, in nats.
const TOLERANCE: f64 = 5e-6;

const VOCAB: usize = 151_936;

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::Bf16, Dtype::F16];

/// The numbers of a row by the textbook formulas, in nats.
struct Naive {
    entropy: f64,
    log_z: f64,
    p_max: f64,
    varentropy: f64,
    surprisal: f64,
}

fn naive(row: &[f32], temperature: f32, chosen: i64) -> Option<Naive> {
    let fit = temperature.is_normal() && temperature > 0.0;
    if !fit || row.iter().any(|x| x.is_nan() || *x == f32::INFINITY) {
        return None;
    }
    let masked = |x: f32| x <= -1e30;
    let live: Vec<f64> = row.iter().filter(|x| !masked(**x)).map(|x| f64::from(*x) / f64::from(temperature)).collect();
    let top = live.iter().copied().reduce(f64::max)?;
    // Relative to the greatest value: otherwise large values would lose the precision of their differences.
    let log = live.iter().map(|x| (x - top).exp()).sum::<f64>().ln();
    let surprisals = || live.iter().map(|x| log - (x - top));
    let entropy = surprisals().map(|s| s * (-s).exp()).sum::<f64>();
    let varentropy = surprisals().map(|s| (s - entropy).powi(2) * (-s).exp()).sum();
    let surprisal = match usize::try_from(chosen).ok().and_then(|id| row.get(id)) {
        Some(x) if masked(*x) => f64::INFINITY,
        Some(x) => log - (f64::from(*x) / f64::from(temperature) - top),
        None => f64::NAN,
    };
    Some(Naive { entropy, log_z: top + log, p_max: (-log).exp(), varentropy, surprisal })
}

/// A batch that owns its bytes, which start `shift` bytes into an allocation.
#[derive(Debug, Clone)]
struct Batch {
    dtype: Dtype,
    vocab: usize,
    bytes: Vec<u8>,
    shift: usize,
    temperature: Vec<f32>,
    chosen: Vec<i64>,
}

impl Batch {
    fn new(dtype: Dtype, rows: &[Vec<f32>]) -> Batch {
        Batch::shifted(dtype, rows, 0)
    }

    fn shifted(dtype: Dtype, rows: &[Vec<f32>], shift: usize) -> Batch {
        let vocab = rows.first().map_or(0, Vec::len);
        let mut bytes = vec![0xff; shift];
        for value in rows.iter().flatten() {
            match dtype {
                Dtype::F32 => bytes.extend(value.to_le_bytes()),
                Dtype::Bf16 => bytes.extend(to_bf16(*value).to_le_bytes()),
                Dtype::F16 => bytes.extend(to_f16(*value).to_le_bytes()),
            }
        }
        Batch { dtype, vocab, bytes, shift, temperature: Vec::new(), chosen: Vec::new() }
    }

    fn logits(&self) -> Logits<'_> {
        let Batch { dtype, vocab, bytes, shift, temperature, chosen } = self;
        Logits { dtype: *dtype, vocab: *vocab, bytes: &bytes[*shift..], temperature, chosen }
    }

    /// The values as stored, one row after the other.
    fn values(&self) -> Vec<Vec<f32>> {
        let bytes = &self.bytes[self.shift..];
        let value = |bytes: &[u8]| match self.dtype {
            Dtype::F32 => f32::from_le_bytes(bytes.try_into().unwrap()),
            Dtype::Bf16 => f32::from_bits(u32::from(u16::from_le_bytes(bytes.try_into().unwrap())) << 16),
            Dtype::F16 => from_f16(u16::from_le_bytes(bytes.try_into().unwrap())),
        };
        let values: Vec<f32> = bytes.chunks_exact(self.dtype.bytes()).map(value).collect();
        values.chunks_exact(self.vocab).map(<[f32]>::to_vec).collect()
    }

    /// Measures with every SIMD kernel, compares each row with the reference, and returns the numbers of the widest kernel.
    fn check(&self) -> Vec<RowStats> {
        let rows = self.values();
        let mut last = Vec::new();
        for cpu in Cpu::available() {
            last.clear();
            cpu.rows(&self.logits(), &mut last);
            assert_eq!(last.len(), rows.len(), "{}: one entry per row", cpu.name());
            for (index, (row, stats)) in rows.iter().zip(&last).enumerate() {
                let temperature = match self.temperature[..] {
                    [] => 1.0,
                    [all] => all,
                    ref each => each.get(index).copied().unwrap_or(f32::NAN),
                };
                let chosen = self.chosen.get(index).copied().unwrap_or(-1);
                compare(stats, row, temperature, chosen, || format!("{} {:?} row {index}", cpu.name(), self.dtype));
            }
        }
        last
    }
}

fn compare(stats: &RowStats, row: &[f32], temperature: f32, chosen: i64, context: impl Fn() -> String) {
    let Some(naive) = naive(row, temperature, chosen) else {
        let empty = row.iter().all(|x| *x <= -1e30) && temperature.is_normal() && temperature > 0.0;
        let flags = if empty { Flags::MISSING } else { Flags::NAN };
        assert_eq!(stats.flags, flags, "{}: {stats:?}", context());
        let RowStats { entropy, log_z, p_max, varentropy, surprisal, .. } = stats;
        let known = [entropy, log_z, p_max, varentropy, surprisal].into_iter().any(|number| !number.is_nan());
        assert!(!known, "{}: nothing is measured: {stats:?}", context());
        return;
    };
    let near = |got: f64, want: f64, tolerance: f64, what: &str| {
        let same = got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() <= tolerance;
        let width = row.len();
        assert!(same, "{}: {what}: {got} is not {want} (width {width}, T {temperature}); {stats:?}", context());
    };
    near(stats.entropy, naive.entropy, TOLERANCE, "entropy");
    assert!(stats.entropy >= 0.0 && stats.varentropy >= 0.0, "{}: {stats:?} is below zero", context());
    near(stats.log_z, naive.log_z, TOLERANCE * naive.log_z.abs().max(1.0), "log_z");
    near(stats.p_max, naive.p_max, TOLERANCE * naive.p_max, "p_max");
    near(stats.varentropy, naive.varentropy, 1e-4 * naive.varentropy.max(1.0), "varentropy");
    near(stats.surprisal, naive.surprisal, TOLERANCE * naive.surprisal.max(1.0), "surprisal");
    assert_eq!(stats.flags, Flags::empty(), "{}", context());
}

/// Truncates to bfloat16. Rows are compared after storage, so the rounding mode does not matter.
fn to_bf16(value: f32) -> u16 {
    if value.is_nan() { 0x7fc1 } else { (value.to_bits() >> 16) as u16 }
}

/// Truncates to half precision. Overflow becomes infinity, and subnormals become zero.
fn to_f16(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7e01;
    }
    let magnitude = (value.abs().to_bits() >> 13).saturating_sub(112 << 10).min(0x7c00);
    let magnitude = if magnitude < 1 << 10 { 0 } else { magnitude };
    (value.to_bits() >> 16 & 0x8000 | magnitude) as u16
}

/// Decodes half precision by its definition.
fn from_f16(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction > 0.0 => f32::NAN,
        31 => f32::INFINITY,
        _ => (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

/// Checks one row in every type; returns the numbers in single precision.
fn measure(row: &[f32]) -> RowStats {
    let [single, ..] = DTYPES.map(|dtype| Batch::new(dtype, &[row.to_vec()]).check()[0]);
    single
}

impl Numbers {
    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        (self.unit() * end as f64) as usize
    }
}

#[derive(Debug, Clone, Copy)]
enum Family {
    Uniform,
    Gaussian(f64),
    Zipf(f64),
    /// This many values, at this distance above the others.
    Heads(usize, f64),
}

/// The distribution of the values of a row.
#[derive(Debug, Clone, Copy)]
struct Shape {
    family: Family,
    height: f64,
    /// The share of the values that is masked.
    masked: f64,
}

fn shape() -> impl Strategy<Value = Shape> {
    let family = prop_oneof![
        1 => Just(Family::Uniform),
        3 => (0.1..8.0).prop_map(Family::Gaussian),
        2 => (0.5..3.0).prop_map(Family::Zipf),
        2 => (5.0..40.0).prop_map(|gap| Family::Heads(1, gap)),
        3 => ((1usize..40), (0.1..20.0)).prop_map(|(many, gap)| Family::Heads(many, gap)),
    ];
    let masked = prop_oneof![4 => Just(0.0), 1 => 0.0..0.3, 1 => 0.95..1.0];
    (family, -50.0..50.0, masked).prop_map(|(family, height, masked)| Shape { family, height, masked })
}

fn temperature() -> impl Strategy<Value = f32> {
    prop_oneof![Just(1.0), (0.05f64.ln()..5f64.ln()).prop_map(|log| log.exp() as f32)]
}

fn row(shape: Shape, width: usize, numbers: &mut Numbers) -> Vec<f32> {
    let start = numbers.below(width);
    let mut value = |at: usize| {
        let value = match shape.family {
            Family::Uniform => 0.0,
            Family::Gaussian(sigma) => sigma * numbers.gauss(),
            Family::Zipf(exponent) => -exponent * (at as f64 + 1.0).ln(),
            Family::Heads(many, gap) => {
                if at < many {
                    gap
                } else {
                    0.0
                }
            }
        };
        let masked = shape.masked > 0.0 && numbers.unit() < shape.masked;
        if masked { [f32::NEG_INFINITY, f32::MIN, -1e30][at % 3] } else { (shape.height + value) as f32 }
    };
    let mut row: Vec<f32> = (0..width).map(&mut value).collect();
    row.rotate_left(start);
    row
}

/// `PROPTEST_CASES` cases, or `usual` in an ordinary run.
fn cases(usual: u32) -> ProptestConfig {
    let from_outside = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { from_outside.cases } else { usual };
    ProptestConfig { cases, failure_persistence: None, ..from_outside }
}

fn dtype() -> impl Strategy<Value = Dtype> {
    prop::sample::select(DTYPES.to_vec())
}

/// Floats, including bit patterns that kernels got wrong.
fn odd_float() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -20f32..20.0,
        1 => any::<u32>().prop_map(f32::from_bits),
        2 => prop::sample::select(vec![
            0.0, -0.0, f32::NEG_INFINITY, f32::MIN, f32::MAX, -1e30, -0.999e30, 1e30, -1e-45, 1e-45, -60_000.0,
            65_504.0, -6.1e-5, 88.0, -104.0, -125.0, -750.0,
        ]),
    ]
}

proptest! {
    #![proptest_config(cases(250))]

    #[test]
    fn numbers_match_the_reference(
        shapes in prop::collection::vec((shape(), temperature()), 1..4),
        width in prop_oneof![1usize..80, 1usize..5000],
        (dtype, shift) in (dtype(), 0usize..9),
        seed in any::<u64>(),
    ) {
        let mut numbers = Numbers(seed);
        let rows: Vec<Vec<f32>> = shapes.iter().map(|(shape, _)| row(*shape, width, &mut numbers)).collect();
        let mut batch = Batch::shifted(dtype, &rows, shift);
        batch.temperature = shapes.iter().map(|(_, temperature)| *temperature).collect();
        batch.chosen = shapes.iter().map(|_| numbers.below(width + 1) as i64).collect();
        for stats in batch.check().iter().filter(|stats| stats.flags.is_measured()) {
            prop_assert!(stats.entropy <= (width as f64).ln() + TOLERANCE, "above ln {width}: {stats:?}");
        }
    }

    #[test]
    fn unusual_values_match_the_reference(
        values in prop::collection::vec(odd_float(), 1..300),
        repeats in 1usize..12,
        (dtype, shift) in (dtype(), 0usize..9),
        temperature in temperature(),
        chosen in -2i64..40,
    ) {
        // Repeated, the unusual values occur again after greater ones and in later blocks.
        let mut batch = Batch::shifted(dtype, &[values.repeat(repeats)], shift);
        (batch.temperature, batch.chosen) = (vec![temperature], vec![chosen]);
        batch.check();
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(
        bits in prop::collection::vec(any::<u8>(), 0..700),
        vocab in 0usize..70,
        temperature in prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 0..4),
        chosen in prop::collection::vec(any::<i64>(), 0..4),
        dtype in dtype(),
    ) {
        let logits = Logits { dtype, vocab, bytes: &bits, temperature: &temperature, chosen: &chosen };
        let rows = if vocab == 0 { 0 } else { bits.len() / (vocab * dtype.bytes()) };
        prop_assert_eq!(logits.rows(), rows);
        for cpu in Cpu::available() {
            let mut out = Vec::new();
            cpu.rows(&logits, &mut out);
            prop_assert_eq!(out.len(), rows, "one entry per row");
            for stats in out {
                prop_assert_eq!(stats.flags.is_measured(), stats.entropy >= 0.0, "{:?}", stats);
            }
        }
    }

    #[test]
    fn rows_are_independent_of_their_batch(
        shapes in prop::collection::vec(shape(), 1..12),
        width in prop_oneof![1usize..80, 1usize..3000],
        dtype in dtype(),
        seed in any::<u64>(),
    ) {
        let mut numbers = Numbers(seed);
        let mut rows: Vec<Vec<f32>> = shapes.iter().map(|shape| row(*shape, width, &mut numbers)).collect();
        let broken = numbers.below(rows.len() + 1);
        if let Some(row) = rows.get_mut(broken) {
            row[width / 2] = f32::NAN;
        }
        let together = Batch::shifted(dtype, &rows, 1);
        for cpu in Cpu::available() {
            let mut out = Vec::new();
            cpu.rows(&together.logits(), &mut out);
            for (row, stats) in rows.iter().zip(out.clone()) {
                out.clear();
                cpu.rows(&Batch::new(dtype, std::slice::from_ref(row)).logits(), &mut out);
                prop_assert_eq!(format!("{stats:?}"), format!("{:?}", out[0]), "to the last bit");
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(8))]

    #[test]
    fn rows_of_150_thousand_logits_match_the_reference(
        shape in shape(),
        temperature in temperature(),
        (dtype, shift) in (dtype(), 0usize..9),
        seed in any::<u64>(),
    ) {
        let mut numbers = Numbers(seed);
        let mut batch = Batch::shifted(dtype, &[row(shape, VOCAB, &mut numbers)], shift);
        (batch.temperature, batch.chosen) = (vec![temperature], vec![numbers.below(VOCAB) as i64]);
        batch.check();
    }
}

#[test]
fn uniform_over_four_is_ln_4() {
    for height in [0.0, -7.25, 30.0] {
        let stats = measure(&[height; 4]);
        assert!((stats.entropy - 4f64.ln()).abs() < 1e-15, "{stats:?}");
        assert!((stats.p_max - 0.25).abs() < 1e-15 && stats.varentropy == 0.0, "{stats:?}");
        assert!((stats.log_z - f64::from(height) - 4f64.ln()).abs() < 1e-14, "{stats:?}");
    }
}

#[test]
fn one_hot_row_has_near_zero_entropy() {
    for gap in [5.0, 10.0, 20.0, 40.0] {
        for width in [2, 100, VOCAB] {
            let mut row = vec![-1.0; width];
            row[width / 2] += gap;
            let stats = measure(&row);
            assert!(gap < 40.0 || stats.entropy < 1e-10, "{stats:?}");
        }
    }
    let mut row = vec![f32::NEG_INFINITY; 100];
    row[7] = 3.5;
    let stats = measure(&row);
    assert_eq!((stats.entropy, stats.p_max, stats.varentropy, stats.log_z), (0.0, 1.0, 0.0, 3.5));
    assert_eq!(stats.entropy.to_bits(), 0, "entropy is not minus zero");
}

#[test]
fn batch_returns_one_entropy_per_row() {
    let mut numbers = Numbers(3);
    let rows: Vec<Vec<f32>> = (0..3).map(|_| (0..100).map(|_| numbers.gauss() as f32).collect()).collect();
    for dtype in DTYPES {
        let stats = Batch::new(dtype, &rows).check();
        assert_eq!(stats.len(), 3);
        assert!(stats.iter().all(|stats| stats.entropy >= 0.0 && stats.entropy <= 100f64.ln()), "{stats:?}");
    }
}

#[test]
fn thousands_of_narrow_rows_match_the_reference() {
    let mut numbers = Numbers(11);
    for width in [1, 2, 7, 33] {
        let rows: Vec<Vec<f32>> =
            (0..4000).map(|_| (0..width).map(|_| 3.0 * numbers.gauss() as f32).collect()).collect();
        for dtype in DTYPES {
            let mut batch = Batch::new(dtype, &rows);
            batch.temperature = rows.iter().map(|_| 0.05 + 4.95 * numbers.unit() as f32).collect();
            batch.chosen = rows.iter().map(|_| numbers.below(width) as i64).collect();
            batch.check();
        }
    }
}

#[test]
fn every_half_precision_value_is_decoded_exactly() {
    // A value alone among masked ones is its row's `log_z`. Rows of 19 use both the vector and the scalar path.
    const WIDTH: usize = 19;
    for shift in [0, 1] {
        let mut bytes = vec![0; shift];
        for bits in 0..=u16::MAX {
            let mut row = [0xfc00u16; WIDTH];
            row[usize::from(bits) % WIDTH] = bits;
            bytes.extend(row.iter().flat_map(|bits| bits.to_le_bytes()));
        }
        let logits = Logits { dtype: Dtype::F16, vocab: WIDTH, bytes: &bytes[shift..], temperature: &[], chosen: &[] };
        for cpu in Cpu::available() {
            let mut out = Vec::new();
            cpu.rows(&logits, &mut out);
            for (bits, stats) in (0..=u16::MAX).zip(&out) {
                let value = from_f16(bits);
                match stats.flags {
                    flags if flags.is_measured() => {
                        assert_eq!(stats.log_z, f64::from(value), "{} {bits:#06x}", cpu.name());
                    }
                    Flags::NAN => assert!(value.is_nan() || value == f32::INFINITY, "{} {bits:#06x}", cpu.name()),
                    _ => assert_eq!(value, f32::NEG_INFINITY, "{} {bits:#06x}: {stats:?}", cpu.name()),
                }
            }
        }
    }
}

#[test]
fn masked_logits_are_ignored() {
    let live = [1.5, -0.25, 0.75, 3.0];
    let alone = measure(&live);
    assert_eq!(alone.flags, Flags::empty());
    for mask in [f32::NEG_INFINITY, f32::MIN, -1e30] {
        for width in [5, 64, 2049, 5000] {
            let mut row = vec![mask; width];
            row[..4].copy_from_slice(&live);
            row.swap(3, width - 1);
            let mut batch = Batch::new(Dtype::F32, &[row.clone(), row]);
            batch.chosen = vec![3, 1];
            let stats = batch.check();
            assert_eq!(stats[0].surprisal, f64::INFINITY, "a masked token");
            assert!((stats[0].entropy - alone.entropy).abs() < 1e-6 && (stats[0].log_z - alone.log_z).abs() < 1e-6);
            assert!((stats[1].surprisal - (alone.log_z + 0.25)).abs() < 1e-6);
        }
    }
    let all = measure(&[f32::NEG_INFINITY, f32::NEG_INFINITY, f32::MIN]);
    assert_eq!(all.flags, Flags::MISSING);
}

#[test]
fn nan_and_infinity_are_flagged() {
    // Some have a payload in the low bits, which integer arithmetic on the bits could lose.
    let bad = [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff), f32::INFINITY];
    for bad in bad {
        for rest in [0.5, f32::NEG_INFINITY, f32::MAX, -f32::MAX] {
            for (width, at) in [(1, 0), (2, 1), (40, 39), (64, 3), (2048, 2000), (5000, 4999), (5000, 0)] {
                let mut row = vec![rest; width];
                row[at] = bad;
                assert_eq!(Batch::new(Dtype::F32, &[row]).check()[0].flags, Flags::NAN, "{bad} at {at} of {width}");
            }
        }
    }
    for (dtype, bits) in [(Dtype::Bf16, 0x7f81u16), (Dtype::Bf16, 0x7f80), (Dtype::F16, 0x7c01), (Dtype::F16, 0x7c00)] {
        for at in 0..20 {
            let mut bytes = vec![0; 40];
            bytes[2 * at..][..2].copy_from_slice(&bits.to_le_bytes());
            let batch = Batch { bytes, ..Batch::new(dtype, &[vec![0.0; 20]]) };
            assert_eq!(batch.check()[0].flags, Flags::NAN, "{dtype:?} {bits:#06x} at {at}");
        }
    }
}

#[test]
fn increasing_rows_match_the_reference() {
    for step in [1e-3f32, 0.02, -0.02, 3.0] {
        let row: Vec<f32> = (0..10_000).map(|at| step * at as f32 - 40.0).collect();
        let mut batch = Batch::new(Dtype::F32, &[row.clone(), row.clone(), row]);
        (batch.temperature, batch.chosen) = (vec![0.05, 1.0, 5.0], vec![0, 9_999, 2_048]);
        batch.check();
    }
}

#[test]
fn invalid_temperature_affects_only_its_row() {
    let row = vec![0.5, 1.5, -1.0];
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, -1.0, 1e-40];
    let mut batch = Batch::new(Dtype::F32, &vec![row.clone(); 2 * odd.len() + 1]);
    batch.temperature = odd.iter().flat_map(|odd| [0.7, *odd]).collect();
    let stats = batch.check();
    for (index, stats) in stats.iter().enumerate() {
        // The last row has no temperature.
        let flags = if index % 2 == 0 && index < 2 * odd.len() { Flags::empty() } else { Flags::NAN };
        assert_eq!(stats.flags, flags, "row {index}");
    }
}

#[test]
fn masked_logits_are_ignored_at_any_temperature() {
    // At the highest temperatures, the distance alone would not exclude a masked value.
    for width in [3, 64, 5000] {
        let mut row = vec![-1e30; width];
        (row[0], row[width / 2]) = (0.5, -1.5);
        let mut batch = Batch::new(Dtype::F32, &[row]);
        for extreme in [f32::MIN_POSITIVE, 1e-30, 1e30, f32::MAX] {
            batch.temperature = vec![extreme];
            batch.check();
        }
    }
}

#[test]
fn out_of_range_token_has_no_surprisal() {
    let mut batch = Batch::new(Dtype::Bf16, &vec![vec![0.0, 1.0]; 7]);
    batch.chosen = vec![-1, 2, i64::MAX, i64::MIN, 0, 1];
    let surprisals: Vec<f64> = batch.check().iter().map(|stats| stats.surprisal).collect();
    let known: Vec<bool> = surprisals.iter().map(|surprisal| !surprisal.is_nan()).collect();
    assert_eq!(known, [false, false, false, false, true, true, false]);
    assert!((surprisals[4] - surprisals[5] - 1.0).abs() < 1e-12);
}

#[test]
fn dtype_names_match_safetensors() {
    assert_eq!(DTYPES.map(Dtype::name), ["F32", "BF16", "F16"], "the names in safetensors");
    assert_eq!(DTYPES.map(Dtype::bytes), [4, 2, 2]);
}
