// SPDX-License-Identifier: Apache-2.0
//! Compares a CUDA device with the CPU and the oracle: on a GPU by `make test-gpu`, and in every run on the fake driver of `stand_in.rs`.

use std::sync::Arc;

use proptest::prelude::*;
use tokentap::entropy::{Cpu, Dtype, Logits, RowStats};
use tokentap::logits::cuda::{BenchDevice, Cuda, Settings};
use tokentap::metrics::Metrics;

fn open(metrics: &Arc<Metrics>) -> Cuda {
    let settings = Settings { device: None, memory: 16 << 20, deadline: std::time::Duration::from_micros(200) };
    Cuda::open(&settings, metrics).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a test and asserts that the device measured its rows.
fn by_device<T>(test: impl FnOnce(&Cuda) -> T) -> T {
    let metrics = Arc::new(Metrics::new("cuda"));
    let cuda = open(&metrics);
    let done = test(&cuda);
    assert!(!cuda.is_lost(), "the device was lost");
    assert!(metrics.slices.rows.with_label_values(&["cuda"]).get() > 0, "nothing went to the device");
    done
}

fn near(got: f64, want: f64, tolerance: f64) -> bool {
    got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() <= tolerance
}

fn same_row(device: &RowStats, cpu: &RowStats) -> Result<(), TestCaseError> {
    let scale = cpu.log_z.abs().max(1.0);
    let all = near(device.entropy, cpu.entropy, 5e-6)
        && near(device.log_z, cpu.log_z, 5e-6 * scale)
        && near(device.p_max, cpu.p_max, 5e-6)
        && near(device.varentropy, cpu.varentropy, 5e-5 * cpu.varentropy.max(1.0))
        && near(device.surprisal, cpu.surprisal, 1e-5 * cpu.surprisal.abs().max(1.0))
        && device.flags == cpu.flags;
    prop_assert!(all, "{device:?} is not {cpu:?}");
    Ok(())
}

/// Rows whose entropies are known.
#[test]
#[ignore = "needs a CUDA device: make test-gpu, or the fake driver"]
fn known_entropies_are_reproduced() {
    by_device(|cuda| {
        let rows = |values: &[f32], vocab: usize| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let mut out = Vec::new();
            cuda.rows(&Logits { dtype: Dtype::F32, vocab, bytes: &bytes, temperature: &[], chosen: &[] }, &mut out);
            out
        };
        assert!((rows(&[1.0; 4], 4)[0].entropy - 4f64.ln()).abs() < 1e-6, "uniform over 4 is ln 4");
        assert!(rows(&[100.0, -100.0, -100.0, -100.0], 4)[0].entropy.abs() < 1e-6, "one-hot is about 0");
        let many: Vec<f32> = (0..300).map(|at| (at * 7919 % 97) as f32 * 0.1).collect();
        let batch = rows(&many, 100);
        assert_eq!(batch.len(), 3);
        assert!(batch.iter().all(|row| row.entropy >= 0.0 && row.entropy <= 100f64.ln() + 1e-6));
    });
}

fn odd_logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        40 => -30f32..30.0,
        1 => prop::sample::select(vec![f32::NEG_INFINITY, f32::INFINITY, f32::NAN, f32::MIN, -1e30, 0.0, -0.0, 1e20]),
    ]
}

fn encode(dtype: Dtype, value: f32) -> Vec<u8> {
    match dtype {
        Dtype::F32 => value.to_le_bytes().to_vec(),
        Dtype::Bf16 => value.to_le_bytes()[2..].to_vec(),
        // the bits of an integer: any f16, also NaN
        Dtype::F16 => ((value * 1000.0) as i16).to_le_bytes().to_vec(),
    }
}

#[test]
#[ignore = "needs a CUDA device: make test-gpu, or the fake driver"]
fn arbitrary_rows_equal_the_cpu() {
    by_device(|cuda| {
        let values = prop::collection::vec(odd_logit(), 1..4000);
        let dtype = prop::sample::select(vec![Dtype::F32, Dtype::Bf16, Dtype::F16]);
        let strategy = (values, 1usize..900, dtype, -3.0f64..1.6, any::<u64>());
        let mut runner = proptest::test_runner::TestRunner::default();
        let done = runner.run(&strategy, |(values, vocab, dtype, log_temperature, seed)| {
            let vocab = vocab.min(values.len());
            let bytes: Vec<u8> = values.iter().flat_map(|value| encode(dtype, *value)).collect();
            let count = values.len() / vocab;
            let bytes = &bytes[..count * vocab * dtype.bytes()];
            let temperature: Vec<f32> =
                (0..count).map(|row| (log_temperature + row as f64 * 1e-3).exp() as f32).collect();
            let chosen: Vec<i64> = (0..count).map(|row| (seed >> (row % 50)) as i64 % vocab as i64 - 1).collect();
            let logits = Logits { dtype, vocab, bytes, temperature: &temperature, chosen: &chosen };
            let (mut device, mut cpu) = (Vec::new(), Vec::new());
            cuda.rows(&logits, &mut device);
            Cpu::new().rows(&logits, &mut cpu);
            prop_assert_eq!(device.len(), cpu.len());
            device.iter().zip(&cpu).try_for_each(|(device, cpu)| same_row(device, cpu))
        });
        done.unwrap_or_else(|error| panic!("{error}"));
    });
}

#[test]
#[ignore = "needs a CUDA device: make test-gpu, or the fake driver"]
fn wide_rows_and_many_rows_pass_through_slots() {
    // on a slow machine the fake driver takes longer for a whole batch than the timeout of a hung device
    let many = if std::env::var_os("STAND_IN").is_some() { 2000 } else { 9000 };
    by_device(|cuda| {
        for (dtype, vocab, count) in [(Dtype::Bf16, 151_936, 15), (Dtype::F32, 50_257, 30), (Dtype::F16, 3, many)] {
            let value = |at: usize| ((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / 1e6 - 8.0;
            let bytes: Vec<u8> = (0..vocab * count).flat_map(|at| encode(dtype, value(at))).collect();
            let logits = Logits { dtype, vocab, bytes: &bytes, temperature: &[0.7], chosen: &[] };
            let (mut device, mut cpu) = (Vec::new(), Vec::new());
            cuda.rows(&logits, &mut device);
            Cpu::new().rows(&logits, &mut cpu);
            assert_eq!(device.len(), count);
            for (device, cpu) in device.iter().zip(&cpu) {
                same_row(device, cpu).unwrap_or_else(|error| panic!("{error}"));
            }
        }
    });
}

/// Checks the operations that `make bench-gpu` times.
#[test]
#[ignore = "needs a CUDA device: make test-gpu, or the fake driver"]
fn bare_kernels_and_transfers_equal_the_cpu() {
    let bare = BenchDevice::open(None).unwrap_or_else(|error| panic!("{error}"));
    // enough rows for a block each, and too few
    for (count, vocab) in [(300, 8), (5, 3000)] {
        let value = |at: usize| (at * 7919 % 97) as f32 * 0.1;
        let pattern: Vec<u8> = (0..3 * vocab).flat_map(|at| encode(Dtype::Bf16, value(at))).collect();
        let bytes: Vec<u8> = pattern.iter().copied().cycle().take(count * vocab * 2).collect();
        let logits = Logits { dtype: Dtype::Bf16, vocab, bytes: &bytes, temperature: &[], chosen: &[] };
        let mut cpu = Vec::new();
        Cpu::new().rows(&logits, &mut cpu);
        let mut held = bare.hold(Dtype::Bf16, vocab, &pattern, count).unwrap();
        assert_eq!(held.bytes(), bytes);
        bare.measure(&mut held, 2).unwrap();
        bare.send(&mut held, 1).unwrap();
        bare.read(&mut held, 1).unwrap();
        let words = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
        assert_eq!(bare.sum(&mut held).unwrap(), words.fold(0, u32::wrapping_add));
        let (streamed, _) = bare.stream(&logits, 5).unwrap();
        for numbers in [bare.numbers(&mut held).unwrap(), streamed] {
            assert_eq!(numbers.len(), count);
            numbers.iter().zip(&cpu).for_each(|(device, cpu)| same_row(device, cpu).unwrap());
        }
    }
}
