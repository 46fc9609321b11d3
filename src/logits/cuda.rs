// SPDX-License-Identifier: Apache-2.0
//! Measures rows on a GPU, through a CUDA driver that is loaded at run time.
//!
//! One thread owns the device. Submitted rows wait at most a deadline for a fuller batch, are copied from pinned slots, measured by the
//! kernels of `cuda/`, and answered. Any failure, from a missing driver to a device lost during a batch, is logged and counted, and the
//! CPU measures the rows instead.
#![expect(
    unsafe_code,
    reason = "a driver takes addresses: each block states what they point to, and who keeps it alive"
)]

mod abi;
mod bare;
mod batch;
mod calibration;
mod driver;
mod health;
mod kernels;
mod lane;
mod memory;
mod rows;
mod worker;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::Sender;
use cudarc::driver::CudaContext;

pub use bare::{BenchDevice, ResidentRows};
use batch::Collector;
pub(super) use calibration::WIDTH;
pub use calibration::calibrate;
use driver::guarded;
pub use driver::{DeviceInfo, Unavailable, find};
pub(super) use health::DRIVER_TIMEOUT;
use health::Health;
use kernels::Kernels;
use lane::Lane;
pub use memory::Pinned;
pub(super) use worker::NAME;
use worker::Worker;

use super::slices::{SLOT_BYTES, SlotJob, SlotPool};
use crate::config::CudaDevice;
use crate::entropy::Cpu;
use crate::metrics::Metrics;

/// Selects the device, and bounds its memory and latency.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The device to open; the first one by default.
    pub device: Option<CudaDevice>,
    /// The most bytes of rows on the device, and the same number pinned on the host; at most a quarter of the device's free memory.
    pub memory: u64,
    /// How long rows wait for others to fill their batch.
    pub deadline: Duration,
}

/// An open device. Drop waits until all submitted rows are answered, unless the device is lost.
#[derive(Debug)]
pub struct Cuda {
    info: DeviceInfo,
    jobs: Option<Sender<SlotJob>>,
    thread: Option<JoinHandle<()>>,
    slot_pool: Arc<SlotPool>,
    health: Arc<Health>,
    /// Fewer rows than this are split among blocks; from this number on, each row has its own block.
    split_below: usize,
}

impl Cuda {
    /// Finds a device, compiles the kernels for it, and allocates its memory. This takes seconds.
    ///
    /// # Errors
    /// [`Unavailable`] if no device can be used.
    pub fn open(settings: &Settings, metrics: &Arc<Metrics>) -> Result<Self, Unavailable> {
        let info = find(settings.device.as_ref())?;
        let health = Arc::new(Health::new(metrics));
        let (kernels, lanes, memory) = guarded(|| acquire(&info, settings.memory, &health))?;
        let split_below = kernels.most_split();
        let worker = Worker {
            kernels,
            lanes,
            cpu: Cpu::new(),
            metrics: Arc::clone(metrics),
            health: Arc::clone(&health),
            finished: None,
        };
        let (jobs, collector) = Collector::new(settings.deadline);
        let ended = Arc::clone(&health);
        let work = move || {
            let done = catch_unwind(AssertUnwindSafe(|| worker.work(collector)));
            // without its thread the device is lost; the panic is in the log
            if done.is_err() {
                ended.lose(Unavailable::Broken("its worker thread panicked".to_owned()));
            }
        };
        let thread = std::thread::Builder::new().name("cuda".to_owned()).spawn(work);
        let thread = thread.map_err(|error| Unavailable::Broken(format!("cannot start its worker thread: {error}")))?;
        Ok(Self {
            info,
            jobs: Some(jobs),
            thread: Some(thread),
            slot_pool: Arc::new(SlotPool::pinned(memory)),
            health,
            split_below,
        })
    }

    /// The open device.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Whether the device is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.health.is_lost()
    }

    /// The pool of slots that the device reads rows from.
    pub(super) fn slot_pool(&self) -> &Arc<SlotPool> {
        &self.slot_pool
    }

    /// Whether a driver call hangs, so that the rows its thread holds cannot be measured.
    pub(super) fn is_stuck(&self) -> bool {
        self.health.is_lost() && self.health.is_stuck()
    }

    /// Why the device is lost, if it is.
    pub(super) fn loss(&self) -> Option<&Unavailable> {
        self.health.loss()
    }

    /// Submits rows in one of the device's slots; returns them if the worker has stopped.
    pub(super) fn submit(&self, entry: SlotJob) -> Option<SlotJob> {
        let jobs = self.jobs.as_ref().expect("it is taken only in drop");
        jobs.send(entry).err().map(|error| error.0)
    }
}

fn acquire(
    info: &DeviceInfo,
    most: u64,
    health: &Arc<Health>,
) -> Result<(Kernels, [Lane; 2], Vec<Pinned>), Unavailable> {
    let context = CudaContext::new(info.ordinal).map_err(Unavailable::of("cuDevicePrimaryCtxRetain"))?;
    let (free, _) = context.mem_get_info().map_err(Unavailable::of("cuMemGetInfo"))?;
    // the engine uses the same device: tokentap allocates at most a quarter of the free memory for rows
    let most = usize::try_from(most).unwrap_or(usize::MAX).min(free / 4).min(free.saturating_sub(2 * Lane::bytes()));
    let slots = most / SLOT_BYTES;
    if slots == 0 {
        let needed = (4 * SLOT_BYTES).max(SLOT_BYTES + 2 * Lane::bytes());
        return Err(Unavailable::Memory(format!("{needed} bytes must be free on the device, and {free} are")));
    }
    let kernels = Kernels::load(&context).map_err(Unavailable::of("cuModuleLoadData"))?;
    let device = memory::DeviceContext { context, health: Arc::clone(health) };
    let lane = || Lane::try_new(&device, &kernels).map_err(Unavailable::of("an allocation"));
    let lanes = [lane()?, lane()?];
    let slot = |_| Pinned::try_new(&device).map_err(Unavailable::of("an allocation"));
    let memory = (0..slots).map(slot).collect::<Result<_, _>>()?;
    Ok((kernels, lanes, memory))
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.jobs = None;
        let Some(thread) = self.thread.take() else { return };
        while !thread.is_finished() {
            // a thread inside a hung driver never finishes
            if self.is_lost() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // the thread catches its own panics
        let _ = thread.join();
    }
}

#[cfg(test)]
mod tests;
