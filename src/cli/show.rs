// SPDX-License-Identifier: Apache-2.0
//! `tokentap show`: prints a path of a session as text, with each sampled token in the colour of its entropy.

mod path;
mod pieces;
mod render;
mod texts;

use crate::cli::control::ControlClient;
use crate::cli::print;
use crate::cli::scale::Scale;
use crate::config::ShowArgs;
use path::Path;
use pieces::Pieces;
use texts::Texts;

/// Prints the path.
///
/// # Errors
/// A line for the user when the control port does not answer, or has no such session or path.
pub async fn run(args: &ShowArgs) -> Result<(), String> {
    let client = ControlClient::try_new(&args.port)?;
    let path = Path::read(&client, args).await?;
    let mut texts = Texts::new(&client);
    let pieces = Pieces::decode(&path, &mut texts).await;
    if let Some(problem) = texts.problem() {
        tracing::warn!(%problem, "the engine's /detokenize failed: tokens are shown as ids");
    }
    print(&render::text(&path, &pieces, &Scale::of_stdout()));
    Ok(())
}
