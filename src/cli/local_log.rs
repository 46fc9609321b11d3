//! A log that a command reads instead of a running tokentap.

use std::path::Path;

use crate::session::ledger::log::ReplaySummary;

/// Warns of records that could not be read.
///
/// # Errors
/// A line for the user when the folder has no log.
pub(super) fn check(dir: &Path, found: &ReplaySummary) -> Result<(), String> {
    if found.segments == 0 {
        return Err(format!("--data-dir {}: holds no log", dir.display()));
    }
    found.torn.iter().for_each(|torn| tracing::warn!(%torn, "not all of the log can be read"));
    found.damaged.iter().for_each(|damaged| tracing::warn!(%damaged, "not all of the log can be read"));
    if found.unknown > 0 {
        tracing::warn!(
            records = found.unknown,
            "the log holds records that this build cannot read, which are left out"
        );
    }
    Ok(())
}
