// SPDX-License-Identifier: Apache-2.0
//! Reports on the shared ledger: whether it can be used, and which settings of its servers lose data.

use super::{Report, Verdict};
use crate::app::sessions::ledger_options;
use crate::config::Config;
use crate::session::ledger::valkey::{Description, Inspection, ServerFacts, inspect};

/// Connects to the servers of `--ledger`, and examines each primary.
///
/// # Errors
/// A line for the user when the settings are invalid.
pub(super) async fn check(config: &Config, report: &mut Report) -> Result<(), String> {
    let Some(options) = ledger_options(&config.ledger, config.sessions.session_ttl)? else {
        return Ok(());
    };
    match inspect(&options).await {
        Ok(found) => {
            for Inspection { address, facts } in found {
                match facts {
                    Ok(facts) => describe(&address, &facts, options.replicas, report),
                    Err(error) => report.line(Verdict::Fail, "ledger", format!("{address}: {error}")),
                }
            }
        }
        Err(error) => report.line(Verdict::Fail, "ledger", error.to_string()),
    }
    if options.replicas == 0 {
        let text = "--ledger-replicas is 0: a failover can lose turns whose replies have ended";
        report.line(Verdict::Warn, "ledger", text);
    }
    Ok(())
}

/// Reports the facts of a primary. `wanted` is `--ledger-replicas`.
fn describe(address: &str, facts: &ServerFacts, wanted: u32, report: &mut Report) {
    use Verdict::{Fail, Ok, Warn};
    let mut line = |verdict, text: &str| report.line(verdict, "ledger", format!("{address}: {text}"));
    let version = &facts.version;
    match &facts.description {
        Description::Fleet(fleet) => line(Ok, &format!("{version}, the primary, with the fleet {fleet}")),
        Description::Absent => line(Ok, &format!("{version}, the primary; no tokentap has used it yet")),
        Description::Elsewhere => line(Ok, &format!("{version}, a primary")),
        Description::Unusable(error) => line(Fail, &error.to_string()),
    }
    let permissions = &facts.permissions;
    if permissions.are_keys_denied {
        line(Fail, "the user may not use the keys tt:*");
    }
    if !permissions.denied_commands.is_empty() {
        line(Fail, &format!("the user may not run {}", permissions.denied_commands.join(", ")));
    }
    if let Some(error) = &permissions.write_error {
        line(Fail, &format!("it refuses writes: {error}"));
    }
    if facts.is_open {
        line(Warn, "clients that reach it need no password: set one, or switch the user default off");
    }
    match (facts.append_only, facts.append_fsync.as_deref()) {
        (Some(false), _) => line(
            Warn,
            "appendonly is no: if it restarts, sessions are lost that no tokentap has in memory, also on its replicas",
        ),
        (Some(true), Some("no")) => line(
            Warn,
            "appendfsync is no: if its machine fails, it loses the turns that the system had not written, up to half a minute",
        ),
        (Some(true), Some(sync)) => line(Ok, &format!("appendonly is yes, appendfsync is {sync}")),
        (Some(true), None) => line(Warn, "appendonly is yes; appendfsync is unknown: the user may not run CONFIG GET"),
        (None, _) => line(Warn, "appendonly is unknown: INFO does not have it"),
    }
    match facts.max_memory {
        Some(0) => line(Ok, "maxmemory is 0: the system ends Valkey when the memory of the machine is full"),
        Some(bytes) => line(Ok, &format!("maxmemory is {bytes} bytes, with maxmemory-policy noeviction")),
        None => line(Warn, "maxmemory is unknown: INFO does not have it"),
    }
    let replicas = facts.replicas;
    if replicas < wanted {
        let text = format!(
            "{replicas} replicas are connected, and --ledger-replicas is {wanted}: no turn is confirmed, and every ten seconds replies wait for up to --ledger-timeout"
        );
        line(Fail, &text);
    } else {
        line(Ok, &format!("{replicas} replicas are connected, and --ledger-replicas is {wanted}"));
    }
    match facts.min_replicas_to_write {
        _ if replicas.max(wanted) == 0 => {}
        Some(0) => {
            line(
                Warn,
                "min-replicas-to-write is 0: a primary without its replicas takes turns that a failover discards",
            );
        }
        Some(count) => line(Ok, &format!("min-replicas-to-write is {count}")),
        None => line(Warn, "min-replicas-to-write is unknown: the user may not run CONFIG GET"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::terminal::Palette;
    use crate::session::ledger::LedgerError;
    use crate::session::ledger::valkey::Permissions;

    fn facts() -> ServerFacts {
        ServerFacts {
            version: "Valkey 9.1.0".into(),
            append_only: Some(true),
            append_fsync: Some("everysec".into()),
            max_memory: Some(4096),
            replicas: 2,
            min_replicas_to_write: Some(1),
            description: Description::Absent,
            permissions: Permissions::default(),
            is_open: false,
        }
    }

    fn report(facts: &ServerFacts, wanted: u32) -> Report {
        let mut report = Report::default();
        describe("h:1", facts, wanted, &mut report);
        report
    }

    #[test]
    fn server_without_risks_has_no_warning() {
        let found = report(&facts(), 1);
        assert!(
            !found.has_failed()
                && found.text(Palette::Plain, None).lines().all(|line| line.starts_with("ok    ledger       h:1: ")),
            "{}",
            found.text(Palette::Plain, None)
        );
        assert_eq!(found.text(Palette::Plain, None).lines().count(), 5);
    }

    #[test]
    fn each_risk_is_one_line() {
        let permissions = |denied: &[&'static str], are_keys_denied, write_error: Option<&str>| Permissions {
            denied_commands: denied.to_vec(),
            are_keys_denied,
            write_error: write_error.map(str::to_owned),
        };
        let unusable = || LedgerError::OtherSchema("9".into());
        let cases: [(ServerFacts, u32, &str); 12] = [
            (ServerFacts { append_only: Some(false), ..facts() }, 1, "warn  ledger       h:1: appendonly is no"),
            (ServerFacts { append_only: None, ..facts() }, 1, "warn  ledger       h:1: appendonly is unknown"),
            (
                ServerFacts { append_fsync: Some("no".into()), ..facts() },
                1,
                "warn  ledger       h:1: appendfsync is no",
            ),
            (ServerFacts { append_fsync: None, ..facts() }, 1, "appendfsync is unknown"),
            (ServerFacts { max_memory: Some(0), ..facts() }, 1, "ok    ledger       h:1: maxmemory is 0"),
            (
                ServerFacts { min_replicas_to_write: Some(0), ..facts() },
                1,
                "warn  ledger       h:1: min-replicas-to-write is 0",
            ),
            (ServerFacts { min_replicas_to_write: None, ..facts() }, 1, "min-replicas-to-write is unknown"),
            (facts(), 3, "FAIL  ledger       h:1: 2 replicas are connected, and --ledger-replicas is 3"),
            (
                ServerFacts { is_open: true, ..facts() },
                1,
                "warn  ledger       h:1: clients that reach it need no password",
            ),
            (
                ServerFacts { permissions: permissions(&["XADD", "WAIT"], false, None), ..facts() },
                1,
                "FAIL  ledger       h:1: the user may not run XADD, WAIT",
            ),
            (
                ServerFacts { permissions: permissions(&[], true, Some("OOM full")), ..facts() },
                1,
                "h:1: it refuses writes: OOM full",
            ),
            (
                ServerFacts { description: Description::Unusable(unusable()), ..facts() },
                1,
                "FAIL  ledger       h:1: the key tt:meta has the schema 9, and this build reads and writes the schema 8",
            ),
        ];
        for (facts, wanted, line) in cases {
            let found = report(&facts, wanted);
            assert!(
                found.text(Palette::Plain, None).contains(line),
                "{line:?} in {}",
                found.text(Palette::Plain, None)
            );
            assert_eq!(found.has_failed(), found.text(Palette::Plain, None).contains("FAIL"));
        }
    }

    #[test]
    fn min_replicas_of_a_single_server_are_not_reported() {
        let found = report(&ServerFacts { replicas: 0, min_replicas_to_write: Some(0), ..facts() }, 0);
        assert!(!found.text(Palette::Plain, None).contains("min-replicas"), "{}", found.text(Palette::Plain, None));
    }
}
