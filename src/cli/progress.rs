// SPDX-License-Identifier: Apache-2.0
//! The progress bar of a file or a log that is read or written.

use std::io::{self, IsTerminal, Write};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use parking_lot::Mutex;

/// The bar that is on the terminal, if any. Other lines must not be written into it.
// held for the length of a copy: a pipe that is not read must not block the log
static VISIBLE: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// A progress bar on standard error. It is hidden if standard error is not a terminal.
#[derive(Debug)]
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// A progress bar of bytes. `name` is the operation, `length` the total, if it is known.
    pub(super) fn bytes(name: &'static str, length: Option<u64>) -> Self {
        let template = match length {
            Some(_) => "{msg} {bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
            None => "{msg} {spinner} {bytes}, {bytes_per_sec}",
        };
        Self::new(name, length, template)
    }

    /// A progress bar of sessions.
    pub(super) fn sessions(name: &'static str, count: usize) -> Self {
        Self::new(name, Some(count as u64), "{msg} {bar:40} {pos} of {len} sessions, {eta} left")
    }

    fn new(name: &'static str, length: Option<u64>, template: &str) -> Self {
        if !io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = length.map_or_else(ProgressBar::no_length, ProgressBar::new).with_message(name);
        bar.set_style(ProgressStyle::with_template(template).expect("the template is fixed"));
        *VISIBLE.lock() = Some(bar.clone());
        Self(bar)
    }

    /// Adds processed bytes or sessions.
    pub(super) fn add(&self, count: usize) {
        self.0.inc(count as u64);
    }

    /// Sets the processed bytes.
    pub(super) fn set(&self, bytes: u64) {
        self.0.set_position(bytes);
    }

    /// Removes the bar from the terminal.
    pub(super) fn clear(&self) {
        VISIBLE.lock().take();
        self.0.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // a command that fails prints its error at the position of the bar
        self.clear();
    }
}

/// Writes lines to the terminal while the bar, if any, is removed.
pub(super) fn without_bar<T>(write: impl FnOnce() -> T) -> T {
    let visible = VISIBLE.lock().clone();
    match visible {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Standard error, whose lines are not written into a bar.
#[derive(Debug)]
pub(super) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // whole lines: the rest of a line would follow the bar
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        without_bar(|| io::stderr().write_all(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Formats a number of bytes with a unit, such as `1.50 MiB`.
pub(super) fn size(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}
