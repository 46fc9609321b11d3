// SPDX-License-Identifier: Apache-2.0
//! Times the scanner on lists like SGLang's, and on prompts of ids, against copying the same bytes: `cargo bench --bench scan`.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    missing_docs,
    reason = "a bench reports to its terminal, and fails loudly"
)]

use bytes::Bytes;
use std::hint::black_box;
use std::time::Instant;
use tokentap::engine::sglang::request::{GenerateRequest, Ids};
use tokentap::engine::sglang::scan::{Malformed, ids, ids_portable, rows, rows_portable};
use tokentap::json::write_ids;
use tokentap::logprobs::Rows;

type ReadIds = fn(&[u8], usize, &mut Vec<u32>) -> Result<usize, Malformed>;
type Scan = fn(&[u8], usize, &mut Rows) -> Result<usize, Malformed>;

fn main() {
    lists();
    prompts();
}

/// Prompts by their number of ids: their list alone, and the request.
fn prompts() {
    println!("\nns an id (median of the bodies)");
    println!("ids       separator    bytes   memcpy   ids  portable   write  request: kept  checked");
    for count in [32, 512, 8192, 50_000, 131_072, 1_000_000] {
        for separator in [",", ", "] {
            let (prompts, lists): (Vec<Vec<u32>>, Vec<Vec<u8>>) = (1..=4)
                .map(|seed| {
                    let mut random = random(seed);
                    let prompt: Vec<u32> = (0..count).map(|_| (random() * random() * 151_936.0) as u32).collect();
                    let texts: Vec<String> = prompt.iter().map(u32::to_string).collect();
                    (
                        prompt,
                        format!(
                            "[{}],\"sampling_params\":{{\"max_new_tokens\":16}},\"rid\":\"a\"}}",
                            texts.join(separator)
                        )
                        .into_bytes(),
                    )
                })
                .unzip();
            let each = |(_, median): (f64, f64)| median * 1e3 / f64::from(count);
            let mut copy = vec![0; lists.iter().map(Vec::len).max().unwrap()];
            let memcpy = each(microseconds(&lists, |list| {
                copy[..list.len()].copy_from_slice(list);
                black_box(&copy);
            }));
            let [vector, portable] = [ids as ReadIds, ids_portable].map(|read| {
                let mut out = Vec::new();
                each(microseconds(&lists, |list| {
                    out.clear();
                    black_box(read(list, 1, &mut out)).unwrap();
                    assert_eq!(out.len(), count as usize);
                }))
            });
            let mut text = Vec::new();
            let write = each(microseconds(&prompts, |prompt| {
                text.clear();
                write_ids(&mut text, prompt);
                black_box(&text);
            }));
            let bodies: Vec<Bytes> = lists.iter().map(|list| [b"{\"input_ids\":", &**list].concat().into()).collect();
            let [kept, checked] = [true, false].map(|keeps_ids| {
                each(microseconds(&bodies, |body| {
                    black_box(GenerateRequest::parse_with(body.clone(), Ids::default(), keeps_ids)).unwrap();
                }))
            });
            let size = lists[0].len();
            println!(
                "{count:<9} {separator:9?} {size:8}   {memcpy:6.2} {vector:5.2} {portable:9.2} {write:7.2} {kept:14.2} {checked:8.2}"
            );
        }
    }
}

/// Lists of rows.
fn lists() {
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
fn microseconds<T>(bodies: &[T], mut job: impl FnMut(&T)) -> (f64, f64) {
    bodies.iter().for_each(&mut job);
    let until = Instant::now() + std::time::Duration::from_millis(300);
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
    let mut random = random(seed);
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

/// Random numbers in [0, 1).
fn random(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32
    }
}
