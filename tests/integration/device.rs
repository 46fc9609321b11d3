//! Compares a CUDA device with the CPU and the oracle: on a GPU by `make test-gpu`, and in every run on the fake driver of `stand_in.rs`.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::Value;
use tokentap::entropy::{Backend, Cpu, Dtype, Flags, Logits, RowStats, TokenStats, TopK};
use tokentap::logits::cuda::{BenchDevice, Cuda, Settings};
use tokentap::logprobs::Rows;
use tokentap::metrics::Metrics;

use crate::support::fixture::Fixture;

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
    let measured = |work| metrics.slices.rows.with_label_values(&["cuda", work]).get();
    assert!(measured("rows") + measured("top_k") > 0, "nothing went to the device");
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

fn same_token(device: &TokenStats, cpu: &TokenStats) -> Result<(), TestCaseError> {
    let close = |of: fn(&TokenStats) -> f32, tolerance: f64| near(of(device).into(), of(cpu).into(), tolerance);
    let relative = |of: fn(&TokenStats) -> f32| close(of, 1e-5 * f64::from(of(cpu)).abs().max(1.0));
    let all = close(|stats| stats.renormalized, 1e-5)
        && close(|stats| stats.lower, 1e-5)
        && close(|stats| stats.upper, 1e-5)
        && close(|stats| stats.estimate, 2e-5)
        && close(|stats| stats.tail_mass, 1e-6)
        && close(|stats| stats.varentropy, 2e-4 * f64::from(cpu.varentropy).max(1.0))
        && relative(|stats| stats.margin)
        && relative(|stats| stats.confidence)
        && near(device.surprisal.into(), cpu.surprisal.into(), 0.0)
        && device.rank == cpu.rank
        && same_flags(device, cpu);
    prop_assert!(all, "{device:?} is not {cpu:?}");
    Ok(())
}

/// Compares flags; the sign of a tail mass that is only rounding error may differ.
fn same_flags(device: &TokenStats, cpu: &TokenStats) -> bool {
    let without = |flags: Flags| flags.names().filter(|name| *name != "negative_residual").collect::<Vec<_>>();
    device.flags == cpu.flags || (cpu.tail_mass <= 3e-7 && without(device.flags) == without(cpu.flags))
}

/// Appends the rows of one recorded reply in the nested format.
fn push_recorded(meta_info: &Value, rows: &mut Rows, chosen: &mut Vec<f32>) {
    let list = |name: &str| meta_info[name].as_array().cloned().unwrap_or_default();
    let logprob = |triple: &Value| triple[0].as_f64().map_or(f32::NAN, |logprob| logprob as f32);
    for (row, sampled) in list("output_top_logprobs").iter().zip(list("output_token_logprobs")) {
        rows.push_row(&row.as_array().into_iter().flatten().map(logprob).collect::<Vec<f32>>());
        chosen.push(logprob(&sampled));
    }
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
        let mut two = Rows::new();
        two.push_row(&[0.25f32.ln(); 2]);
        let mut out = Vec::new();
        cuda.top_k(&TopK { rows: &two, chosen: &[], vocab: Some(4), stats: true }, &mut out);
        assert!((out[0].renormalized - 2f32.ln()).abs() < 1e-6, "the top 2 of uniform over 4 are ln 2");
        assert!((out[0].lower - 4f32.ln()).abs() < 1e-5 && (out[0].upper - 4f32.ln()).abs() < 1e-5);
    });
}

#[test]
#[ignore = "needs a CUDA device: make test-gpu, or the fake driver"]
fn recorded_rows_equal_the_cpu() {
    by_device(|cuda| {
        let mut count = 0;
        for fixture in Fixture::all().iter().filter(|fixture| fixture.is_generate() && fixture.is_success()) {
            let (mut rows, mut chosen) = (Rows::new(), Vec::new());
            for object in fixture.objects() {
                push_recorded(&object["meta_info"], &mut rows, &mut chosen);
            }
            for vocab in [None, Some(151_936), Some(1024)] {
                let batch = TopK { rows: &rows, chosen: &chosen, vocab, stats: true };
                let (mut device, mut cpu) = (Vec::new(), Vec::new());
                cuda.top_k(&batch, &mut device);
                Cpu::new().top_k(&batch, &mut cpu);
                for (device, cpu) in device.iter().zip(&cpu) {
                    same_token(device, cpu).unwrap_or_else(|error| panic!("{}: {error}", fixture.name));
                    count += 1;
                }
            }
        }
        assert!(count > 1000, "{count} rows were recorded");
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
fn arbitrary_top_k_rows_equal_the_cpu() {
    by_device(|cuda| {
        let row = (1usize..200, 0.02f64..3.0, 0.0f64..0.4, any::<bool>());
        let strategy = (prop::collection::vec(row, 1..60), prop::option::of(200u32..200_000), any::<u64>());
        let mut runner = proptest::test_runner::TestRunner::default();
        let done = runner.run(&strategy, |(shapes, vocab, seed)| {
            let mut rows = Rows::new();
            let mut chosen = Vec::new();
            // in one case of eight the rows cover the whole vocabulary
            let whole = (seed % 8 == 5).then(|| shapes[0].0);
            let vocab = whole.map_or(vocab, |k| u32::try_from(k).ok());
            for (k, slope, tail, shuffled) in shapes {
                let (k, tail) = whole.map_or((k, tail), |k| (k, 0.0));
                let law: Vec<f64> = (0..k).map(|rank| -slope * rank as f64).collect();
                let norm = law.iter().map(|l| l.exp()).sum::<f64>().ln() - (1.0 - tail).ln();
                let mut values: Vec<f32> = law.iter().map(|l| (l - norm) as f32).collect();
                if shuffled {
                    values.reverse();
                }
                match seed % 11 {
                    0 => values[k / 2] = f32::MIN,
                    1 => values[k - 1] = f32::NAN,
                    2 => values.clear(),
                    _ => {}
                }
                chosen.push(if seed % 3 == 0 { f32::NAN } else { values.get(k / 3).copied().unwrap_or(-9.0) });
                rows.push_row(&values);
            }
            let batch = TopK { rows: &rows, chosen: &chosen, vocab, stats: seed % 2 == 0 };
            let (mut device, mut cpu) = (Vec::new(), Vec::new());
            cuda.top_k(&batch, &mut device);
            Cpu::new().top_k(&batch, &mut cpu);
            prop_assert_eq!(device.len(), cpu.len());
            device.iter().zip(&cpu).try_for_each(|(device, cpu)| same_token(device, cpu))
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
