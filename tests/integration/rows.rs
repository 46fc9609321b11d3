//! Whole rows of logits: every kind of lanes against the textbook in `f64`.

use proptest::prelude::*;
use tokentap::entropy::{Backend, Cpu, Dtype, Flags, Logits, RowStats};

/// The promise to users, in nats.
const TOLERANCE: f64 = 5e-6;

const VOCAB: usize = 151_936;

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::Bf16, Dtype::F16];

/// What the formulas of a textbook say about a row, in nats; `None` where they say nothing.
struct Naive {
    entropy: f64,
    log_z: f64,
    p_max: f64,
    varentropy: f64,
    surprisal: f64,
}

fn naive(row: &[f32], temperature: f32, chosen: i64) -> Option<Naive> {
    let fit = temperature.is_finite() && temperature > 0.0;
    if !fit || row.iter().any(|x| x.is_nan() || *x == f32::INFINITY) {
        return None;
    }
    let masked = |x: f32| x <= -1e30;
    let live: Vec<f64> = row.iter().filter(|x| !masked(**x)).map(|x| f64::from(*x) / f64::from(temperature)).collect();
    let top = live.iter().copied().reduce(f64::max)?;
    let log_z = top + live.iter().map(|x| (x - top).exp()).sum::<f64>().ln();
    let entropy = live.iter().map(|x| (log_z - x) * (x - log_z).exp()).sum::<f64>();
    let varentropy = live.iter().map(|x| (log_z - x - entropy).powi(2) * (x - log_z).exp()).sum();
    let surprisal = match usize::try_from(chosen).ok().and_then(|id| row.get(id)) {
        Some(x) if masked(*x) => f64::INFINITY,
        Some(x) => log_z - f64::from(*x) / f64::from(temperature),
        None => f64::NAN,
    };
    Some(Naive { entropy, log_z, p_max: (top - log_z).exp(), varentropy, surprisal })
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

    /// Measures in every kind of lanes, holds each row against the textbook, and returns the widest lanes' answer.
    fn check(&self) -> Vec<RowStats> {
        let rows = self.values();
        let mut last = Vec::new();
        for cpu in Cpu::available() {
            last.clear();
            cpu.rows(&self.logits(), &mut last);
            assert_eq!(last.len(), rows.len(), "{}: one entry a row", cpu.name());
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
    let masked = row.iter().any(|x| *x <= -1e30);
    let Some(naive) = naive(row, temperature, chosen) else {
        let empty = row.iter().all(|x| *x <= -1e30) && temperature.is_finite() && temperature > 0.0;
        let flags = if empty { Flags::MISSING | Flags::MASKED } else { Flags::NAN };
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
    assert!(stats.entropy >= 0.0, "{}: {stats:?} is below zero", context());
    near(stats.log_z, naive.log_z, TOLERANCE * naive.log_z.abs().max(1.0), "log_z");
    near(stats.p_max, naive.p_max, 2e-6 * naive.p_max, "p_max");
    near(stats.varentropy, naive.varentropy, 1e-5 * naive.varentropy.max(1.0), "varentropy");
    near(stats.surprisal, naive.surprisal, TOLERANCE * naive.surprisal.max(1.0), "surprisal");
    assert_eq!(stats.flags.contains(Flags::MASKED), masked, "{}", context());
    assert!(stats.flags.is_measured() && !stats.flags.contains(Flags::MISSING), "{}", context());
}

/// Rounds to nearest, ties to even, as engines do.
fn to_bf16(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7fc1;
    }
    let bits = value.to_bits();
    (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// The value of half precision next to `value`, by search over all of them: naive, but beyond doubt.
fn to_f16(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7e01;
    }
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    // Magnitudes grow with the bits; 65,520 and above round to infinity.
    let (mut low, mut high) = (0u16, 0x7c00u16);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if from_f16(middle) <= value.abs() { low = middle } else { high = middle }
    }
    let up = if high == 0x7c00 { 65_536.0 } else { from_f16(high) };
    let (below, above) = (value.abs() - from_f16(low), up - value.abs());
    let nearest = if above < below || (above == below && low % 2 == 1) { high } else { low };
    sign | nearest
}

/// The value of half precision by its definition.
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

/// One row in every type, checked, as single precision gives it.
fn measure(row: &[f32]) -> RowStats {
    let [single, ..] = DTYPES.map(|dtype| Batch::new(dtype, &[row.to_vec()]).check()[0]);
    single
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
fn one_hot_is_about_zero() {
    for gap in [5.0, 10.0, 20.0, 40.0] {
        for width in [2, 100, VOCAB] {
            let mut row = vec![-1.0; width];
            row[width / 2] += gap;
            measure(&row);
        }
    }
    let mut row = vec![f32::NEG_INFINITY; 100];
    row[7] = 3.5;
    let stats = measure(&row);
    assert_eq!((stats.entropy, stats.p_max, stats.varentropy, stats.log_z), (0.0, 1.0, 0.0, 3.5));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bits_make_it_panic(bits in prop::collection::vec(any::<u8>(), 0..600), vocab in 0usize..70, shift in 0usize..8) {
        for dtype in DTYPES {
            let mut bytes = vec![0xff; shift];
            let size = if vocab == 0 { 0 } else { bits.len() / (vocab * dtype.bytes()) * vocab * dtype.bytes() };
            bytes.extend(&bits[..size]);
            let batch = Batch { dtype, vocab: vocab.max(1), bytes, shift, temperature: vec![0.7], chosen: vec![3] };
            batch.check();
        }
    }
}
