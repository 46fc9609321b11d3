// SPDX-License-Identifier: Apache-2.0
//! Computes statistics from whole rows of logits. The code is the same for every instruction set.
//!
//! A row is processed in blocks that fit into the first-level cache: widened to 32 bits, then added to the sums.
//! All of it is plain loops over arrays, and inlined, because the functions in `cpu` enable their instruction
//! set only for code inlined into them. The arithmetic is not in closures for the same reason.

use super::format::{Bfloat16, Half, Single, ValueFormat};
use super::sums::{LANES, RUN, Sums};
use super::{Dtype, Flags, Logits, RowStats, finish, scale};

/// Values widened at a time.
const BLOCK: usize = 8 * RUN;

/// Operations of an instruction set that plain arithmetic cannot express.
pub(crate) trait Machine: Copy {
    /// Whether it has a fused multiply-add instruction. On other targets `mul_add` would call a slow
    /// emulation.
    const FMA: bool;

    /// Converts the half-precision values in `bytes` into `values`.
    fn widen_half(self, bytes: &[u8], values: &mut [f32]);

    /// Prefetches bytes that will be read soon. The sums of a block take longer than the transfer of the next
    /// one from memory, so the transfer takes no extra time.
    fn fetch(self, bytes: &[u8]);
}

/// Any machine: plain arithmetic, no prefetch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plain<const FMA: bool>;

/// Computes the statistics of `logits` and appends them to `out`.
#[inline(always)]
pub(crate) fn run<M: Machine>(machine: M, logits: &Logits<'_>, out: &mut Vec<RowStats>) {
    match logits.dtype {
        Dtype::F32 => rows::<Single, M>(machine, logits, out),
        Dtype::Bf16 => rows::<Bfloat16, M>(machine, logits, out),
        Dtype::F16 => rows::<Half, M>(machine, logits, out),
    }
}

#[inline(always)]
fn rows<F: ValueFormat, M: Machine>(machine: M, logits: &Logits<'_>, out: &mut Vec<RowStats>) {
    let mut block = [0.0; BLOCK];
    out.reserve(logits.rows());
    for row in 0..logits.rows() {
        let Some(temperature) = logits.temperature(row) else {
            out.push(RowStats::unmeasured(Flags::NAN));
            continue;
        };
        let (start, end) = logits.range(row);
        let mut sums = Sums::new(scale(temperature));
        for at in (start..end).step_by(BLOCK * F::BYTES) {
            let until = end.min(at + BLOCK * F::BYTES);
            let count = (until - at) / F::BYTES;
            F::widen(machine, &logits.bytes[at..until], &mut block[..count]);
            add::<F, M>(machine, &mut sums, &mut block, count, &logits.bytes[until..]);
        }
        let mut raw = sums.raw();
        raw.chosen = logits.chosen_distance(row, raw.top, temperature);
        out.push(finish(raw, temperature));
    }
}

/// Adds the first `count` values of a block. `ahead` are the bytes that are read after it.
#[inline(always)]
fn add<F: ValueFormat, M: Machine>(machine: M, sums: &mut Sums, block: &mut [f32; BLOCK], count: usize, ahead: &[u8]) {
    let values = &mut block[..count.next_multiple_of(LANES)];
    let plain = sums.prepare(values, count);
    let mut ahead = ahead.chunks(RUN * F::BYTES);
    let mut end = 0;
    for run in values.chunks(RUN) {
        machine.fetch(ahead.next().unwrap_or_default());
        end += run.len();
        if end <= plain {
            sums.add::<M, false>(run);
        } else {
            sums.add::<M, true>(run);
        }
    }
}

impl<const FMA: bool> Machine for Plain<FMA> {
    const FMA: bool = FMA;

    #[inline(always)]
    fn widen_half(self, bytes: &[u8], values: &mut [f32]) {
        Half::widen_plain(bytes, values);
    }

    #[inline(always)]
    fn fetch(self, _: &[u8]) {}
}
