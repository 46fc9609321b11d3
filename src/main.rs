//! The entry point: sets up the allocator and runs the command. Everything else is in the library, which is compiled in parallel.

use std::process::ExitCode;

/// The allocator. Each request allocates and frees bodies of a few hundred kilobytes. The default allocator returns such blocks to the
/// system at once, so each new block causes page faults.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
