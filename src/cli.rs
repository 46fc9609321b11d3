// SPDX-License-Identifier: Apache-2.0
//! The commands of the binary, one file for each, and the setup of logging.

pub mod archive;
pub mod check;
pub mod config;
mod control;
pub mod demo;
mod descriptors;
pub mod entropy;
pub mod export;
pub mod import;
pub mod logging;
mod progress;
mod scale;
pub mod score;
pub mod serve;
pub mod show;
mod terminal;
pub mod top;

use std::io::Write;
use std::process::ExitCode;

use crate::config::{Command, Invalid};

/// How long an idle blocking thread lives. The heap of a thread keeps freed memory until the thread ends, so idle threads end soon. But long
/// bodies use the threads in turn: with 10 ms, most threads ended between two bodies, and each new thread filled its heap again.
const THREAD_KEEP_ALIVE: std::time::Duration = std::time::Duration::from_millis(100);

/// A worker thread polls this many tasks, of which one comes from the shared queue. A thread's own queue has 256 places; the tasks that waited
/// longest move to the shared queue when it is full, and would wait for all later ones with tokio's default of about 60. With 1, the tasks of
/// a thread's own queue would starve instead. At 1,024 connections, the p99 of a small generation is 2.1 times the p50, and 49 times with the
/// default (`cargo bench --bench proxy`).
const SHARED_QUEUE_INTERVAL: u32 = 2;

/// Prints the result of a command to standard output. Ignores errors: if standard output is closed, no process reads the result.
pub fn print(text: &str) {
    progress::without_bar(|| {
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    });
}

/// Reads the configuration, starts the runtime and runs the command. Returns the exit code of the process.
#[must_use]
pub fn run() -> ExitCode {
    let command = match crate::config::load(std::env::args_os()) {
        Ok(cli) => cli.command,
        Err(Invalid::Shown(text)) => {
            print(&text);
            return ExitCode::SUCCESS;
        }
        Err(Invalid::Line(line)) => {
            eprintln!("tokentap: {line}");
            return ExitCode::from(64);
        }
    };
    let log = match command.logging().map(logging::start).transpose() {
        Ok(log) => log,
        Err(error) => {
            eprintln!("tokentap: --log: {error}");
            return ExitCode::from(64);
        }
    };
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().thread_keep_alive(THREAD_KEEP_ALIVE).global_queue_interval(SHARED_QUEUE_INTERVAL);
    let runtime = match builder.build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("tokentap: cannot start: {error}");
            return ExitCode::from(70);
        }
    };
    let done = match command {
        Command::Serve(config) => runtime.block_on(serve::run(*config)).map(|()| true),
        Command::Demo(config) => runtime.block_on(demo::run(*config)).map(|()| true),
        Command::Check(check) => runtime.block_on(check::run(*check)),
        Command::Config(args) => {
            config::run(&args);
            Ok(true)
        }
        Command::Completions(args) => {
            print(&crate::config::completions(args.shell));
            Ok(true)
        }
        Command::Man(args) => crate::config::write_man_pages(&args.folder).map(|()| true),
        Command::Entropy(args) => runtime.block_on(entropy::run(*args)).map(|()| true),
        Command::Archive(args) => runtime.block_on(archive::run(&args)),
        Command::Import(args) => runtime.block_on(import::run(&args)),
        Command::Top(args) => runtime.block_on(top::run(&args)).map(|()| true),
        Command::Score(args) => runtime.block_on(score::run(&args)).map(|()| true),
        Command::Show(args) => runtime.block_on(show::run(&args)).map(|()| true),
        Command::Export(args) => runtime.block_on(export::run(*args)).map(|()| true),
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
