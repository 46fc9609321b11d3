//! Whether the device says what the CPU says, and from how many rows on it is the faster one.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Cuda, Unavailable};
use crate::entropy::slices::SLOT_BYTES;
use crate::entropy::{Backend, Cpu, Dtype, Logits, RowStats, TokenStats, TopK};
use crate::logprobs::Rows;

/// The width of the vocabulary of the models that are trained most; in bfloat16.
pub(in crate::entropy) const WIDTH: usize = 151_936;
/// Rows of a slot.
const A_SLOT: usize = SLOT_BYTES / (2 * WIDTH);
/// Both backends may differ by this, in nats.
const TOLERANCE: f64 = 1e-4;
/// A time is the least of so many.
const REPEATS: usize = 3;

/// The least number of rows at which the device was faster, measured at start; `None` where it never was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crossover {
    /// Of 151,936 values in bfloat16, from memory of the host, against the threads that measure rows.
    pub rows: Option<u64>,
    /// Of 20 logprobs, against the thread that would measure them itself.
    pub top_k: Option<u64>,
}

/// Times of few rows and of many.
struct Times {
    few: (usize, Duration),
    many: (usize, Duration),
}

/// Measures the same rows on both; `threads` is how many would share whole rows on the CPU.
///
/// # Errors
/// [`Unavailable`] where they disagree, or the device is lost over it.
pub fn calibrate(cuda: &Cuda, cpu: Cpu, threads: usize) -> Result<Crossover, Unavailable> {
    cuda.trial.store(true, Ordering::Relaxed);
    let found = measure(cuda, cpu, threads);
    cuda.trial.store(false, Ordering::Relaxed);
    found
}

fn measure(cuda: &Cuda, cpu: Cpu, threads: usize) -> Result<Crossover, Unavailable> {
    let rows = (cuda.home().total() * A_SLOT).min(256);
    let values: Vec<u8> = (0..rows * WIDTH).flat_map(|at| logit(at).to_le_bytes()).collect();
    let mut on_cpu = (Vec::new(), Duration::MAX);
    let few = rows.min(8);
    let mut times = Times { few: (few, Duration::MAX), many: (rows, Duration::MAX) };
    for _ in 0..REPEATS {
        let begin = Instant::now();
        on_cpu.0.clear();
        cpu.rows(&logits(&values[..few * WIDTH * 2]), &mut on_cpu.0);
        on_cpu.1 = on_cpu.1.min(begin.elapsed());
        for (count, best) in [&mut times.few, &mut times.many] {
            let begin = Instant::now();
            let numbers = on_device(cuda, &values[..*count * WIDTH * 2])?;
            *best = (*best).min(begin.elapsed());
            let pairs = on_cpu.0.iter().zip(&numbers);
            agree(pairs.map(|(cpu, device)| (cpu.entropy - device.entropy).abs()))?;
        }
    }
    let a_row = on_cpu.1.as_secs_f64() / few as f64 / threads.max(1) as f64;
    Ok(Crossover { rows: times.crossover(a_row), top_k: top_k(cuda, cpu)? })
}

impl Times {
    /// From where on the device is faster than `a_row` seconds a row, by the line through both times.
    fn crossover(&self, a_row: f64) -> Option<u64> {
        let ((few, short), (many, long)) = (self.few, self.many);
        let (short, long) = (short.as_secs_f64(), long.as_secs_f64());
        let each = if many > few { ((long - short) / (many - few) as f64).max(0.0) } else { 0.0 };
        let fixed = (short - each * few as f64).max(0.0);
        (each < a_row).then(|| (fixed / (a_row - each)).ceil().max(1.0) as u64)
    }
}

/// Logits like a model's: a few likely tokens before many unlikely ones; bfloat16.
fn logit(at: usize) -> u16 {
    let mixed = (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let unit = (mixed >> 40) as f32 / (1u64 << 24) as f32;
    let value = 12.0 * unit * unit * unit - 4.0;
    (value.to_bits() >> 16) as u16
}

fn logits(bytes: &[u8]) -> Logits<'_> {
    Logits { dtype: Dtype::Bf16, vocab: WIDTH, bytes, temperature: &[], chosen: &[] }
}

fn on_device(cuda: &Cuda, bytes: &[u8]) -> Result<Vec<RowStats>, Unavailable> {
    let numbers = cuda.try_rows(&logits(bytes)).ok_or_else(busy)?;
    if cuda.is_lost() { Err(busy()) } else { Ok(numbers) }
}

fn busy() -> Unavailable {
    Unavailable::Broken("it was lost while it was being measured".to_owned())
}

fn agree(differences: impl Iterator<Item = f64>) -> Result<(), Unavailable> {
    // NaN is no agreement
    let worst = differences.fold(0.0, |worst: f64, each| if each <= worst { worst } else { each });
    if worst <= TOLERANCE { Ok(()) } else { Err(Unavailable::Disagree(worst)) }
}

fn top_k(cuda: &Cuda, cpu: Cpu) -> Result<Option<u64>, Unavailable> {
    let mut rows = Rows::new();
    for row in 0..1024 {
        let spread = 0.1 + (row % 64) as f32 * 0.05;
        let values: Vec<f32> = (0..20).map(|rank| -spread * rank as f32).collect();
        let norm = values.iter().map(|value| value.exp()).sum::<f32>().ln() + 0.02;
        rows.push_row(&values.iter().map(|value| value - norm).collect::<Vec<f32>>());
    }
    let mut few = Rows::new();
    rows.iter().take(64).for_each(|row| few.push_row(row));
    let mut times = Times { few: (64, Duration::MAX), many: (1024, Duration::MAX) };
    let mut alone = Duration::MAX;
    for _ in 0..REPEATS {
        for (rows, best) in [(&few, &mut times.few.1), (&rows, &mut times.many.1)] {
            let batch = TopK { rows, chosen: &[], vocab: Some(WIDTH as u32), stats: true };
            let (mut ours, mut theirs) = (Vec::<TokenStats>::new(), Vec::<TokenStats>::new());
            let begin = Instant::now();
            cpu.top_k(&batch, &mut ours);
            alone = alone.min(begin.elapsed() * 1024 / rows.len() as u32);
            let begin = Instant::now();
            if !cuda.try_top_k(&batch, &mut theirs) {
                return Err(busy());
            }
            *best = (*best).min(begin.elapsed());
            let pairs = || ours.iter().zip(&theirs);
            let of = |number: fn(&TokenStats) -> f32| {
                pairs().map(move |(ours, theirs)| f64::from((number(ours) - number(theirs)).abs()))
            };
            agree(of(|stats| stats.renormalized).chain(of(|stats| stats.lower)).chain(of(|stats| stats.upper)))?;
        }
    }
    Ok(times.crossover(alone.as_secs_f64() / 1024.0))
}
