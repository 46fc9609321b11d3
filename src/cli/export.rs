// SPDX-License-Identifier: Apache-2.0
//! `tokentap export`: writes recorded sessions to a file for a trainer.

mod data_dir;
mod sidecar;
mod target;

use std::collections::BTreeMap;
use std::fmt;
use std::future::pending;
use std::pin::pin;

use bytes::Bytes;

use crate::cli::progress::{self, Progress};
use crate::cli::serve::Signals;
use crate::config::ExportArgs;
use crate::export::{Lack, RowCounts};
use crate::session::Conditions;
use sidecar::Sidecar;
use target::Target;

/// The bytes of an export, and its summary.
struct ExportSource {
    /// The length in bytes, if it is known in advance.
    length: Option<u64>,
    chunks: Chunks,
    summary: ExportSummary,
}

/// The source of the bytes of an export.
enum Chunks {
    /// This process encodes them while they are read.
    Local(Box<dyn Iterator<Item = Bytes> + Send>),
    /// A running tokentap sends them.
    Remote(sidecar::ExportBody),
}

impl Chunks {
    async fn next(&mut self) -> Result<Option<Bytes>, String> {
        match self {
            Self::Local(chunks) => {
                // so that a signal is handled between two chunks
                tokio::task::yield_now().await;
                Ok(chunks.next())
            }
            Self::Remote(body) => body.chunk().await,
        }
    }
}

/// The conditions of `--where`.
fn conditions(args: &ExportArgs) -> Result<Option<Conditions>, String> {
    let parsed = args.r#where.as_deref().map(Conditions::parse).transpose();
    parsed.map_err(|error| format!("--where: {error}"))
}

/// Writes the file. If the export fails, an existing file is unchanged.
///
/// # Errors
/// A line for the user.
pub async fn run(args: ExportArgs) -> Result<(), String> {
    let mut source = match &args.data_dir {
        Some(dir) => data_dir::open(dir, &args)?,
        None => Sidecar::try_new(&args)?.open(&args).await?,
    };
    let mut target = Target::create(&args.out)?;
    let progress = Progress::bytes("writing", source.length);
    let is_read = copy(&mut source.chunks, &mut target, &progress).await?;
    progress.clear();
    if !is_read {
        return Ok(());
    }
    let Some(bytes) = target.finish()? else { return Ok(()) };
    eprintln!("tokentap: {}, {} to {}", source.summary, progress::size(bytes), target::name(&args.out));
    source.summary.warnings().for_each(|line| eprintln!("tokentap: {line}"));
    Ok(())
}

/// Copies the bytes to the file. Returns an error on a signal, so that the temporary file is removed, and false if no process reads the output.
async fn copy(chunks: &mut Chunks, target: &mut Target, progress: &Progress) -> Result<bool, String> {
    // signals are caught only if a temporary file must be removed: a caught signal does not end a process that blocks on standard output
    let mut signals = target.is_temporary().then(Signals::catch).transpose()?;
    let mut stopped = pin!(async {
        match &mut signals {
            Some(signals) => signals.next().await,
            None => pending().await,
        }
    });
    loop {
        let chunk = tokio::select! {
            chunk = chunks.next() => chunk?,
            () = &mut stopped => return Err("interrupted; nothing was written".to_owned()),
        };
        let Some(chunk) = chunk else { return Ok(true) };
        if !target.write(&chunk)? {
            return Ok(false);
        }
        progress.add(chunk.len());
    }
}

/// Counts the exported sessions and rows, and the refused leaves.
#[derive(Debug, Default, PartialEq, Eq)]
struct ExportSummary {
    sessions: usize,
    /// The number of exported rows; `None` if the sidecar did not report it.
    rows: Option<usize>,
    /// The number of refused leaves, by reason.
    refused: BTreeMap<String, usize>,
    /// The number of exported rows that lack something, by the name of the [`Lack`].
    incomplete: BTreeMap<String, usize>,
}

impl ExportSummary {
    fn new(sessions: usize, tally: &RowCounts) -> Self {
        let counts = |counts: &BTreeMap<&str, usize>| {
            counts.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect()
        };
        Self {
            sessions,
            rows: Some(tally.rows),
            refused: counts(&tally.refused),
            incomplete: counts(&tally.incomplete),
        }
    }

    /// A line for each reason why exported rows are incomplete.
    fn warnings(&self) -> impl Iterator<Item = String> {
        self.incomplete.iter().map(|(name, count)| {
            let lack = Lack::ALL.into_iter().find(|lack| lack.name() == name);
            let description = lack.map_or(String::new(), |lack| format!(": {}", lack.description()));
            format!(
                "warning: {name} in {count} row{}{description}; --exclude {name} leaves such rows out",
                plural(*count)
            )
        })
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

impl fmt::Display for ExportSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rows) = self.rows {
            write!(f, "{rows} row{} of ", plural(rows))?;
        }
        write!(f, "{} session{}", self.sessions, plural(self.sessions))?;
        for (at, (reason, count)) in self.refused.iter().enumerate() {
            let before = if at == 0 { ", refused: " } else { ", " };
            write!(f, "{before}{count} {reason}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_counts_are_not_printed() {
        let tally = RowCounts {
            rows: 3,
            refused: [("missing_logprobs", 2), ("aborted", 1)].into(),
            incomplete: [("missing_scores", 1)].into(),
        };
        assert_eq!(
            ExportSummary::new(1, &tally).to_string(),
            "3 rows of 1 session, refused: 1 aborted, 2 missing_logprobs"
        );
        let warnings: Vec<String> = ExportSummary::new(1, &tally).warnings().collect();
        let expected = "warning: missing_scores in 1 row: the teacher has not scored a trained turn; --exclude missing_scores leaves such \
                        rows out";
        assert_eq!(warnings, [expected]);
        assert_eq!(ExportSummary { sessions: 2, ..ExportSummary::default() }.to_string(), "2 sessions");
        assert_eq!(
            ExportSummary::new(0, &RowCounts { rows: 1, ..RowCounts::default() }).to_string(),
            "1 row of 0 sessions"
        );
    }
}
