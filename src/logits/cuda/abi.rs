// SPDX-License-Identifier: Apache-2.0
//! The structs that the kernels of `cuda/` read and write, with the same layout as there.

/// Types that any bit pattern is valid for, without padding.
///
/// # Safety
/// Every bit pattern is a valid value, and the type has no padding.
pub(super) unsafe trait Pod: Copy + Send + Sync {}

/// A row of logits.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct RowIn {
    /// The device address of its first value.
    pub(super) at: u64,
    /// 1/T.
    pub(super) inverse_temperature: f32,
    pub(super) vocab: i32,
    /// The sampled token, or -1.
    pub(super) chosen: i32,
    pub(super) unused: i32,
}

impl RowIn {
    /// Describes a row at a device address.
    pub(super) fn new(at: u64, temperature: f32, vocab: usize, chosen: Option<usize>) -> Self {
        let vocab = i32::try_from(vocab).expect("at most 2^20");
        let chosen = chosen.map_or(-1, |id| i32::try_from(id).expect("at most 2^20"));
        Self { at, inverse_temperature: 1.0 / temperature, vocab, chosen, unused: 0 }
    }
}

/// The sums over a row; see [`Raw`](crate::entropy::rows::Raw).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct RowOut {
    pub(super) top: f32,
    pub(super) z: f32,
    pub(super) s: f32,
    pub(super) q: f32,
    pub(super) chosen: f32,
    pub(super) unused: [f32; 3],
}

/// The sums of a part of a row; only the device reads them.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Sums([f32; 4]);

const _: () =
    assert!(size_of::<RowIn>() == 24 && size_of::<RowOut>() == 32 && size_of::<Sums>() == 16, "sizes in the kernels");

// SAFETY: any bit pattern is valid.
unsafe impl Pod for u8 {}
// SAFETY: any bit pattern is valid.
unsafe impl Pod for u32 {}
// SAFETY: any bit pattern is valid; the fields leave no padding.
unsafe impl Pod for RowIn {}
// SAFETY: any bit pattern is valid; the fields leave no padding.
unsafe impl Pod for RowOut {}
// SAFETY: any bit pattern is valid.
unsafe impl Pod for Sums {}
