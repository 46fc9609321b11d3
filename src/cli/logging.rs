// SPDX-License-Identifier: Apache-2.0
//! Logging: lines on standard error, in the configured format.

mod writer;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::cli::progress::Stderr;
use crate::cli::terminal;
use crate::config::{LogConfig, LogFormat};
use writer::LogWriter;

/// Guards the log of the process. Writes the remaining lines when it is dropped.
#[derive(Debug)]
#[must_use = "lines that are logged after it is dropped are lost"]
pub struct LogGuard(LogWriter);

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Logs the number of dropped lines.
fn report_dropped(lines: u64) {
    tracing::warn!(lines, "log lines were dropped, because standard error was not read");
}

/// Starts the log of the process. Panics are logged, too.
///
/// # Errors
/// When the filter is invalid, or the thread that writes cannot be started.
pub fn start(config: &LogConfig) -> Result<LogGuard, String> {
    let filter: EnvFilter = config.log.parse().map_err(|error: ParseError| error.to_string())?;
    let writer = LogWriter::start(Stderr, report_dropped).map_err(|error| error.to_string())?;
    let lines = writer.clone();
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(move || lines.clone()).with_target(false);
    match config.log_format {
        LogFormat::Text => builder.with_ansi(terminal::has_colours(&std::io::stderr())).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    // a request whose task panics is usually answered with an error; the hook logs the panic in the configured format
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let payload = panic.payload();
        let reason = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
        tracing::error!(place, reason, "a thread panicked");
    }));
    Ok(LogGuard(writer))
}
