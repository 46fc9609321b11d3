// SPDX-License-Identifier: Apache-2.0
//! `tokentap import`: appends the sessions of a local log to the ledger that several tokentaps share.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use crate::app::sessions::ledger_options;
use crate::cli::print;
use crate::cli::progress::Progress;
use crate::config::ImportArgs;
use crate::session::ledger::log::{Directory, Options, ReplaySummary};
use crate::session::ledger::valkey::{NoValkeyObserver, Valkey};
use crate::session::ledger::{Change, LogRecord, ProcessRecord, Record};
use crate::session::{Imported, Importer, Sessions, SkipReason, StoreLimits};

/// What became of the sessions.
#[derive(Debug, Default)]
struct ImportCounts {
    appended: usize,
    present: usize,
    /// Sessions that the fleet has deleted.
    deleted: usize,
    skipped: usize,
    /// Sessions that the tokentap of the log had evicted from memory.
    evicted: usize,
    /// Pictures without room in the ledger.
    refused_images: u64,
}

/// Imports the sessions. Returns `Ok(false)` if a session was skipped that the ledger lacks, or a picture.
///
/// # Errors
/// A line for the user when the log or the ledger cannot be used.
pub async fn run(args: &ImportArgs) -> Result<bool, String> {
    let options = ledger_options(&args.ledger, args.session_ttl)?.expect("the settings have a ledger");
    if !args.data_dir.is_dir() {
        return Err(format!("--data-dir {}: there is no such folder", args.data_dir.display()));
    }
    // locked until all sessions are in the ledger: a tokentap that continues them would append other turns
    let directory = Directory::lock(&Options::new(&args.data_dir)).map_err(|error| format!("--data-dir: {error}"))?;
    let (source, mut counts) = (Sessions::new(StoreLimits::UNLIMITED), ImportCounts::default());
    let progress = Progress::bytes("reading the log", Some(directory.bytes()));
    let read = directory.read(|bytes, record| {
        progress.set(bytes);
        counts.evicted += usize::from(matches!(
            record,
            LogRecord::Session(Record { change: Change::Evicted, .. })
                | LogRecord::Process(ProcessRecord::Settled { .. })
        ));
        source.restore(record);
    });
    progress.clear();
    let (found, _guard) = read.map_err(|error| format!("--data-dir: {error}"))?;
    check_log(&args.data_dir, &found)?;
    let timeout = options.timeout;
    let ledger = Valkey::new(options, Arc::new(NoValkeyObserver));
    let importer = Importer::new(Arc::new(ledger), timeout);
    let sessions = source.in_memory();
    let progress = Progress::sessions("importing", sessions.len());
    for session in sessions {
        let imported = importer.import(&session).await;
        progress.add(1);
        counts.refused_images = importer.refused_images();
        match imported {
            Ok(Imported::Appended) => counts.appended += 1,
            Ok(Imported::Present) => counts.present += 1,
            Ok(Imported::Skipped(SkipReason::Deleted)) => counts.deleted += 1,
            Ok(Imported::Skipped(reason)) => {
                counts.skipped += 1;
                print(&format!("skipped {}: {reason}\n", session.id));
            }
            Err(error) => {
                print(&counts.summary());
                return Err(format!("--ledger: session {:?}: {error}; the same command continues", session.id));
            }
        }
    }
    progress.clear();
    print(&counts.summary());
    Ok(counts.skipped == 0 && counts.refused_images == 0)
}

impl ImportCounts {
    fn summary(&self) -> String {
        let Self { appended, present, deleted, skipped, evicted, refused_images } = self;
        let mut text = format!("{appended} sessions imported, {present} already in the ledger, {skipped} skipped");
        // writing to a String cannot fail
        if *deleted > 0 {
            let _ = write!(text, ", {deleted} deleted from the ledger");
        }
        if *evicted > 0 {
            let _ = write!(text, "; {evicted} were evicted from memory, and are only in the log");
        }
        if *refused_images > 0 {
            let _ = write!(
                text,
                "; {refused_images} pictures had no room in the ledger: run the same command with a larger --ledger-image-bytes"
            );
        }
        text.push('\n');
        text
    }
}

/// Warns of records of a local log that could not be read.
///
/// # Errors
/// A line for the user when the folder has no log.
pub(super) fn check_log(dir: &Path, found: &ReplaySummary) -> Result<(), String> {
    if found.segments == 0 {
        return Err(format!("--data-dir {}: holds no log", dir.display()));
    }
    found.torn.iter().for_each(|torn| tracing::warn!(%torn, "not all of the log can be read"));
    found.damaged.iter().for_each(|damaged| tracing::warn!(%damaged, "not all of the log can be read"));
    Ok(())
}
