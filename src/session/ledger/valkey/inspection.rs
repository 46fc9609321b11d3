// SPDX-License-Identifier: Apache-2.0
//! Examines the servers of a ledger: whether they can hold it, and which of their settings lose data.

use std::net::IpAddr;
use std::sync::Arc;

use redis::{RedisError, Value};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::connection::{self, Connection, Credentials, ledger_error};
use super::options::{Address, Deployment, ValkeyOptions};
use super::permissions::Permissions;
use super::server::Server;
use super::{META, cluster, key, meta, sentinel, text};
use crate::session::ledger::{LedgerError, PARTITIONS};

/// The result of examining a primary.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// Its address.
    pub address: String,
    /// Its facts, or why it cannot be asked or cannot hold a ledger.
    pub facts: Result<ServerFacts, LedgerError>,
}

/// The facts of a primary that can hold a ledger. `None` is unknown.
#[derive(Debug, Clone)]
pub struct ServerFacts {
    /// The name and version of the server.
    pub version: String,
    /// Whether changes are written to a file (`appendonly`).
    pub append_only: Option<bool>,
    /// When that file is synced.
    pub append_fsync: Option<String>,
    /// Its memory limit in bytes; 0 means unlimited.
    pub max_memory: Option<u64>,
    /// Replicas that follow it.
    pub replicas: u32,
    /// Replicas without which it refuses writes.
    pub min_replicas_to_write: Option<u32>,
    /// The description of the ledger, on the primary that has it.
    pub description: Description,
    /// The permissions of the user.
    pub permissions: Permissions,
    /// Clients that give no password may use it, and its address is not one of this machine alone.
    pub is_open: bool,
}

/// The description of the ledger, the key `tt:meta`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Description {
    /// Another primary of the cluster has the key.
    Elsewhere,
    /// No tokentap has used the ledger yet.
    Absent,
    /// The id of the fleet.
    Fleet(Arc<str>),
    /// It cannot be read, or this version cannot use the ledger.
    Unusable(LedgerError),
}

/// A primary, and the slots that are on it; all without ranges.
struct Primary {
    address: Address,
    ranges: Option<Vec<(u16, u16)>>,
}

impl Primary {
    fn has(&self, tag: &str) -> bool {
        let slot = cluster::slot(tag.as_bytes());
        self.ranges.as_ref().is_none_or(|ranges| ranges.iter().any(|(first, last)| (*first..=*last).contains(&slot)))
    }
}

/// Examines each primary. Writes a key to each that has a partition, and removes it.
///
/// # Errors
/// When the primaries cannot be found.
pub async fn inspect(options: &ValkeyOptions) -> Result<Vec<Inspection>, LedgerError> {
    let primaries = match &options.url.deployment {
        Deployment::Single => vec![Primary { address: options.url.addresses[0].clone(), ranges: None }],
        Deployment::Sentinel { primary } => {
            vec![Primary { address: sentinel::primary(primary, options).await?, ranges: None }]
        }
        Deployment::Cluster => {
            let mut primaries: Vec<Primary> = Vec::new();
            for (last, (first, address)) in cluster::ask_url(options).await? {
                match primaries.iter_mut().find(|known| known.address == address) {
                    Some(known) => known.ranges.get_or_insert_default().push((first, last)),
                    None => primaries.push(Primary { address, ranges: Some(vec![(first, last)]) }),
                }
            }
            primaries
        }
    };
    let mut inspections = Vec::with_capacity(primaries.len());
    for primary in primaries {
        // there are several round trips, as when a connection is made
        let facts = timeout(options.timeout * 2, examine(&primary, options)).await;
        let facts = facts.unwrap_or(Err(LedgerError::Timeout(options.timeout * 2)));
        inspections.push(Inspection { address: primary.address.to_string(), facts });
    }
    Ok(inspections)
}

async fn examine(primary: &Primary, options: &ValkeyOptions) -> Result<ServerFacts, LedgerError> {
    let address = &primary.address;
    let mut drivers = JoinSet::new();
    let mut connection = Connection::open(address, options, Credentials::OfServer, &mut drivers, || {}).await?;
    let failed = |error: RedisError| connection::at(address, &error);
    let server = Server::inspect(&mut connection).await.map_err(failed)?;
    server.check(options.url.deployment == Deployment::Cluster)?;
    let partition = (0..PARTITIONS).find(|partition| primary.has(&partition.to_string()));
    let permissions = match partition {
        Some(partition) => Permissions::test(&mut connection, &key(partition, "c")).await.map_err(failed)?,
        None => Permissions::default(),
    };
    let description = if primary.has(META) { describe(&mut connection).await } else { Description::Elsewhere };
    let number = |text: &str| text.parse::<u64>().ok();
    let min_replicas = setting(&mut connection, "min-replicas-to-write").await;
    Ok(ServerFacts {
        version: server.name(),
        append_only: number(server.fact("aof_enabled")).map(|enabled| enabled != 0),
        append_fsync: setting(&mut connection, "appendfsync").await,
        max_memory: number(server.fact("maxmemory")),
        replicas: server.replicas(),
        min_replicas_to_write: min_replicas.and_then(|count| count.parse().ok()),
        description,
        permissions,
        is_open: !is_local(&address.host) && is_open(address, options).await,
    })
}

/// A setting; `None` if the user may not ask for it.
async fn setting(connection: &mut Connection, name: &str) -> Option<String> {
    let mut command = redis::cmd("CONFIG");
    match connection.send(command.arg("GET").arg(name)).await {
        Ok(Value::Array(pair)) => pair.get(1).and_then(text).map(|value| value.to_string()),
        _ => None,
    }
}

/// The description of the ledger. Does not begin one.
async fn describe(connection: &mut Connection) -> Description {
    let mut command = redis::cmd("HMGET");
    match connection.send(command.arg(META).arg(&["fleet", "schema", "partitions"])).await {
        Ok(Value::Array(fields)) if fields.iter().all(|field| *field == Value::Nil) => Description::Absent,
        Ok(fields) => meta(&fields).map_or_else(Description::Unusable, Description::Fleet),
        Err(error) => Description::Unusable(ledger_error(&error)),
    }
}

/// Whether only this machine can reach a host.
fn is_local(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether a client without a password may use the server.
pub(super) async fn is_open(address: &Address, options: &ValkeyOptions) -> bool {
    let mut drivers = JoinSet::new();
    match Connection::open(address, options, Credentials::None, &mut drivers, || {}).await {
        Ok(mut connection) => connection.send(&redis::cmd("PING")).await.is_ok(),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_local() {
        for host in ["localhost", "127.0.0.1", "127.0.0.2", "::1"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["valkey", "10.0.0.1", "0.0.0.0", "::2"] {
            assert!(!is_local(host), "{host}");
        }
    }
}
