//! `tokentap man`: writes man pages.

use clap::CommandFactory;

use crate::config::{Cli, ManArgs};

/// Writes `tokentap.1`, and a page for each command.
///
/// # Errors
/// The error message when a page cannot be written.
pub fn run(args: &ManArgs) -> Result<(), String> {
    let command = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, &args.folder).map_err(|error| format!("{}: {error}", args.folder.display()))
}
