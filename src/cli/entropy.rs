//! `tokentap entropy`: the rows of a safetensors file, one line of JSON each.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read, StdoutLock, Write};
use std::path::Path;
use std::sync::Arc;

use crate::cli::bar::Bar;
use crate::config::EntropyArgs;
use crate::entropy::RowStats;
use crate::logits::safetensors::Body;
use crate::logits::slices::Slices;
use crate::metrics::Metrics;

/// Bytes read at a time.
const PIECE: usize = 1 << 20;

/// Slots that may wait to be measured before their numbers are waited for.
const AHEAD: usize = 4;

/// Measures the file and prints a line a row.
///
/// # Errors
/// A line for the user.
pub async fn run(args: EntropyArgs) -> Result<(), String> {
    let (mut file, length) = open(&args.file)?;
    let metrics = Arc::new(Metrics::new(Slices::backend_name(&args.slices)));
    let slices = Slices::start(&args.slices, &metrics);
    let slices = Arc::new(slices.map_err(|error| format!("threads for rows of logits: {error}"))?);
    slices.wait_opened().await;
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", name(&args.file));
    let mut body = Body::new(&slices, u64::MAX, usize::MAX);
    let mut lines = Lines { out: BufWriter::new(io::stdout().lock()), row: 0, surprisal: false };
    let bar = Bar::new(length);
    let mut piece = vec![0; PIECE];
    loop {
        let count = match file.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(named(&error)),
        };
        body.push(&piece[..count]).await.map_err(|error| named(&error))?;
        bar.add(count);
        lines.surprisal = body.has_chosen();
        let ready = body.ready(AHEAD).await.map_err(|error| named(&error))?;
        if !lines.print(&ready)? {
            return Ok(());
        }
    }
    let rest = body.finish().await.map_err(|error| named(&error))?;
    bar.clear();
    lines.print(&rest)?;
    lines.out.flush().or_else(gone)
}

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

fn name(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

/// What has been printed.
struct Lines {
    out: BufWriter<StdoutLock<'static>>,
    row: usize,
    surprisal: bool,
}

impl Lines {
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

    /// Prints every digit of each number, so that it can be read back exactly; `null` for a number that is not finite.
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

/// Ignores a broken pipe: the reader closed standard output and needs no more rows.
fn gone(error: io::Error) -> Result<(), String> {
    if error.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(format!("standard output: {error}")) }
}
