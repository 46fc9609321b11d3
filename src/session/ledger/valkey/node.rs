// SPDX-License-Identifier: Apache-2.0
//! A primary: a task keeps connections to it, another one sends the appends.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::appender::{self, Appender};
use super::connection::{Connected, Trouble};
use super::options::{Address, Deployment};
use super::{Shared, meta, sentinel};
use crate::session::ledger::LedgerError;

/// The time between two checks of an unused connection.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// The longest pause after the first failure to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The address of a primary.
#[derive(Debug, Clone)]
pub(super) enum NodeAddress {
    /// The address in the URL.
    Url,
    /// A node of a cluster. It is new if an earlier map lacked it, so that another node had some of its slots.
    Node { address: Address, is_new: bool },
}

/// Connections to a primary that are replaced when they are lost.
pub(super) struct Node {
    place: NodeAddress,
    state: watch::Receiver<State>,
    pub appender: Appender,
    // ends the tasks when the node is dropped
    _tasks: JoinSet<()>,
}

/// The state of the connections.
#[derive(Debug, Clone)]
pub(super) enum State {
    /// The first attempt has not ended.
    Connecting,
    Up(Arc<Connected>),
    Down(LedgerError),
}

impl Node {
    /// Begins to connect. Must be called in a runtime.
    pub(super) fn new(place: NodeAddress, shared: Arc<Shared>) -> Self {
        let (sender, state) = watch::channel(State::Connecting);
        let mut tasks = JoinSet::new();
        let (appender, requests) = appender::queue();
        tasks.spawn(appender::run(requests, state.clone(), Arc::clone(&shared)));
        tasks.spawn(Keeper { place: place.clone(), shared, state: sender, run_id: None }.run());
        Self { place, state, appender, _tasks: tasks }
    }

    /// The connections, once the first attempt to connect has ended.
    pub(super) async fn connected(&self) -> Result<Arc<Connected>, LedgerError> {
        connected(&mut self.state.clone()).await
    }

    /// The connections now.
    pub(super) fn state(&self) -> State {
        self.state.borrow().clone()
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("place", &self.place).field("state", &*self.state.borrow()).finish_non_exhaustive()
    }
}

/// The connections, once the first attempt to connect has ended.
pub(super) async fn connected(state: &mut watch::Receiver<State>) -> Result<Arc<Connected>, LedgerError> {
    let state = state.wait_for(|state| !matches!(state, State::Connecting)).await;
    match state.as_deref() {
        Ok(State::Up(connected)) => Ok(Arc::clone(connected)),
        Ok(State::Down(error)) => Err(error.clone()),
        Ok(State::Connecting) | Err(_) => Err(LedgerError::Unavailable("the connection is closed".into())),
    }
}

/// Keeps the connections.
struct Keeper {
    place: NodeAddress,
    shared: Arc<Shared>,
    state: watch::Sender<State>,
    /// The server of the last connection.
    run_id: Option<Box<str>>,
}

impl Keeper {
    async fn run(mut self) {
        let mut pause = Pause::new();
        loop {
            // connecting has several round trips
            let attempt = timeout(self.shared.options.timeout * 2, self.connect()).await;
            let attempt = attempt.unwrap_or_else(|_| {
                Err(LedgerError::Unavailable("the server did not complete a connection in time".into()))
            });
            match attempt {
                Ok((connected, mut trouble)) => {
                    let begun = Instant::now();
                    let reason = self.keep(&connected, &mut trouble).await;
                    tracing::warn!(address = %connected.address, reason = &*reason, "the connection to the ledger is lost");
                    self.set(State::Down(LedgerError::Unavailable(reason)));
                    self.shared.disrupted();
                    if begun.elapsed() > LONGEST_PAUSE {
                        pause = Pause::new();
                    }
                }
                Err(error) => {
                    let is_new = !matches!(&*self.state.borrow(), State::Down(before) if *before == error);
                    if is_new {
                        tracing::warn!(%error, "cannot connect to the ledger");
                    }
                    self.set(State::Down(error));
                }
            }
            self.shared.cluster_changed.notify_one();
            sleep(pause.next()).await;
        }
    }

    async fn connect(&self) -> Result<(Arc<Connected>, mpsc::UnboundedReceiver<Trouble>), LedgerError> {
        let options = &self.shared.options;
        let in_cluster = matches!(options.url.deployment, Deployment::Cluster);
        let address = match (&self.place, &options.url.deployment) {
            (NodeAddress::Node { address, .. }, _) => address.clone(),
            (NodeAddress::Url, Deployment::Sentinel { primary }) => sentinel::primary(primary, options).await?,
            (NodeAddress::Url, _) => options.url.addresses[0].clone(),
        };
        let (connected, trouble) = Connected::connect(&address, options, in_cluster).await?;
        if !in_cluster {
            meta(&connected.run(&super::meta_call()).await?)?;
        }
        Ok((Arc::new(connected), trouble))
    }

    /// Returns when the connections are lost, with the reason.
    async fn keep(&mut self, connected: &Arc<Connected>, trouble: &mut mpsc::UnboundedReceiver<Trouble>) -> Arc<str> {
        let up = State::Up(Arc::clone(connected));
        self.set(up.clone());
        let run_id = connected.server.run_id();
        let before = self.run_id.replace(run_id.into());
        if before.as_deref().is_some_and(|before| before != run_id) {
            tracing::warn!(address = %connected.address, "the ledger is another process, which may lack entries");
        }
        if before.is_some() || matches!(self.place, NodeAddress::Node { is_new: true, .. }) {
            self.shared.disrupted();
        }
        tracing::info!(address = %connected.address, version = connected.server.version().0, "connected to the ledger");
        loop {
            match timeout(HEARTBEAT, trouble.recv()).await {
                Ok(None) => return "the connection is closed".into(),
                Ok(Some(Trouble::Lost(reason))) => return reason,
                Ok(Some(Trouble::Moved(to))) => self.shared.moved(to),
                Ok(Some(Trouble::Slow)) => {
                    // operations fail at once until it is known whether the server answers
                    self.set(State::Down(LedgerError::Unavailable("the server does not answer".into())));
                    if let Err(error) = connected.ping().await {
                        return error.to_string().into();
                    }
                    while let Ok(more) = trouble.try_recv() {
                        match more {
                            Trouble::Lost(reason) => return reason,
                            Trouble::Moved(to) => self.shared.moved(to),
                            Trouble::Slow => {}
                        }
                    }
                    self.set(up.clone());
                }
                Err(_) => {
                    if let Err(error) = connected.ping().await {
                        return error.to_string().into();
                    }
                    if let Some(reason) = self.moved(connected).await {
                        return reason;
                    }
                }
            }
        }
    }

    /// Whether the Sentinels know another primary.
    async fn moved(&self, connected: &Connected) -> Option<Arc<str>> {
        let options = &self.shared.options;
        let (NodeAddress::Url, Deployment::Sentinel { primary }) = (&self.place, &options.url.deployment) else {
            return None;
        };
        // Sentinels that do not answer say nothing about the primary
        let now = timeout(options.timeout, sentinel::primary(primary, options)).await.ok()?.ok()?;
        (now != connected.address).then(|| format!("the Sentinels have another primary: {now}").into())
    }

    fn set(&self, state: State) {
        let is_up = |state: &State| matches!(state, State::Up(_));
        let now = is_up(&state);
        let before = is_up(&self.state.send_replace(state));
        if before != now {
            self.shared.observer.connected(now);
        }
    }
}

/// Pauses between attempts: random, so that many processes do not connect at the same time.
struct Pause(Duration);

impl Pause {
    fn new() -> Self {
        Self(FIRST_PAUSE)
    }

    fn next(&mut self) -> Duration {
        let longest = self.0;
        self.0 = (longest * 2).min(LONGEST_PAUSE);
        // SipHash under keys from the system's entropy
        let random = RandomState::new().hash_one(()) as u32;
        longest / 2 + (longest / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_rise_to_a_bound_and_are_random() {
        let mut pause = Pause::new();
        let all: Vec<Duration> = (0..10).map(|_| pause.next()).collect();
        assert!(all[0] >= FIRST_PAUSE / 2 && all[0] <= FIRST_PAUSE);
        assert!(all[9] >= LONGEST_PAUSE / 2 && all[9] <= LONGEST_PAUSE);
        assert_ne!(all[8], all[9]);
    }
}
