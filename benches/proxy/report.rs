// SPDX-License-Identifier: Apache-2.0
//! The tables.

use crate::run::{Cell, Extent, Measured, Sample};
use crate::workload::Workload;

/// One number of a cell, from a sample and the direct sample of the same round. Numbers of streams do not use the direct sample, which not
/// every stream has.
type Value = fn(&Sample, &Sample, &Workload) -> f64;

/// A table.
struct Table {
    title: &'static str,
    /// Which workloads are in it.
    shows: fn(&Workload) -> bool,
    /// Whether direct has a column.
    with_direct: bool,
    /// Whether its numbers are less reliable if the harness was the bottleneck.
    starred: bool,
    /// The number of a cell.
    value: Value,
}

const TABLES: [Table; 13] = [
    Table {
        title: "CPU of the proxy, µs a request",
        shows: |workload| !workload.is_stream(),
        with_direct: false,
        starred: false,
        value: |sample, _, _| sample.cpu_per_request,
    },
    Table {
        title: "Added latency, p50, µs",
        shows: |workload| !workload.is_stream(),
        with_direct: false,
        starred: true,
        value: |sample, direct, _| sample.p50 - direct.p50,
    },
    Table {
        title: "Added latency, p99, µs",
        shows: |workload| !workload.is_stream(),
        with_direct: false,
        starred: true,
        value: |sample, direct, _| sample.p99 - direct.p99,
    },
    Table {
        title: "Latency, p50, µs",
        shows: |workload| !workload.is_stream(),
        with_direct: true,
        starred: true,
        value: |sample, _, _| sample.p50,
    },
    Table {
        title: "Latency, p99, µs",
        shows: |workload| !workload.is_stream(),
        with_direct: true,
        starred: true,
        value: |sample, _, _| sample.p99,
    },
    Table {
        title: "Requests a second",
        shows: |workload| !workload.is_stream(),
        with_direct: true,
        starred: true,
        value: |sample, _, _| sample.per_second,
    },
    Table {
        title: "Peak memory above idle, MB",
        shows: |_| true,
        with_direct: false,
        starred: false,
        value: |sample, _, _| sample.memory / 1e6,
    },
    Table {
        title: "Streams: CPU of the proxy, µs a token",
        shows: Workload::is_stream,
        with_direct: false,
        starred: false,
        value: |sample, _, workload| sample.cpu_per_request / workload.tokens as f64,
    },
    Table {
        title: "Streams: tokens a second",
        shows: Workload::is_stream,
        with_direct: true,
        starred: true,
        value: |sample, _, workload| sample.per_second * workload.tokens as f64,
    },
    Table {
        title: "Paced streams: time to the first chunk, p50, µs",
        shows: Workload::is_paced,
        with_direct: true,
        starred: true,
        value: |sample, _, _| sample.first_p50,
    },
    Table {
        title: "Paced streams: time to the first chunk, p99, µs",
        shows: Workload::is_paced,
        with_direct: true,
        starred: true,
        value: |sample, _, _| sample.first_p99,
    },
    Table {
        title: "Paced streams: gap between chunks, p50, µs",
        shows: Workload::is_paced,
        with_direct: true,
        starred: true,
        value: |sample, _, _| sample.gap_p50,
    },
    Table {
        title: "Paced streams: gap between chunks, p99, µs",
        shows: Workload::is_paced,
        with_direct: true,
        starred: true,
        value: |sample, _, _| sample.gap_p99,
    },
];

/// Prints every table that has rows.
pub fn print(extent: &Extent, measured: &Measured) {
    println!("Medians over the rounds of one interleaved run of {:.0} s.\n", measured.took.as_secs_f64());
    for table in &TABLES {
        let cells = measured.cells.keys().filter(|(at, _)| (table.shows)(&extent.workloads[*at]));
        let rows: Vec<String> = cells.map(|cell| row(table, extent, measured, *cell)).collect();
        if rows.is_empty() {
            continue;
        }
        let names: Vec<&str> = columns(table, measured).map(|column| measured.targets[column].name()).collect();
        println!("**{}**\n\n| workload | conns | {} | others |", table.title, names.join(" | "));
        println!("|---|---|{}---|", "---|".repeat(names.len()));
        println!("{}\n", rows.join("\n"));
    }
    println!(
        "`*`: the core of load and engine was at least 90 % busy in some round, so throughput is a lower bound.  "
    );
    println!("others: cores' worth of work that was not the benchmark's, in the worst sample of the row.\n");
}

fn columns<'a>(table: &'a Table, measured: &'a Measured) -> impl Iterator<Item = usize> + 'a {
    (0..measured.targets.len()).filter(|column| *column > 0 || table.with_direct)
}

fn row(table: &Table, extent: &Extent, measured: &Measured, cell: Cell) -> String {
    let workload = &extent.workloads[cell.0];
    let has_direct = !measured.cells[&cell][0].is_empty();
    let values: Vec<String> = columns(table, measured)
        .map(|column| {
            let other = if has_direct { 0 } else { column };
            let value = measured.median(cell, column, other, |sample, direct| (table.value)(sample, direct, workload));
            let bound = table.starred && measured.cells[&cell][column].iter().any(|sample| sample.harness_bound);
            format!("{}{}", value.map_or("-".to_owned(), digits), if bound { "\\*" } else { "" })
        })
        .collect();
    let samples = measured.cells[&cell].iter().flatten();
    let others = samples.map(|sample| sample.others).fold(0.0, f64::max);
    format!("| {} | {} | {} | {others:.2} |", workload.name, cell.1, values.join(" | "))
}

/// Three digits; whole numbers if it has more.
pub fn digits(value: f64) -> String {
    let size = value.abs();
    let decimals = if size >= 100.0 {
        0
    } else if size >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.decimals$}")
}
