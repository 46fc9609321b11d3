// SPDX-License-Identifier: Apache-2.0
//! The connection for the bytes of pictures.

use std::time::Duration;

use redis::Value;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::connection::{Connection, Credentials, Trouble, is_moved, ledger_error};
use super::options::{Address, ValkeyOptions};
use super::script::Call;
use crate::session::ledger::LedgerError;

/// A connection that is opened when it is first used, and again after each failure. A server may take long for pictures without being lost, so
/// its time-outs are not reported.
pub(super) struct ImageConnection {
    address: Address,
    trouble: mpsc::UnboundedSender<Trouble>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Option<Connection>,
    /// The number of connections that were opened.
    count: u64,
    // ends the connection when it is replaced
    driver: JoinSet<()>,
}

impl ImageConnection {
    pub(super) fn new(address: &Address, trouble: &mpsc::UnboundedSender<Trouble>) -> Self {
        Self { address: address.clone(), trouble: trouble.clone(), state: Mutex::default() }
    }

    /// Runs a script. A failure of the connection closes it, so that the buffers of all its commands are free.
    ///
    /// # Errors
    /// When the command fails, or has no answer within `limit`.
    pub(super) async fn run(
        &self,
        call: &Call,
        limit: Duration,
        options: &ValkeyOptions,
    ) -> Result<Value, LedgerError> {
        let (mut connection, number) = self.open(options).await?;
        let (error, is_answer) = match timeout(limit, connection.run(call)).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => (ledger_error(&error), error.code().is_some()),
            Err(_) => (LedgerError::Timeout(limit), false),
        };
        if !is_answer {
            self.close(number).await;
        }
        if let LedgerError::Unavailable(reason) = &error
            && is_moved(reason)
        {
            // without a receiver, the node is replaced already
            let _ = self.trouble.send(Trouble::Moved(Address::from_moved(reason, &self.address.host)));
        }
        Err(error)
    }

    /// The connection, and its number.
    async fn open(&self, options: &ValkeyOptions) -> Result<(Connection, u64), LedgerError> {
        let state = &mut *self.state.lock().await;
        let connection = match &state.open {
            Some(connection) => connection.clone(),
            None => {
                let open = Connection::open(&self.address, options, Credentials::OfServer, &mut state.driver, || ());
                let opened = timeout(options.timeout, open).await;
                let connection = opened.unwrap_or(Err(LedgerError::Timeout(options.timeout)))?;
                state.count += 1;
                state.open.insert(connection).clone()
            }
        };
        Ok((connection, state.count))
    }

    /// Closes the connection, unless it is a later one already.
    async fn close(&self, number: u64) {
        let mut state = self.state.lock().await;
        if state.count == number {
            state.open = None;
            state.driver.abort_all();
        }
    }
}
