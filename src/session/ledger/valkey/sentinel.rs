// SPDX-License-Identifier: Apache-2.0
//! Requests the address of a primary from Sentinels.

use std::sync::Arc;

use redis::{RedisError, Value};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::connection::{Connection, Credentials};
use super::options::{Address, ValkeyOptions};
use crate::session::ledger::LedgerError;

/// The address of the primary. The first Sentinel that knows it is believed: a primary that was replaced is found by its role.
pub(super) async fn primary(name: &str, options: &ValkeyOptions) -> Result<Address, LedgerError> {
    let mut reasons = Vec::new();
    for sentinel in &options.url.addresses {
        // one that does not answer leaves time for the others
        match timeout(options.timeout / 2, ask(sentinel, name, options)).await {
            Ok(Ok(address)) => return Ok(address),
            Ok(Err(error)) => reasons.push(error.to_string()),
            Err(_) => reasons.push(format!("{sentinel} did not answer in time")),
        }
    }
    Err(LedgerError::Unavailable(format!("no Sentinel knows the primary {name:?}: {}", reasons.join("; ")).into()))
}

async fn ask(sentinel: &Address, name: &str, options: &ValkeyOptions) -> Result<Address, LedgerError> {
    match ask_as(sentinel, name, options, Credentials::None).await {
        // a Sentinel with a password has that of the server
        Err(error) if error.code() == Some("NOAUTH") => ask_as(sentinel, name, options, Credentials::OfServer)
            .await
            .map_err(|error| super::connection::at(sentinel, &error))?,
        Err(error) => Err(super::connection::at(sentinel, &error)),
        Ok(answer) => answer,
    }
}

/// The outer error is one of the command, the inner one of the connection or the answer.
async fn ask_as(
    sentinel: &Address,
    name: &str,
    options: &ValkeyOptions,
    credentials: Credentials,
) -> Result<Result<Address, LedgerError>, RedisError> {
    let mut drivers = JoinSet::new();
    let mut connection = match Connection::open(sentinel, options, credentials, &mut drivers, || {}).await {
        Ok(opened) => opened,
        Err(error) => return Ok(Err(error)),
    };
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let answer = connection.send(&command).await?;
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok().map(Arc::<str>::from),
        _ => None,
    };
    Ok(match &answer {
        Value::Array(parts) if parts.len() == 2 => {
            match (text(&parts[0]), text(&parts[1]).and_then(|port| port.parse().ok())) {
                (Some(host), Some(port)) => Ok(Address { host, port }),
                _ => Err(LedgerError::Unreadable(format!("{sentinel} gave no address").into())),
            }
        }
        _ => Err(LedgerError::Unavailable(format!("{sentinel} knows no primary {name:?}").into())),
    })
}
