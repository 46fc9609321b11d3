// SPDX-License-Identifier: Apache-2.0
//! `tokentap entropy`: computes the entropy of each row of a safetensors file, and prints one line of JSON for each row.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read, StdoutLock, Write};
use std::path::Path;
use std::sync::Arc;

use crate::cli::progress::Progress;
use crate::config::EntropyArgs;
use crate::entropy::{Cpu, RowStats};
use crate::logits::safetensors::Body;
use crate::logits::slices::Slices;
use crate::metrics::Metrics;

/// The number of bytes that are read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// The number of parts that may still be measured while the next bytes are read.
const MAX_PENDING_PARTS: usize = 4;

/// Measures the file and prints one line for each row.
///
/// # Errors
/// A line for the user.
pub async fn run(args: EntropyArgs) -> Result<(), String> {
    let (mut file, length) = open(&args.file)?;
    let metrics = Arc::new(Metrics::new(Cpu::new().name()));
    let slices = Slices::start(&args.slices, &metrics);
    let slices = Arc::new(slices.map_err(|error| format!("threads for rows of logits: {error}"))?);
    slices.wait_opened().await;
    let with_name = |error: &dyn std::fmt::Display| format!("{}: {error}", name(&args.file));
    let mut body = Body::new(&slices, u64::MAX, usize::MAX);
    let mut printer = RowPrinter { out: BufWriter::new(io::stdout().lock()), row: 0, surprisal: false };
    let progress = Progress::bytes("reading", length);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(with_name(&error)),
        };
        body.push(&chunk[..count]).await.map_err(|error| with_name(&error))?;
        progress.add(count);
        printer.surprisal = body.has_chosen();
        let ready = body.ready(MAX_PENDING_PARTS).await.map_err(|error| with_name(&error))?;
        if !printer.print(&ready)? {
            return Ok(());
        }
    }
    let rest = body.finish().await.map_err(|error| with_name(&error))?;
    progress.clear();
    printer.print(&rest)?;
    printer.out.flush().or_else(ignore_broken_pipe)
}

/// Opens the file; `-` is standard input. Also returns the length in bytes of a regular file.
fn open(path: &Path) -> Result<(Box<dyn Read + Send>, Option<u64>), String> {
    if path == Path::new("-") {
        return Ok((Box::new(io::stdin()), None));
    }
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if found.is_dir() {
        return Err(format!("{}: is a folder", path.display()));
    }
    Ok((Box::new(file), found.is_file().then_some(found.len())))
}

/// The name of the file in error messages.
fn name(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

/// Prints the lines of rows.
struct RowPrinter {
    out: BufWriter<StdoutLock<'static>>,
    /// The number of the next row.
    row: usize,
    /// Lines have the surprisal of the chosen token.
    surprisal: bool,
}

impl RowPrinter {
    /// Prints the next rows. Returns false when the reader has closed standard output.
    fn print(&mut self, rows: &[RowStats]) -> Result<bool, String> {
        for stats in rows {
            match self.line(stats) {
                Ok(()) => self.row += 1,
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(false),
                Err(error) => return Err(format!("standard output: {error}")),
            }
        }
        Ok(true)
    }

    /// Prints the line of a row. Each number has enough digits to parse to the same float64; a number that is not finite is `null`.
    fn line(&mut self, stats: &RowStats) -> io::Result<()> {
        let number = |value: f64| serde_json::Value::from(value);
        write!(
            self.out,
            r#"{{"row":{},"entropy":{},"log_z":{},"p_max":{},"varentropy":{}"#,
            self.row,
            number(stats.entropy),
            number(stats.log_z),
            number(stats.p_max),
            number(stats.varentropy),
        )?;
        if self.surprisal {
            write!(self.out, r#","surprisal":{}"#, number(stats.surprisal))?;
        }
        self.out.write_all(b"}\n")
    }
}

/// Ignores a broken pipe: the reader has closed standard output and needs no more rows.
fn ignore_broken_pipe(error: io::Error) -> Result<(), String> {
    if error.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(format!("standard output: {error}")) }
}
