// SPDX-License-Identifier: Apache-2.0
//! `tokentap config`: prints the settings of `serve` as a configuration file, with the origin of each setting.

use std::fmt::Write;

use crate::cli::{descriptors, print};
use crate::config::{ConfigArgs, Setting, Value};

/// Prints the settings. A secret, or a setting without a value, is printed as a comment.
pub fn run(args: &ConfigArgs) {
    let mut text = String::new();
    let mut group = None;
    for Setting { name, group: setting_group, value, origin } in &args.effective {
        if *setting_group != group {
            group.clone_from(setting_group);
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
    descriptors::fit_limits(&mut args.config.limits.clone());
}
