//! The entry point: reads the configuration, starts the runtime and runs one command.

use std::alloc::{GlobalAlloc, Layout};
use std::process::ExitCode;

use tokentap::cli;
use tokentap::config::{self, Command, Invalid};

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

/// How long an idle blocking thread lives. The heap of a thread keeps freed memory until the thread ends, so idle threads end soon. But long
/// bodies use the threads in turn: with 10 ms, most threads ended between two bodies, and each new thread filled its heap again.
const THREAD_KEEP_ALIVE: std::time::Duration = std::time::Duration::from_millis(100);

#[expect(unsafe_code, reason = "mimalloc's options have no safe interface")]
fn main() -> ExitCode {
    // SAFETY: the option exists and takes a number; no other thread runs yet. MIMALLOC_PURGE_DELAY takes precedence.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) };
    // Some kernels make huge pages without a request. A page that was returned to the system is then cleared as 2 MiB when its next byte
    // is written, which takes half of the CPU of a long chat. An old kernel without the call loses only that.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let command = match config::load(std::env::args_os()) {
        Ok(cli) => cli.command,
        Err(Invalid::Shown(text)) => {
            cli::print(&text);
            return ExitCode::SUCCESS;
        }
        Err(Invalid::Line(line)) => {
            eprintln!("tokentap: {line}");
            return ExitCode::from(64);
        }
    };
    let log = match cli::logging::start(command.logging()) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("tokentap: --log: {error}");
            return ExitCode::from(64);
        }
    };
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().thread_keep_alive(THREAD_KEEP_ALIVE);
    let runtime = match builder.build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("tokentap: cannot start: {error}");
            return ExitCode::from(70);
        }
    };
    let done = match command {
        Command::Serve(config) => runtime.block_on(cli::serve::run(*config)).map(|()| true),
        Command::Demo(config) => runtime.block_on(cli::demo::run(*config)).map(|()| true),
        Command::Check(check) => runtime.block_on(cli::check::run(*check)),
        Command::Config(args) => {
            cli::config::run(&args);
            Ok(true)
        }
        Command::Entropy(args) => runtime.block_on(cli::entropy::run(*args)).map(|()| true),
        Command::Archive(args) => runtime.block_on(cli::archive::run(&args)),
        Command::Import(args) => runtime.block_on(cli::import::run(&args)),
        Command::Top(args) => runtime.block_on(cli::top::run(&args)).map(|()| true),
        Command::Show(args) => runtime.block_on(cli::show::run(&args)).map(|()| true),
        Command::Export(args) => runtime.block_on(cli::export::run(*args)).map(|()| true),
    };
    // a file operation that hangs must not delay the exit
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    drop(log);
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(line) => {
            eprintln!("tokentap: {line}");
            ExitCode::FAILURE
        }
    }
}
