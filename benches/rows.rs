//! Microseconds a row of 151,936 logits for each kind of lanes and storage type, beside what the same core reads
//! from the same memory and what NumPy takes: `cargo bench --bench rows`.

#![allow(clippy::print_stdout, reason = "a bench reports to its terminal")]

use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

use tokentap::entropy::{Backend, Cpu, Dtype, Logits};

const VOCAB: usize = 151_936;

/// Rows a batch: 39 MB of single precision, more than the second-level caches hold.
const ROWS: usize = 64;

/// Each number is the best of so many rounds; in a round everything is timed once, so that all of them meet the
/// machine at its best and at its worst.
const ROUNDS: usize = 25;

/// `log_softmax`, then `-sum p log p`, in single precision: microseconds a row, of a whole batch and of a lone row,
/// whose intermediate arrays stay in the cache.
const NUMPY: &str = "
import time
import numpy
rows = numpy.random.default_rng(1).standard_normal((64, 151936), dtype=numpy.float32) * numpy.float32(2.5)
def entropy(x):
    shifted = x - x.max(axis=-1, keepdims=True)
    logprobs = shifted - numpy.log(numpy.exp(shifted).sum(axis=-1, keepdims=True))
    return -(numpy.exp(logprobs) * logprobs).sum(axis=-1)
def measure(x):
    best = float('inf')
    for _ in range(25):
        begin = time.perf_counter()
        entropy(x)
        best = min(best, time.perf_counter() - begin)
    return best / len(x) * 1e6
print(numpy.__version__, measure(rows), measure(rows[:1]))
";

/// One line of the table.
struct Cell {
    cpu: Cpu,
    dtype: Dtype,
    /// Seconds a batch.
    best: f64,
}

fn main() {
    let batches = [Dtype::F32, Dtype::Bf16, Dtype::F16].map(|dtype| (dtype, batch(dtype)));
    let mut cells: Vec<Cell> = Cpu::available()
        .into_iter()
        .flat_map(|cpu| batches.iter().map(move |(dtype, _)| Cell { cpu, dtype: *dtype, best: f64::INFINITY }))
        .collect();
    let single = &batches[0].1;
    let mut reading = f64::INFINITY;
    let mut out = Vec::new();
    for _ in 0..ROUNDS {
        reading = reading.min(seconds(|| {
            black_box(sum(black_box(single)));
        }));
        for cell in &mut cells {
            let bytes = batches.iter().find(|(dtype, _)| *dtype == cell.dtype).map_or(&[][..], |(_, bytes)| bytes);
            let logits = Logits { dtype: cell.dtype, vocab: VOCAB, bytes, temperature: &[], chosen: &[] };
            out.clear();
            cell.best = cell.best.min(seconds(|| cell.cpu.rows(black_box(&logits), &mut out)));
            assert!(
                out.len() == ROWS && out.iter().all(|stats| stats.entropy > 8.0),
                "rows of this kind have 8.9 nats"
            );
        }
    }
    report(&cells, single.len() as f64 / reading);
}

fn report(cells: &[Cell], rate: f64) {
    println!("reading alone: {:.1} GB/s", rate / 1e9);
    println!("{:14} {:5} {:>9} {:>7} {:>14}", "lanes", "type", "us a row", "GB/s", "of that rate");
    for Cell { cpu, dtype, best } in cells {
        let (row, bytes) = (best / ROWS as f64, (VOCAB * dtype.bytes()) as f64);
        let share = bytes / row / rate * 100.0;
        println!("{:14} {:5} {:9.1} {:7.2} {share:12.0} %", cpu.name(), dtype.name(), row * 1e6, bytes / row / 1e9);
    }
    let Some(widest) = cells.iter().rfind(|cell| cell.dtype == Dtype::F32) else { return };
    let row = widest.best / ROWS as f64;
    let share = (VOCAB * Dtype::F32.bytes()) as f64 / row / rate * 100.0;
    println!("F32 at 25 % of the read rate or more: {share:.0} %, {}", verdict(share >= 25.0));
    match numpy() {
        Some(Numpy { version, batch, lone }) => {
            let [batch_times, lone_times] = [batch, lone].map(|time| time / (row * 1e6));
            println!(
                "NumPy {version}: {batch:.0} us a row of the same batch, {lone:.0} us a lone row ({lone_times:.0} x)"
            );
            println!(
                "F32 at 40 x NumPy or more, of the same batch: {batch_times:.0} x, {}",
                verdict(batch_times >= 40.0)
            );
        }
        None => println!("NumPy: skipped, there is no python3 that has it"),
    }
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

/// What NumPy takes, in microseconds a row.
struct Numpy {
    version: String,
    batch: f64,
    lone: f64,
}

/// Runs NumPy, where there is one.
fn numpy() -> Option<Numpy> {
    let output = Command::new("python3").args(["-c", NUMPY]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut words = text.split_whitespace();
    let version = words.next()?.to_owned();
    let mut time = || words.next()?.parse().ok();
    Some(Numpy { version, batch: time()?, lone: time()? })
}

fn seconds(job: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    job();
    begin.elapsed().as_secs_f64()
}

/// Reads every byte and does next to nothing with it. Its additions are many times as fast as memory, in whatever
/// lanes the compiler finds for them.
fn sum(bytes: &[u8]) -> [u64; 32] {
    let mut sums = [0u64; 32];
    for chunk in bytes.as_chunks::<256>().0 {
        for (sum, word) in sums.iter_mut().zip(chunk.as_chunks().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    sums
}

/// Normally distributed logits with a deviation of 2.5, the last bits of the narrow types cut off.
fn batch(dtype: Dtype) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252u64;
    let mut unit = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    let mut bytes = Vec::with_capacity(ROWS * VOCAB * dtype.bytes());
    for _ in 0..ROWS * VOCAB {
        let gauss = (-2.0 * unit().ln()).sqrt() * (std::f64::consts::TAU * unit()).cos();
        let bits = ((2.5 * gauss) as f32).to_bits();
        match dtype {
            Dtype::F32 => bytes.extend(bits.to_le_bytes()),
            Dtype::Bf16 => bytes.extend(((bits >> 16) as u16).to_le_bytes()),
            Dtype::F16 => bytes.extend(half(bits).to_le_bytes()),
        }
    }
    bytes
}

/// Half precision of a number below 65,504; what would be subnormal is zero.
fn half(single: u32) -> u16 {
    let magnitude = (single & 0x7fff_ffff) >> 13;
    let rebased = magnitude.saturating_sub(112 << 10);
    let normal = if rebased < 1 << 10 { 0 } else { rebased };
    (single >> 16 & 0x8000 | normal) as u16
}
