// SPDX-License-Identifier: Apache-2.0
//! The kernels and the bus without worker thread and queue, for `make bench-gpu`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DriverError, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;
use tokio::sync::oneshot;

use super::abi::{RowIn, RowOut, Sums};
use super::driver::{DeviceInfo, Unavailable, find, guarded};
use super::health::Health;
use super::kernels::{Buffers, Group, Kernels, MOST_SPLITS, config};
use super::lane::{self, Lane};
use super::memory::{self, MirroredBuffer, Pinned};
use super::worker::NAME;
use crate::config::CudaDevice;
use crate::entropy::{Dtype, Logits, RowStats};
use crate::logits::slices::{SLOT_BYTES, SliceShape, SlotJob, SlotLayout, SlotPool};
use crate::metrics::Metrics;

/// A kernel that reads memory as the others do and sums the words.
const READ: &str = include_str!("../../../cuda/read.ptx");
/// Threads of a block of that kernel; its launch bound.
const READ_THREADS: u32 = 512;

/// A device for benchmarks: each call blocks.
#[derive(Debug)]
pub struct BenchDevice {
    info: DeviceInfo,
    device: memory::DeviceContext,
    stream: Arc<CudaStream>,
    kernels: Kernels,
    read: CudaFunction,
}

/// Rows in device memory, with temperature 1.
#[derive(Debug)]
pub struct ResidentRows {
    dtype: Dtype,
    vocab: usize,
    values: MirroredBuffer<u8>,
    ins: MirroredBuffer<RowIn>,
    outs: MirroredBuffer<RowOut>,
    parts: MirroredBuffer<Sums>,
    tickets: MirroredBuffer<u32>,
    sums: MirroredBuffer<u32>,
}

impl BenchDevice {
    /// Opens a device and compiles the kernels for it.
    ///
    /// # Errors
    /// [`Unavailable`] if no device can be used.
    pub fn open(device: Option<&CudaDevice>) -> Result<Self, Unavailable> {
        let info = find(device)?;
        let open = || {
            let context = CudaContext::new(info.ordinal)?;
            let read = context.load_module(Ptx::from_src(READ))?.load_function("read_sum")?;
            Ok((Arc::clone(&context), context.new_stream()?, Kernels::load(&context)?, read))
        };
        let (context, stream, kernels, read) = guarded(|| open().map_err(failed))?;
        let health = Arc::new(Health::new(&Arc::new(Metrics::new(NAME))));
        Ok(Self { info, device: memory::DeviceContext { context, health }, stream, kernels, read })
    }

    /// The open device.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Whether `count` rows are few enough that each is split among blocks.
    #[must_use]
    pub fn splits(&self, count: usize) -> bool {
        count < self.kernels.most_split()
    }

    /// Copies `count` rows to the device: the whole rows of `pattern`, repeated.
    ///
    /// # Errors
    /// [`Unavailable`] if the driver fails or has too little memory.
    pub fn hold(&self, dtype: Dtype, vocab: usize, pattern: &[u8], count: usize) -> Result<ResidentRows, Unavailable> {
        self.called(|| {
            let (device, width, split) = (&self.device, vocab * dtype.bytes(), self.kernels.most_split());
            let mut held = ResidentRows {
                dtype,
                vocab,
                values: MirroredBuffer::try_new(device, count * width)?,
                ins: MirroredBuffer::try_new(device, count)?,
                outs: MirroredBuffer::try_new(device, count)?,
                parts: MirroredBuffer::try_new(device, split * MOST_SPLITS as usize)?,
                tickets: MirroredBuffer::try_new(device, split)?,
                sums: MirroredBuffer::try_new(device, self.readers() as usize)?,
            };
            for piece in held.values.host_mut().chunks_mut(pattern.len()) {
                piece.copy_from_slice(&pattern[..piece.len()]);
            }
            for row in 0..count {
                let at = held.values.device(row * width);
                held.ins.host_mut()[row] = RowIn::new(at, 1.0, vocab, None);
            }
            held.values.send(count * width, &self.stream)?;
            held.ins.send(count, &self.stream)?;
            self.stream.synchronize()?;
            Ok(held)
        })
    }

    /// Measures the rows `times` times in sequence; returns the total time.
    ///
    /// # Errors
    /// [`Unavailable`] if the driver fails.
    pub fn measure(&self, held: &mut ResidentRows, times: u32) -> Result<Duration, Unavailable> {
        let group = Group { dtype: held.dtype, first: 0, count: held.count() };
        self.timed(times, || {
            let ResidentRows { ins, outs, parts, tickets, .. } = &*held;
            // SAFETY: `hold` described `count` rows, which live as long as `held`; the tickets are 0 between launches.
            unsafe { self.kernels.rows(&self.stream, group, &Buffers { ins, outs, parts, tickets }) }
        })
    }

    /// Reads the same bytes `times` times; returns the total time.
    ///
    /// # Errors
    /// [`Unavailable`] if the driver fails.
    pub fn read(&self, held: &mut ResidentRows, times: u32) -> Result<Duration, Unavailable> {
        let loads = (held.values.host().len() / 16) as u64;
        let (values, sums) = (held.values.device(0), held.sums.device(0));
        self.timed(times, || {
            let mut launch = self.stream.launch_builder(&self.read);
            launch.arg(&values).arg(&loads).arg(&sums);
            // SAFETY: `values` has `loads` times 16 bytes, and `sums` has an entry per block.
            unsafe { launch.launch(config((self.readers(), 1), READ_THREADS)) }.map(drop)
        })
    }

    /// Copies the same bytes to the device `times` times; returns the total time.
    ///
    /// # Errors
    /// [`Unavailable`] if the driver fails.
    pub fn send(&self, held: &mut ResidentRows, times: u32) -> Result<Duration, Unavailable> {
        self.timed(times, || held.values.send(held.values.host().len(), &self.stream))
    }

    /// The numbers of the last [`BenchDevice::measure`], one entry per row.
    ///
    /// # Errors
    /// [`Unavailable`] if the driver fails.
    pub fn numbers(&self, held: &mut ResidentRows) -> Result<Vec<RowStats>, Unavailable> {
        let count = held.count();
        self.called(|| held.outs.fetch(count, &self.stream).and_then(|()| self.stream.synchronize()))?;
        let ResidentRows { dtype, vocab, .. } = *held;
        let logits = Logits { dtype, vocab, bytes: held.values.host(), temperature: &[], chosen: &[] };
        Ok(held.outs.host().iter().enumerate().map(|(row, out)| lane::stats(&logits, row, out)).collect())
    }

    /// The sum of the 32-bit words of the last [`BenchDevice::read`], modulo 2^32.
    ///
    /// # Errors
    /// [`Unavailable`] if the driver fails.
    pub fn sum(&self, held: &mut ResidentRows) -> Result<u32, Unavailable> {
        let count = held.sums.host().len();
        self.called(|| held.sums.fetch(count, &self.stream).and_then(|()| self.stream.synchronize()))?;
        Ok(held.sums.host().iter().copied().fold(0, u32::wrapping_add))
    }

    /// Copies rows from pinned slots and measures them, two batches at a time as the worker does. Each batch has all of `logits`. Returns
    /// the numbers of the last batch, and the time of all `batches`.
    ///
    /// # Errors
    /// [`Unavailable`] if the driver fails.
    ///
    /// # Panics
    /// If `logits` has more rows than fit in a batch.
    pub fn stream(&self, logits: &Logits<'_>, batches: usize) -> Result<(Vec<RowStats>, Duration), Unavailable> {
        self.called(|| {
            let lane = || Ok((Lane::try_new(&self.device, &self.kernels)?, self.batch(logits)?));
            let mut lanes = [lane()?, lane()?];
            let mut numbers = Vec::new();
            let begin = Instant::now();
            // the last two turns only finish the running batches
            for turn in 0..batches + 2 {
                let (lane, batch) = &mut lanes[turn % 2];
                if turn >= 2 {
                    if !lane.wait(&self.device.health)? {
                        return Err(DriverError(sys::CUresult::CUDA_ERROR_LAUNCH_TIMEOUT));
                    }
                    numbers = lane.rows(batch);
                }
                if turn < batches {
                    lane.launch(&self.kernels, batch)?;
                }
            }
            Ok((numbers.concat(), begin.elapsed()))
        })
    }

    fn batch(&self, logits: &Logits<'_>) -> Result<Vec<SlotJob>, DriverError> {
        let rows =
            SliceShape::try_new(logits.dtype, logits.rows(), logits.vocab, usize::MAX).expect("the rows are in memory");
        let slots = (0..rows.slots()).map(|_| Pinned::try_new(&self.device)).collect::<Result<_, _>>()?;
        let slot_pool = Arc::new(SlotPool::pinned(slots));
        let entry = |part: &[u8]| {
            let mut slot = slot_pool.try_take(1).and_then(|mut slots| slots.pop()).expect("one slot per part");
            slot.push(part, SLOT_BYTES);
            let shape =
                SlotLayout { dtype: logits.dtype, vocab: logits.vocab, temperature: Vec::new(), chosen: Vec::new() };
            SlotJob { slot, shape, since: Instant::now(), reply: oneshot::channel().0 }
        };
        Ok(logits.bytes[..rows.bytes()].chunks(rows.slot_bytes()).map(entry).collect())
    }

    fn timed(&self, times: u32, mut launch: impl FnMut() -> Result<(), DriverError>) -> Result<Duration, Unavailable> {
        self.called(|| {
            self.stream.context().bind_to_thread()?;
            self.stream.synchronize()?;
            let begin = Instant::now();
            (0..times).try_for_each(|_| launch())?;
            self.stream.synchronize()?;
            Ok(begin.elapsed())
        })
    }

    /// Runs a driver call. After an error the device may still use the memory, so it is marked lost and the memory is leaked.
    fn called<T>(&self, call: impl FnOnce() -> Result<T, DriverError>) -> Result<T, Unavailable> {
        guarded(|| self.device.health.run_trial(|| call().map_err(|error| self.lost(error))))
    }

    fn lost(&self, error: DriverError) -> Unavailable {
        let error = failed(error);
        self.device.health.lose(error.clone());
        error
    }

    /// The number of blocks that read: as many as a device runs at a time.
    fn readers(&self) -> u32 {
        4 * self.kernels.processors()
    }
}

impl ResidentRows {
    fn count(&self) -> usize {
        self.ins.host().len()
    }

    /// The rows in host memory.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.values.host()
    }
}

fn failed(error: DriverError) -> Unavailable {
    Unavailable::of("a timed call")(error)
}
