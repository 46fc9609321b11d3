// SPDX-License-Identifier: Apache-2.0
//! The stream and buffers of one batch on the device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaEvent, CudaStream, DriverError};

use super::abi::{RowIn, RowOut, Sums};
use super::batch::MOST_ROWS;
use super::health::Health;
use super::kernels::{Buffers, Group, Kernels, MOST_SPLITS};
use super::memory::{DeviceContext, MirroredBuffer};
use crate::entropy::rows::{self, Raw};
use crate::entropy::{Logits, RowStats};
use crate::logits::slices::{Memory, SlotJob};

/// How long the thread spins for a batch before it sleeps: a wake-up takes as long.
pub(super) const SPIN_TIME: Duration = Duration::from_micros(50);
/// How long it sleeps between polls after that.
pub(super) const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// How long a batch may take: a hundred times the time that a slow bus needs for the largest one.
const BATCH_TIMEOUT: Duration = Duration::from_secs(5);

/// The buffers of a batch. Two lanes alternate: while the device works on one, the other is filled.
#[derive(Debug)]
pub(super) struct Lane {
    stream: Arc<CudaStream>,
    done: CudaEvent,
    row_ins: MirroredBuffer<RowIn>,
    row_outs: MirroredBuffer<RowOut>,
    parts: MirroredBuffer<Sums>,
    tickets: MirroredBuffer<u32>,
}

impl Lane {
    /// Allocates buffers for the largest batch.
    pub(super) fn try_new(device: &DeviceContext, kernels: &Kernels) -> Result<Self, DriverError> {
        let split = kernels.most_split();
        Ok(Self {
            stream: device.context.new_stream()?,
            done: device.context.new_event(None)?,
            row_ins: MirroredBuffer::try_new(device, MOST_ROWS)?,
            row_outs: MirroredBuffer::try_new(device, MOST_ROWS)?,
            parts: MirroredBuffer::try_new(device, split * MOST_SPLITS as usize)?,
            tickets: MirroredBuffer::try_new(device, split)?,
        })
    }

    /// The bytes of a lane, on the host and again on the device.
    pub(super) fn bytes() -> usize {
        MOST_ROWS * (size_of::<RowIn>() + size_of::<RowOut>())
            + (MOST_SPLITS as usize + 1) * MOST_ROWS * size_of::<Sums>()
    }

    /// Starts to copy and measure a batch.
    pub(super) fn launch(&mut self, kernels: &Kernels, entries: &mut [SlotJob]) -> Result<(), DriverError> {
        self.stream.context().bind_to_thread()?;
        // contiguous rows of each type, for one launch per type
        entries.sort_by_key(|entry| entry.shape.dtype.name());
        let mut groups: Vec<Group> = Vec::new();
        let mut at = 0;
        for entry in &*entries {
            let logits = entry.logits();
            let Memory::Pinned(pinned) = entry.slot.memory() else {
                unreachable!("only entries in pinned slots are submitted to the device");
            };
            pinned.buffer().send(logits.bytes.len(), &self.stream)?;
            let (count, width) = (entry.rows(), logits.vocab * logits.dtype.bytes());
            for (row, place) in self.row_ins.host_mut()[at..at + count].iter_mut().enumerate() {
                // a row with a missing temperature is not measured: a NaN has this effect
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
        self.row_outs.fetch(at, &self.stream)?;
        self.done.record(&self.stream)
    }

    /// Waits until the batch has finished; false after [`BATCH_TIMEOUT`]. It polls, because a wait inside the driver does not return if the
    /// device hangs.
    pub(super) fn wait(&self, health: &Health) -> Result<bool, DriverError> {
        let begin = Instant::now();
        loop {
            // read before the event: otherwise a process suspended in between would report a timeout
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

    /// The numbers of the rows of each entry.
    pub(super) fn rows(&self, entries: &[SlotJob]) -> Vec<Vec<RowStats>> {
        let mut outs = self.row_outs.host().iter();
        let of = |entry: &SlotJob| {
            let logits = entry.logits();
            let outs = outs.by_ref().take(entry.rows()).enumerate();
            outs.map(|(row, out)| stats(&logits, row, out)).collect()
        };
        entries.iter().map(of).collect()
    }
}

/// Computes the numbers of a row from its sums.
pub(super) fn stats(logits: &Logits<'_>, row: usize, sums: &RowOut) -> RowStats {
    let temperature = logits.temperature(row).unwrap_or(f32::NAN);
    // the same rounding as in the kernels
    let scale = std::f32::consts::LOG2_E * (1.0 / temperature);
    let raw = Raw {
        scale,
        top: sums.top.into(),
        z: sums.z.into(),
        s: sums.s.into(),
        q: sums.q.into(),
        // from the logit on the host: 32 bits are not precise enough for the distance of an unlikely token
        chosen: logits.chosen_distance(row, sums.top.into(), temperature),
    };
    rows::finish(raw, temperature)
}
