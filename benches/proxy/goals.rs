// SPDX-License-Identifier: Apache-2.0
//! The goals, and whether the numbers meet them.

use crate::report::digits;
use crate::run::{Cell, Extent, Measured, Sample};
use crate::target::{LOGGED, OFF, ROUTER, SHARED, UNRECORDED};

/// The workload of most goals.
const FLAT: &str = "job flat 512 x 20";

/// The native stream, with which the streams of other APIs are compared.
const STREAM: &str = "stream 512";

/// The limit of a number that has no goal and is printed beside the others.
const NO_GOAL: f64 = f64::INFINITY;

/// The CPU time of a token of an incremental stream, in microseconds.
const STREAM_TOKEN: f64 = 3.5;

/// A goal: the workload, the connections, the number and its limit.
#[derive(Clone, Copy)]
struct Goal {
    what: &'static str,
    workload: &'static str,
    /// The target.
    of: &'static str,
    connections: usize,
    /// Computes the number from the target's sample and that of `against`, of the same round.
    value: fn(&Sample, &Sample) -> f64,
    against: &'static str,
    most: f64,
    unit: &'static str,
}

fn times_cpu(own: &Sample, other: &Sample) -> f64 {
    own.cpu_per_request / other.cpu_per_request
}

fn times_p99(own: &Sample, other: &Sample) -> f64 {
    own.p99 / other.p99
}

fn times_p50(own: &Sample, other: &Sample) -> f64 {
    own.p50 / other.p50
}

fn spread(own: &Sample, _: &Sample) -> f64 {
    own.p99 / own.p50
}

fn cpu(own: &Sample, _: &Sample) -> f64 {
    own.cpu_per_request
}

fn megabytes(own: &Sample, _: &Sample) -> f64 {
    own.memory / 1e6
}

fn later(own: &Sample, nginx: &Sample) -> f64 {
    own.first_p50 - nginx.first_p50
}

fn goals() -> Vec<Goal> {
    let small = Goal {
        what: "CPU a request, over nginx's",
        workload: "job flat 16 x 20",
        of: "tokentap",
        connections: 16,
        value: times_cpu,
        against: "nginx",
        most: 3.0,
        unit: "x",
    };
    let flat = Goal { workload: FLAT, ..small };
    let off = |goal: Goal, most| Goal { what: "the same of the tokentap that only forwards", of: OFF, most, ..goal };
    let router = Goal { what: "CPU over sglang-router's, which only forwards", against: ROUTER, most: 1.0, ..flat };
    let recording =
        |goal: Goal, most| Goal { what: "CPU over that without recording", against: UNRECORDED, most, ..goal };
    let logged = |goal: Goal| Goal {
        what: "CPU with a log, over that without",
        of: LOGGED,
        against: "tokentap",
        most: 1.1,
        ..goal
    };
    let shared = |goal: Goal| Goal {
        what: "CPU with a ledger, over that without",
        of: SHARED,
        against: "tokentap",
        most: 1.25,
        ..goal
    };
    let long = Goal { workload: "long prompt", ..small };
    let slowest =
        Goal { what: "p99 over that without recording", value: times_p99, against: UNRECORDED, most: 1.3, ..flat };
    let latency = Goal { what: "p50 over nginx's", value: times_p50, connections: 1, most: 1.35, ..small };
    let crowd =
        Goal { what: "p99 over p50", value: spread, connections: 1024, most: 2.5, against: "tokentap", ..small };
    let crowd_off = Goal { what: "the same of the tokentap that only forwards", of: OFF, against: OFF, ..crowd };
    let flat_crowd = Goal { workload: FLAT, connections: 256, most: 1.6, ..crowd };
    let memory = Goal {
        what: "memory above idle, with sessions of 16 MiB",
        connections: 64,
        value: megabytes,
        against: "tokentap",
        most: 64.0,
        unit: "MB",
        ..flat
    };
    let store_excluded = Goal { what: "memory above idle, without sessions", of: UNRECORDED, most: 48.0, ..memory };
    let forwards =
        ["forward GET", "forward tiny", "forward 512 x 20"].map(|workload| Goal { workload, most: 1.6, ..small });
    let first = Goal {
        what: "first chunk later than nginx's",
        workload: "stream paced 64",
        value: later,
        most: 1000.0,
        unit: "µs",
        ..small
    };
    let firsts = [1, 16, 64].map(|connections| Goal { connections, ..first });
    let jobs = [
        small,
        off(small, 1.6),
        router,
        recording(small, 1.12),
        recording(flat, 1.08),
        logged(small),
        logged(flat),
        shared(small),
        shared(flat),
        long,
        off(long, 1.5),
        slowest,
        latency,
        crowd,
        crowd_off,
        flat_crowd,
        store_excluded,
        memory,
    ];
    forwards.into_iter().chain(jobs).chain(firsts).collect()
}

/// Prints the goals whose cells were measured.
pub fn print(extent: &Extent, measured: &Measured) {
    let Some(own) = measured.column("tokentap") else { return };
    let row = |goal: Goal| {
        let cell = cell(extent, goal.workload, goal.connections)?;
        let (of, against) = (measured.column(goal.of)?, measured.column(goal.against)?);
        Some(line(&goal, measured.median(cell, of, against, goal.value)?))
    };
    let nested = number("CPU over that of the flat job", "job nested 512 x 20", 16, 2.0, "x");
    let chat = number("CPU a token over that of /generate", "chat stream 512", 1, 1.5, "x");
    let grpc = Goal { workload: "grpc stream 512", most: NO_GOAL, ..chat };
    let over = |goal: Goal, base| Some(line(&goal, ratio(extent, measured, own, &goal, base)?));
    let more = [
        over(nested, FLAT),
        stream(extent, measured, own),
        constant(extent, measured, own),
        over(chat, STREAM),
        over(grpc, STREAM),
    ];
    let rows: Vec<String> = goals().into_iter().filter_map(row).chain(more.into_iter().flatten()).collect();
    if !rows.is_empty() {
        println!("**Goals**\n\n| goal | workload | conns | at most | measured | |\n|---|---|---|---|---|---|");
        println!("{}\n", rows.join("\n"));
    }
}

fn cpu_of(extent: &Extent, measured: &Measured, column: usize, workload: &str, connections: usize) -> Option<f64> {
    measured.median(cell(extent, workload, connections)?, column, column, cpu)
}

/// A goal for a number that is derived from several cells.
fn number(what: &'static str, workload: &'static str, connections: usize, most: f64, unit: &'static str) -> Goal {
    Goal { what, workload, of: "tokentap", connections, value: cpu, against: "tokentap", most, unit }
}

/// The CPU time of the goal's workload over that of `base`.
fn ratio(extent: &Extent, measured: &Measured, own: usize, goal: &Goal, base: &str) -> Option<f64> {
    let cpu = |workload| cpu_of(extent, measured, own, workload, goal.connections);
    Some(cpu(goal.workload)? / cpu(base)?)
}

/// The CPU time of a token of an incremental stream.
fn stream(extent: &Extent, measured: &Measured, own: usize) -> Option<String> {
    let token = cpu_of(extent, measured, own, STREAM, 1)? / 512.0;
    Some(line(&number("CPU a token", STREAM, 1, STREAM_TOKEN, "µs"), token))
}

/// The ratio of the CPU time of a token in a long stream to that in a short one; it must not depend on the length.
fn constant(extent: &Extent, measured: &Measured, own: usize) -> Option<String> {
    let workload = "stream 4096";
    let per_token = |workload, tokens: f64| Some(cpu_of(extent, measured, own, workload, 1)? / tokens);
    let ratio = per_token(workload, 4096.0)? / per_token(STREAM, 512.0)?;
    Some(line(&number("CPU a token over that of 512", workload, 1, 1.2, "x"), ratio))
}

fn line(goal: &Goal, value: f64) -> String {
    let Goal { what, workload, connections, most, unit, .. } = goal;
    let (limit, met) = match value <= *most {
        _ if *most == NO_GOAL => ("-".to_owned(), ""),
        true => (format!("{most} {unit}"), "met"),
        false => (format!("{most} {unit}"), "**not met**"),
    };
    format!("| {what} | {workload} | {connections} | {limit} | {} {unit} | {met} |", digits(value))
}

fn cell(extent: &Extent, workload: &str, connections: usize) -> Option<Cell> {
    extent.workloads.iter().position(|other| other.name == workload).map(|at| (at, connections))
}
