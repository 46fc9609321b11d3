// SPDX-License-Identifier: Apache-2.0
//! Conversion of each storage type to 32-bit floats.

use super::kernel::Machine;

/// Values of one storage type.
pub(crate) trait ValueFormat {
    /// Bytes per value.
    const BYTES: usize;

    /// Converts the values in `bytes` into `values`.
    fn widen<M: Machine>(machine: M, bytes: &[u8], values: &mut [f32]);
}

/// Single precision.
#[derive(Debug)]
pub(crate) struct Single;

/// The upper half of single precision.
#[derive(Debug)]
pub(crate) struct Bfloat16;

/// Half precision.
#[derive(Debug)]
pub(crate) struct Half;

impl ValueFormat for Single {
    const BYTES: usize = 4;

    #[inline(always)]
    fn widen<M: Machine>(_: M, bytes: &[u8], values: &mut [f32]) {
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32::from_le_bytes(*bytes);
        }
    }
}

impl ValueFormat for Bfloat16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn widen<M: Machine>(_: M, bytes: &[u8], values: &mut [f32]) {
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
        }
    }
}

impl ValueFormat for Half {
    const BYTES: usize = 2;

    #[inline(always)]
    fn widen<M: Machine>(machine: M, bytes: &[u8], values: &mut [f32]) {
        machine.widen_half(bytes, values);
    }
}

impl Half {
    /// [`Machine::widen_half`] in plain arithmetic.
    #[inline(always)]
    pub(crate) fn widen_plain(bytes: &[u8], values: &mut [f32]) {
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            let bits = u32::from(u16::from_le_bytes(*bytes));
            let magnitude = (bits & 0x7fff) << 13;
            // The exponents of the two types differ by 112; the product also makes subnormal numbers normal.
            let finite = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
            let infinite = magnitude >= 0x1f << 23;
            let widened = if infinite { magnitude | 0xff << 23 } else { finite.to_bits() };
            *value = f32::from_bits(widened | (bits & 0x8000) << 16);
        }
    }
}
