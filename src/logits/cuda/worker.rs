// SPDX-License-Identifier: Apache-2.0
//! The thread that owns the device: it measures batches, on the CPU once the device is lost.

use std::sync::Arc;
use std::time::Instant;

use super::batch::Collector;
use super::driver::{Unavailable, guarded};
use super::health::Health;
use super::kernels::Kernels;
use super::lane::Lane;
use crate::entropy::Cpu;
use crate::logits::slices::SlotJob;
use crate::metrics::Metrics;

/// The name of the backend in metrics.
pub(crate) const NAME: &str = "cuda";

/// The state of the thread.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) kernels: Kernels,
    pub(super) lanes: [Lane; 2],
    pub(super) cpu: Cpu,
    pub(super) metrics: Arc<Metrics>,
    pub(super) health: Arc<Health>,
    /// When the last batch finished.
    pub(super) finished: Option<Instant>,
}

/// A batch that is running on the device.
struct Running {
    batch: Vec<SlotJob>,
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

    fn launch(&mut self, mut batch: Vec<SlotJob>, lane: usize) -> Option<Running> {
        let begin = Instant::now();
        self.record_wait(&batch, begin);
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
            // results of batches after the one that failed are discarded
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
        // the time until the previous batch finished was spent waiting, not computing
        let begin = self.finished.map_or(begin, |finished| finished.max(begin));
        let seconds = begin.elapsed().as_secs_f64();
        self.finished = Some(Instant::now());
        if !self.health.is_trial() {
            let (metrics, rows) = (&self.metrics.slices, count(&batch));
            metrics.rows.with_label_values(&[NAME]).inc_by(rows);
            metrics.batch.with_label_values(&[NAME]).observe(rows as f64);
            metrics.compute.with_label_values(&[NAME]).observe(seconds);
        }
        let numbers = lane.rows(&batch);
        batch.into_iter().zip(numbers).for_each(|(entry, numbers)| entry.finish(Ok(numbers)));
    }

    /// Records how long each job waited for its launch.
    fn record_wait(&self, batch: &[SlotJob], begin: Instant) {
        if !self.health.is_trial() {
            let wait = self.metrics.slices.wait.with_label_values(&[NAME]);
            batch.iter().for_each(|entry| wait.observe((begin - entry.since).as_secs_f64()));
        }
    }

    /// Measures each entry separately on the CPU, so that one failure does not affect others. During a test of the device, entries get no
    /// reply.
    fn fall_back(&self, batch: Vec<SlotJob>, reason: &str) {
        if self.health.is_trial() {
            return;
        }
        self.metrics.slices.fallbacks.with_label_values(&[reason]).inc_by(count(&batch));
        for entry in batch {
            entry.measure(&self.cpu, &self.metrics.slices);
        }
    }
}

/// The number of rows of a batch.
fn count(batch: &[SlotJob]) -> u64 {
    batch.iter().map(SlotJob::rows).sum::<usize>() as u64
}
