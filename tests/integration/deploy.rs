// SPDX-License-Identifier: Apache-2.0
//! Checks the metrics, flags, variables and values that the deployment files name.
//!
//! `deploy/check.sh` checks that the files are well-formed.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use tokentap::config::{Cli, load};
use tokentap::metrics::Metrics;

/// Flags of SGLang, Valkey, curl, kubectl and docker in these files.
const OTHERS: [&str; 23] = [
    "--appendonly",
    "--cert",
    "--dist-init-addr",
    "--enable-metrics",
    "--from-literal",
    "--host",
    "--incremental-streaming-output",
    "--key",
    "--maxmemory-policy",
    "--model-path",
    "--nnodes",
    "--no-auth-warning",
    "--node-rank",
    "--port",
    "--profile",
    "--protected-mode",
    "--replicaof",
    "--retry",
    "--retry-connrefused",
    "--retry-delay",
    "--sentinel",
    "--tp",
    "--user",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn collect_files(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_files(&path, files);
        } else {
            files.push(path);
        }
    }
}

/// The deployment files as pairs of name and text, without the checkers and images, which have flags of other programs.
fn deployment_files() -> Vec<(String, String)> {
    let mut files = vec![root().join("docker-compose.yml")];
    for dir in ["kubernetes", "prometheus", "grafana"] {
        collect_files(&root().join("deploy").join(dir), &mut files);
    }
    let read = |path: PathBuf| (path.display().to_string(), std::fs::read_to_string(&path).unwrap());
    let files: Vec<_> = files.into_iter().map(read).collect();
    assert!(files.len() > 20, "{} files are too few", files.len());
    files
}

/// The words that begin with `start` and continue with characters that `continues` accepts, except inside a longer word.
fn words<'a>(text: &'a str, start: &'a str, continues: fn(char) -> bool) -> impl Iterator<Item = &'a str> {
    text.match_indices(start).filter_map(move |(at, _)| {
        let inside = |before: char| before.is_ascii_alphanumeric() || "_:-.".contains(before);
        let rest = &text[at..];
        let end = rest[start.len()..].find(|c| !continues(c)).map_or(rest.len(), |length| start.len() + length);
        let word = rest[..end].trim_end_matches('-');
        (!text[..at].ends_with(inside) && word.len() > start.len()).then_some(word)
    })
}

/// A metric's name without the suffix of a histogram's series.
fn base_name(name: &str) -> &str {
    let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
    base.filter(|base| !base.ends_with("_total")).unwrap_or(name)
}

#[test]
fn every_queried_metric_exists() {
    let described: Vec<String> = Metrics::described().into_iter().map(|metric| metric.name).collect();
    let metrics = Metrics::new("none");
    let process = String::from_utf8(metrics.render().unwrap()).unwrap();
    let name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let page = "docs/reference/metrics.md".to_owned();
    let text = std::fs::read_to_string(root().join(&page)).unwrap();
    let readme = (page, text);
    let mut seen = BTreeSet::new();
    for (file, text) in deployment_files().iter().chain([&readme]) {
        for metric in words(text, "tokentap_", name) {
            let known = described.iter().any(|known| known == metric || known == base_name(metric));
            assert!(known, "{file} queries {metric}, which does not exist");
            seen.insert(base_name(metric).to_owned());
        }
        for metric in words(text, "process_", name) {
            assert!(process.contains(&format!("\n{metric} ")), "{file} queries {metric}, which does not exist");
        }
    }
    assert_eq!(seen.len(), described.len(), "the reference names them all");
}

#[test]
fn every_named_flag_and_variable_exists() {
    let command = Cli::command();
    let arguments = || command.get_subcommands().flat_map(clap::Command::get_arguments);
    let flags: BTreeSet<String> = arguments().filter_map(|arg| Some(format!("--{}", arg.get_long()?))).collect();
    let variables: BTreeSet<&str> = arguments().filter_map(|arg| arg.get_env()?.to_str()).collect();
    let mut used = 0;
    for (file, text) in deployment_files() {
        for flag in words(&text, "--", |c| c.is_ascii_lowercase() || c == '-') {
            assert!(flags.contains(flag) || OTHERS.contains(&flag), "{file} names {flag}, which does not exist");
        }
        for variable in words(&text, "TOKENTAP_", |c| c.is_ascii_uppercase() || c == '_') {
            assert!(variables.contains(variable), "{file} sets {variable}, which tokentap does not read");
            used += 1;
        }
    }
    assert!(used > 15, "{used} variables are too few");
}

/// Variables and their values, as Kubernetes (`- name: X`, then `value: Y`) and Compose (`X: Y`) spell them.
fn settings(text: &str) -> Vec<(String, String)> {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.starts_with('#')).collect();
    let plain = |value: &str| value.trim().trim_matches('"').to_owned();
    let of_pod = lines.windows(2).filter_map(|pair| {
        let name = pair[0].strip_prefix("- name: ").filter(|name| name.starts_with("TOKENTAP_"))?;
        Some((name.to_owned(), plain(pair[1].strip_prefix("value: ")?)))
    });
    let of_compose = lines.iter().filter_map(|line| {
        let (name, value) = line.split_once(": ").filter(|(name, _)| name.starts_with("TOKENTAP_"))?;
        Some((name.to_owned(), plain(value)))
    });
    of_pod.chain(of_compose).collect()
}

#[test]
fn every_value_that_is_set_is_valid() {
    let mut checked = 0;
    for (file, text) in deployment_files() {
        for (variable, value) in settings(&text) {
            let flag = variable.trim_start_matches("TOKENTAP_").to_lowercase().replace('_', "-");
            let mut args = vec!["tokentap".to_owned(), "serve".to_owned(), format!("--{flag}={value}")];
            if flag != "control-token" {
                // a non-loopback address is valid if the token is set elsewhere
                args.push("--control-token=none".to_owned());
            }
            // the other half of a pair
            for (half, other) in [("-cert", "-key"), ("-key", "-cert")] {
                args.extend(flag.strip_suffix(half).map(|pair| format!("--{pair}{other}=file")));
            }
            let loaded = load(args.into_iter().map(OsString::from));
            assert!(loaded.is_ok(), "{file}: {variable}={value}: {loaded:?}");
            checked += 1;
        }
    }
    assert!(checked > 12, "{checked} values are too few");
}
