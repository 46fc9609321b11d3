//! The story: configure, start, serve, drain.

use std::process::ExitCode;

use tokentap::cli;
use tokentap::config::{self, Command, Invalid, LogConfig, LogFormat};

/// Bodies of a few hundred kilobytes come and go with every request; the system's allocator returns such pieces at once and pays for
/// each page again.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of mimalloc's option `purge_delay`, which its bindings do not name.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// After how many milliseconds memory that was freed goes back to the system. By mimalloc's own second, requests of 1 MiB from 512 clients hold
/// up to 3.2 times `--max-bytes-in-flight`; by this, 2.2 times (`make load`).
const PURGE_DELAY_MS: std::ffi::c_long = 10;

#[expect(unsafe_code, reason = "mimalloc's options have no safe interface")]
fn main() -> ExitCode {
    // SAFETY: the option exists and takes a number; no other thread runs yet. MIMALLOC_PURGE_DELAY goes before it.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) };
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
    if let Err(error) = log(command.logging()) {
        eprintln!("tokentap: --log: {error}");
        return ExitCode::from(64);
    }
    // a thread that has parsed a long body keeps memory that others could use until it ends
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().thread_keep_alive(std::time::Duration::from_millis(10));
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
        Command::Check(check) => runtime.block_on(cli::check::run(check.config, check.wait)),
        Command::Config(args) => {
            cli::config::run(&args);
            Ok(true)
        }
        Command::Entropy(args) => runtime.block_on(cli::entropy::run(*args)).map(|()| true),
        Command::Export(args) => runtime.block_on(cli::export::run(*args)).map(|()| true),
    };
    // a read of a file that hangs, in a folder that has gone, is not waited for
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(line) => {
            eprintln!("tokentap: {line}");
            ExitCode::FAILURE
        }
    }
}

/// Log lines go to standard error, so that what a command prints can be piped.
fn log(config: &LogConfig) -> Result<(), tracing_subscriber::filter::ParseError> {
    let filter: tracing_subscriber::EnvFilter = config.log.parse()?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match config.log_format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    // most are caught and answered for; a line of the log like any other, whatever its format is
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let payload = panic.payload();
        let reason = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
        tracing::error!(place, reason, "a thread panicked");
    }));
    Ok(())
}
