//! The kernels of `cuda/`, loaded into a context, and how they are launched.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;

use super::abi::{RowIn, RowOut, Sums, TopKIn, TopKOut};
use super::memory::MirroredBuffer;
use crate::entropy::Dtype;

/// Made from `cuda/*.cu` by `make ptx`.
const PTX: &str = include_str!("../../../cuda/entropy.ptx");

/// Threads of a block that measures rows, as the kernels are bounded to.
pub(super) const ROW_THREADS: u32 = 512;
/// Threads of a block that measures top-k rows: a warp a row.
const TOP_K_THREADS: u32 = 128;
/// Blocks a row is split among at most.
pub(super) const MOST_SPLITS: u32 = 32;

/// What the device runs.
#[derive(Debug)]
pub(super) struct Kernels {
    rows: [CudaFunction; 3],
    splits: [CudaFunction; 3],
    top_k: CudaFunction,
    processors: u32,
}

/// Rows of one type, side by side in the buffers of a lane.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    pub(super) dtype: Dtype,
    pub(super) first: usize,
    pub(super) count: usize,
}

impl Kernels {
    /// Compiles them for the device, which takes the driver a second where it has not done so before.
    pub(super) fn load(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        let module = context.load_module(Ptx::from_src(PTX))?;
        let names = [Dtype::Bf16, Dtype::F16, Dtype::F32].map(|dtype| dtype.name().to_ascii_lowercase());
        let [a, b, c] = names.each_ref().map(|name| module.load_function(&format!("entropy_rows_{name}")));
        let [d, e, f] = names.each_ref().map(|name| module.load_function(&format!("entropy_split_{name}")));
        let processors = context.attribute(sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        Ok(Self {
            rows: [a?, b?, c?],
            splits: [d?, e?, f?],
            top_k: module.load_function("entropy_top_k")?,
            processors: u32::try_from(processors).unwrap_or(1).max(1),
        })
    }

    /// Rows too few to give each processor one are split; as many as this at most.
    pub(super) fn most_split(&self) -> usize {
        2 * self.processors as usize
    }

    /// Multiprocessors of the device.
    pub(super) fn processors(&self) -> u32 {
        self.processors
    }

    /// Begins to measure a group of rows.
    ///
    /// # Safety
    /// `ins` describes `group.count` rows from `group.first` on, each in the memory of the device and aligned to its type.
    pub(super) unsafe fn rows(
        &self,
        stream: &CudaStream,
        group: Group,
        buffers: &Buffers<'_>,
    ) -> Result<(), DriverError> {
        let place = match group.dtype {
            Dtype::Bf16 => 0,
            Dtype::F16 => 1,
            Dtype::F32 => 2,
        };
        let count = u32::try_from(group.count).expect("a lane has fewer rows");
        let (ins, outs) = (buffers.ins.device(group.first), buffers.outs.device(group.first));
        if group.count < self.most_split() {
            let splits = (4 * self.processors).div_ceil(count).min(MOST_SPLITS);
            let (parts, tickets) = (buffers.parts.device(0), buffers.tickets.device(0));
            let mut launch = stream.launch_builder(&self.splits[place]);
            launch.arg(&ins).arg(&outs).arg(&parts).arg(&tickets);
            // SAFETY: the caller's; `parts` has room for `MOST_SPLITS` of `most_split` rows, and the tickets are 0 between launches.
            unsafe { launch.launch(config((splits, count), ROW_THREADS)) }?;
        } else {
            let rows = i32::try_from(count).expect("a lane has fewer rows");
            let mut launch = stream.launch_builder(&self.rows[place]);
            launch.arg(&ins).arg(&rows).arg(&outs);
            // SAFETY: the caller's.
            unsafe { launch.launch(config((count, 1), ROW_THREADS)) }?;
        }
        Ok(())
    }

    /// Begins to measure top-k rows.
    ///
    /// # Safety
    /// `ins` describes `count` rows, each within `values`.
    pub(super) unsafe fn top_k(
        &self,
        stream: &CudaStream,
        count: usize,
        slices: &Slices<'_>,
    ) -> Result<(), DriverError> {
        let (values, ins, outs) = (slices.values.device(0), slices.ins.device(0), slices.outs.device(0));
        let rows = i32::try_from(count).expect("a lane has fewer rows");
        let blocks = u32::try_from(count).expect("a lane has fewer rows").div_ceil(TOP_K_THREADS / 32);
        let mut launch = stream.launch_builder(&self.top_k);
        launch.arg(&values).arg(&ins).arg(&rows).arg(&outs);
        // SAFETY: the caller's.
        unsafe { launch.launch(config((blocks, 1), TOP_K_THREADS)) }?;
        Ok(())
    }
}

/// What the kernels of whole rows work on.
#[derive(Debug)]
pub(super) struct Buffers<'a> {
    pub(super) ins: &'a MirroredBuffer<RowIn>,
    pub(super) outs: &'a MirroredBuffer<RowOut>,
    pub(super) parts: &'a MirroredBuffer<Sums>,
    pub(super) tickets: &'a MirroredBuffer<u32>,
}

/// What the kernel of top-k rows works on.
#[derive(Debug)]
pub(super) struct Slices<'a> {
    pub(super) values: &'a MirroredBuffer<f32>,
    pub(super) ins: &'a MirroredBuffer<TopKIn>,
    pub(super) outs: &'a MirroredBuffer<TopKOut>,
}

pub(super) fn config((x, y): (u32, u32), threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (x, y, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}
