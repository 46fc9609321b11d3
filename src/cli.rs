//! One file a command.

mod bar;
pub mod check;
pub mod config;
pub mod demo;
mod descriptors;
pub mod entropy;
pub mod export;
pub mod serve;

use std::io::Write;

/// Prints what a command is for to standard output. Errors are ignored: a closed standard output has no reader.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
