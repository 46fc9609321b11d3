// SPDX-License-Identifier: Apache-2.0
//! Microseconds for a row of 151,936 logits, by kind of lanes and storage type, compared with the read rate of the same core and with
//! NumPy: `cargo bench --bench rows`.

#![allow(clippy::print_stdout, reason = "a bench reports to its terminal")]

#[path = "support/normal.rs"]
mod normal;

use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

use normal::normal;
use tokentap::entropy::{Cpu, Dtype, Logits};

const VOCAB: usize = 151_936;

/// Rows a batch: 19 MB of single precision, far more than a core's own caches hold and less than the shared one. A body
/// that was just received is in the shared cache, where reading is fast. From memory both take longer, and the rows are
/// closer to the read rate.
const ROWS: usize = 32;

/// Each number is the best of this number of rounds; a round times all lanes and the reading once.
const ROUNDS: usize = 40;

/// `log_softmax`, then `-sum p log p`, in single precision: microseconds a row, of a whole batch and of a lone row,
/// whose intermediate arrays stay in the cache.
const NUMPY: &str = "
import time
import numpy
rows = numpy.random.default_rng(1).standard_normal((32, 151936), dtype=numpy.float32) * numpy.float32(2.5)
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
    let mut cells = Vec::new();
    let mut reading = f64::INFINITY;
    let mut out = Vec::new();
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        let bytes = batch(dtype);
        let logits = Logits { dtype, vocab: VOCAB, bytes: &bytes, temperature: &[], chosen: &[] };
        let first = cells.len();
        cells.extend(Cpu::available().into_iter().map(|cpu| Cell { cpu, dtype, best: f64::INFINITY }));
        for _ in 0..ROUNDS {
            let time = seconds(|| {
                black_box(sum(black_box(&bytes)));
            });
            reading = reading.min(time / bytes.len() as f64);
            for cell in &mut cells[first..] {
                out.clear();
                cell.best = cell.best.min(seconds(|| cell.cpu.rows(black_box(&logits), &mut out)));
                let right = out.len() == ROWS && out.iter().all(|stats| (8.0..10.0).contains(&stats.entropy));
                assert!(right, "{}: rows of this kind have 8.9 nats", cell.cpu.name());
            }
        }
    }
    report(&cells, 1.0 / reading);
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
        None => println!("NumPy: skipped, no python3 has it"),
    }
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

/// NumPy's time in microseconds for a row.
struct Numpy {
    version: String,
    batch: f64,
    lone: f64,
}

/// Runs NumPy, if it is installed.
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

/// Sums single precision with the lanes that every machine has. They reach 66 GB/s from a core's own cache and 28 GB/s
/// from the shared one; wider lanes or prefetching do not increase that.
fn sum(bytes: &[u8]) -> [f32; 128] {
    let mut sums = [0.0; 128];
    for chunk in bytes.as_chunks().0.as_chunks::<128>().0 {
        for lane in 0..128 {
            sums[lane] += f32::from_le_bytes(chunk[lane]);
        }
    }
    sums
}

/// Normally distributed logits with a deviation of 2.5, the last bits of the narrow types cut off.
fn batch(dtype: Dtype) -> Vec<u8> {
    let mut gauss = normal();
    let mut bytes = Vec::with_capacity(ROWS * VOCAB * dtype.bytes());
    for _ in 0..ROWS * VOCAB {
        let bits = ((2.5 * gauss()) as f32).to_bits();
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
