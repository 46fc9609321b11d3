//! `tokentap config`: the settings that `serve` would run with, as a configuration file with the origin of each.

use std::fmt::Write;

use crate::cli::{descriptors, print};
use crate::config::{ConfigArgs, Setting, Value};

/// Prints the settings. A setting without a value for the file, such as a key or a value that was not given, becomes a comment.
pub fn run(args: &ConfigArgs) {
    let mut text = String::new();
    let mut group = None;
    for Setting { name, group: its, value, origin } in &args.effective {
        if *its != group {
            group.clone_from(its);
            let _ = write!(text, "\n# {}\n", group.as_deref().unwrap_or("Options"));
        }
        // writing to a String cannot fail
        let _ = match value {
            Value::Absent => writeln!(text, "# {name} is not set"),
            Value::Secret => writeln!(text, "# {name} is set, and not shown; from {origin}"),
            Value::Text(value) => writeln!(text, "{name} = {value} # from {origin}"),
        };
    }
    print(text.trim_start());
    // logs the same warning as `serve`, which lowers the limits
    descriptors::suffice(&mut args.config.limits.clone());
    for name in strangers(&args.effective) {
        tracing::warn!(name, "this variable of the environment is no setting of serve");
    }
}

/// Variables that look like settings and are none.
fn strangers(settings: &[Setting]) -> Vec<String> {
    let known = |variable: &str| {
        let name = variable.trim_start_matches("TOKENTAP_").to_lowercase().replace('_', "-");
        name == "config" || settings.iter().any(|setting| setting.name == name)
    };
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("TOKENTAP_") && !known(name)).collect();
    names.sort();
    names
}
