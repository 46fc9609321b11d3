//! Reports on the engines of `--teacher`: whether they answer, and whether the ids of the upstream mean the same tokens there.

use super::{Report, Verdict};
use crate::app::settings;
use crate::config::Config;
use crate::engine::capabilities::Capabilities;
use crate::engine::sglang::same_tokens::compare;
use crate::engine::transport::client::Client;

/// Compares each teacher with the upstream, `student`.
///
/// # Errors
/// A line for the user when the settings are invalid.
pub(super) async fn check(
    config: &Config,
    student: &Client,
    found: &Capabilities,
    report: &mut Report,
) -> Result<(), String> {
    for (name, teacher) in settings::teachers(config)? {
        let mut line = |verdict, text: &str| {
            report.line(verdict, "teacher", format!("{name} at {}: {text}", teacher.upstream()));
        };
        match compare(student, found, &teacher).await {
            Ok(Some(size)) if found.vocab_size.is_some() => {
                line(Verdict::Ok, &format!("the same tokens, in a vocabulary of {size}"));
            }
            Ok(_) => line(Verdict::Warn, "its vocabulary is not compared: an engine does not report the size"),
            Err(error) => line(Verdict::Fail, &error.to_string()),
        }
    }
    Ok(())
}
