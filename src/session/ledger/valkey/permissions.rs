// SPDX-License-Identifier: Apache-2.0
//! Tests which commands of a ledger a user may run.

use redis::{Cmd, ErrorKind, Pipeline, RedisError};

use super::connection::Connection;
use super::script::{self, Call};

/// The permissions of a user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Commands that the user may not run.
    pub denied_commands: Vec<&'static str>,
    /// The user may not use the keys of a ledger.
    pub are_keys_denied: bool,
    /// Why the server refuses writes that the user may make.
    pub write_error: Option<String>,
}

/// The command that makes the key a text, on which the commands of other types fail without an effect.
const SET: &str = "SET";

/// The other commands of the scripts and their arguments after the key; those of [`KEYLESS`] have no key.
pub(super) const COMMANDS: [(&str, &[&str]); 23] = [
    ("PING", &[]),
    ("GET", &[]),
    ("EXISTS", &[]),
    ("TIME", &[]),
    ("LLEN", &[]),
    ("LINDEX", &["0"]),
    ("LRANGE", &["0", "0"]),
    ("RPUSH", &["x"]),
    ("ZADD", &["0", "x"]),
    ("ZREM", &["x"]),
    ("ZREMRANGEBYSCORE", &["0", "0"]),
    ("ZSCORE", &["x"]),
    ("ZRANGE", &["0", "0", "BYSCORE"]),
    ("XADD", &["*", "x", "x"]),
    ("XTRIM", &["MINID", "0"]),
    ("XRANGE", &["-", "+"]),
    ("XREVRANGE", &["+", "-"]),
    ("XINFO", &[]),
    ("HSET", &["x", "x"]),
    ("HMGET", &["x"]),
    ("PEXPIRE", &["1000"]),
    // after all others
    ("UNLINK", &[]),
    ("WAIT", &["0", "1"]),
];

/// Commands without a key.
const KEYLESS: [&str; 3] = ["PING", "TIME", "WAIT"];

/// Commands that would create the key if it did not exist.
const CREATING: [&str; 4] = ["RPUSH", "ZADD", "XADD", "HSET"];

impl Permissions {
    /// Runs each command on a key that is used for nothing else. The key does not exist afterwards.
    ///
    /// # Errors
    /// When the connection is lost.
    pub(super) async fn test(connection: &mut Connection, key: &[u8]) -> Result<Self, RedisError> {
        let mut found = Self::default();
        let mut set = redis::cmd(SET);
        set.arg(key).arg("1").arg("PX").arg(10_000);
        let call = Call::new(&script::DELETION).key(key);
        for (name, command) in [(SET, set), ("EVAL", call.by_text()), ("EVALSHA", call.by_hash())] {
            match connection.send(&command).await {
                Err(error) if is_lost(&error) => return Err(error),
                Err(error) => found.note(name, &error),
                Ok(_) => {}
            }
        }
        let is_set = !found.are_keys_denied && found.write_error.is_none() && !found.denied_commands.contains(&SET);
        let tested = COMMANDS.iter().filter(|(name, _)| is_set || !CREATING.contains(name));
        let (names, commands): (Vec<_>, Vec<_>) = tested.map(|(name, rest)| (*name, command(name, key, rest))).unzip();
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command);
        }
        for (name, answer) in names.into_iter().zip(connection.send_all(&pipeline).await?) {
            if let Err(error) = answer.extract_error() {
                found.note(name, &error);
            }
        }
        Ok(found)
    }

    fn note(&mut self, name: &'static str, error: &RedisError) {
        let detail = error.detail().unwrap_or_default();
        match error.code() {
            Some("NOPERM") if detail.contains("permissions to access") => self.are_keys_denied = true,
            // the command of the script is tested on its own
            Some("NOPERM") if detail.contains("in script") => {}
            Some("NOPERM") => self.denied_commands.push(name),
            Some(code) if name == SET => self.write_error = Some(format!("{code} {detail}")),
            // such as that of a command of another type
            _ => {}
        }
    }
}

fn command(name: &str, key: &[u8], rest: &[&str]) -> Cmd {
    let mut command = redis::cmd(name);
    if name == "XINFO" {
        command.arg("STREAM");
    }
    if !KEYLESS.contains(&name) {
        command.arg(key);
    }
    command.arg(rest);
    command
}

/// Whether there was no answer.
fn is_lost(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse) || error.is_connection_dropped()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_of_the_scripts_is_tested() {
        let scripts = include_str!("script.rs");
        let used = scripts.split("redis.call('").skip(1).map(|rest| rest.split('\'').next().unwrap());
        let mut count = 0;
        for name in used {
            assert!(name == SET || COMMANDS.iter().any(|(tested, _)| *tested == name), "{name} is tested");
            count += 1;
        }
        assert!(count > 20, "the scripts were found");
    }
}
