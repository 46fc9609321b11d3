// SPDX-License-Identifier: Apache-2.0
//! Buffers that exist twice: pinned on the host, and on the device.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};

use super::abi::Pod;
use super::health::Health;
use crate::logits::slices::SLOT_BYTES;

/// The memory of a slot: [`SLOT_BYTES`] bytes.
#[derive(Debug)]
pub struct Pinned(MirroredBuffer<u8>);

/// The context that buffers are allocated in.
#[derive(Debug)]
pub(super) struct DeviceContext {
    pub(super) context: Arc<CudaContext>,
    pub(super) health: Arc<Health>,
}

/// `count` values on the host, pinned so that copies are asynchronous, and the same number on the device.
#[derive(Debug)]
pub(super) struct MirroredBuffer<T> {
    host: NonNull<T>,
    device: sys::CUdeviceptr,
    count: usize,
    context: Arc<CudaContext>,
    /// The memory of a lost device is leaked.
    health: Arc<Health>,
    _values: PhantomData<T>,
}

// SAFETY: this value owns both allocations, and they hold plain data.
unsafe impl<T: Pod> Send for MirroredBuffer<T> {}
// SAFETY: as above; writing needs `&mut`.
unsafe impl<T: Pod> Sync for MirroredBuffer<T> {}

impl<T: Pod> MirroredBuffer<T> {
    /// Allocates zeroed values on both sides.
    pub(super) fn try_new(owner: &DeviceContext, count: usize) -> Result<Self, DriverError> {
        let DeviceContext { context, health } = owner;
        let bytes = count * size_of::<T>();
        context.bind_to_thread()?;
        // Without the write-combining flag: if the device fails, the CPU reads these rows.
        // SAFETY: a context is bound; the memory is freed in `drop`.
        let host = unsafe { result::malloc_host(bytes, 0) }?;
        // SAFETY: the driver allocated `bytes` bytes.
        unsafe { host.cast::<u8>().write_bytes(0, bytes) };
        // SAFETY: a context is bound; the memory is freed in `drop`.
        let device = unsafe { result::malloc_sync(bytes) };
        // SAFETY: `bytes` zeros, as above.
        let zeros = unsafe { std::slice::from_raw_parts(host.cast::<u8>(), bytes) };
        // SAFETY: both are `bytes` long.
        let device = device.and_then(|device| unsafe { result::memcpy_htod_sync(device, zeros) }.map(|()| device));
        let device = device.inspect_err(|_| {
            // SAFETY: no other code has the pointer yet. An unfinished allocation is freed with the context.
            let _ = unsafe { result::free_host(host) };
        })?;
        let host = NonNull::new(host.cast()).expect("the allocation succeeded");
        Ok(Self { host, device, count, context: Arc::clone(context), health: Arc::clone(health), _values: PhantomData })
    }

    /// The values on the host. Values that the device is still copying must not be read or written.
    pub(super) fn host(&self) -> &[T] {
        // SAFETY: `count` values, initialized in `try_new` and freed in `drop`.
        unsafe { std::slice::from_raw_parts(self.host.as_ptr(), self.count) }
    }

    /// The values on the host, for writing.
    pub(super) fn host_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `host`, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.host.as_ptr(), self.count) }
    }

    /// The device address of the value at `at`.
    pub(super) fn device(&self, at: usize) -> sys::CUdeviceptr {
        debug_assert!(at <= self.count);
        self.device + (at * size_of::<T>()) as u64
    }

    /// Starts to copy the first `count` values to the device.
    pub(super) fn send(&self, count: usize, stream: &CudaStream) -> Result<(), DriverError> {
        // SAFETY: the device buffer has the same length; the host buffer is not written before the batch has finished.
        unsafe { result::memcpy_htod_async(self.device, &self.host()[..count], stream.cu_stream()) }
    }

    /// Starts to copy the first `count` values from the device.
    pub(super) fn fetch(&mut self, count: usize, stream: &CudaStream) -> Result<(), DriverError> {
        let device = self.device;
        // SAFETY: the device buffer has the same length; the host buffer is not read before the batch has finished.
        unsafe { result::memcpy_dtoh_async(&mut self.host_mut()[..count], device, stream.cu_stream()) }
    }
}

impl<T> Drop for MirroredBuffer<T> {
    fn drop(&mut self) {
        // a call may never return if the device hangs, and the device may still write to this memory
        if self.health.is_lost() {
            // so the context is leaked too
            std::mem::forget(Arc::clone(&self.context));
            return;
        }
        // an error cannot be reported here
        let _ = self.context.bind_to_thread();
        // SAFETY: both were allocated in `try_new`, and this is the only owner.
        unsafe {
            let _ = result::free_host(self.host.as_ptr().cast());
            let _ = result::free_sync(self.device);
        }
    }
}

impl Pinned {
    pub(super) fn try_new(owner: &DeviceContext) -> Result<Self, DriverError> {
        MirroredBuffer::try_new(owner, SLOT_BYTES).map(Self)
    }

    /// The bytes on the host.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.host()
    }

    /// The bytes on the host, for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.host_mut()
    }

    /// The buffer on both sides.
    pub(super) fn buffer(&self) -> &MirroredBuffer<u8> {
        &self.0
    }
}
