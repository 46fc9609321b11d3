//! The commands, one file each, and the log.

mod bar;
pub mod check;
pub mod config;
pub mod demo;
mod descriptors;
pub mod entropy;
pub mod export;
pub mod logging;
pub mod serve;

use std::io::Write;

/// Prints the result of a command to standard output. Errors are ignored: a closed standard output has no reader.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
