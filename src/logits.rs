// SPDX-License-Identifier: Apache-2.0
//! Whole rows of logits: read from safetensors or shared memory, batched, and measured on the CPU or a GPU.

#[cfg(feature = "cuda")]
pub mod cuda;
pub mod safetensors;
pub(crate) mod shm;
pub mod slices;
