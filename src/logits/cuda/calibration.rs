// SPDX-License-Identifier: Apache-2.0
//! Checks that the device and the CPU agree, and measures from how many rows on the device is faster.

use std::time::{Duration, Instant};

use super::{Cuda, Unavailable};
use crate::entropy::{Cpu, Dtype, Logits, RowStats};
use crate::logits::slices::SLOT_BYTES;

/// The vocabulary of the models that are trained most.
pub(crate) const WIDTH: usize = 151_936;
/// The bfloat16 rows of [`WIDTH`] that fit in a slot.
const SLOT_ROWS: usize = SLOT_BYTES / (2 * WIDTH);
/// The largest difference between the backends, in nats.
const TOLERANCE: f64 = 1e-4;
/// Each time is the minimum of this many measurements.
const REPEATS: usize = 3;

/// The times of a small and of a large batch, with their row counts.
struct Times {
    few: (usize, Duration),
    many: (usize, Duration),
}

/// Measures rows of 151,936 bfloat16 values in host memory on the device and on the CPU, where `threads` threads share them. Returns the
/// least number of rows at which the device is faster; `None` if it never is.
///
/// # Errors
/// [`Unavailable`] if the results differ, or the device fails.
pub fn calibrate(cuda: &Cuda, cpu: Cpu, threads: usize) -> Result<Option<u64>, Unavailable> {
    cuda.health.run_trial(|| measure(cuda, cpu, threads))
}

fn measure(cuda: &Cuda, cpu: Cpu, threads: usize) -> Result<Option<u64>, Unavailable> {
    let rows = (cuda.slot_pool().total() * SLOT_ROWS).min(256);
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
            let numbers = on_device(cuda, &logits(&values[..*count * WIDTH * 2]))?;
            *best = (*best).min(begin.elapsed());
            let pairs = on_cpu.0.iter().zip(&numbers);
            agree(pairs.map(|(cpu, device)| (cpu.entropy - device.entropy).abs()))?;
        }
    }
    kernels(cuda, cpu)?;
    let row_seconds = on_cpu.1.as_secs_f64() / few as f64 / threads.max(1) as f64;
    Ok(times.crossover(row_seconds))
}

impl Times {
    /// The row count from which the device is faster than `row_seconds` seconds per row, by linear interpolation of both times.
    fn crossover(&self, row_seconds: f64) -> Option<u64> {
        let ((few, short), (many, long)) = (self.few, self.many);
        let (short, long) = (short.as_secs_f64(), long.as_secs_f64());
        let each = if many > few { ((long - short) / (many - few) as f64).max(0.0) } else { 0.0 };
        let fixed = (short - each * few as f64).max(0.0);
        (each < row_seconds).then(|| (fixed / (row_seconds - each)).ceil().max(1.0) as u64)
    }
}

/// Checks every kernel, both the one for many rows and the one that splits rows: wide rows run only the latter.
fn kernels(cuda: &Cuda, cpu: Cpu) -> Result<(), Unavailable> {
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        for (count, vocab) in [(cuda.split_below, 64), (3, 5000)] {
            let values = (0..count * vocab).map(|at| f32::from_bits(u32::from(logit(at)) << 16));
            let bytes: Vec<u8> = values.flat_map(|value| stored(dtype, value)).collect();
            let logits = Logits { dtype, vocab, bytes: &bytes, temperature: &[], chosen: &[] };
            let mut ours = Vec::new();
            cpu.rows(&logits, &mut ours);
            let theirs = on_device(cuda, &logits)?;
            let pairs = ours.iter().zip(&theirs);
            agree(pairs.flat_map(|(a, b)| [(a.entropy - b.entropy).abs(), (a.log_z - b.log_z).abs()]))?;
        }
    }
    Ok(())
}

/// The bytes of a value from -4 to 8; in half precision those of another value, from 0 to 6.
fn stored(dtype: Dtype, value: f32) -> Vec<u8> {
    match dtype {
        Dtype::F32 => value.to_le_bytes().to_vec(),
        Dtype::Bf16 => value.to_le_bytes()[2..].to_vec(),
        // as integers, the bits of positive floats increase with their value
        Dtype::F16 => (((value + 4.0) * 1500.0) as u16).to_le_bytes().to_vec(),
    }
}

/// A bfloat16 logit of a distribution like a model's: few likely tokens and many unlikely ones.
fn logit(at: usize) -> u16 {
    let mixed = (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let unit = (mixed >> 40) as f32 / (1u64 << 24) as f32;
    let value = 12.0 * unit * unit * unit - 4.0;
    (value.to_bits() >> 16) as u16
}

fn logits(bytes: &[u8]) -> Logits<'_> {
    Logits { dtype: Dtype::Bf16, vocab: WIDTH, bytes, temperature: &[], chosen: &[] }
}

fn on_device(cuda: &Cuda, logits: &Logits<'_>) -> Result<Vec<RowStats>, Unavailable> {
    let numbers = cuda.try_rows(logits).ok_or_else(|| failure(cuda))?;
    if cuda.is_lost() { Err(failure(cuda)) } else { Ok(numbers) }
}

/// Why the device returned no numbers.
fn failure(cuda: &Cuda) -> Unavailable {
    cuda.loss().cloned().unwrap_or_else(|| Unavailable::Broken("it did not answer during calibration".to_owned()))
}

fn agree(differences: impl Iterator<Item = f64>) -> Result<(), Unavailable> {
    // a NaN is a disagreement, and f64::max would ignore it
    let worst = differences.map(|each| if each.is_nan() { f64::INFINITY } else { each }).fold(0.0, f64::max);
    if worst <= TOLERANCE { Ok(()) } else { Err(Unavailable::Disagree(worst)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_number_is_a_disagreement() {
        let agreed = |differences: &[f64]| agree(differences.iter().copied());
        assert_eq!(agreed(&[0.0, 5e-5]), Ok(()));
        for differences in [&[f64::NAN, 0.0][..], &[5.0, f64::NAN, 0.0], &[0.0, f64::NAN], &[2e-4, 0.0]] {
            assert!(matches!(agreed(differences), Err(Unavailable::Disagree(_))), "{differences:?}");
        }
    }

    #[test]
    fn crossover_is_the_intersection_of_the_lines() {
        let times = |few: (usize, u64), many: (usize, u64)| Times {
            few: (few.0, Duration::from_micros(few.1)),
            many: (many.0, Duration::from_micros(many.1)),
        };
        // 100 us, and 2 us a row, against 12 us a row
        assert_eq!(times((8, 116), (256, 612)).crossover(12e-6), Some(10));
        // never faster
        assert_eq!(times((8, 116), (256, 612)).crossover(2e-6), None);
        // faster from the first row on
        assert_eq!(times((8, 16), (256, 512)).crossover(12e-6), Some(1));
        // with one measurement, further rows are assumed to cost nothing
        assert_eq!(times((13, 130), (13, 130)).crossover(10e-6), Some(13));
    }
}
