//! README and the binary agree.

use clap::CommandFactory;
use prost::Message;
use tokentap::config::Cli;
use tokentap::export::Format;
use tokentap::generation::reason::Reason;
use tokentap::metrics::Metrics;
use tokentap::session::{Cause, Fault};

fn readme() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap()
}

#[test]
fn every_flag_has_its_row() {
    let readme = readme();
    let command = Cli::command();
    for subcommand in command.get_subcommands() {
        for arg in subcommand.get_arguments().filter(|arg| !arg.is_global_set()) {
            let Some(long) = arg.get_long().filter(|long| !["help", "version"].contains(long)) else { continue };
            let default = arg.get_default_values().first().map_or("", |value| value.to_str().unwrap());
            let row = format!("| `--{long}` | {default} |");
            assert!(readme.contains(&row), "README.md lacks the row {row}");
            let variable = format!("TOKENTAP_{}", long.to_uppercase().replace('-', "_"));
            assert_eq!(arg.get_env().and_then(|env| env.to_str()), Some(variable.as_str()), "--{long}");
        }
    }
}

#[test]
fn every_metric_has_its_row() {
    let readme = readme();
    for name in Metrics::described() {
        assert!(readme.contains(&format!("| `{name}` |")), "README.md lacks a row for {name}");
    }
    let rows = readme.lines().filter(|line| line.starts_with("| `tokentap_")).count();
    assert_eq!(rows, Metrics::described().len(), "README.md has a row for a metric that does not exist");
}

#[test]
fn every_reason_is_explained() {
    let readme = readme();
    for reason in Reason::ALL {
        assert!(readme.contains(&format!("`{}`", reason.name())), "README.md does not explain {}", reason.name());
    }
}

#[test]
fn every_cause_and_every_fault_is_explained() {
    let readme = readme();
    let names = Cause::ALL.map(Cause::name).into_iter().chain(Fault::ALL.map(Fault::name));
    for name in names.chain(Format::ALL.into_iter().map(Format::name)) {
        assert!(readme.contains(&format!("`{name}`")), "README.md does not explain {name}");
    }
}

#[test]
fn every_call_has_its_row() {
    let readme = readme();
    let described = prost_types::FileDescriptorSet::decode(tokentap::serve::grpc::pb::DESCRIPTORS).unwrap();
    let services = described.file.iter().flat_map(|file| &file.service);
    let calls: Vec<String> = services
        .flat_map(|service| service.method.iter().map(|method| format!("{}.{}", service.name(), method.name())))
        .collect();
    assert!(calls.len() >= 6, "{calls:?}");
    for call in calls {
        assert!(readme.contains(&format!("| `{call}` |")), "README.md lacks a row for {call}");
    }
}
