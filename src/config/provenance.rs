// SPDX-License-Identifier: Apache-2.0
//! The value of each setting and its origin.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches};

use super::{ControlToken, Secret, without_credentials};

/// A setting in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// As in the configuration file.
    pub name: String,
    /// The heading of its group in `--help`; `None` for those that have none.
    pub group: Option<String>,
    /// Its value.
    pub value: Value,
    /// In words, as they end an error line: "the command line", "its default".
    pub origin: String,
}

/// The value of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// None was given, and there is no default.
    Absent,
    /// A secret, which is never shown.
    Secret,
    /// As it would be written in the configuration file.
    Text(String),
}

/// The settings of a command with the arguments `matches`, by group; `file` returns the file that gives the default of a setting, if any.
pub(super) fn settings<'a>(
    command: &clap::Command,
    matches: &ArgMatches,
    file: impl Fn(&str) -> Option<&'a Path>,
) -> Vec<Setting> {
    let shown = command.get_arguments().filter(|arg| !matches!(arg.get_id().as_str(), "config" | "help" | "version"));
    let mut settings: Vec<_> = shown.map(|arg| setting(arg, matches, arg.get_long().and_then(&file))).collect();
    // each group once, in the order of --help
    let mut groups: Vec<Option<String>> = Vec::new();
    for setting in &settings {
        if !groups.contains(&setting.group) {
            groups.push(setting.group.clone());
        }
    }
    settings.sort_by_key(|setting| groups.iter().position(|group| *group == setting.group));
    settings
}

/// A setting; `file` gives its default, if any.
fn setting(arg: &Arg, matches: &ArgMatches, file: Option<&Path>) -> Setting {
    let id = arg.get_id().as_str();
    let is_path = matches.try_get_one::<PathBuf>(id).is_ok();
    let given = matches.get_raw(id).map(|values| {
        let shown = |value: &OsStr| match value.to_string_lossy() {
            path if is_path => path.into_owned(),
            value => without_credentials(&value).into_owned(),
        };
        values.map(shown).collect::<Vec<_>>().join(",")
    });
    let origin = match (matches.value_source(id), arg.get_env(), file) {
        (Some(ValueSource::CommandLine), ..) => "the command line".to_owned(),
        (Some(ValueSource::EnvVariable), Some(name), _) => format!("the environment, {}", name.to_string_lossy()),
        (_, _, Some(file)) => format!("the file {}", file.display()),
        _ => "its default".to_owned(),
    };
    let value = match given {
        None => Value::Absent,
        // an open port must not look like one that a token protects
        Some(text) if matches.try_get_one(id).is_ok_and(|token| token == Some(&ControlToken::None)) => {
            Value::Text(written(text))
        }
        Some(_) if is_secret(id, matches) => Value::Secret,
        Some(text) => Value::Text(written(text)),
    };
    let group = arg.get_help_heading().map(str::to_owned);
    Setting { name: arg.get_long().unwrap_or(id).to_owned(), group, value, origin }
}

/// Whether the setting is a key.
fn is_secret(id: &str, matches: &ArgMatches) -> bool {
    matches.try_get_one::<Secret>(id).is_ok() || matches.try_get_one::<ControlToken>(id).is_ok()
}

/// Text as a value of TOML.
fn written(text: String) -> String {
    let bare = matches!(&*text, "true" | "false") || text.parse::<i64>().is_ok_and(|number| number.to_string() == text);
    if bare { text } else { toml::Value::String(text).to_string() }
}
