//! The thread that owns the device: batches in, numbers out, and the CPU in its place once it is lost.

use std::sync::Arc;
use std::time::Instant;

use super::batch::{Batch, Collector};
use super::driver::{Unavailable, guarded};
use super::health::Health;
use super::kernels::Kernels;
use super::lane::Lane;
use crate::entropy::Cpu;
use crate::metrics::Metrics;

/// What its metrics call it.
pub(crate) const NAME: &str = "cuda";

/// Everything the thread works with.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) kernels: Kernels,
    pub(super) lanes: [Lane; 2],
    pub(super) cpu: Cpu,
    pub(super) metrics: Arc<Metrics>,
    pub(super) health: Arc<Health>,
    /// When the last batch was through.
    pub(super) finished: Option<Instant>,
}

/// A batch that the device works on.
struct Running {
    batch: Batch,
    lane: usize,
    begin: Instant,
}

impl Worker {
    /// Runs until all senders are dropped and all jobs are answered.
    pub(super) fn work(mut self, mut collector: Collector) {
        let mut running: Option<Running> = None;
        loop {
            // while the device works, the next batch takes the jobs that are queued, without a deadline
            let batch = if running.is_some() { collector.now() } else { collector.wait() };
            if batch.is_none() && running.is_none() {
                return;
            }
            let lane = running.as_ref().map_or(0, |running| 1 - running.lane);
            let next = batch.and_then(|batch| self.launch(batch, lane));
            if let Some(running) = std::mem::replace(&mut running, next) {
                self.finish(running);
            }
        }
    }

    fn launch(&mut self, mut batch: Batch, lane: usize) -> Option<Running> {
        let begin = Instant::now();
        self.waited(&batch, begin);
        if self.health.is_lost() {
            self.fall_back(batch, "device_lost");
            return None;
        }
        let (kernels, into) = (&self.kernels, &mut self.lanes[lane]);
        let launch = || into.launch(kernels, &mut batch).map_err(Unavailable::of("a launch"));
        match self.health.calling(|| guarded(launch)) {
            Ok(()) => Some(Running { batch, lane, begin }),
            Err(error) => {
                self.health.lose(error);
                self.fall_back(batch, "device_error");
                None
            }
        }
    }

    fn finish(&mut self, running: Running) {
        let Running { batch, lane, begin } = running;
        if self.health.is_lost() {
            // a batch behind the one that it was lost with is neither waited for nor believed
            self.fall_back(batch, "device_lost");
            return;
        }
        let lane = &self.lanes[lane];
        let waited = guarded(|| match lane.wait(&self.health) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Unavailable::Hangs),
            Err(error) => Err(Unavailable::of("waiting for a batch")(error)),
        });
        if let Err(error) = waited {
            self.health.lose(error);
            self.fall_back(batch, "device_error");
            return;
        }
        // while the batch before it was under way it only waited
        let begin = self.finished.map_or(begin, |finished| finished.max(begin));
        let seconds = begin.elapsed().as_secs_f64();
        self.finished = Some(Instant::now());
        if !self.health.is_trial() {
            let by = [NAME, batch.work()];
            self.metrics.slices.rows.with_label_values(&by).inc_by(batch.count() as u64);
            self.metrics.slices.batch.with_label_values(&by).observe(batch.count() as f64);
            self.metrics.slices.compute.with_label_values(&by).observe(seconds);
        }
        match batch {
            Batch::Rows(entries) => {
                let numbers = lane.rows(&entries);
                entries.into_iter().zip(numbers).for_each(|(entry, numbers)| entry.answer(Ok(numbers)));
            }
            Batch::TopK(jobs) => {
                let numbers = lane.top_k(&jobs);
                // the receiver may be gone
                jobs.into_iter().zip(numbers).for_each(|(job, numbers)| drop(job.reply.send(numbers)));
            }
        }
    }

    fn waited(&self, batch: &Batch, begin: Instant) {
        if !self.health.is_trial() {
            let wait = self.metrics.slices.wait.with_label_values(&[NAME, batch.work()]);
            batch.since().into_iter().for_each(|since| wait.observe((begin - since).as_secs_f64()));
        }
    }

    /// Each entry alone, so that one failure does not affect others. While the device is tested there are no numbers instead, and top-k rows
    /// are measured, and counted, by the threads that wait for them.
    fn fall_back(&self, batch: Batch, reason: &str) {
        let count = batch.count() as u64;
        let Batch::Rows(entries) = batch else { return };
        if self.health.is_trial() {
            return;
        }
        self.metrics.slices.fallbacks.with_label_values(&[reason]).inc_by(count);
        for entry in entries {
            entry.measure(&self.cpu, &self.metrics.slices);
        }
    }
}
