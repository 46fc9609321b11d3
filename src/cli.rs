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
pub mod serve;
pub mod show;
mod terminal;
pub mod top;

use std::io::Write;

/// Prints the result of a command to standard output. Ignores errors: if standard output is closed, no process reads the result.
pub fn print(text: &str) {
    progress::without_bar(|| {
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    });
}
