// SPDX-License-Identifier: Apache-2.0
//! The entry point: sets up the allocator and runs the command. Everything else is in the library, which is compiled in parallel.

use std::alloc::{GlobalAlloc, Layout};
use std::process::ExitCode;

/// The allocator. Each request allocates and frees bodies of a few hundred kilobytes. The default allocator returns such blocks to the
/// system at once, so each new block causes page faults.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// mimalloc. The crate of this name passes every alignment to mimalloc, which then may allocate more than the size, unless that is a power of
/// two: a block took 83 instructions instead of 62, freeing it included.
struct MiMalloc;

/// The alignment of every block of at least as many bytes. A shorter block is aligned to 8 bytes, the size of the largest value in it.
const NATURAL_ALIGNMENT: usize = 16;

const fn is_natural(layout: &Layout) -> bool {
    layout.align() <= NATURAL_ALIGNMENT && layout.align() <= layout.size()
}

// SAFETY: mimalloc returns blocks of at least the size, or null. Blocks of sizes above 8 bytes are multiples of 16 bytes and begin at such
// multiples; `is_natural` holds only for alignments that follow from the size.
#[expect(unsafe_code, reason = "an allocator is an unsafe trait")]
unsafe impl GlobalAlloc for MiMalloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: both accept any size and any power of two.
        unsafe {
            if is_natural(&layout) {
                libmimalloc_sys::mi_malloc(layout.size()).cast()
            } else {
                libmimalloc_sys::mi_malloc_aligned(layout.size(), layout.align()).cast()
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: both accept any size and any power of two.
        unsafe {
            if is_natural(&layout) {
                libmimalloc_sys::mi_zalloc(layout.size()).cast()
            } else {
                libmimalloc_sys::mi_zalloc_aligned(layout.size(), layout.align()).cast()
            }
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, _: Layout) {
        // SAFETY: the caller passes a block of this allocator.
        unsafe { libmimalloc_sys::mi_free(memory.cast()) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller passes a block of this allocator, and the alignment of its layout.
        unsafe {
            if is_natural(&layout) && layout.align() <= size {
                libmimalloc_sys::mi_realloc(memory.cast(), size).cast()
            } else {
                libmimalloc_sys::mi_realloc_aligned(memory.cast(), size, layout.align()).cast()
            }
        }
    }
}

/// The number of mimalloc's option `purge_delay`. The bindings have no constant for it.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Milliseconds after which freed memory is returned to the system. With mimalloc's default of one second, requests of 1 MiB from 512
/// clients hold up to 3.2 times `--max-bytes-in-flight`; with this value, 2.2 times (`make load`).
const PURGE_DELAY_MS: std::ffi::c_long = 10;

#[expect(unsafe_code, reason = "mimalloc's options have no safe interface")]
fn main() -> ExitCode {
    // SAFETY: the option exists and takes a number; no other thread runs yet. MIMALLOC_PURGE_DELAY takes precedence.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) };
    // Some kernels make huge pages without a request. A page that was returned to the system is then cleared as 2 MiB when its next byte
    // is written, which takes half of the CPU of a long chat. An old kernel without the call loses only that.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    tokentap::cli::run()
}
