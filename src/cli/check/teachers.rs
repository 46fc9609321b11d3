// SPDX-License-Identifier: Apache-2.0
//! Reports on the engines of `--teacher`: whether they answer, and whether the ids of the upstream mean the same tokens there.

use super::{Report, Verdict};
use crate::app::settings;
use crate::config::Config;
use crate::engine::capabilities::Capabilities;
use crate::engine::sglang::same_tokens::{SameTokens, compare};
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
            Ok(SameTokens { has_same_ids: true, .. }) => line(Verdict::Ok, "the same ids of a sample text"),
            Ok(SameTokens { are_sizes_known: true, .. }) => line(
                Verdict::Warn,
                "a vocabulary of the same size; its tokenizer is not compared, because an engine has none",
            ),
            Ok(_) => line(Verdict::Warn, "its tokens are not compared: an engine has no tokenizer, or reports no size"),
            Err(error) => line(Verdict::Fail, &error.to_string()),
        }
    }
    Ok(())
}
