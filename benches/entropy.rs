// SPDX-License-Identifier: Apache-2.0
//! Nanoseconds for each token, by kind of lanes, row width and statistics.

#![allow(clippy::print_stdout, reason = "a bench reports to its terminal")]

use std::hint::black_box;
use std::time::Instant;

use tokentap::entropy::{Cpu, TopK};
use tokentap::logprobs::Rows;

const VOCAB: u32 = 151_936;

fn main() {
    println!("{:14} {:>6} {:>7} {:>12} {:>12}", "lanes", "k", "tokens", "plain ns", "stats ns");
    for cpu in Cpu::available() {
        for (k, tokens) in [(5, 512), (20, 512), (20, 1), (128, 512), (1024, 64)] {
            let (rows, chosen) = batch(tokens, k);
            let [plain, stats] = [false, true].map(|stats| {
                let batch = TopK { rows: &rows, chosen: &chosen, vocab: Some(VOCAB), stats };
                nanoseconds(&cpu, &batch)
            });
            println!("{:14} {k:6} {tokens:7} {plain:12.1} {stats:12.1}", cpu.name());
        }
    }
}

/// The best of many timed runs, for each token.
fn nanoseconds(cpu: &Cpu, batch: &TopK<'_>) -> f64 {
    let mut out = Vec::new();
    let mut best = f64::INFINITY;
    for _ in 0..30 {
        let repeats = 200_000 / batch.rows.values().len() + 1;
        let begin = Instant::now();
        for _ in 0..repeats {
            out.clear();
            cpu.top_k(black_box(batch), &mut out);
            black_box(&out);
        }
        best = best.min(begin.elapsed().as_secs_f64() / (repeats * batch.rows.len()) as f64);
    }
    best * 1e9
}

/// Rows of power laws from nearly certain to wide; the sampled token is alternately inside and outside the top-k.
fn batch(tokens: usize, k: usize) -> (Rows, Vec<f32>) {
    let (mut rows, mut chosen) = (Rows::new(), Vec::new());
    for token in 0..tokens {
        let exponent = 1.05 + (token % 17) as f64 * 0.3;
        let law: Vec<f64> = (1..=VOCAB).map(|rank| f64::from(rank).powf(-exponent)).collect();
        let total: f64 = law.iter().sum();
        law[..k].iter().for_each(|p| rows.push((p / total).ln() as f32));
        rows.end_row();
        let sampled = if token % 5 == 0 { k + 3 } else { token % k };
        chosen.push((law[sampled] / total).ln() as f32);
    }
    (rows, chosen)
}
