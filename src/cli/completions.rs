//! `tokentap completions`: prints a script with which a shell completes commands and flags.

use clap::CommandFactory;

use crate::cli::print;
use crate::config::{Cli, CompletionsArgs};

/// Prints the script of a shell.
pub fn run(args: &CompletionsArgs) {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tokentap", &mut script);
    print(&String::from_utf8_lossy(&script));
}
