//! Asks Sentinels for the address of a primary.

use std::sync::Arc;

use redis::{RedisError, Value};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::connection::{Connection, Credentials};
use super::options::{Address, ValkeyOptions};
use crate::session::ledger::LedgerError;

/// An address that Sentinels gave, and how many of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub address: Address,
    pub count: usize,
}

/// The addresses that the Sentinels have for the primary, at least one, that of most Sentinels first. A Sentinel that was cut off from the
/// others has an old one.
pub(super) async fn candidates(name: &str, options: &ValkeyOptions) -> Result<Vec<Candidate>, LedgerError> {
    // one that does not answer leaves time to connect
    let ask = |sentinel| timeout(options.timeout / 2, ask(sentinel, name, options));
    let answers = futures_util::future::join_all(options.url.addresses.iter().map(ask)).await;
    let (mut found, mut reasons) = (Vec::<Candidate>::new(), Vec::new());
    for (sentinel, answer) in options.url.addresses.iter().zip(answers) {
        match answer {
            Ok(Ok(address)) => match found.iter_mut().find(|candidate| candidate.address == address) {
                Some(candidate) => candidate.count += 1,
                None => found.push(Candidate { address, count: 1 }),
            },
            Ok(Err(error)) => reasons.push(error.to_string()),
            Err(_) => reasons.push(format!("{sentinel} did not answer in time")),
        }
    }
    if found.is_empty() {
        let reasons = reasons.join("; ");
        return Err(LedgerError::Unavailable(format!("no Sentinel knows the primary {name:?}: {reasons}").into()));
    }
    // stable, so that equal ones are in the order of the URL
    found.sort_by_key(|candidate| std::cmp::Reverse(candidate.count));
    Ok(found)
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
    let mut connection = match Connection::open((sentinel, options, credentials), &mut drivers, || {}).await {
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
