//! The CPU backend: the kernel in the widest vector instructions of this machine.
#![cfg_attr(
    target_arch = "x86_64",
    expect(
        unsafe_code,
        reason = "calling code compiled for an instruction set needs it; each call is behind its detection"
    )
)]

use std::cell::RefCell;

#[cfg(target_arch = "x86_64")]
use super::rows::format::Half;
#[cfg(target_arch = "x86_64")]
use super::rows::kernel::Machine;
use super::rows::kernel::Plain;
use super::scratch::Scratch;
use super::{Backend, Logits, RowStats, TokenStats, TopK, kernel, rows, tail};

thread_local! {
    static SCRATCH: RefCell<Box<Scratch>> = RefCell::new(Box::new(Scratch::new()));
}

/// Computes on the calling thread, in thread-local memory. A call allocates nothing except the growth
/// of `out`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    lanes: Lanes,
}

/// An instruction set. Only [`Lanes::detect`] constructs the optional ones, so a value of this type
/// proves that this machine has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lanes {
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
        let lanes = Lanes::detect().last().unwrap_or(Lanes::Portable);
        Cpu { lanes }
    }

    /// A backend for each instruction set of this machine, narrowest first; for tests and benches.
    pub fn available() -> Vec<Cpu> {
        Lanes::detect().map(|lanes| Cpu { lanes }).collect()
    }
}

impl Default for Cpu {
    fn default() -> Cpu {
        Cpu::new()
    }
}

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        match self.lanes {
            Lanes::Portable => "cpu/portable",
            #[cfg(target_arch = "x86_64")]
            Lanes::Avx2 => "cpu/avx2",
            #[cfg(target_arch = "x86_64")]
            Lanes::Avx512 => "cpu/avx512",
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            Lanes::Neon => "cpu/neon",
        }
    }

    fn top_k(&self, batch: &TopK<'_>, out: &mut Vec<TokenStats>) {
        // Borrowed here and not inside: a closure would not get the instruction set of the functions below.
        SCRATCH.with_borrow_mut(|scratch| match self.lanes {
            Lanes::Portable => portable(batch, scratch, out),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `avx2` needs the features that `Lanes::detect` found before it made this.
            Lanes::Avx2 => unsafe { avx2(batch, scratch, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `avx512` needs the features that `Lanes::detect` found before it made this.
            Lanes::Avx512 => unsafe { avx512(batch, scratch, out) },
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            Lanes::Neon => run::<true>(batch, scratch, out),
        });
    }

    fn rows(&self, logits: &Logits<'_>, out: &mut Vec<RowStats>) {
        match self.lanes {
            Lanes::Portable => rows::kernel::run(Plain::<false>, logits, out),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `rows_avx2` needs the features that `Lanes::detect` found before it made this.
            Lanes::Avx2 => unsafe { rows_avx2(logits, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `rows_avx512` needs the features that `Lanes::detect` found before it made this.
            Lanes::Avx512 => unsafe { rows_avx512(logits, out) },
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            Lanes::Neon => rows::kernel::run(Plain::<true>, logits, out),
        }
    }
}

impl Lanes {
    /// The instruction sets of this machine, narrowest first.
    fn detect() -> impl Iterator<Item = Lanes> {
        #[cfg(target_arch = "x86_64")]
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi2");
        let wider = [
            #[cfg(target_arch = "x86_64")]
            avx2.then_some(Lanes::Avx2),
            #[cfg(target_arch = "x86_64")]
            (avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq"))
            .then_some(Lanes::Avx512),
            // Every 64-bit Arm target with a standard library has it, so it is known at build time.
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            Some(Lanes::Neon),
            None,
        ];
        std::iter::once(Lanes::Portable).chain(wider.into_iter().flatten())
    }
}

#[inline(always)]
fn run<const FMA: bool>(batch: &TopK<'_>, scratch: &mut Scratch, out: &mut Vec<TokenStats>) {
    if batch.stats {
        kernel::run::<FMA, true>(batch, scratch, out);
    } else {
        kernel::run::<FMA, false>(batch, scratch, out);
    }
}

fn portable(batch: &TopK<'_>, scratch: &mut Scratch, out: &mut Vec<TokenStats>) {
    run::<false>(batch, scratch, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(batch: &TopK<'_>, scratch: &mut Scratch, out: &mut Vec<TokenStats>) {
    run::<true>(batch, scratch, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
fn avx512(batch: &TopK<'_>, scratch: &mut Scratch, out: &mut Vec<TokenStats>) {
    run::<true>(batch, scratch, out);
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
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

        for line in bytes.chunks(64) {
            // SAFETY: every x86-64 machine has the instruction, and it has no observable effect.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "f16c")]
fn widen_f16c(bytes: &[u8], values: &mut [f32]) {
    use std::arch::x86_64::{__m128i, __m256, _mm256_cvtph_ps};
    use std::mem::transmute;

    let (bytes, last_bytes) = bytes.as_chunks::<16>();
    let (values, last_values) = values.as_chunks_mut::<8>();
    for (values, bytes) in values.iter_mut().zip(bytes) {
        // SAFETY: every bit pattern is valid for each of these types, and the sizes are equal by the signatures.
        *values = unsafe { transmute::<__m256, [f32; 8]>(_mm256_cvtph_ps(transmute::<[u8; 16], __m128i>(*bytes))) };
    }
    Half::widen_plain(last_bytes, last_values);
}
