// SPDX-License-Identifier: Apache-2.0
//! Loads the kernels of `cuda/` into a context and launches them.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;

use super::abi::{RowIn, RowOut, Sums};
use super::memory::MirroredBuffer;
use crate::entropy::Dtype;

/// Compiled from `cuda/*.cu` by `make ptx`.
const PTX: &str = include_str!("../../../cuda/entropy.ptx");

/// Threads of a block that measures rows; the launch bound of the kernels.
const ROW_THREADS: u32 = 512;
/// The most blocks that a row is split among.
pub(super) const MOST_SPLITS: u32 = 32;

/// The kernel functions of a context.
#[derive(Debug)]
pub(super) struct Kernels {
    rows: [CudaFunction; 3],
    splits: [CudaFunction; 3],
    processors: u32,
}

/// Contiguous rows of one type in the buffers of a lane.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    pub(super) dtype: Dtype,
    pub(super) first: usize,
    pub(super) count: usize,
}

impl Kernels {
    /// Compiles the kernels for the device. This takes about a second unless the driver has them cached.
    pub(super) fn load(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        let module = context.load_module(Ptx::from_src(PTX))?;
        let names = [Dtype::Bf16, Dtype::F16, Dtype::F32].map(|dtype| dtype.name().to_ascii_lowercase());
        let [a, b, c] = names.each_ref().map(|name| module.load_function(&format!("entropy_rows_{name}")));
        let [d, e, f] = names.each_ref().map(|name| module.load_function(&format!("entropy_split_{name}")));
        let processors = context.attribute(sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        Ok(Self { rows: [a?, b?, c?], splits: [d?, e?, f?], processors: u32::try_from(processors).unwrap_or(1).max(1) })
    }

    /// Batches with fewer rows than this split each row among blocks, to use all multiprocessors.
    pub(super) fn most_split(&self) -> usize {
        self.processors as usize
    }

    /// The number of multiprocessors of the device.
    pub(super) fn processors(&self) -> u32 {
        self.processors
    }

    /// Launches the measurement of a group of rows.
    ///
    /// # Safety
    /// `ins` describes `group.count` rows from `group.first` on, each in the memory of the device and aligned to its type.
    pub(super) unsafe fn rows(
        &self,
        stream: &CudaStream,
        group: Group,
        buffers: &Buffers<'_>,
    ) -> Result<(), DriverError> {
        let kernel = match group.dtype {
            Dtype::Bf16 => 0,
            Dtype::F16 => 1,
            Dtype::F32 => 2,
        };
        let count = u32::try_from(group.count).expect("a lane has fewer rows");
        let (ins, outs) = (buffers.ins.device(group.first), buffers.outs.device(group.first));
        if group.count < self.most_split() {
            // A multiprocessor of sm_80 or sm_90 runs four blocks at a time. A block more than that would wait until another ends.
            let splits = (4 * self.processors / count).min(MOST_SPLITS);
            let (parts, tickets) = (buffers.parts.device(0), buffers.tickets.device(0));
            let mut launch = stream.launch_builder(&self.splits[kernel]);
            launch.arg(&ins).arg(&outs).arg(&parts).arg(&tickets);
            // SAFETY: the caller ensures it for `ins`; `parts` has `MOST_SPLITS` entries for each of `most_split` rows, and the tickets are
            // 0 between launches.
            unsafe { launch.launch(config((splits, count), ROW_THREADS)) }?;
        } else {
            let rows = i32::try_from(count).expect("a lane has fewer rows");
            let mut launch = stream.launch_builder(&self.rows[kernel]);
            launch.arg(&ins).arg(&rows).arg(&outs);
            // SAFETY: the caller ensures it.
            unsafe { launch.launch(config((count, 1), ROW_THREADS)) }?;
        }
        Ok(())
    }
}

/// The buffers of the kernels.
#[derive(Debug)]
pub(super) struct Buffers<'a> {
    pub(super) ins: &'a MirroredBuffer<RowIn>,
    pub(super) outs: &'a MirroredBuffer<RowOut>,
    pub(super) parts: &'a MirroredBuffer<Sums>,
    pub(super) tickets: &'a MirroredBuffer<u32>,
}

/// A launch on a grid of `x` by `y` blocks.
pub(super) fn config((x, y): (u32, u32), threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (x, y, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}
