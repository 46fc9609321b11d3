// SPDX-License-Identifier: Apache-2.0
//! `tokentap archive`: lists and verifies an archive of finished trajectories.

use std::fmt::Write;

use crate::archive::{ArchiveError, Manifest, Manifests, Storage, Verification, chains, verify};
use crate::cli::print;
use crate::cli::progress::Progress;
use crate::config::{ArchiveArgs, ArchiveOperation};

/// Runs the operation. Returns `Ok(false)` if the archive has a problem.
///
/// # Errors
/// A line for the user when the archive cannot be read.
pub async fn run(args: &ArchiveArgs) -> Result<bool, String> {
    let uri = &args.uri;
    let storage = Storage::open_existing(uri)?;
    let done = match args.operation {
        ArchiveOperation::Ls => list(&storage).await,
        ArchiveOperation::Verify => check(&storage).await,
    };
    done.map_err(|error| format!("{uri}: {error}"))
}

/// Prints the problems and the counts. Returns true if there are no problems.
async fn check(storage: &Storage) -> Result<bool, ArchiveError> {
    let progress = Progress::bytes("verifying", None);
    let found = verify(storage, |found| progress.set(found.bytes)).await?;
    progress.clear();
    let mut text = String::new();
    for problem in &found.problems {
        line(&mut text, format_args!("problem: {problem}"));
    }
    let Verification { manifests, files, rows, bytes, missed, unused, problems } = &found;
    let problems = problems.len();
    line(
        &mut text,
        format_args!(
            "{manifests} manifests, {files} files, {rows} rows, {bytes} bytes, {missed} missed paths, {unused} unused objects, {problems} problems"
        ),
    );
    print(&text);
    Ok(problems == 0)
}

/// Prints a line for each manifest, as soon as it is read. A chain of another build ends at the first manifest that cannot be read, with a line
/// for it. Returns whether all were read.
async fn list(storage: &Storage) -> Result<bool, ArchiveError> {
    let (mut total, mut is_complete) = ((0, 0, 0, 0_u64), true);
    for chain in chains(storage).await? {
        let mut manifests = Manifests::list(storage, chain).await?;
        loop {
            let (manifest, problem) = match manifests.next().await {
                Ok(Some(read)) => read,
                Ok(None) => break,
                Err(error @ ArchiveError::OtherVersion { .. }) => {
                    print(&format!("problem: {error}\n"));
                    is_complete = false;
                    break;
                }
                Err(error) => return Err(error),
            };
            let mut text = String::new();
            let problem = problem.map(|problem| format!("  {problem}")).unwrap_or_default();
            line(&mut text, format_args!("{}{problem}", describe(&manifest)));
            print(&text);
            total =
                (total.0 + 1, total.1 + manifest.rows, total.2 + manifest.bytes(), total.3 + manifest.missed_paths());
        }
    }
    let (count, rows, bytes, missed) = total;
    print(&format!("{count} manifests, {rows} rows, {bytes} bytes, {missed} missed paths\n"));
    Ok(is_complete)
}

fn describe(manifest: &Manifest) -> String {
    let Manifest { store, part, after, last, rows, files, .. } = manifest;
    let mut text = format!(
        "store={store} part={part}  after {after} to {last}  {rows} rows, {} files, {} bytes",
        files.len(),
        manifest.bytes()
    );
    let excluded: u64 = manifest.excluded.values().sum();
    if manifest.missed.iter().any(|missed| missed.count.is_none()) {
        text.push_str(", an unknown number missed");
    }
    for (count, name) in [(excluded, "excluded"), (manifest.missed_paths(), "missed")] {
        if count > 0 {
            let _ = write!(text, ", {count} {name}");
        }
    }
    text
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // writing to a String cannot fail
    let _ = writeln!(text, "{line}");
}
