// SPDX-License-Identifier: Apache-2.0
//! The facts that a server reports with `INFO`.

use std::collections::HashMap;

use redis::{RedisError, Value};

use super::connection::Connection;
use crate::session::ledger::LedgerError;

/// The oldest major version whose scripts and streams have all that is used.
const OLDEST: u32 = 7;

/// The facts of `INFO`.
#[derive(Debug, Clone, Default)]
pub(super) struct Server {
    facts: HashMap<Box<str>, Box<str>>,
}

impl Server {
    /// Requests the facts of a server.
    pub(super) async fn inspect(connection: &mut Connection) -> Result<Self, RedisError> {
        let mut command = redis::cmd("INFO");
        command.arg(&["server", "replication", "memory", "persistence", "cluster"]);
        Ok(match connection.send(&command).await? {
            Value::BulkString(bytes) => Self::parse(&String::from_utf8_lossy(&bytes)),
            // no server answers otherwise, and an empty one is refused
            _ => Self::default(),
        })
    }

    pub(super) fn parse(info: &str) -> Self {
        let facts = info.lines().filter_map(|line| line.trim_end().split_once(':'));
        Self { facts: facts.map(|(name, value)| (name.into(), value.into())).collect() }
    }

    /// A fact, empty if it is not given.
    pub(super) fn fact(&self, name: &str) -> &str {
        self.facts.get(name).map_or("", |value| value)
    }

    /// Differs after each start of a server.
    pub(super) fn run_id(&self) -> &str {
        self.fact("run_id")
    }

    /// The version of the server, and of the Redis that it is compatible with.
    pub(super) fn version(&self) -> (&str, u32) {
        let redis = self.fact("redis_version");
        let major = redis.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
        (self.facts.get("valkey_version").map_or(redis, |valkey| valkey), major)
    }

    /// Its name and version.
    pub(super) fn name(&self) -> String {
        let kind = if self.facts.contains_key("valkey_version") { "Valkey" } else { "Redis" };
        format!("{kind} {}", self.version().0)
    }

    /// The number of replicas that follow it.
    pub(super) fn replicas(&self) -> u32 {
        let listed = (0_u32..).map_while(|at| self.facts.get(&*format!("slave{at}")));
        listed.filter(|replica| replica.split(',').any(|part| part == "state=online")).map(|_| 1).sum()
    }

    /// Refuses a server that cannot hold a ledger.
    pub(super) fn check(&self, in_cluster: bool) -> Result<(), LedgerError> {
        let (version, major) = self.version();
        if major < OLDEST {
            return Err(LedgerError::Refused(
                format!("the server has version {version:?}: use Valkey, or Redis {OLDEST} or later").into(),
            ));
        }
        let role = self.fact("role");
        if role != "master" {
            // it can change soon, so it is not refused
            return Err(LedgerError::Unavailable(
                format!("the server has the role {role:?} and is not a primary").into(),
            ));
        }
        let policy = self.fact("maxmemory_policy");
        if policy != "noeviction" {
            return Err(LedgerError::Refused(
                format!(
                    "the server has maxmemory-policy {policy:?}, which deletes sessions when memory is full: set it to noeviction"
                )
                .into(),
            ));
        }
        match (in_cluster, self.fact("cluster_enabled")) {
            (false, "1") => {
                Err(LedgerError::Refused("the server is a node of a cluster: use a redis-cluster:// URL".into()))
            }
            (true, "0") => {
                Err(LedgerError::Refused("the server is not a node of a cluster: use a redis:// URL".into()))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(change: (&str, &str)) -> Server {
        let info = "# Server\r\nredis_version:7.2.4\r\nvalkey_version:8.0.1\r\nrun_id:abc\r\nrole:master\r\n\
                    maxmemory_policy:noeviction\r\ncluster_enabled:0\r\n";
        let mut server = Server::parse(info);
        server.facts.insert(change.0.into(), change.1.into());
        server
    }

    #[test]
    fn replicas_that_still_copy_do_not_follow() {
        let replicas = "slave0:ip=a,port=1,state=online,offset=1\r\nslave1:ip=b,port=1,state=wait_bgsave,offset=0\r\n\
                        slave2:ip=c,port=1,state=online,offset=1\r\n";
        assert_eq!(Server::parse(replicas).replicas(), 2);
        assert_eq!(Server::parse("connected_slaves:0\r\n").replicas(), 0);
    }

    #[test]
    fn a_server_that_cannot_hold_a_ledger_is_refused() {
        assert_eq!(server(("x", "y")).check(false), Ok(()));
        assert_eq!(server(("x", "y")).version(), ("8.0.1", 7));
        for (change, text) in [
            (("redis_version", "6.2.1"), "Redis 7 or later"),
            (("redis_version", ""), "Redis 7 or later"),
            (("role", "slave"), "not a primary"),
            (("maxmemory_policy", "allkeys-lru"), "set it to noeviction"),
            (("cluster_enabled", "1"), "redis-cluster://"),
        ] {
            let error = server(change).check(false).expect_err(text).to_string();
            assert!(error.contains(text), "{error}");
        }
        assert!(server(("x", "y")).check(true).is_err(), "a cluster is needed");
    }
}
