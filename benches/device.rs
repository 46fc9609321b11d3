// SPDX-License-Identifier: Apache-2.0
//! Rows of logits on a GPU, compared with its read rate and its bus in the same run: `make bench-gpu`.
//!
//! Numbers of rows may follow (`cargo bench --bench device -- 64 104 1024 8192`, which is the default). Each number that the device returns
//! is compared with the CPU's before any time is printed. It also runs on the fake driver of the tests, whose times mean nothing.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a bench reports to its terminal")]

#[path = "support/normal.rs"]
mod normal;

use std::sync::Arc;
use std::time::{Duration, Instant};

use normal::normal;
use tokentap::entropy::{Cpu, Dtype, Logits, RowStats};
use tokentap::logits::cuda::{BenchDevice, Cuda, Settings, Unavailable, calibrate};
use tokentap::metrics::Metrics;

const VOCAB: usize = 151_936;
const WIDTH: usize = 2 * VOCAB;

/// Number of different rows; larger batches repeat them.
const PATTERN: usize = 64;

/// Each time is the best of this number of rounds. A round times the kernel, then reading the same bytes.
const ROUNDS: usize = 7;

/// Approximate time of each measurement in a round.
const ROUND: Duration = Duration::from_millis(100);

/// Rows of a batch from pinned memory: the largest batch of the queue.
const BATCH: usize = 104;

/// Required share of the read rate, from 1,024 rows on.
const REQUIRED_SHARE: f64 = 0.9;

fn main() {
    let counts: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let counts = if counts.is_empty() { vec![64, BATCH, 1024, 8192] } else { counts };
    if let Err(error) = run(&counts) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run(counts: &[usize]) -> Result<(), Unavailable> {
    let pattern = pattern();
    let mut expected = Vec::new();
    Cpu::new().rows(&logits(&pattern), &mut expected);
    let bare = BenchDevice::open(None)?;
    let (found, driver) = (bare.info(), bare.info().driver);
    println!("{}, driver for CUDA {}.{}, rows of {VOCAB} in bf16", found.name, driver / 1000, driver % 1000 / 10);
    println!(
        "{:>8} {:>7} {:>12} {:>10} {:>10} {:>14}",
        "rows", "blocks", "us a row", "GB/s", "read GB/s", "of that rate"
    );
    for &count in counts {
        resident(&bare, &pattern, &expected, count)?;
    }
    bus(&bare, &pattern, &expected, *counts.iter().max().unwrap_or(&BATCH))?;
    drop(bare);
    single_row(&pattern, &expected)
}

/// Times the kernels over rows that are already on the device.
fn resident(bare: &BenchDevice, pattern: &[u8], expected: &[RowStats], count: usize) -> Result<(), Unavailable> {
    let mut held = bare.hold(Dtype::Bf16, VOCAB, pattern, count)?;
    let times = repeats(bare.measure(&mut held, 1).and_then(|_| bare.measure(&mut held, 1))?);
    let (mut kernel, mut reading) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        kernel = kernel.min(bare.measure(&mut held, times)?.as_secs_f64() / f64::from(times));
        reading = reading.min(bare.read(&mut held, times)?.as_secs_f64() / f64::from(times));
    }
    agree(&bare.numbers(&mut held)?, expected);
    let words = held.bytes().as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).fold(0, u32::wrapping_add);
    assert_eq!(bare.sum(&mut held)?, words, "every byte was read");
    let bytes = (count * WIDTH) as f64;
    let share = reading / kernel;
    let verdict = match (count >= 1024, share >= REQUIRED_SHARE) {
        (false, _) => "",
        (true, true) => ", met",
        (true, false) => ", MISSED",
    };
    println!(
        "{count:>8} {:>7} {:>12.3} {:>10.1} {:>10.1} {:>12.1} %{verdict}",
        if bare.splits(count) { "split" } else { "one" },
        kernel / count as f64 * 1e6,
        bytes / kernel / 1e9,
        bytes / reading / 1e9,
        share * 100.0
    );
    Ok(())
}

/// Times rows from pinned memory of the host, compared with the bus.
fn bus(bare: &BenchDevice, pattern: &[u8], expected: &[RowStats], most: usize) -> Result<(), Unavailable> {
    let count = BATCH.min(most);
    let mut held = bare.hold(Dtype::Bf16, VOCAB, pattern, count)?;
    let times = repeats(bare.send(&mut held, 1).and_then(|_| bare.send(&mut held, 1))?);
    let bytes = held.bytes().to_vec();
    let (mut sending, mut through) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        sending = sending.min(bare.send(&mut held, times)?.as_secs_f64() / f64::from(times));
        let (numbers, time) = bare.stream(&logits(&bytes), times as usize)?;
        agree(&numbers, expected);
        through = through.min(time.as_secs_f64() / f64::from(times));
    }
    let size = (count * WIDTH) as f64;
    println!(
        "from pinned memory, {count} rows a batch, two in flight: {:.0} rows/s, {:.2} GB/s, {:.1} % of the bus ({:.2} GB/s)",
        count as f64 / through,
        size / through / 1e9,
        sending / through * 100.0,
        size / sending / 1e9
    );
    Ok(())
}

/// Times a single row through the thread that owns the device; prints the number of rows from which the device is faster than the CPU.
fn single_row(pattern: &[u8], expected: &[RowStats]) -> Result<(), Unavailable> {
    for deadline in [Duration::ZERO, Duration::from_micros(200)] {
        let metrics = Arc::new(Metrics::new("cuda"));
        let cuda = Cuda::open(&Settings { device: None, memory: 256 << 20, deadline }, &metrics)?;
        let (mut times, mut out) = (Vec::new(), Vec::new());
        let until = Instant::now() + 10 * ROUND;
        while times.len() < 20 || (times.len() < 2000 && Instant::now() < until) {
            out.clear();
            let begin = Instant::now();
            cuda.rows(&logits(&pattern[..WIDTH]), &mut out);
            times.push(begin.elapsed());
            agree(&out, expected);
        }
        assert_eq!(metrics.slices.rows.with_label_values(&["cuda"]).get(), times.len() as u64, "on the device");
        times.sort();
        let at = |share: f64| times[(share * (times.len() - 1) as f64) as usize].as_secs_f64() * 1e6;
        println!(
            "one row, waiting {} us for others: median {:.0} us, 99 % {:.0} us ({} times)",
            deadline.as_micros(),
            at(0.5),
            at(0.99),
            times.len()
        );
        if deadline.is_zero() {
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            let crossover = calibrate(&cuda, Cpu::new(), threads)?;
            let from = crossover.map_or("never".to_owned(), |rows| format!("from {rows} rows on"));
            println!("faster than {threads} threads of this CPU: {from}");
        }
    }
    Ok(())
}

/// The number of repetitions for work that takes this time.
fn repeats(time: Duration) -> u32 {
    ((ROUND.as_secs_f64() / time.as_secs_f64().max(1e-7)) as u32).clamp(1, 10_000)
}

fn agree(numbers: &[RowStats], expected: &[RowStats]) {
    assert!(!numbers.is_empty(), "nothing was measured");
    for (row, (got, want)) in numbers.iter().zip(expected.iter().cycle()).enumerate() {
        let near = (got.entropy - want.entropy).abs() <= 5e-6 && (got.log_z - want.log_z).abs() <= 5e-5;
        assert!(near, "row {row}: {got:?} is not {want:?}");
    }
}

fn logits(bytes: &[u8]) -> Logits<'_> {
    Logits { dtype: Dtype::Bf16, vocab: VOCAB, bytes, temperature: &[], chosen: &[] }
}

/// Normally distributed logits, wider from row to row.
fn pattern() -> Vec<u8> {
    let mut gauss = normal();
    let mut bytes = Vec::with_capacity(PATTERN * WIDTH);
    for at in 0..PATTERN * VOCAB {
        let value = (1.0 + (at / VOCAB) as f64 * 0.05) * gauss();
        bytes.extend(((value as f32).to_bits() >> 16).to_le_bytes()[..2].iter());
    }
    bytes
}
