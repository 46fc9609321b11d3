// SPDX-License-Identifier: Apache-2.0
//! The run: every cell in every round; the targets of a cell run directly after each other, in another order each time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::check::check;
use crate::load::{Load, Record};
use crate::target::{Engine, Target};
use crate::usage::{Memory, Usage, Used};
use crate::workload::Workload;

/// The extent of the run.
pub struct Extent {
    /// The workloads.
    pub workloads: Vec<Workload>,
    rounds: usize,
    time: Duration,
}

impl Extent {
    /// Everything, or the workloads whose names hold one of `filters`.
    pub fn full(filters: &[String]) -> Self {
        let chosen = |workload: &Workload| {
            filters.is_empty() || filters.iter().any(|filter| workload.name.contains(filter.as_str()))
        };
        let workloads = Workload::all().into_iter().filter(chosen).collect();
        Self { workloads, rounds: 3, time: Duration::from_millis(1200) }
    }

    /// A short run that checks that everything works.
    pub fn quick() -> Self {
        let names = [
            "forward tiny",
            "job flat 512 x 20",
            "job nested 512 x 20",
            "stream paced 64",
            "stream 512",
            "chat stream 512",
        ];
        let mut workloads = Workload::all();
        workloads.retain(|workload| names.contains(&workload.name));
        for workload in &mut workloads {
            workload.connections = if workload.connections.len() == 1 { &[1] } else { &[16] };
        }
        Self { workloads, rounds: 1, time: Duration::from_millis(500) }
    }
}

/// One cell of one round; times in microseconds.
#[derive(Debug, Clone)]
pub struct Sample {
    pub cpu_per_request: f64,
    pub per_second: f64,
    pub p50: f64,
    pub p99: f64,
    pub first_p50: f64,
    pub first_p99: f64,
    pub gap_p50: f64,
    pub gap_p99: f64,
    /// Peak memory above that of an idle process, in bytes.
    pub memory: f64,
    /// Whether the load, the engine or another process on their core was the bottleneck.
    pub harness_bound: bool,
    /// Work of other processes, in cores.
    pub others: f64,
}

/// A workload's place in the list, and connections.
pub type Cell = (usize, usize);

/// All samples, by cell and target, one for each round.
pub struct Measured {
    /// The targets, in the order of columns.
    pub targets: Vec<Target>,
    /// The samples of each target of a cell; none of a target that does not serve the workload.
    pub cells: BTreeMap<Cell, Vec<Vec<Sample>>>,
    /// How long it took.
    pub took: Duration,
}

/// Checks every workload, then measures every cell.
pub async fn run(extent: &Extent) -> Measured {
    let started = Instant::now();
    let (engine, targets) = (Engine::start(), Target::all());
    for workload in &extent.workloads {
        check(workload, &targets, &engine).await;
        eprintln!("right: {}", workload.name);
    }
    let mut cells: BTreeMap<Cell, Vec<Vec<Sample>>> = BTreeMap::new();
    for round in 0..extent.rounds {
        for (at, workload) in extent.workloads.iter().enumerate() {
            for (place, &connections) in workload.connections.iter().enumerate() {
                let samples = cells.entry((at, connections)).or_insert_with(|| vec![Vec::new(); targets.len()]);
                for turn in 0..targets.len() {
                    let which = (turn + round + place + at) % targets.len();
                    if !targets[which].serves(workload) {
                        continue;
                    }
                    let sample = measure(workload, connections, &targets[which], &engine, extent.time).await;
                    eprintln!(
                        "round {round}  {:22} {connections:3}  {:8}  {:9.1} us CPU  {:9.1} us p50  {:5.2} cores of others",
                        workload.name,
                        targets[which].name(),
                        sample.cpu_per_request,
                        sample.p50,
                        sample.others
                    );
                    samples[which].push(sample);
                }
            }
        }
    }
    Measured { targets, cells, took: started.elapsed() }
}

/// Measures a fresh process, warmed up.
async fn measure(workload: &Workload, connections: usize, target: &Target, engine: &Engine, time: Duration) -> Sample {
    let running = target.start(engine, workload).await;
    let proxy = running.process.as_ref().map(crate::process::Process::id);
    let idle = proxy.map(Memory::of);
    proxy.into_iter().for_each(Memory::reset_peak);
    let mut load = Load::connect(workload, connections, running.port, target.measures()).await;
    let limit = Duration::from_secs(60);
    let _ = tokio::time::timeout(limit, load.run(time / 6)).await.expect("a warm-up ends");
    let harness = [std::process::id(), engine.process.id()];
    let before = Usage::now(proxy, harness);
    let record = tokio::time::timeout(limit, load.run(time * workload.patience())).await.expect("a cell ends");
    let used = Usage::now(proxy, harness).since(&before);
    let peak = proxy.map(Memory::of).zip(idle).map_or(0, |(after, idle)| after.peak.saturating_sub(idle.now));
    Sample::new(record, used, peak)
}

impl Sample {
    fn new(mut record: Record, used: Used, memory: u64) -> Self {
        let requests = record.latencies.len() as f64;
        for times in [&mut record.latencies, &mut record.firsts, &mut record.gaps] {
            times.sort_by(f64::total_cmp);
        }
        Self {
            cpu_per_request: used.proxy.as_secs_f64() * 1e6 / requests,
            per_second: requests / record.elapsed.as_secs_f64(),
            p50: quantile(&record.latencies, 0.5),
            p99: quantile(&record.latencies, 0.99),
            first_p50: quantile(&record.firsts, 0.5),
            first_p99: quantile(&record.firsts, 0.99),
            gap_p50: quantile(&record.gaps, 0.5),
            gap_p99: quantile(&record.gaps, 0.99),
            memory: memory as f64,
            harness_bound: used.core_busy >= 0.9,
            others: used.others,
        }
    }
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    let at = ((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

impl Measured {
    /// The median over the rounds of `value` of a target's sample and the sample of another target, of the same cell and round.
    pub fn median(
        &self,
        cell: Cell,
        target: usize,
        other: usize,
        value: impl Fn(&Sample, &Sample) -> f64,
    ) -> Option<f64> {
        let samples = self.cells.get(&cell)?;
        let pairs = samples.get(target)?.iter().zip(samples.get(other)?);
        let mut values: Vec<f64> = pairs.map(|(one, other)| value(one, other)).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        match values.len() {
            0 => None,
            odd if odd % 2 == 1 => Some(values[middle]),
            _ => Some((values[middle - 1] + values[middle]) / 2.0),
        }
    }

    /// The column of a target.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.targets.iter().position(|target| target.name() == name)
    }
}
