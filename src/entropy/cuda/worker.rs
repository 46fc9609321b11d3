//! The thread that owns the device: batches in, numbers out, and the CPU in its place once it is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::batch::{Batch, Collector};
use super::driver::{Unavailable, guarded};
use super::kernels::Kernels;
use super::lane::Lane;
use crate::entropy::Cpu;
use crate::metrics::Metrics;

/// What its metrics call it.
pub(in crate::entropy) const NAME: &str = "cuda";

/// Everything the thread works with.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) kernels: Kernels,
    pub(super) lanes: [Lane; 2],
    pub(super) cpu: Cpu,
    pub(super) metrics: Arc<Metrics>,
    /// While the device is only being tried out, nothing is counted.
    pub(super) trial: Arc<AtomicBool>,
    /// When the last batch was through.
    pub(super) finished: Option<Instant>,
    /// Set once, for whoever chooses where rows go.
    pub(super) lost: Arc<AtomicBool>,
}

/// A batch that the device works on.
struct Running {
    batch: Batch,
    lane: usize,
    begin: Instant,
}

impl Worker {
    /// Works until nobody can hand in any more, and all is answered.
    pub(super) fn work(mut self, mut collector: Collector) {
        let mut running: Option<Running> = None;
        loop {
            // while the device works, what is there goes next; waiting for more can wait
            let batch = if running.is_some() { Some(collector.now()) } else { collector.wait() };
            let Some(batch) = batch else { return };
            let lane = running.as_ref().map_or(0, |running| 1 - running.lane);
            let next = (!batch.is_empty()).then(|| self.launch(batch, lane)).flatten();
            if let Some(running) = std::mem::replace(&mut running, next) {
                self.finish(running);
            }
        }
    }

    fn launch(&mut self, mut batch: Batch, lane: usize) -> Option<Running> {
        let begin = Instant::now();
        self.waited(&batch, begin);
        if self.lost.load(Ordering::Relaxed) {
            self.fall_back(batch, "device_lost");
            return None;
        }
        let (kernels, into) = (&self.kernels, &mut self.lanes[lane]);
        let launched = guarded(|| into.launch(kernels, &mut batch).map_err(Unavailable::of("a launch")));
        match launched {
            Ok(()) => Some(Running { batch, lane, begin }),
            Err(error) => {
                self.lose(&error);
                self.fall_back(batch, "device_error");
                None
            }
        }
    }

    fn finish(&mut self, running: Running) {
        let Running { batch, lane, begin } = running;
        if self.lost.load(Ordering::Relaxed) {
            // a batch behind the one that it was lost with is not given the same time again
            self.fall_back(batch, "device_lost");
            return;
        }
        let lane = &self.lanes[lane];
        let waited = guarded(|| match lane.wait() {
            Ok(true) => Ok(()),
            Ok(false) => Err(Unavailable::Hangs),
            Err(error) => Err(Unavailable::of("waiting for a batch")(error)),
        });
        if let Err(error) = waited {
            self.lose(&error);
            self.fall_back(batch, "device_error");
            return;
        }
        // while the batch before it was under way it only waited
        let begin = self.finished.map_or(begin, |finished| finished.max(begin));
        let seconds = begin.elapsed().as_secs_f64();
        self.finished = Some(Instant::now());
        for (work, count) in [("rows", batch.row_count()), ("top_k", batch.top_k_count())] {
            if count > 0 && !self.trial.load(Ordering::Relaxed) {
                let by = [NAME, work];
                self.metrics.slices.rows.with_label_values(&by).inc_by(count as u64);
                self.metrics.slices.batch.with_label_values(&by).observe(count as f64);
                self.metrics.slices.compute.with_label_values(&by).observe(seconds);
            }
        }
        let (rows, top_k) = (lane.rows(&batch), lane.top_k(&batch));
        batch.rows.into_iter().zip(rows).for_each(|(entry, numbers)| entry.answer(Ok(numbers)));
        for (job, numbers) in batch.top_k.into_iter().zip(top_k) {
            // nobody to tell when this fails
            let _ = job.reply.send(numbers);
        }
    }

    fn waited(&self, batch: &Batch, begin: Instant) {
        if self.trial.load(Ordering::Relaxed) {
            return;
        }
        let wait = &self.metrics.slices.wait;
        let rows = wait.with_label_values(&[NAME, "rows"]);
        batch.rows.iter().for_each(|entry| rows.observe((begin - entry.since).as_secs_f64()));
        let top_k = wait.with_label_values(&[NAME, "top_k"]);
        batch.top_k.iter().for_each(|job| top_k.observe((begin - job.since).as_secs_f64()));
    }

    /// After an error nothing that the device says can be relied on, and most errors stay.
    fn lose(&self, error: &Unavailable) {
        let code = match error {
            Unavailable::Failed { code, .. } => code.to_string(),
            _ => "none".to_owned(),
        };
        self.metrics.slices.device_errors.with_label_values(&[&code]).inc();
        if !self.lost.swap(true, Ordering::Relaxed) {
            super::in_use(&self.metrics, &self.cpu, false, false);
            tracing::error!(%error, "the CUDA device is lost; the CPU goes on, and a restart opens it again");
        }
    }

    /// Each entry on its own, so that one that fails costs no other.
    fn fall_back(&self, batch: Batch, reason: &str) {
        let count = (batch.row_count() + batch.top_k_count()) as u64;
        self.metrics.slices.fallbacks.with_label_values(&[reason]).inc_by(count);
        for entry in batch.rows {
            entry.measure(&self.cpu, &self.metrics.slices);
        }
        // top-k rows are measured by the threads that wait for them, when their replies are dropped
    }
}
