// SPDX-License-Identifier: Apache-2.0
//! Counts what a request costs tokentap: allocations, bytes allocated, and system calls of its thread.
//!
//! `cargo bench --bench costs`. System calls are counted with strace, if it is installed. `tests/costs.rs` limits the allocations.
//!
//! `cargo bench --bench costs -- instructions [TEXT]` counts user instructions with valgrind instead, for the requests whose names hold the
//! text; nginx is beside it if it is installed. `TOKENTAP=PATH` counts another binary, `KEEP=FOLDER` keeps the profiles.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench reports to its terminal, and fails loudly")]
#![allow(unreachable_pub, missing_docs, missing_debug_implementations, reason = "a bench exports nothing")]
#![allow(dead_code, reason = "its modules are shared with other benches")]
#![allow(unsafe_code, reason = "an allocator that counts is an unsafe trait")]

#[path = "proxy/canned.rs"]
mod canned;
#[path = "costs/instructions.rs"]
mod instructions;
#[path = "costs/measured.rs"]
mod measured;
#[path = "support/nginx.rs"]
mod nginx;
#[path = "proxy/upstream.rs"]
mod upstream;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use measured::{CountingAllocator, Subject, body, send};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Requests during which system calls are counted.
const TRACED: usize = 2000;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => allocations_and_calls(),
        ["instructions"] => count_instructions(""),
        ["instructions", filter] => count_instructions(filter),
        _ => panic!("unknown: {words:?}"),
    }
}

fn count_instructions(filter: &str) {
    let binary = std::env::var("TOKENTAP").unwrap_or_else(|_| env!("CARGO_BIN_EXE_tokentap").to_owned());
    instructions::print(&binary, measured::start_engine(), filter);
}

fn allocations_and_calls() {
    let stream = ",\"stream\":true";
    let cells = [
        ("/generate, 16 tokens", body(16, "")),
        ("/generate, 512 tokens", body(512, "")),
        ("/generate stream, 16 tokens", body(16, stream)),
        ("/generate stream, 512 tokens", body(512, stream)),
    ];
    let subject = Subject::start(&["--log", "warn"]);
    println!("| request | allocations | bytes allocated |\n|---|---|---|");
    for (name, body) in &cells {
        let costs = subject.costs(body);
        println!("| {name} | {:.1} | {:.0} |", costs.allocations, costs.bytes);
    }
    let mut sessions = 0;
    for (name, body) in &cells {
        let costs = subject.costs_with(body, || {
            sessions += 1;
            format!("x-session-id: {sessions}\r\n")
        });
        println!("| {name}, a named session each | {:.1} | {:.0} |", costs.allocations, costs.bytes);
    }
    println!("\nSystem calls of tokentap's thread, a request of 16 tokens, one connection:\n");
    match system_calls(&subject, &cells[0].1) {
        Some(calls) => calls.iter().for_each(|(call, count)| println!("{call} {count:.2}")),
        None => println!("not counted: strace is not installed, or may not trace this process"),
    }
}

/// System calls a request by name; `None` without strace.
fn system_calls(subject: &Subject, body: &str) -> Option<BTreeMap<String, f64>> {
    let mut client = subject.connect();
    send(&mut client, body);
    let log = std::env::temp_dir().join(format!("tokentap-calls-{}", std::process::id()));
    let mut tracer = Command::new("strace")
        .args(["-c", "-p", &subject.thread.to_string(), "-o"])
        .arg(&log)
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    // strace prints a line once it is attached
    let mut attached = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(tracer.stderr.take()?), &mut attached).ok()?;
    for _ in 0..TRACED {
        send(&mut client, body);
    }
    Command::new("kill").args(["-INT", &tracer.id().to_string()]).status().ok()?;
    tracer.wait().ok()?;
    let text = std::fs::read_to_string(&log).ok()?;
    std::fs::remove_file(&log).ok()?;
    let rows = text.lines().filter_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let calls: f64 = columns.get(3)?.parse().ok()?;
        let name = columns.last().filter(|name| **name != "total")?;
        Some(((*name).to_owned(), calls / TRACED as f64))
    });
    Some(rows.filter(|(_, calls)| *calls >= 0.01).collect()).filter(|calls: &BTreeMap<_, _>| !calls.is_empty())
}
