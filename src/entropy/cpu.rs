// SPDX-License-Identifier: Apache-2.0
//! The CPU backend: the kernel in the widest vector instructions of this machine.
#![cfg_attr(
    target_arch = "x86_64",
    expect(
        unsafe_code,
        reason = "calling code compiled for an instruction set needs it; each call is behind its detection"
    )
)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::cell::RefCell;

use super::bounds::{self, RowBounds, RowSums};
use super::kernel::Steps;
#[cfg(target_arch = "x86_64")]
use super::lanes::{FIRST_LANES, LANES, Lanes};
#[cfg(target_arch = "x86_64")]
use super::rows::format::Half;
#[cfg(target_arch = "x86_64")]
use super::rows::kernel::Machine;
use super::rows::kernel::Plain;
use super::scratch::{Group, Scratch};
use super::{Logits, RowStats, TokenStats, TopK, kernel, rows, tail};

thread_local! {
    static SCRATCH: RefCell<Box<Scratch>> = RefCell::new(Box::new(Scratch::new()));
}

/// Computes on the calling thread, in thread-local memory. A call allocates nothing except the growth
/// of `out`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    lanes: InstructionSet,
}

/// An instruction set. Only [`InstructionSet::detect`] constructs the optional ones, so a value of this type
/// proves that this machine has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InstructionSet {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
    Neon,
}

impl Cpu {
    /// The backend with the widest lanes of this machine.
    pub fn new() -> Cpu {
        // Built now, so that the first request does not wait for it.
        tail::Table::shared();
        let lanes = InstructionSet::detect().last().unwrap_or(InstructionSet::Portable);
        Cpu { lanes }
    }

    /// A backend for each instruction set of this machine, narrowest first; for tests and benches.
    pub fn available() -> Vec<Cpu> {
        InstructionSet::detect().map(|lanes| Cpu { lanes }).collect()
    }
}

impl Default for Cpu {
    fn default() -> Cpu {
        Cpu::new()
    }
}

impl Cpu {
    /// A short name for logs and metrics, such as `cpu/avx2`.
    pub fn name(&self) -> &'static str {
        match self.lanes {
            InstructionSet::Portable => "cpu/portable",
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => "cpu/avx2",
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => "cpu/avx512",
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            InstructionSet::Neon => "cpu/neon",
        }
    }

    /// Appends exactly one entry per row of the batch to `out`, in row order. Never panics for any
    /// values: numbers that cannot be measured are NaN and flagged.
    pub fn top_k(&self, batch: &TopK<'_>, out: &mut Vec<TokenStats>) {
        // Borrowed here and not inside: a closure would not get the instruction set of the functions below.
        SCRATCH.with_borrow_mut(|scratch| match self.lanes {
            InstructionSet::Portable => kernel::run(Plain::<false>, batch, scratch, out),
            #[cfg(target_arch = "x86_64")]
            // Wider vectors save a tenth of this time on some processors and cost the whole reply more on others, whose clock slows down.
            InstructionSet::Avx2 | InstructionSet::Avx512 => {
                // SAFETY: `InstructionSet::detect` found the features before it made this.
                kernel::run(unsafe { X86::here() }, batch, scratch, out);
            }
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            InstructionSet::Neon => kernel::run(Plain::<true>, batch, scratch, out),
        });
    }

    /// Appends exactly one entry per whole row of `logits` to `out`, in row order. Never panics for any
    /// values: numbers that cannot be measured are NaN and flagged.
    pub fn rows(&self, logits: &Logits<'_>, out: &mut Vec<RowStats>) {
        match self.lanes {
            InstructionSet::Portable => rows::kernel::run(Plain::<false>, logits, out),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `rows_avx2` needs the features that `InstructionSet::detect` found before it made this.
            InstructionSet::Avx2 => unsafe { rows_avx2(logits, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `rows_avx512` needs the features that `InstructionSet::detect` found before it made this.
            InstructionSet::Avx512 => unsafe { rows_avx512(logits, out) },
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            InstructionSet::Neon => rows::kernel::run(Plain::<true>, logits, out),
        }
    }
}

impl InstructionSet {
    /// The instruction sets of this machine, narrowest first.
    fn detect() -> impl Iterator<Item = InstructionSet> {
        #[cfg(target_arch = "x86_64")]
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi2");
        let wider = [
            #[cfg(target_arch = "x86_64")]
            avx2.then_some(InstructionSet::Avx2),
            #[cfg(target_arch = "x86_64")]
            (avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq"))
            .then_some(InstructionSet::Avx512),
            // Every 64-bit Arm target with a standard library has it, so it is known at build time.
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            Some(InstructionSet::Neon),
            None,
        ];
        std::iter::once(InstructionSet::Portable).chain(wider.into_iter().flatten())
    }
}

impl Steps for Plain<false> {
    fn sum<const STATS: bool>(self, scratch: &mut Scratch, group: &Group<'_>) {
        scratch.sum::<_, STATS>(self, group);
    }

    fn bound<const STATS: bool>(self, rows: usize, known: &RowSums, found: &mut RowBounds, bounded: bool) {
        bounds::find::<false, STATS>(rows, known, found, bounded);
    }
}

impl Steps for Plain<true> {
    fn sum<const STATS: bool>(self, scratch: &mut Scratch, group: &Group<'_>) {
        scratch.sum::<_, STATS>(self, group);
    }

    fn bound<const STATS: bool>(self, rows: usize, known: &RowSums, found: &mut RowBounds, bounded: bool) {
        bounds::find::<true, STATS>(rows, known, found, bounded);
    }
}

#[cfg(target_arch = "x86_64")]
impl Steps for X86 {
    fn sum<const STATS: bool>(self, scratch: &mut Scratch, group: &Group<'_>) {
        // SAFETY: only `X86::here` constructs `Self`, and its callers have `avx2` and `fma`.
        unsafe { sum_avx2::<STATS>(scratch, group) }
    }

    fn bound<const STATS: bool>(self, rows: usize, known: &RowSums, found: &mut RowBounds, bounded: bool) {
        // SAFETY: only `X86::here` constructs `Self`, and its callers have `avx2` and `fma`.
        unsafe { bound_avx2::<STATS>(rows, known, found, bounded) }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi2")]
fn sum_avx2<const STATS: bool>(scratch: &mut Scratch, group: &Group<'_>) {
    scratch.sum::<_, STATS>(X86(()), group);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi2")]
fn bound_avx2<const STATS: bool>(rows: usize, known: &RowSums, found: &mut RowBounds, bounded: bool) {
    bounds::find::<true, STATS>(rows, known, found, bounded);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn rows_avx2(logits: &Logits<'_>, out: &mut Vec<RowStats>) {
    rows::kernel::run(X86::here(), logits, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c,bmi2")]
fn rows_avx512(logits: &Logits<'_>, out: &mut Vec<RowStats>) {
    rows::kernel::run(X86::here(), logits, out);
}

/// The special instructions of AVX2 machines: conversion from half precision, and prefetch.
/// A value of this type proves that the machine has the features.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy)]
struct X86(());

#[cfg(target_arch = "x86_64")]
impl X86 {
    #[target_feature(enable = "avx2,fma,f16c,bmi2")]
    fn here() -> X86 {
        X86(())
    }
}

#[cfg(target_arch = "x86_64")]
impl Machine for X86 {
    const FMA: bool = true;

    #[inline(always)]
    fn widen_half(self, bytes: &[u8], values: &mut [f32]) {
        // SAFETY: only `X86::here` constructs `Self`, and its callers have `f16c`.
        unsafe { widen_f16c(bytes, values) }
    }

    #[inline(always)]
    fn fetch(self, bytes: &[u8]) {
        for line in bytes.chunks(64) {
            // SAFETY: every x86-64 machine has the instruction, and it has no observable effect.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for X86 {
    type Vector = __m256;

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> __m256 {
        // SAFETY: the machine has `avx`, as for all methods here: only `X86::here` constructs `Self`. The array has as many bytes as are read.
        unsafe { _mm256_loadu_ps(values.as_ptr()) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        // SAFETY: the machine has `avx`.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the machine has `avx`.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the machine has `avx`.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the machine has `fma`.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn at_least(self, a: __m256, least: f32) -> __m256 {
        // The second operand is the result if one is NaN.
        // SAFETY: the machine has `avx`.
        unsafe { _mm256_max_ps(_mm256_set1_ps(least), a) }
    }

    #[inline(always)]
    fn scale(self, a: __m256, shifted: __m256) -> __m256 {
        // SAFETY: the machine has `avx2`.
        unsafe {
            let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), exponent))
        }
    }

    #[inline(always)]
    fn rises(self, value: __m256, before: __m256) -> __m256 {
        // SAFETY: the machine has `avx`.
        unsafe { _mm256_cmp_ps::<_CMP_NLE_UQ>(value, before) }
    }

    #[inline(always)]
    fn either(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the machine has `avx`.
        unsafe { _mm256_or_ps(a, b) }
    }

    #[inline(always)]
    fn first(self, a: __m256, count: usize) -> __m256 {
        let mask = &FIRST_LANES[count.min(LANES)];
        // SAFETY: the machine has `avx`. The array has as many bytes as are read.
        unsafe { _mm256_and_ps(a, _mm256_loadu_ps(mask.as_ptr().cast())) }
    }

    #[inline(always)]
    fn any(self, a: __m256) -> bool {
        // SAFETY: the machine has `avx`.
        unsafe { _mm256_movemask_ps(a) != 0 }
    }

    #[inline(always)]
    fn halves(self, a: __m256) -> [f64; 4] {
        let mut sums = [0.0; 4];
        // SAFETY: the machine has `avx`. The array has as many bytes as are written.
        unsafe {
            let (low, high) = (_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            _mm256_storeu_pd(sums.as_mut_ptr(), _mm256_add_pd(_mm256_cvtps_pd(low), _mm256_cvtps_pd(high)));
        }
        sums
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "f16c")]
fn widen_f16c(bytes: &[u8], values: &mut [f32]) {
    use std::mem::transmute;

    let (bytes, last_bytes) = bytes.as_chunks::<16>();
    let (values, last_values) = values.as_chunks_mut::<8>();
    for (values, bytes) in values.iter_mut().zip(bytes) {
        // SAFETY: every bit pattern is valid for each of these types, and the sizes are equal by the signatures.
        *values = unsafe { transmute::<__m256, [f32; 8]>(_mm256_cvtph_ps(transmute::<[u8; 16], __m128i>(*bytes))) };
    }
    Half::widen_plain(last_bytes, last_values);
}
