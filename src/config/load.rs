// SPDX-License-Identifier: Apache-2.0
//! Reads settings from arguments, environment and file; an error is one line that names the key and its origin.

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};

use super::{Cli, Command, Config, provenance, server_url, teachers, unknown, without_credentials};

/// The settings of an engine that is not the demo's.
const OF_UPSTREAM: [&str; 6] =
    ["upstream", "engine", "upstream_ca", "upstream_api_key", "forward_upstream_api_key", "upstream_admin_key"];

/// Why settings cannot be used.
#[derive(Debug)]
pub enum Invalid {
    /// Help or version; print it and exit with 0.
    Shown(String),
    /// One line for the user; exit with 64.
    Line(String),
}

/// Reads the settings of this process.
///
/// # Errors
/// [`Invalid`] when they cannot be used, or help was asked for.
pub fn load(args: impl IntoIterator<Item = OsString>) -> Result<Cli, Invalid> {
    let args: Vec<OsString> = args.into_iter().collect();
    let file = config_file(&args);
    let mut command = Cli::command().mut_subcommand("demo", |demo| {
        OF_UPSTREAM.iter().fold(demo, |demo, id| demo.mut_arg(id, |arg| arg.hide(true)))
    });
    let mut in_file = Vec::new();
    if let Some(path) = file.as_deref().map(Path::new) {
        in_file = values(path)?;
        command = with_file(command, path, &in_file)?;
    }
    let (mut cli, matches) = command
        .try_get_matches_from(&args)
        .and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)))
        .map_err(|error| explain(&error, &args, file.as_deref()))?;
    if let Some((name, matches)) = matches.subcommand() {
        check_demo(name, matches)?;
    }
    let environment: Vec<String> = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
    if let Some(line) = unknown::in_environment(&Cli::command(), &environment) {
        return Err(Invalid::Line(line));
    }
    if let (Command::Export(export), Some((_, matches))) = (&mut cli.command, matches.subcommand()) {
        export.choose(matches).map_err(Invalid::Line)?;
        export.port.control = authority("--control", &["http://", "https://"], &export.port.control)?;
        export.check().map_err(Invalid::Line)?;
    }
    if let Some(port) = cli.command.control_port_mut() {
        port.control = authority("--control", &["http://", "https://"], &port.control)?;
        port.check().map_err(Invalid::Line)?;
    }
    let mut cli = complete(cli)?;
    if let (Command::Config(args), Some((name, matches))) = (&mut cli.command, matches.subcommand()) {
        // a file moves what it changes to the end
        let described = Cli::command();
        let described = described.find_subcommand(name).expect("it was found among the arguments");
        args.effective = provenance::settings(described, matches, |name| {
            in_file.iter().any(|(key, _)| key == name).then(|| Path::new(file.as_deref().unwrap_or_default()))
        });
    }
    Ok(cli)
}

/// The file must be known before the arguments are parsed, because it supplies their defaults.
fn config_file(args: &[OsString]) -> Option<OsString> {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        if text == "--config" {
            return args.next().cloned();
        }
        if let Some(path) = text.strip_prefix("--config=") {
            return Some(path.into());
        }
    }
    std::env::var_os("TOKENTAP_CONFIG")
}

/// The settings in a configuration file, named as the flags are.
fn values(path: &Path) -> Result<Vec<(String, String)>, Invalid> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Invalid::Line(format!("--config: cannot read {shown}: {error}")))?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        Invalid::Line(format!("--config: {shown} is not TOML: {}", error.message()))
    })?;
    let mut values = Vec::new();
    for (key, value) in table {
        let value = match value {
            toml::Value::String(text) => text,
            toml::Value::Integer(_) | toml::Value::Boolean(_) | toml::Value::Float(_) => value.to_string(),
            toml::Value::Array(_) => {
                let line = format!("{key} in {shown}: a list is a string with commas, such as {key} = \"a,b\"");
                return Err(Invalid::Line(line));
            }
            _ => return Err(Invalid::Line(format!("{key} in {shown}: must be a string, a number or a boolean"))),
        };
        values.push((key.replace('_', "-"), value));
    }
    Ok(values)
}

fn with_file(command: clap::Command, path: &Path, values: &[(String, String)]) -> Result<clap::Command, Invalid> {
    let shown = path.display();
    let config = Config::augmented();
    let settings = || config.get_arguments().filter_map(clap::Arg::get_long);
    if let Some((key, _)) = values.iter().find(|(key, _)| !settings().any(|setting| setting == key)) {
        return Err(Invalid::Line(unknown::line(key, &format!("in {shown}"), settings(), str::to_owned)));
    }
    Ok(command.mut_subcommands(|subcommand| {
        // the other commands do not read the file
        if !subcommand.get_arguments().any(|arg| arg.get_id() == "config") {
            return subcommand;
        }
        values.iter().fold(subcommand, |subcommand, (key, value)| {
            subcommand.mut_arg(key.replace('-', "_"), |arg| {
                // what --help does not show as a variable, it does not show as a default
                let is_hidden = arg.is_hide_env_values_set();
                arg.default_value(value.clone()).hide_default_value(is_hidden)
            })
        })
    }))
}

impl Config {
    fn augmented() -> clap::Command {
        <Self as clap::Args>::augment_args(clap::Command::new("tokentap"))
    }
}

fn explain(error: &clap::Error, args: &[OsString], file: Option<&std::ffi::OsStr>) -> Invalid {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        return Invalid::Shown(error.to_string());
    }
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    if let (ErrorKind::MissingRequiredArgument, Some(ContextValue::Strings(names))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    {
        let command = Cli::command();
        let subcommand = args.iter().skip(1).find_map(|arg| command.find_subcommand(arg));
        let name = subcommand.map(|command| format!("{} ", command.get_name())).unwrap_or_default();
        return Invalid::Line(format!("{} must be given, see tokentap {name}--help", names.join(" and ")));
    }
    if let (ErrorKind::InvalidSubcommand, Some(name)) = (error.kind(), context(ContextKind::InvalidSubcommand)) {
        let command = Cli::command();
        let commands = command.get_subcommands().map(clap::Command::get_name);
        let help = unknown::similar(&name, commands)
            .map_or_else(|| "tokentap --help lists them".to_owned(), |similar| format!("a similar one is {similar}"));
        return Invalid::Line(format!("there is no command '{}'; {help}", without_credentials(&name)));
    }
    let argument = context(ContextKind::InvalidArg);
    if let (ErrorKind::UnknownArgument, Some(flag)) = (error.kind(), argument.as_deref())
        && flag.starts_with("--")
    {
        let mut command = Cli::command();
        // adds --help
        command.build();
        let subcommand = args.iter().skip(1).find_map(|arg| command.find_subcommand(arg));
        let flags = subcommand.unwrap_or(&command).get_arguments().filter_map(clap::Arg::get_long);
        let flag = without_credentials(flag);
        return Invalid::Line(unknown::line(&flag, "on the command line", flags, |name| format!("--{name}")));
    }
    if let Some(line) = dashed_value(error.kind(), argument.as_deref(), args) {
        return Invalid::Line(line);
    }
    let name = argument.as_deref().and_then(|arg| arg.split_whitespace().next()).unwrap_or_default().to_owned();
    let (Some(value), true) = (context(ContextKind::InvalidValue), name.starts_with("--")) else {
        // an argument without a flag may be a URL
        let text = error.context().fold(error.to_string(), |text, (_, value)| match value {
            ContextValue::String(value) if value.contains('@') => text.replace(value, &without_credentials(value)),
            _ => text,
        });
        let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        return Invalid::Line(format!("{first}{}", allowed(error)));
    };
    let variable = unknown::variable(name.trim_start_matches('-'));
    let on_line = args.iter().any(|arg| {
        let arg = arg.to_string_lossy();
        arg == name || arg.starts_with(&format!("{name}="))
    });
    let origin = if on_line {
        "the command line".to_owned()
    } else if std::env::var_os(&variable).is_some() {
        format!("the environment, {variable}")
    } else {
        file.map_or_else(|| "its default".to_owned(), |file| format!("the file {}", Path::new(file).display()))
    };
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    let cause = Some(allowed(error)).filter(|allowed| !allowed.is_empty()).unwrap_or(cause);
    let value = without_credentials(&value);
    Invalid::Line(format!("{name} cannot be '{value}' (from {origin}){cause}"))
}

/// The values that an argument takes, if they are listed.
fn allowed(error: &clap::Error) -> String {
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(values)) if !values.is_empty() => format!(": it is one of {}", values.join(", ")),
        _ => String::new(),
    }
}

/// The line for a value that begins with a dash, which clap takes for a flag: it names the flag before it.
fn dashed_value(kind: ErrorKind, argument: Option<&str>, args: &[OsString]) -> Option<String> {
    let argument = argument.filter(|argument| kind == ErrorKind::UnknownArgument && !argument.starts_with("--"))?;
    let texts: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let pair = texts.windows(2).find(|pair| pair[0].starts_with("--") && pair[1].starts_with(argument))?;
    let value = without_credentials(&pair[1]);
    Some(format!("{} cannot be '{value}' (from the command line): no value of a flag begins with -", pair[0]))
}

/// Refuses settings of an upstream for `demo`, which starts its own engine.
fn check_demo(name: &str, matches: &clap::ArgMatches) -> Result<(), Invalid> {
    let is_set = |id: &&&str| matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
    // other commands may not have these settings
    match OF_UPSTREAM.iter().filter(|_| name == "demo").find(is_set) {
        Some(id) => {
            Err(Invalid::Line(format!("--{} is of no use: demo has its own engine; see serve", id.replace('_', "-"))))
        }
        None => Ok(()),
    }
}

/// Checks settings against each other.
fn complete(mut cli: Cli) -> Result<Cli, Invalid> {
    if let Command::Import(import) = &cli.command {
        import.check().map_err(Invalid::Line)?;
    }
    let serves = matches!(cli.command, Command::Serve(_) | Command::Demo(_));
    let Some(config) = cli.command.config_mut() else { return Ok(cli) };
    if serves {
        config.chat.check().map_err(Invalid::Line)?;
    }
    let keys = &config.keys;
    keys.check().map_err(Invalid::Line)?;
    if !config.control_listen.ip().is_loopback() && keys.control_token.is_none() {
        return Err(Invalid::Line(format!(
            "--control-listen {} is not loopback: set --control-token to a token, or to none to leave it open",
            config.control_listen
        )));
    }
    config.limits.check().map_err(Invalid::Line)?;
    config.limits.derive();
    config.tls.check().map_err(Invalid::Line)?;
    if config.ledger.ledger.is_some() && !config.sessions.record {
        return Err(Invalid::Line("--ledger shares recorded sessions, and --record is off".to_owned()));
    }
    config.ledger.check().map_err(Invalid::Line)?;
    config.archive.check(config.sessions.record).map_err(Invalid::Line)?;
    config.upstream = server("--upstream", &config.upstream)?;
    for url in &mut config.engine {
        *url = server("--engine", url)?;
    }
    teachers::check_hosts(&config.teacher_host).map_err(Invalid::Line)?;
    config.teachers = teachers::parse(&config.teacher).map_err(Invalid::Line)?;
    for teacher in &mut config.teachers {
        teacher.url = server(&format!("--teacher {}", teacher.name), &teacher.url)?;
    }
    let teachers = config.teachers.iter().map(|teacher| ("--teacher", &teacher.url));
    let engines = config.engine.iter().map(|url| ("--engine", url)).chain([("--upstream", &config.upstream)]);
    let secured = engines.chain(teachers).find(|(_, url)| url.starts_with("https://"));
    if let (Some((flag, url)), None) = (secured, &config.upstream_ca) {
        return Err(Invalid::Line(format!("{flag} {url} needs the CA of its certificate: --upstream-ca FILE")));
    }
    Ok(cli)
}

fn server(flag: &str, url: &str) -> Result<String, Invalid> {
    server_url(url).map_err(|error| Invalid::Line(format!("{flag} cannot be '{}': {error}", without_credentials(url))))
}

/// The URL of a server, without credentials and path.
fn authority(flag: &str, schemes: &[&str], url: &str) -> Result<String, Invalid> {
    let url = url.trim_end_matches('/');
    match schemes.iter().find_map(|scheme| url.strip_prefix(scheme)) {
        Some(authority) if !authority.is_empty() && !authority.contains(['/', '?', '#', '@']) => Ok(url.to_owned()),
        _ => {
            let forms: Vec<String> = schemes.iter().map(|scheme| format!("{scheme}HOST:PORT")).collect();
            let url = without_credentials(url);
            Err(Invalid::Line(format!(
                "{flag} cannot be '{url}': it is {}, without credentials and path",
                forms.join(" or ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ExportArgs;
    use crate::config::Strict;

    fn loaded(args: &[&str]) -> Result<Cli, String> {
        load(std::iter::once("tokentap").chain(args.iter().copied()).map(OsString::from)).map_err(|invalid| {
            match invalid {
                Invalid::Line(line) | Invalid::Shown(line) => line,
            }
        })
    }

    #[test]
    fn limit_of_a_measured_reply_is_an_eighth_of_the_bytes_in_flight() {
        let limit = |flags: &[&str]| {
            let cli = loaded(&[&["serve"], flags].concat()).unwrap();
            cli.command.config().unwrap().limits.max_reply_bytes
        };
        assert_eq!(limit(&[]), 256 << 20);
        assert_eq!(limit(&["--max-bytes-in-flight", "8GiB"]), 1 << 30);
        assert_eq!(limit(&["--max-bytes-in-flight", "256MiB"]), 64 << 20);
        assert!(loaded(&["serve", "--max-reply-bytes", "1GiB"]).unwrap_err().contains("--max-reply-bytes"));
    }

    #[test]
    fn a_bad_value_is_named_with_its_origin() {
        let line = loaded(&["serve", "--top-logprobs", "many"]).unwrap_err();
        assert!(line.starts_with("--top-logprobs cannot be 'many' (from the command line)"), "{line}");
        let line = loaded(&["serve", "--upstream", "ftp://x"]).unwrap_err();
        assert!(
            line.starts_with("--upstream cannot be 'ftp://x': it is http://HOST:PORT or https://HOST:PORT"),
            "{line}"
        );
        let line = loaded(&["serve", "--control-listen", "0.0.0.0:1"]).unwrap_err();
        assert!(line.contains("--control-token"), "{line}");
        assert!(!line.contains('\n'));
    }

    #[test]
    fn value_that_begins_with_a_dash_is_named_with_its_flag() {
        for (args, start) in [
            (
                &["export", "--format", "jsonl", "--out", "x", "--version", "-1"][..],
                "--version cannot be '-1' (from the",
            ),
            (&["serve", "--top-logprobs", "-5"], "--top-logprobs cannot be '-5' (from the command line)"),
            (&["serve", "--pause-wait", "-1s"], "--pause-wait cannot be '-1s' (from the command line)"),
        ] {
            let line = loaded(args).unwrap_err();
            assert!(line.starts_with(start), "{line}");
        }
    }

    #[test]
    fn misspelt_commands_and_flags_have_suggestions() {
        for (args, line) in [
            (&["exprot"][..], "there is no command 'exprot'; a similar one is export"),
            (&["xyzzy"], "there is no command 'xyzzy'; tokentap --help lists them"),
            (&["top", "--hlep"], "--hlep on the command line: there is no such setting; a similar one is --help"),
            (&["--versoin"], "--versoin on the command line: there is no such setting; a similar one is --version"),
            (&["show"], "<SESSION> must be given, see tokentap show --help"),
        ] {
            assert_eq!(loaded(args).unwrap_err(), line);
        }
        let help = loaded(&["help", "show"]).unwrap_err();
        assert!(help.contains("Usage: tokentap show"), "{help}");
    }

    #[test]
    fn operation_of_an_archive_is_listed() {
        let line = loaded(&["archive", "list", "file:///x"]).unwrap_err();
        assert!(line.ends_with(": it is one of ls, verify"), "{line}");
    }

    #[test]
    fn demo_refuses_another_engine() {
        let line = loaded(&["demo", "--upstream", "http://127.0.0.1:30000"]).unwrap_err();
        assert_eq!(line, "--upstream is of no use: demo has its own engine; see serve");
        assert!(!loaded(&["demo", "--help"]).unwrap_err().contains("--upstream "));
    }

    #[test]
    fn named_tokenizer_must_be_readable() {
        let line = loaded(&["serve", "--tokenizer", "/nope"]).unwrap_err();
        assert!(line.starts_with("--tokenizer /nope: cannot be read: "), "{line}");
        assert!(
            loaded(&["check", "--tokenizer", "/nope"]).is_ok()
                && loaded(&["serve", "--tokenizer", "Cargo.toml"]).is_ok()
        );
    }

    #[test]
    fn engines_may_have_tls_and_a_path() {
        let urls = |flags: &[&str]| {
            let cli = loaded(&[&["serve"], flags].concat())?;
            let config = cli.command.config().unwrap();
            Ok::<_, String>((config.upstream.clone(), config.engine.clone()))
        };
        let flags = ["--upstream", "http://a:1/b/c/", "--engine", "https://d/e,http://f", "--upstream-ca", "ca.crt"];
        assert_eq!(
            urls(&flags).unwrap(),
            ("http://a:1/b/c".to_owned(), vec!["https://d/e".to_owned(), "http://f".to_owned()])
        );
        for (flag, url) in [("--upstream", "https://a"), ("--engine", "https://a/b")] {
            let line = urls(&[flag, url]).unwrap_err();
            assert_eq!(line, format!("{flag} {url} needs the CA of its certificate: --upstream-ca FILE"));
        }
        for url in ["http://a?b", "http://a/b?c", "http://a/#b", "http://", "https:///a", "a:1"] {
            let line = urls(&["--upstream", url]).unwrap_err();
            assert!(line.starts_with("--upstream cannot be"), "{url}: {line}");
        }
        let line = urls(&["--forward-upstream-api-key"]).unwrap_err();
        assert_eq!(line, "--forward-upstream-api-key is of no use without --upstream-api-key");
    }

    #[test]
    fn password_in_a_url_is_not_printed() {
        let url = "http://user:hush@host:1/path";
        for args in [
            &["serve", "--upstream", url][..],
            &["serve", "--upstream", "http://user:hush@host:1"],
            &["serve", "--upstream", "https://user:hush/hush@host"],
            &["serve", "--engine", url],
            &["serve", "--upstream", "user:hush@host:1"],
            &["serve", "--upstream", "http:/user:hush@host"],
            &["serve", "--upstream", "http:///user:hush@host"],
            &["serve", "--engine", "http://host:1,http://user:hush@host"],
            &["serve", "user:hush@host"],
            &["serve", "--listen", url],
            &["serve", "--archive", "s3://user:hush@bucket/x", "--record", "false"],
            &["serve", url],
            &["check", "--upstream", url],
            &["config", "--upstream", url],
            &["top", "--control", url],
            &["show", "session", "--control", url],
            &["export", "--format", "jsonl", "--out", "x", "--control", url],
        ] {
            let line = loaded(args).unwrap_err();
            assert!(!line.contains("hush") && !line.contains("user"), "{args:?}: {line}");
        }
        let cli = loaded(&["config", "--archive", "s3://user:hush@bucket/x"]).unwrap();
        let Command::Config(config) = cli.command else { panic!("another command") };
        let archive = config.effective.iter().find(|setting| setting.name == "archive").unwrap();
        assert_eq!(archive.value, crate::config::Value::Text("\"s3://***@bucket/x\"".to_owned()));
    }

    #[test]
    fn line_about_a_url_keeps_its_other_words() {
        let line = loaded(&["serve", "http://user:hush@host"]).unwrap_err();
        assert_eq!(line, "unexpected argument 'http://***@host' found");
    }

    #[test]
    fn values_of_a_list_and_paths_are_shown() {
        let args = ["config", "--engine", "http://a:1,http://b:2", "--data-dir", "/runs/a@b"];
        let Command::Config(config) = loaded(&args).unwrap().command else { panic!("another command") };
        let value = |name| &config.effective.iter().find(|setting| setting.name == name).unwrap().value;
        assert_eq!(*value("engine"), crate::config::Value::Text("\"http://a:1,http://b:2\"".to_owned()));
        assert_eq!(*value("data-dir"), crate::config::Value::Text("\"/runs/a@b\"".to_owned()));
    }

    #[test]
    fn flags_override_the_file() {
        let dir = std::env::temp_dir().join(format!("tokentap-config-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("settings.toml");
        std::fs::write(&path, "top-logprobs = 7\nstrict = \"entropy\"\n").unwrap();
        let file = path.to_str().unwrap();
        let cli = loaded(&["serve", "--config", file]).unwrap();
        let entropy = &cli.command.config().unwrap().entropy;
        assert_eq!((entropy.top_logprobs, entropy.strict), (7, Strict { entropy: true, ..Strict::default() }));
        let cli = loaded(&["serve", "--config", file, "--top-logprobs", "9"]).unwrap();
        assert_eq!(cli.command.config().unwrap().entropy.top_logprobs, 9);
        std::fs::write(&path, "top-logprobs = \"x\"\n").unwrap();
        let line = loaded(&["serve", "--config", file]).unwrap_err();
        assert!(line.contains("--top-logprobs") && line.contains("settings.toml"), "{line}");
        std::fs::write(&path, "top_logprob = 1\n").unwrap();
        let line = loaded(&["serve", "--config", file]).unwrap_err();
        assert_eq!(line, format!("top-logprob in {file}: there is no such setting; a similar one is top-logprobs"));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn unknown_flag_is_named_with_a_similar_one() {
        let line = loaded(&["serve", "--control-token-file=x"]).unwrap_err();
        assert_eq!(
            line,
            "--control-token-file on the command line: there is no such setting; a similar one is --control-token"
        );
        let line = loaded(&["export", "--forma", "jsonl"]).unwrap_err();
        assert!(line.ends_with("; a similar one is --format"), "{line}");
        let line = loaded(&["serve", "--qqq"]).unwrap_err();
        assert_eq!(line, "--qqq on the command line: there is no such setting");
    }

    #[test]
    fn client_certificate_of_the_ledger_needs_its_key() {
        let (cert, key) = (["--ledger-cert", "c.pem"], ["--ledger-key", "k.pem"]);
        for command in [&["serve"][..], &["import", "--data-dir", "d", "--ledger", "rediss://h"]] {
            let with = |flags: &[&str]| loaded(&[command, flags].concat());
            assert_eq!(
                with(&cert).unwrap_err(),
                "--ledger-cert is of no use without --ledger-key: give both, or neither"
            );
            assert_eq!(
                with(&key).unwrap_err(),
                "--ledger-key is of no use without --ledger-cert: give both, or neither"
            );
            assert!(with(&[cert, key].concat()).is_ok());
        }
        assert_eq!(loaded(&["import", "--data-dir", "d"]).unwrap_err(), "--ledger <URL> must be given");
    }

    #[test]
    fn keys_are_read_from_files() {
        let path = std::env::temp_dir().join(format!("tokentap-key-{}", std::process::id()));
        std::fs::write(&path, "hush\n").unwrap();
        let key = format!("@{}", path.display());
        let cli = loaded(&["serve", "--agent-token", &key]).unwrap();
        assert_eq!(cli.command.config().unwrap().keys.agent_token.as_ref().unwrap().expose(), "hush");
        std::fs::write(&path, "\n").unwrap();
        assert!(loaded(&["serve", "--agent-token", &key]).unwrap_err().contains("--agent-token"));
        std::fs::remove_file(&path).unwrap();
        let line = loaded(&["serve", "--agent-token", &key]).unwrap_err();
        assert!(line.contains("--agent-token") && line.contains("cannot read"), "{line}");
        assert!(loaded(&["serve", "--agent-token", ""]).is_err(), "an empty key");
    }

    #[test]
    fn control_token_none_is_no_token() {
        let keys = |token: &str| {
            let cli = loaded(&["serve", "--control-listen", "0.0.0.0:1", "--control-token", token])?;
            Ok::<_, String>(cli.command.config().unwrap().keys.clone())
        };
        let open = keys("none").unwrap();
        assert!(open.control_token().is_none() && open.all().next().is_none(), "the port is open");
        assert_eq!(keys("none1").unwrap().control_token().unwrap().expose(), "none1");
        let path = std::env::temp_dir().join(format!("tokentap-none-{}", std::process::id()));
        std::fs::write(&path, "none\n").unwrap();
        for unclear in ["None", "NONE", " none", &format!("@{}", path.display())] {
            let line = keys(unclear).unwrap_err();
            assert!(line.starts_with("--control-token cannot be") && line.contains("none cannot be a token"), "{line}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(keys("").is_err(), "an empty token does not open the port");
        let exported = exported(&["--format", "jsonl", "--out", "x", "--control-token", "none"]).unwrap();
        assert!(exported.port.control_token.unwrap().secret().is_none(), "no token is sent");
    }

    fn exported(args: &[&str]) -> Result<ExportArgs, String> {
        let args: Vec<&str> = ["export"].iter().chain(args).copied().collect();
        match loaded(&args)?.command {
            Command::Export(export) => Ok(*export),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn export_flags_are_parsed() {
        let args = exported(&["--format", "verl", "--out", "-"]).unwrap();
        assert_eq!((&*args.port.control, &args.data_dir), ("http://127.0.0.1:30002", &None));
        assert!(args.session.is_empty() && !args.no_branches && args.pad_token_id.is_none());
        let flags =
            ["--session", "a,b", "--session", "c", "--version", "2", "--no-branches", "--max-prompt-length", "7"];
        let args = exported(&[&["--format", "arrow", "--out", "x.arrow"][..], &flags].concat()).unwrap();
        assert_eq!((args.session, args.version), (["a", "b", "c"].map(str::to_owned).to_vec(), Some(2)));
        assert!(args.no_branches && args.max_prompt_length == Some(7) && args.max_response_length.is_none());
        assert_eq!(
            exported(&["--format", "verl"]).unwrap_err(),
            "--out <PATH> must be given, see tokentap export --help"
        );
        let line = exported(&["--format", "verl", "--out", "x", "--pad-token-id", "-1"]).unwrap_err();
        assert!(line.contains("--pad-token-id") || line.contains("-1"), "{line}");
    }

    #[test]
    fn an_export_has_one_source() {
        let fixed = ["--format", "jsonl", "--out", "x"];
        let with = |flags: &[&str]| exported(&[&fixed, flags].concat());
        let args = with(&["--control", "http://trainer:9/", "--control-token", "t"]).unwrap();
        assert_eq!(
            (&*args.port.control, args.port.control_token.unwrap().secret().unwrap().expose()),
            ("http://trainer:9", "t")
        );
        assert_eq!(with(&["--data-dir", "/d"]).unwrap().data_dir.unwrap(), Path::new("/d"));
        let line = with(&["--data-dir", "/d", "--control", "http://trainer:9"]).unwrap_err();
        assert!(line.starts_with("--control and --data-dir exclude"), "{line}");
        let line = with(&["--control", "ftp://trainer:9"]).unwrap_err();
        assert!(line.starts_with("--control cannot be 'ftp://trainer:9'"), "{line}");
        let line = with(&["--control", "https://trainer:9"]).unwrap_err();
        assert!(line.starts_with("--control https://trainer:9 needs the CA"), "{line}");
        let line = with(&["--control", "http://trainer:9", "--control-ca", "ca.crt"]).unwrap_err();
        assert!(line.starts_with("--control-ca needs --control https://"), "{line}");
        assert!(with(&["--data-dir", "/d", "--control-ca", "ca.crt"]).is_ok(), "the environment may name it");
        let secured = with(&["--control", "https://trainer:9", "--control-ca", "ca.crt"]);
        assert!(secured.is_ok());
        // as where the environment of a tokentap names its folder
        let beneath = |flags: &[&str]| {
            let command = Cli::command()
                .mut_subcommand("export", |export| export.mut_arg("data_dir", |arg| arg.default_value("/env")));
            let args = ["tokentap", "export"].iter().chain(&fixed).chain(flags);
            let matches = command.try_get_matches_from(args).unwrap();
            let Command::Export(mut export) = Cli::from_arg_matches(&matches).unwrap().command else { panic!() };
            export.choose(matches.subcommand().unwrap().1).unwrap();
            export.data_dir
        };
        assert_eq!(beneath(&[]).unwrap(), Path::new("/env"));
        assert_eq!(beneath(&["--control", "http://trainer:9"]), None);
    }
}
