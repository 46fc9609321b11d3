// SPDX-License-Identifier: Apache-2.0
//! What describes the command line: completions of shells and man pages.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use super::Cli;

/// The script with which a shell completes commands and flags.
#[must_use]
pub fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tokentap", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Writes `tokentap.1`, and a page for each command.
///
/// # Errors
/// The error message when a page cannot be written.
pub fn write_man_pages(folder: &Path) -> Result<(), String> {
    let command = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, folder).map_err(|error| format!("{}: {error}", folder.display()))
}
