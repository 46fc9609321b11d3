//! Which value each setting has, and where it comes from.

use std::path::Path;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches};

/// A setting as it is in force.
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
    /// A key, or a file with one, that the other of the two overrides.
    Overruled,
    /// As it would be written in the configuration file.
    Text(String),
}

/// The settings of a command whose arguments are `matches`; `file` says which file gives the default of a setting, if one does.
pub(super) fn settings<'a>(
    command: &clap::Command,
    matches: &ArgMatches,
    file: impl Fn(&str) -> Option<&'a Path>,
) -> Vec<Setting> {
    let shown = command.get_arguments().filter(|arg| !matches!(arg.get_id().as_str(), "config" | "help" | "version"));
    shown.map(|arg| setting(arg, matches, arg.get_long().and_then(&file))).collect()
}

/// A setting whose default `file` gives, if there is one.
fn setting(arg: &Arg, matches: &ArgMatches, file: Option<&Path>) -> Setting {
    let id = arg.get_id().as_str();
    let given = matches.get_raw(id).map(|values| {
        let values: Vec<_> = values.map(std::ffi::OsStr::to_string_lossy).collect();
        values.join(",")
    });
    let origin = match (matches.value_source(id), arg.get_env(), file) {
        (Some(ValueSource::CommandLine), ..) => "the command line".to_owned(),
        (Some(ValueSource::EnvVariable), Some(name), _) => format!("the environment, {}", name.to_string_lossy()),
        (_, _, Some(file)) => format!("the file {}", file.display()),
        _ => "its default".to_owned(),
    };
    let value = match given {
        None => Value::Absent,
        Some(_) if is_overruled(matches, id) => Value::Overruled,
        // what is not shown in --help is not shown here
        Some(_) if arg.is_hide_env_values_set() => Value::Secret,
        Some(text) => Value::Text(written(text)),
    };
    let group = arg.get_help_heading().map(str::to_owned);
    Setting { name: arg.get_long().unwrap_or(id).to_owned(), group, value, origin }
}

/// Whether a key, or a file with one, is not in force because the other is given, too: flag and environment go before the configuration
/// file, and there the key before its file.
pub(super) fn is_overruled(matches: &ArgMatches, id: &str) -> bool {
    let rank = |id: &str| {
        let source = matches.try_contains_id(id).is_ok().then(|| matches.value_source(id)).flatten();
        source.map(|source| u8::from(source != ValueSource::DefaultValue))
    };
    let key = id.strip_suffix("_file");
    let other = key.map_or_else(|| format!("{id}_file"), str::to_owned);
    rank(id).zip(rank(&other)).is_some_and(|(its, other)| other > its || other == its && key.is_some())
}

/// Text as a value of TOML.
fn written(text: String) -> String {
    let bare = matches!(&*text, "true" | "false") || text.parse::<i64>().is_ok_and(|number| number.to_string() == text);
    if bare { text } else { toml::Value::String(text).to_string() }
}
