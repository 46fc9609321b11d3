//! The progress of a file, shown on a terminal.

use std::io::IsTerminal;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

/// A bar on standard error, where that is a terminal; nothing in a pipe or a log.
#[derive(Debug)]
pub(super) struct Bar(ProgressBar);

impl Bar {
    /// `length`: bytes altogether, where they are known.
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

    pub(super) fn add(&self, bytes: usize) {
        self.0.inc(bytes as u64);
    }

    /// Removes the bar; only the line printed after it remains.
    pub(super) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        // a command that fails prints its line where the bar was
        self.0.finish_and_clear();
    }
}

/// Bytes as people read them.
pub(super) fn size(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}
