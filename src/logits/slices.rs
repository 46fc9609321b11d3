// SPDX-License-Identifier: Apache-2.0
//! Slices of whole rows of logits, measured on threads that serve no sockets.
//!
//! A handler opens an [`Intake`], pushes bytes as they are received, and reads the numbers in order. Rows wait in slots, whose number is
//! fixed: a handler without a slot waits, which slows its sender down.

#[cfg(feature = "cuda")]
mod device;
mod intake;
mod job;
mod pool;
mod shape;
mod slot;

use std::sync::Arc;

use crate::config::SliceConfig;
use crate::entropy::Cpu;
#[cfg(feature = "cuda")]
use crate::logits::cuda::{Cuda, DRIVER_TIMEOUT};
use crate::metrics::Metrics;

#[cfg(feature = "cuda")]
use device::Device;
pub use intake::Intake;
use intake::PendingRows;
pub use job::MeasureError;
pub(super) use job::Measured;
pub(super) use job::SlotJob;
#[cfg(feature = "cuda")]
pub(super) use job::SlotLayout;
use pool::Pool;
#[cfg(feature = "cuda")]
pub(super) use shape::TEMPERATURES;
pub use shape::{InvalidSlice, SliceColumns, SliceShape};
#[cfg(feature = "cuda")]
pub(super) use slot::Memory;
use slot::Reserved;
pub(super) use slot::SlotPool;
pub use slot::{SLOT_BYTES, Slot};

/// The widest row, in logits: more than any model has.
pub const MAX_VOCAB: usize = 1 << 20;

/// The most rows of a slice whose reply is buffered until the last row is measured.
pub const MAX_ROWS: usize = 1 << 16;

/// The most rows in a slot, whatever their width.
const SLOT_ROWS: usize = 4096;

/// The service that measures rows: CPU threads, and a device if one is configured.
#[derive(Debug)]
pub struct Slices {
    heap: Arc<SlotPool>,
    pool: Pool,
    #[cfg(feature = "cuda")]
    metrics: Arc<Metrics>,
    #[cfg(feature = "cuda")]
    device: Option<Device>,
}

impl Slices {
    /// Starts the threads and begins to open the configured device, if any. Until it is open, the threads measure all rows.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(config: &SliceConfig, metrics: &Arc<Metrics>) -> std::io::Result<Self> {
        let (cpu, threads) = (Cpu::new(), config.threads());
        metrics.slices.backend.with_label_values(&[cpu.name()]).set(1);
        #[cfg(not(feature = "cuda"))]
        if config.entropy_backend != crate::config::EntropyBackend::Cpu {
            tracing::warn!("tokentap was built without CUDA; rows are measured on the CPU");
        }
        Ok(Self {
            heap: Arc::new(SlotPool::heap(config.slice_memory)),
            pool: Pool::start(threads, cpu, metrics)?,
            #[cfg(feature = "cuda")]
            metrics: Arc::clone(metrics),
            #[cfg(feature = "cuda")]
            device: device::wanted(config).map(|(settings, share)| Device::open(settings, share, threads, metrics)),
        })
    }

    /// Waits until a configured device is open or has failed to open, for callers that must not use the CPU.
    pub async fn wait_opened(&self) {
        #[cfg(feature = "cuda")]
        if let Some(device) = &self.device {
            device.wait_opened().await;
        }
    }

    /// Waits for a device that is still being opened, at most five seconds. Must be called before the process ends.
    pub async fn close(&self) {
        #[cfg(feature = "cuda")]
        if let Some(device) = &self.device {
            device.close().await;
        }
    }

    /// The pool that these rows take their slots from.
    fn slot_pool(&self, rows: SliceShape) -> &Arc<SlotPool> {
        #[cfg(feature = "cuda")]
        if let Some(cuda) = self.device.as_ref().and_then(|device| device.for_rows(rows)) {
            return cuda.slot_pool();
        }
        let _ = rows;
        &self.heap
    }

    fn submit(&self, entry: SlotJob) {
        #[cfg(feature = "cuda")]
        let entry = match self.device.as_ref().and_then(Device::any) {
            Some(cuda) if matches!(entry.slot.memory(), Memory::Pinned(_)) => {
                let rows = entry.rows() as u64;
                let back = if cuda.is_lost() { Some(entry) } else { cuda.submit(entry) };
                let Some(entry) = back else { return };
                self.metrics.slices.fallbacks.with_label_values(&["device_lost"]).inc_by(rows);
                entry
            }
            _ => entry,
        };
        self.pool.submit(entry);
    }

    /// Waits for numbers; gives up if the driver hangs with their rows.
    async fn numbers(&self, waiting: &mut PendingRows) -> Measured {
        #[cfg(feature = "cuda")]
        while waiting.on_device {
            match tokio::time::timeout(DRIVER_TIMEOUT, &mut waiting.numbers).await {
                Ok(numbers) => return numbers.unwrap_or(Err(MeasureError::Ending)),
                Err(_) if self.is_stuck() => return Err(MeasureError::Stuck),
                Err(_) => {}
            }
        }
        (&mut waiting.numbers).await.unwrap_or(Err(MeasureError::Ending))
    }

    /// Waits for slots of `slot_pool`; `ahead` means that their rows have not been received. If the driver hangs with that pool's slots,
    /// waits for slots of the heap instead.
    async fn slots(&self, slot_pool: &mut Arc<SlotPool>, count: usize, ahead: bool) -> Reserved {
        #[cfg(feature = "cuda")]
        if !Arc::ptr_eq(slot_pool, &self.heap) {
            let mut taking = std::pin::pin!(Arc::clone(slot_pool).acquire(count, ahead));
            while !self.is_stuck() {
                if let Ok(slots) = tokio::time::timeout(DRIVER_TIMEOUT, &mut taking).await {
                    return slots;
                }
            }
            *slot_pool = Arc::clone(&self.heap);
        }
        Arc::clone(slot_pool).acquire(count, ahead).await
    }

    #[cfg(feature = "cuda")]
    fn is_stuck(&self) -> bool {
        self.device.as_ref().and_then(Device::any).is_some_and(Cuda::is_stuck)
    }
}
