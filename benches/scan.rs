//! Times the scanner on lists like SGLang's, against copying the same bytes: `cargo bench --bench scan`.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    missing_docs,
    reason = "a bench reports to its terminal, and fails loudly"
)]

use std::hint::black_box;
use std::time::Instant;
use tokentap::engine::sglang::scan::{Malformed, rows, rows_portable};
use tokentap::logprobs::Rows;

type Scan = fn(&[u8], usize, &mut Rows) -> Result<usize, Malformed>;

fn main() {
    println!("tokens x k   text       bytes      memcpy us  rows us (median)     portable us (median)");
    let text = r#"" word""#;
    for (tokens, k, third) in [(512, 20, "null"), (4096, 20, "null"), (512, 128, "null"), (512, 20, text)] {
        // Several bodies, so that the branch predictor cannot learn one.
        let bodies: Vec<Vec<u8>> = (1..=8).map(|seed| body(tokens, k, third, seed)).collect();
        let mut copy = vec![0; bodies.iter().map(Vec::len).max().unwrap()];
        let (memcpy, _) = microseconds(&bodies, |body| {
            copy[..body.len()].copy_from_slice(body);
            black_box(&copy);
        });
        let [(fast, fast_median), (portable, portable_median)] = [rows as Scan, rows_portable].map(|scan| {
            let mut out = Rows::new();
            microseconds(&bodies, |body| {
                out.clear();
                black_box(scan(body, 1, &mut out)).unwrap();
                assert_eq!(out.values().len(), tokens * k);
            })
        });
        let size = bodies[0].len();
        println!(
            "{tokens:5} x {k:<4} {third:7} {size:8}   {memcpy:9.1} {fast:9.1} ({fast_median:.1}) {portable:9.1} ({portable_median:.1})"
        );
    }
}

/// The second percentile and the median of the time that `job` takes on one of the bodies.
fn microseconds(bodies: &[Vec<u8>], mut job: impl FnMut(&[u8])) -> (f64, f64) {
    bodies.iter().for_each(|body| job(body));
    let until = Instant::now() + std::time::Duration::from_millis(700);
    let mut times = Vec::new();
    for body in bodies.iter().cycle() {
        let start = Instant::now();
        job(body);
        let end = Instant::now();
        times.push((end - start).as_secs_f64() * 1e6);
        if end > until && times.len() > 50 {
            break;
        }
    }
    times.sort_by(f64::total_cmp);
    (times[times.len() / 50], times[times.len() / 2])
}

/// A list of `tokens` rows of `k` falling logprobs, each with the text `third`, and the rest of a reply after it.
fn body(tokens: usize, k: usize, third: &str, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let mut text = String::from("[");
    for token in 0..tokens {
        text.push_str(if token == 0 { "[" } else { ",[" });
        let mut logprob = -0.01 - random();
        for i in 0..k {
            let comma = if i == 0 { "" } else { "," };
            let id = (random() * random() * 151_936.0) as u32;
            text.push_str(&format!("{comma}[{:?},{id},{third}]", f64::from(logprob)));
            logprob -= random() * 1.2;
        }
        text.push(']');
    }
    text.push_str(r#"],"completion_tokens":512,"cached_tokens":0,"e2e_latency":1.5,"weight_version":"default"}}"#);
    text.into_bytes()
}
