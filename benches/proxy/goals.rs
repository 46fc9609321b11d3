//! The goals, and whether the numbers meet them.

use crate::report::digits;
use crate::run::{Cell, Extent, Measured, Sample};

/// A goal: the workload, the connections, the number and its limit.
#[derive(Clone, Copy)]
struct Goal {
    what: &'static str,
    workload: &'static str,
    connections: usize,
    /// Computes the number from tokentap's sample and that of `against`, of the same round.
    value: fn(&Sample, &Sample) -> f64,
    against: &'static str,
    most: f64,
    unit: &'static str,
}

fn times_cpu(own: &Sample, nginx: &Sample) -> f64 {
    own.cpu_per_request / nginx.cpu_per_request
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
    let workload = "job flat 512 x 20";
    let own = Goal {
        what: "CPU a request",
        workload,
        connections: 16,
        value: cpu,
        against: "tokentap",
        most: 130.0,
        unit: "µs",
    };
    let nested = Goal { workload: "job nested 512 x 20", most: 280.0, ..own };
    let over = Goal { what: "CPU over nginx's", value: times_cpu, against: "nginx", most: 1.2, unit: "x", ..own };
    let recording = Goal {
        what: "CPU over that without recording",
        value: times_cpu,
        against: crate::target::UNRECORDED,
        most: 1.15,
        unit: "x",
        ..own
    };
    let recordings = [recording, Goal { workload: nested.workload, ..recording }];
    let memory = Goal { what: "memory above idle", connections: 64, value: megabytes, most: 64.0, unit: "MB", ..own };
    let workload = "stream paced 64";
    let first =
        Goal { what: "first chunk behind nginx's", workload, value: later, against: "nginx", most: 1000.0, ..own };
    let forwards = ["forward GET", "forward tiny", "forward 512 x 20"].map(|workload| Goal { workload, ..over });
    let firsts = [1, 16, 64].map(|connections| Goal { connections, ..first });
    let memories = [memory, Goal { workload: nested.workload, ..memory }];
    forwards.into_iter().chain([own, nested]).chain(recordings).chain(memories).chain(firsts).collect()
}

/// Prints the goals whose cells were measured.
pub fn print(extent: &Extent, measured: &Measured) {
    let Some(own) = measured.column("tokentap") else { return };
    let row = |goal: Goal| {
        let (cell, against) = (cell(extent, goal.workload, goal.connections)?, measured.column(goal.against)?);
        Some(line(&goal, measured.median(cell, own, against, goal.value)?))
    };
    let rows: Vec<String> = goals().into_iter().filter_map(row).chain(constant(extent, measured, own)).collect();
    if !rows.is_empty() {
        println!("**Goals**\n\n| goal | workload | conns | at most | measured | |\n|---|---|---|---|---|---|");
        println!("{}\n", rows.join("\n"));
    }
}

/// The CPU time of a token must not depend on the length of its stream.
fn constant(extent: &Extent, measured: &Measured, own: usize) -> Option<String> {
    let per_token =
        |workload: &str, tokens: f64| Some(measured.median(cell(extent, workload, 1)?, own, own, cpu)? / tokens);
    let ratio = per_token("stream 4096", 4096.0)? / per_token("stream 512", 512.0)?;
    let (what, workload) = ("CPU a token over that of 512", "stream 4096");
    let goal = Goal { what, workload, connections: 1, value: cpu, against: "tokentap", most: 1.2, unit: "x" };
    Some(line(&goal, ratio))
}

fn line(goal: &Goal, value: f64) -> String {
    let Goal { what, workload, connections, most, unit, .. } = goal;
    let met = if value <= *most { "met" } else { "**not met**" };
    format!("| {what} | {workload} | {connections} | {most} {unit} | {} {unit} | {met} |", digits(value))
}

fn cell(extent: &Extent, workload: &str, connections: usize) -> Option<Cell> {
    extent.workloads.iter().position(|other| other.name == workload).map(|at| (at, connections))
}
