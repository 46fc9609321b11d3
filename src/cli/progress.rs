//! The progress bar of a file that is read or written.

use std::io::IsTerminal;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

/// A progress bar on standard error. It is hidden if standard error is not a terminal.
#[derive(Debug)]
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// A progress bar at 0. `length` is the size of the file in bytes, if it is known.
    pub(super) fn new(length: Option<u64>) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let (bar, template) = match length {
            Some(length) => {
                (ProgressBar::new(length), "{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")
            }
            None => (ProgressBar::no_length(), "{spinner} {bytes}, {bytes_per_sec}"),
        };
        bar.set_style(ProgressStyle::with_template(template).expect("the template is fixed"));
        Self(bar)
    }

    /// Adds processed bytes.
    pub(super) fn add(&self, bytes: usize) {
        self.0.inc(bytes as u64);
    }

    /// Removes the bar from the terminal.
    pub(super) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // a command that fails prints its error at the position of the bar
        self.0.finish_and_clear();
    }
}

/// Formats a number of bytes with a unit, such as `1.50 MiB`.
pub(super) fn size(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}
