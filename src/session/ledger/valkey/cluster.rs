// SPDX-License-Identifier: Apache-2.0
//! The nodes of a cluster.
//!
//! A task keeps the map of slots. It requests the map when a node answers `MOVED`, when a connection is lost, and periodically.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::{Notify, OnceCell, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::connection::{Connection, Credentials};
use super::node::{Node, NodeAddress, State};
use super::options::{Address, ValkeyOptions};
use super::{META, Shared, meta, meta_call, number, text};
use crate::session::ledger::LedgerError;

/// The interval of the periodic requests for the map.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// The same while a node is not connected.
const REPAIR: Duration = Duration::from_millis(250);
/// The shortest time between two requests.
const SHORTEST: Duration = Duration::from_millis(20);
/// Slots of a cluster.
const SLOTS: u16 = 16_384;

/// The slot of the keys with this text in braces, or of the key with this text.
pub(super) fn slot(tag: &[u8]) -> u16 {
    let step = |crc: u16, byte: &u8| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
    };
    tag.iter().fold(0, step) % SLOTS
}

/// A cluster.
pub(super) struct Cluster {
    map: watch::Receiver<Map>,
    /// Set once the description of the ledger was read, and this build can use the ledger.
    is_described: OnceCell<()>,
    // ends the task when the cluster is dropped
    _tasks: JoinSet<()>,
}

/// Which node has which slots.
#[derive(Debug, Clone)]
pub(super) enum Map {
    /// It was not requested yet.
    Unknown,
    /// No node returned it.
    Failed(LedgerError),
    Known(Arc<Slots>),
}

#[derive(Debug, Default)]
pub(super) struct Slots {
    ranges: Ranges,
    nodes: BTreeMap<Address, Arc<Node>>,
}

impl Cluster {
    /// Begins to request the map. Must be called in a runtime.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let (sender, map) = watch::channel(Map::Unknown);
        let mut tasks = JoinSet::new();
        tasks.spawn(run(sender, shared));
        Self { map, is_described: OnceCell::new(), _tasks: tasks }
    }

    /// The node of a slot, once the first request for the map has ended.
    pub(super) async fn node(&self, slot: u16) -> Result<Arc<Node>, LedgerError> {
        let mut map = self.map.clone();
        let map = map.wait_for(|map| !matches!(map, Map::Unknown)).await;
        match map.as_deref() {
            Ok(Map::Known(slots)) => slots.node(slot),
            Ok(Map::Failed(error)) => Err(error.clone()),
            Ok(Map::Unknown) | Err(_) => Err(LedgerError::Unavailable("the connection is closed".into())),
        }
    }

    /// Fails unless this build can use the ledger. One node has the description, so connections to the others do not check it.
    pub(super) async fn check_description(&self) -> Result<(), LedgerError> {
        let check = async || {
            let node = self.node(slot(META.as_bytes())).await?;
            meta(&node.connected().await?.run(&meta_call()).await?).map(drop)
        };
        self.is_described.get_or_try_init(check).await.copied()
    }

    /// A receiver that changes when the map was requested again.
    pub(super) fn map(&self) -> watch::Receiver<Map> {
        self.map.clone()
    }
}

impl Slots {
    fn node(&self, slot: u16) -> Result<Arc<Node>, LedgerError> {
        let range = self.ranges.range(slot..).next().filter(|(_, (first, _))| *first <= slot);
        range
            .map(|(_, (_, address))| Arc::clone(&self.nodes[address]))
            .ok_or_else(|| LedgerError::Unavailable(format!("no node of the cluster has the slot {slot}").into()))
    }

    /// The values of slots by primary. Those of slots that no node has are together.
    pub(super) fn by_node<T>(&self, slots: impl Iterator<Item = (u16, T)>) -> Vec<Vec<T>> {
        let mut groups: Vec<(Option<Arc<Node>>, Vec<T>)> = Vec::new();
        for (slot, value) in slots {
            let node = self.node(slot).ok();
            let is_same = |known: &Option<Arc<Node>>| match (known, &node) {
                (Some(known), Some(node)) => Arc::ptr_eq(known, node),
                (known, node) => known.is_none() && node.is_none(),
            };
            match groups.iter_mut().find(|(known, _)| is_same(known)) {
                Some((_, values)) => values.push(value),
                None => groups.push((node, vec![value])),
            }
        }
        groups.into_iter().map(|(_, values)| values).collect()
    }

    /// All primaries.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values()
    }

    fn is_up(&self) -> bool {
        self.nodes().all(|node| matches!(node.state(), State::Up(_)))
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cluster").field(&*self.map.borrow()).finish()
    }
}

async fn run(map: watch::Sender<Map>, shared: Arc<Shared>) {
    let mut known: Option<Arc<Slots>> = None;
    loop {
        match ask_any(known.as_deref(), &shared).await {
            Ok(ranges) => {
                let before = known.as_ref().map(|slots| &slots.nodes);
                let node = |address: &Address| {
                    let kept = before.and_then(|nodes| nodes.get(address)).map(Arc::clone);
                    let place = || NodeAddress::Node { address: address.clone(), is_new: before.is_some() };
                    (address.clone(), kept.unwrap_or_else(|| Arc::new(Node::new(place(), Arc::clone(&shared)))))
                };
                let nodes = ranges.values().map(|(_, address)| node(address)).collect();
                let slots = Arc::new(Slots { ranges, nodes });
                map.send_replace(Map::Known(Arc::clone(&slots)));
                known = Some(slots);
            }
            Err(error) if known.is_none() => {
                tracing::warn!(%error, "cannot connect to the ledger");
                map.send_replace(Map::Failed(error));
            }
            // operations fail at the nodes that are lost
            Err(error) => tracing::warn!(%error, "no node gives the map of the cluster"),
        }
        let pause = if known.as_ref().is_some_and(|slots| slots.is_up()) { HEARTBEAT } else { REPAIR };
        sleep(SHORTEST).await;
        // a timeout is the usual case
        let _ = timeout(pause, changed(&shared.cluster_changed)).await;
    }
}

async fn changed(notify: &Notify) {
    notify.notified().await;
}

/// The last slot of each range, with its first slot and its node.
pub(super) type Ranges = BTreeMap<u16, (u16, Address)>;

/// Requests the map from the node that a `MOVED` reply named, then from all connected nodes, then from the addresses of the URL.
async fn ask_any(known: Option<&Slots>, shared: &Shared) -> Result<Ranges, LedgerError> {
    let options = &shared.options;
    let informed = shared.cluster_informed.lock().take();
    let first = informed.as_ref().and_then(|address| known?.nodes.get(address));
    for node in first.into_iter().chain(known.into_iter().flat_map(Slots::nodes)) {
        if let State::Up(connected) = node.state() {
            let mut connection = connected.commands.clone();
            if let Ok(Ok(answer)) = timeout(options.timeout, connection.send(&cluster_slots())).await
                && let Some(ranges) = ranges(&answer, &connected.address)
            {
                return Ok(ranges);
            }
        }
    }
    ask_url(options).await
}

fn cluster_slots() -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

/// Requests the map from the addresses of the URL.
pub(super) async fn ask_url(options: &ValkeyOptions) -> Result<Ranges, LedgerError> {
    let mut reasons = Vec::new();
    for address in &options.url.addresses {
        let mut drivers = JoinSet::new();
        let ask = async {
            let mut connection = Connection::open(address, options, Credentials::OfServer, &mut drivers, || {}).await?;
            connection.send(&cluster_slots()).await.map_err(|error| super::connection::at(address, &error))
        };
        match timeout(options.timeout / 2, ask).await {
            Ok(Ok(answer)) => match ranges(&answer, address) {
                Some(ranges) => return Ok(ranges),
                None => reasons.push(format!("{address} has an empty map")),
            },
            Ok(Err(error @ LedgerError::Refused(_))) => return Err(error),
            Ok(Err(error)) => reasons.push(error.to_string()),
            Err(_) => reasons.push(format!("{address} did not answer in time")),
        }
    }
    Err(LedgerError::Unavailable(format!("no node gives the map of the cluster: {}", reasons.join("; ")).into()))
}

/// The ranges of slots. `None` without any.
fn ranges(answer: &Value, asked: &Address) -> Option<Ranges> {
    let Value::Array(all) = answer else { return None };
    let range = |range: &Value| {
        let Value::Array(parts) = range else { return None };
        let [first, last, Value::Array(primary), ..] = &parts[..] else { return None };
        let slot = |value| number(value).and_then(|slot| u16::try_from(slot).ok());
        // a node that does not know its address has that of the question
        let host = primary.first().and_then(text).filter(|host| !host.is_empty() && **host != *"?");
        let port = primary.get(1).and_then(number).and_then(|port| u16::try_from(port).ok())?;
        let address = Address { host: host.unwrap_or_else(|| Arc::clone(&asked.host)), port };
        Some((slot(last)?, (slot(first)?, address)))
    };
    all.iter().map(range).collect::<Option<Ranges>>().filter(|ranges| !ranges.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        // the check value of CRC-16/XMODEM, and slots that a server computed
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!((slot(b""), slot(b"foo"), slot(b"0")), (0, 12_182, 13_907));
    }

    #[test]
    fn a_map_of_slots_is_parsed() {
        let node = |host: &str, port| {
            Value::Array(vec![Value::BulkString(host.into()), Value::Int(port), Value::BulkString("id".into())])
        };
        let asked = Address { host: "asked".into(), port: 1 };
        let answer = Value::Array(vec![
            Value::Array(vec![Value::Int(0), Value::Int(99), node("a", 7), node("replica", 8)]),
            Value::Array(vec![Value::Int(200), Value::Int(200), node("", 9)]),
        ]);
        let ranges = ranges(&answer, &asked).unwrap();
        let expected =
            [(99, (0, Address { host: "a".into(), port: 7 })), (200, (200, Address { port: 9, ..asked.clone() }))];
        assert_eq!(ranges, expected.into());
        assert_eq!(super::ranges(&Value::Array(Vec::new()), &asked), None);
        assert_eq!(super::ranges(&Value::Nil, &asked), None);
        let slots = Slots { ranges, nodes: BTreeMap::new() };
        for free in [100, 199, 201] {
            assert!(slots.node(free).is_err(), "no node has {free}");
        }
    }
}
