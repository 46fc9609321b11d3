// SPDX-License-Identifier: Apache-2.0
//! What servers of several settings say about themselves.

use super::process::{Binary, Process, free_port, ledger, options};
use super::secured::ACL;
use crate::session::ledger::valkey::inspection::is_open;
use crate::session::ledger::valkey::options::Address;
use crate::session::ledger::valkey::permissions::COMMANDS;
use crate::session::ledger::valkey::{Description, Inspection, ServerFacts, inspect};
use crate::session::ledger::{Ledger, LedgerError};

async fn inspected(url: &str) -> Result<ServerFacts, LedgerError> {
    let found = inspect(&options(url)).await?;
    let [Inspection { facts, .. }] = &found[..] else { panic!("one primary: {found:?}") };
    facts.clone()
}

async fn error(url: &str) -> String {
    inspected(url).await.expect_err("it cannot hold a ledger").to_string()
}

fn url_of(user: &str, server: &Process) -> String {
    format!("redis://{user}:secret@127.0.0.1:{}", server.port)
}

#[tokio::test]
async fn settings_of_a_server_are_read() {
    let Some(binary) = Binary::any() else { return };
    let plain = binary.start(&[]);
    let found = inspected(&plain.url()).await.unwrap();
    assert_eq!((found.append_only, found.max_memory, found.replicas), (Some(false), Some(0), 0));
    assert_eq!((found.append_fsync.as_deref(), found.min_replicas_to_write), (Some("everysec"), Some(0)));
    assert!(found.version.starts_with("Valkey ") || found.version.starts_with("Redis "), "{}", found.version);
    assert_eq!((&found.permissions, found.is_open), (&Default::default(), false));

    let set = binary.start(&["--appendonly", "yes", "--appendfsync", "no", "--maxmemory", "100mb"]);
    let found = inspected(&set.url()).await.unwrap();
    assert_eq!((found.append_only, found.max_memory), (Some(true), Some(100 << 20)));
    assert_eq!(found.append_fsync.as_deref(), Some("no"));
}

#[tokio::test]
async fn server_that_cannot_hold_a_ledger_is_an_error() {
    let Some(binary) = Binary::any() else { return };
    let evicting = binary.start(&["--maxmemory-policy", "allkeys-lru"]);
    assert!(error(&evicting.url()).await.contains("set it to noeviction"));
    let primary = binary.start(&[]);
    let replica = primary.replica(&binary).await;
    assert!(error(&replica.url()).await.contains("is not a primary"));
    assert!(error(&url_of("nobody", &primary)).await.contains("authentication failed"));
    assert!(error(&format!("redis://127.0.0.1:{}", free_port())).await.contains("cannot be reached"));
}

#[tokio::test]
async fn replicas_and_refused_writes_are_read() {
    let Some(binary) = Binary::any() else { return };
    let primary = binary.start(&["--min-replicas-to-write", "2"]);
    let mut raw = primary.raw().await;
    raw.send("CONFIG SET min-replicas-to-write 0").await;
    let _replica = primary.replica(&binary).await;
    raw.send("CONFIG SET min-replicas-to-write 2").await;
    let found = inspected(&primary.url()).await.unwrap();
    assert_eq!((found.replicas, found.min_replicas_to_write), (1, Some(2)));
    let write_error = found.permissions.write_error.unwrap();
    assert!(write_error.starts_with("NOREPLICAS"), "{write_error}");
}

#[tokio::test]
async fn denied_commands_and_keys_are_named() {
    let Some(binary) = Binary::any() else { return };
    let server = binary.start(&[]);
    let mut raw = server.raw().await;
    raw.send(&format!("ACL SETUSER documented on >secret {ACL}")).await;
    let found = inspected(&url_of("documented", &server)).await.unwrap();
    assert_eq!(found.permissions, Default::default(), "the documented permissions suffice");
    assert_eq!((found.append_fsync, found.min_replicas_to_write), (None, None), "CONFIG GET is not allowed");

    let all = COMMANDS.iter().map(|(name, _)| *name).chain(["SET", "EVAL", "EVALSHA"]);
    for name in all {
        raw.send("ACL DELUSER limited").await;
        raw.send(&format!("ACL SETUSER limited on >secret {ACL} -{}", name.to_lowercase())).await;
        let found = inspected(&url_of("limited", &server)).await.unwrap();
        assert_eq!(found.permissions.denied_commands, [name]);
        assert_eq!((found.permissions.are_keys_denied, found.permissions.write_error), (false, None), "{name}");
    }
    raw.send(&format!("ACL SETUSER elsewhere on >secret {ACL} resetkeys ~other:*")).await;
    let found = inspected(&url_of("elsewhere", &server)).await.unwrap();
    assert!(found.permissions.are_keys_denied && found.permissions.denied_commands.is_empty(), "{found:?}");
    raw.send(&format!("ACL SETUSER blind on >secret {ACL} -info")).await;
    assert!(error(&url_of("blind", &server)).await.contains("info"));
}

#[tokio::test]
async fn server_without_a_password_is_open() {
    let Some(binary) = Binary::any() else { return };
    let open = binary.start(&[]);
    let protected = binary.start(&["--requirepass", "secret"]);
    for (server, expected) in [(&open, true), (&protected, false)] {
        let address = Address { host: "127.0.0.1".into(), port: server.port };
        let options = options(&format!("redis://:secret@127.0.0.1:{}", server.port));
        assert_eq!(is_open(&address, &options).await, expected);
    }
}

#[tokio::test]
async fn description_is_read_and_no_key_is_left() {
    let Some(binary) = Binary::any() else { return };
    let server = binary.start(&[]);
    let mut raw = server.raw().await;
    assert_eq!(inspected(&server.url()).await.unwrap().description, Description::Absent);
    assert_eq!(raw.send("DBSIZE").await, redis::Value::Int(0));
    let (valkey, _) = ledger(options(&server.url()));
    let fleet = valkey.fleet().await.unwrap();
    assert_eq!(inspected(&server.url()).await.unwrap().description, Description::Fleet(fleet));
    raw.send("HSET tt:meta schema 9").await;
    let Description::Unusable(error) = inspected(&server.url()).await.unwrap().description else { panic!("schema 9") };
    assert_eq!(error, LedgerError::OtherSchema("9".into()));
}
