//! The buffers of one batch on its way through the device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaEvent, CudaStream, DriverError};

use super::abi::{RowIn, RowOut, Sums, TopKIn, TopKOut};
use super::batch::{Batch, MOST_ROWS, MOST_VALUES, TopKJob};
use super::health::Health;
use super::kernels::{Buffers, Group, Kernels, MOST_SPLITS, Slices};
use super::memory::{DeviceContext, MirroredBuffer};
use crate::entropy::rows::{self, Raw};
use crate::entropy::{Logits, RowStats};
use crate::logits::slices::{Entry, Memory};

/// How long a batch is watched before the thread sleeps: waking up costs as much.
pub(super) const SPIN_TIME: Duration = Duration::from_micros(50);
/// How long it then sleeps at a time.
pub(super) const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// How long a batch may take: a hundred times what a slow bus needs for the largest one.
const BATCH_TIMEOUT: Duration = Duration::from_secs(5);

/// One of those that take turns: while the device works for one, the next is filled.
#[derive(Debug)]
pub(super) struct Lane {
    stream: Arc<CudaStream>,
    done: CudaEvent,
    row_ins: MirroredBuffer<RowIn>,
    row_outs: MirroredBuffer<RowOut>,
    parts: MirroredBuffer<Sums>,
    tickets: MirroredBuffer<u32>,
    values: MirroredBuffer<f32>,
    top_k_ins: MirroredBuffer<TopKIn>,
    top_k_outs: MirroredBuffer<TopKOut>,
}

impl Lane {
    /// Everything a batch may need.
    pub(super) fn try_new(device: &DeviceContext, kernels: &Kernels) -> Result<Self, DriverError> {
        let split = kernels.most_split();
        Ok(Self {
            stream: device.context.new_stream()?,
            done: device.context.new_event(None)?,
            row_ins: MirroredBuffer::try_new(device, MOST_ROWS)?,
            row_outs: MirroredBuffer::try_new(device, MOST_ROWS)?,
            parts: MirroredBuffer::try_new(device, split * MOST_SPLITS as usize)?,
            tickets: MirroredBuffer::try_new(device, split)?,
            values: MirroredBuffer::try_new(device, MOST_VALUES)?,
            top_k_ins: MirroredBuffer::try_new(device, MOST_ROWS)?,
            top_k_outs: MirroredBuffer::try_new(device, MOST_ROWS)?,
        })
    }

    /// Bytes of it, on the host and on the device.
    pub(super) fn bytes() -> usize {
        MOST_ROWS * (size_of::<RowIn>() + size_of::<RowOut>() + size_of::<TopKIn>() + size_of::<TopKOut>())
            + MOST_VALUES * size_of::<f32>()
            + (MOST_SPLITS as usize + 1) * MOST_ROWS * size_of::<Sums>()
    }

    /// Begins to copy and to measure a batch.
    pub(super) fn launch(&mut self, kernels: &Kernels, batch: &mut Batch) -> Result<(), DriverError> {
        self.stream.context().bind_to_thread()?;
        match batch {
            Batch::Rows(entries) => self.launch_rows(kernels, entries)?,
            Batch::TopK(jobs) => self.launch_top_k(kernels, jobs)?,
        }
        self.done.record(&self.stream)
    }

    fn launch_rows(&mut self, kernels: &Kernels, entries: &mut [Entry]) -> Result<(), DriverError> {
        // rows of a type side by side, for a launch each
        entries.sort_by_key(|entry| entry.shape.dtype.name());
        let mut groups: Vec<Group> = Vec::new();
        let mut at = 0;
        for entry in &*entries {
            let logits = entry.logits();
            let Memory::Pinned(pinned) = entry.slot.memory() else {
                unreachable!("only slots of the device are handed to it");
            };
            pinned.buffer().send(logits.bytes.len(), &self.stream)?;
            let (count, width) = (entry.rows(), logits.vocab * logits.dtype.bytes());
            for (row, place) in self.row_ins.host_mut()[at..at + count].iter_mut().enumerate() {
                // a row without a temperature is not measured, and a NaN makes one
                let temperature = logits.temperature(row).unwrap_or(f32::NAN);
                let at = pinned.buffer().device(row * width);
                *place = RowIn::new(at, temperature, logits.vocab, logits.chosen(row));
            }
            match groups.last_mut().filter(|group| group.dtype == logits.dtype) {
                Some(group) => group.count += count,
                None => groups.push(Group { dtype: logits.dtype, first: at, count }),
            }
            at += count;
        }
        self.row_ins.send(at, &self.stream)?;
        for group in groups {
            let buffers =
                Buffers { ins: &self.row_ins, outs: &self.row_outs, parts: &self.parts, tickets: &self.tickets };
            // SAFETY: each row is in the device's part of a slot, which lives until the batch has ended.
            unsafe { kernels.rows(&self.stream, group, &buffers) }?;
        }
        self.row_outs.fetch(at, &self.stream)
    }

    fn launch_top_k(&mut self, kernels: &Kernels, jobs: &[TopKJob]) -> Result<(), DriverError> {
        let (mut at, mut values) = (0, 0);
        for job in jobs {
            self.values.host_mut()[values..values + job.values.len()].copy_from_slice(&job.values);
            let before = u32::try_from(values).expect("at most 2^20");
            for (place, row) in self.top_k_ins.host_mut()[at..].iter_mut().zip(&job.ins) {
                *place = TopKIn { start: row.start + before, ..*row };
            }
            at += job.ins.len();
            values += job.values.len();
        }
        self.values.send(values, &self.stream)?;
        self.top_k_ins.send(at, &self.stream)?;
        let slices = Slices { values: &self.values, ins: &self.top_k_ins, outs: &self.top_k_outs };
        // SAFETY: the rows of a job are within its values, which are in `values` from `before` on.
        unsafe { kernels.top_k(&self.stream, at, &slices) }?;
        self.top_k_outs.fetch(at, &self.stream)
    }

    /// Waits until the batch is through; false when it is not after [`BATCH_TIMEOUT`]. Asked again and again, because to wait in the driver is to
    /// wait for ever where a device hangs.
    pub(super) fn wait(&self, health: &Health) -> Result<bool, DriverError> {
        let begin = Instant::now();
        loop {
            // looked at before the event: a process that was stopped in between has not been waiting for the device
            let elapsed = begin.elapsed();
            if health.calling(|| self.done.try_is_complete())? {
                return Ok(true);
            }
            match elapsed {
                short if short < SPIN_TIME => std::hint::spin_loop(),
                long if long < BATCH_TIMEOUT => std::thread::sleep(POLL_INTERVAL),
                _ => return Ok(false),
            }
        }
    }

    /// The numbers of the whole rows, entry by entry.
    pub(super) fn rows(&self, entries: &[Entry]) -> Vec<Vec<RowStats>> {
        let mut outs = self.row_outs.host().iter();
        let of = |entry: &Entry| {
            let logits = entry.logits();
            let outs = outs.by_ref().take(entry.rows()).enumerate();
            outs.map(|(row, out)| stats(&logits, row, out)).collect()
        };
        entries.iter().map(of).collect()
    }

    /// The numbers of the top-k rows, job by job.
    pub(super) fn top_k(&self, jobs: &[TopKJob]) -> Vec<Vec<TopKOut>> {
        let mut outs = self.top_k_outs.host().iter().copied();
        jobs.iter().map(|job| outs.by_ref().take(job.ins.len()).collect()).collect()
    }
}

/// The numbers of a row whose sums are known.
pub(super) fn stats(logits: &Logits<'_>, row: usize, sums: &RowOut) -> RowStats {
    let temperature = logits.temperature(row).unwrap_or(f32::NAN);
    // as the kernels have it
    let scale = std::f32::consts::LOG2_E * (1.0 / temperature);
    let raw = Raw {
        scale,
        top: sums.top.into(),
        z: sums.z.into(),
        s: sums.s.into(),
        q: sums.q.into(),
        // from the logit itself, which is here too: 32 bits do not hold the distance of an unlikely token
        chosen: logits.chosen_distance(row, sums.top.into(), temperature),
    };
    rows::finish(raw, temperature)
}
