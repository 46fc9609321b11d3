//! Rows in, statistics out: the whole computation, written once for every instruction set.
//!
//! A row is taken in blocks that stay in the first-level cache: widened to 32 bits, then added to the sums.
//! Everything is plain loops over plain arrays, and inlined, because the shells in `cpu` lend their instruction
//! set only to what is inlined into them. For the same reason the arithmetic is not in a closure.

use super::format::{Bfloat16, Half, Single, ValueFormat};
use super::sums::{LANES, RUN, Sums};
use super::{Dtype, Flags, Logits, RowStats, finish, scale};

/// Values widened at a time.
const BLOCK: usize = 8 * RUN;

/// What an instruction set has that arithmetic on arrays does not say.
pub(crate) trait Machine: Copy {
    /// Whether it multiplies and adds in one instruction; asking for that elsewhere would be a call into a slow
    /// emulation.
    const FMA: bool;

    /// Writes the half-precision values that `bytes` holds, one for each of `values`.
    fn widen_half(self, bytes: &[u8], values: &mut [f32]);

    /// Says that these bytes will be read soon. The sums of a block take longer than its way from memory, so
    /// that together they take only as long as the sums.
    fn fetch(self, bytes: &[u8]);
}

/// Any machine: plain arithmetic, and memory when it comes.
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

/// Adds the first `count` values of a block; `ahead` is what will be read after it.
#[inline(always)]
fn add<F: ValueFormat, M: Machine>(machine: M, sums: &mut Sums, block: &mut [f32; BLOCK], count: usize, ahead: &[u8]) {
    let values = &mut block[..count.next_multiple_of(LANES)];
    let plain = sums.meet(values, count);
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
