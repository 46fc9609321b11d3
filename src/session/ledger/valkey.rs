// SPDX-License-Identifier: Apache-2.0
//! The shared ledger on Valkey, or Redis 7 and later.
//!
//! | key | type | content |
//! |---|---|---|
//! | `tt:{p}:s:SESSION` | list | the entries of a session |
//! | `tt:{p}:d:SESSION` | string with TTL | the last deletion of a session of this name: its birth, then the time in milliseconds |
//! | `tt:{p}:f` | stream | finished paths: `s` session, `b` birth, `l` uid of the leaf |
//! | `tt:{p}:u` | sorted set | sessions in use by their last use, in milliseconds of the server's clock |
//! | `tt:{p}:l` | sorted set | the index: all sessions by their last append or renewal |
//! | `tt:{p}:o` | string with TTL | set while a process sweeps the partition |
//! | `tt:{p}:a` | string with TTL | the process that archives the partition |
//! | `tt:{p}:w` | string with TTL | a write for `WAIT` |
//! | `tt:{p}:c` | string with TTL | exists while `tokentap check` tests the permissions of the user |
//! | `tt:{images}:i:DIGEST` | string with TTL | the bytes of a picture |
//! | `tt:{images}:s:DIGEST` | sorted set with TTL | the births of the sessions that use it, by the end of the use |
//! | `tt:{images}:x` | sorted set | the pictures, as digest and size, by their expiry |
//! | `tt:{images}:b` | string | the bytes of all pictures of that index |
//! | `tt:meta` | hash | `fleet` id, `schema` number and number of `partitions` |
//!
//! `p` is the partition in decimal. Its braces keep all keys of a partition on one node of a cluster. The pictures are on one node as well: sessions
//! of all partitions share them, and their limit needs the sum of their bytes.

mod appender;
mod cluster;
mod connection;
mod element;
mod image_connection;
mod inspection;
mod node;
mod options;
mod permissions;
mod script;
mod sentinel;
mod server;

#[cfg(test)]
mod tests;

use std::fmt::{self, Debug};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use redis::Value;
use tokio::sync::{Notify, Semaphore, watch};

pub use inspection::{Description, Inspection, ServerFacts, inspect};
pub use options::{InvalidUrl, TlsFiles, ValkeyOptions, ValkeyUrl};
pub use permissions::Permissions;

use super::{
    Append, Appended, Deletion, Entry, FinishedEntry, FinishedPage, HeldImages, ImageKey, LastUse, Ledger, LedgerError,
    LedgerFuture, ListOrder, PARTITIONS, Position, SCHEMA, StreamId, Tail, partition_of, sending_time,
};
use crate::images::ImageDigest;
use crate::session::Uid;
use cluster::{Cluster, Map};
use node::{Node, NodeAddress, State};
use options::{Address, Deployment};
use script::Call;

/// Entries that one fetch returns at most.
const PAGE: u64 = 256;
/// Bytes of elements after which a fetch reads no more of them.
const PAGE_BYTES: u64 = 4 << 20;
/// Sessions in one call of a renewal.
const RENEWALS: usize = 100;
/// Kibibytes of the pictures that are sent or received at the same time, at most.
const IMAGES_KIB: u32 = 64 << 10;
/// The longest pause between two sweeps of a partition.
const LONGEST_SWEEP: Duration = Duration::from_secs(86_400);

/// Receives the events of a ledger. Its methods must return quickly.
pub trait ValkeyObserver: Debug + Send + Sync {
    /// An append ended. The outcome is `stored`, `unreplicated`, `behind`, `gone`, `timeout`, `unavailable`, `refused` or `unreadable`.
    fn append_ended(&self, outcome: &'static str, elapsed: Duration);

    /// A group of appends is sent.
    fn group_sent(&self, appends: usize, bytes: usize);

    /// The connection to a primary became usable or unusable. At first it is unusable.
    fn connected(&self, is_connected: bool);
}

/// Ignores everything.
#[derive(Debug, Clone, Copy)]
pub struct NoValkeyObserver;

impl ValkeyObserver for NoValkeyObserver {
    fn append_ended(&self, _outcome: &'static str, _elapsed: Duration) {}

    fn group_sent(&self, _appends: usize, _bytes: usize) {}

    fn connected(&self, _is_connected: bool) {}
}

/// The ledger. It connects in the background, and again after each loss of the connection.
#[derive(Debug, Clone)]
pub struct Valkey {
    shared: Arc<Shared>,
    primaries: Primaries,
}

/// The servers that keys are on.
#[derive(Debug, Clone)]
enum Primaries {
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

/// The part of a key that determines its node in a cluster.
#[derive(Debug, Clone, Copy)]
enum SlotKey {
    Partition(u16),
    Images,
    Key(&'static str),
}

const META: &str = "tt:meta";
/// The text in the braces of the keys of pictures.
const IMAGES: &str = "images";

/// The state that all tasks of a ledger share.
struct Shared {
    options: ValkeyOptions,
    observer: Arc<dyn ValkeyObserver>,
    disruptions: watch::Sender<u64>,
    /// The room for pictures that are sent or received.
    image_room: Arc<Semaphore>,
    /// Notified when the map of the cluster may have changed.
    cluster_changed: Notify,
    /// A node that knows more of the map than the others.
    cluster_informed: Mutex<Option<Address>>,
}

impl Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Shared {
    /// Milliseconds until an unused list expires.
    fn ttl_ms(&self) -> u64 {
        u64::try_from(self.options.ttl.as_millis()).unwrap_or(u64::MAX).clamp(1, MAX_TTL)
    }

    /// Milliseconds until an unused picture expires. A session marks its pictures as used within a quarter of the time that its list has.
    fn image_ttl_ms(&self) -> u64 {
        (self.ttl_ms() / 4 * 5).min(MAX_TTL)
    }

    /// Entries may have been lost.
    fn disrupted(&self) {
        self.disruptions.send_modify(|count| *count += 1);
    }

    /// A node answered that another one has a slot.
    fn moved(&self, to: Option<Address>) {
        *self.cluster_informed.lock() = to;
        self.cluster_changed.notify_one();
    }
}

impl Valkey {
    /// A ledger that is not connected yet. Must be called in a runtime.
    #[must_use]
    pub fn new(options: ValkeyOptions, observer: Arc<dyn ValkeyObserver>) -> Self {
        let (disruptions, cluster_changed) = (watch::Sender::new(0), Notify::new());
        let cluster_informed = Mutex::default();
        let image_room = Arc::new(Semaphore::new(IMAGES_KIB as usize));
        let shared = Arc::new(Shared { options, observer, disruptions, image_room, cluster_changed, cluster_informed });
        let primaries = match shared.options.url.deployment {
            Deployment::Cluster => Primaries::Cluster(Arc::new(Cluster::new(Arc::clone(&shared)))),
            _ => Primaries::One(Arc::new(Node::new(NodeAddress::Url, Arc::clone(&shared)))),
        };
        Self { shared, primaries }
    }

    /// Why operations fail now, if they do. It does not ask the server.
    ///
    /// # Errors
    /// The reason.
    pub fn status(&self) -> Result<(), LedgerError> {
        let status = |node: &Node| match node.state() {
            State::Up(_) => Ok(()),
            State::Down(error) => Err(error),
            State::Connecting => Err(LedgerError::Unavailable("the first connection is being made".into())),
        };
        match &self.primaries {
            Primaries::One(node) => status(node),
            Primaries::Cluster(cluster) => match &*cluster.map().borrow() {
                Map::Known(slots) => slots.nodes().try_for_each(|node| status(node)),
                Map::Failed(error) => Err(error.clone()),
                Map::Unknown => Err(LedgerError::Unavailable("the first connection is being made".into())),
            },
        }
    }

    /// The primary that has the keys.
    async fn node(&self, slot_key: SlotKey) -> Result<Arc<Node>, LedgerError> {
        match (&self.primaries, slot_key) {
            (Primaries::One(node), _) => Ok(Arc::clone(node)),
            (Primaries::Cluster(cluster), SlotKey::Key(key)) => cluster.node(cluster::slot(key.as_bytes())).await,
            (Primaries::Cluster(cluster), SlotKey::Partition(partition)) => {
                cluster.check_description().await?;
                cluster.node(cluster::slot(partition.to_string().as_bytes())).await
            }
            (Primaries::Cluster(cluster), SlotKey::Images) => {
                cluster.check_description().await?;
                cluster.node(cluster::slot(IMAGES.as_bytes())).await
            }
        }
    }

    /// A receiver that changes when the map of the cluster was requested again.
    fn map(&self) -> Option<watch::Receiver<Map>> {
        match &self.primaries {
            Primaries::One(_) => None,
            Primaries::Cluster(cluster) => Some(cluster.map()),
        }
    }

    /// Runs an operation within the time limit.
    fn operation<T: 'static, F>(&self, operation: impl FnOnce(Self) -> F + Send + 'static) -> LedgerFuture<T>
    where
        F: Future<Output = Result<T, LedgerError>> + Send,
    {
        self.operation_within(self.shared.options.timeout, operation)
    }

    fn operation_within<T: 'static, F>(
        &self,
        limit: Duration,
        operation: impl FnOnce(Self) -> F + Send + 'static,
    ) -> LedgerFuture<T>
    where
        F: Future<Output = Result<T, LedgerError>> + Send,
    {
        let this = self.clone();
        Box::pin(async move {
            tokio::time::timeout(limit, operation(this)).await.unwrap_or(Err(LedgerError::Timeout(limit)))
        })
    }

    async fn run(&self, slot_key: SlotKey, call: &Call) -> Result<Value, LedgerError> {
        loop {
            let map = self.map();
            match self.node(slot_key).await?.connected().await?.run(call).await {
                Err(error) if is_moved(map, &error).await => {}
                result => return result,
            }
        }
    }

    /// Runs a script that sends or receives pictures of this many bytes. They take their room until the server has answered or the connection is
    /// closed: a caller that has left frees no memory.
    async fn run_images(&self, call: Call, bytes: u64) -> Result<Value, LedgerError> {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).clamp(1, IMAGES_KIB);
        let room = Arc::clone(&self.shared.image_room).acquire_many_owned(kib).await;
        // others may be sent before it
        let limit = self.shared.options.timeout + sending_time(u64::from(IMAGES_KIB) << 10);
        let this = self.clone();
        let run = async move {
            let _room = room;
            loop {
                let map = this.map();
                // the commands of a lost primary must not keep its other connections
                let images = Arc::clone(&this.node(SlotKey::Images).await?.connected().await?.images);
                match images.run(&call, limit, &this.shared.options).await {
                    Err(error) if is_moved(map, &error).await => {}
                    result => return result,
                }
            }
        };
        tokio::spawn(run).await.unwrap_or_else(|error| Err(LedgerError::Unavailable(error.to_string().into())))
    }
}

impl Ledger for Valkey {
    fn fleet(&self) -> LedgerFuture<Arc<str>> {
        self.operation(async move |this| meta(&this.run(SlotKey::Key(META), &meta_call()).await?))
    }

    fn fetch(&self, session: &Arc<str>, after: Option<Position>) -> LedgerFuture<Option<Tail>> {
        let session = Arc::clone(session);
        self.operation(async move |this| {
            let partition = partition_of(&session);
            let call = at(Call::new(&script::FETCH).key(list_key(&session)), after).number(PAGE).number(PAGE_BYTES);
            match this.run(SlotKey::Partition(partition), &call).await? {
                Value::Nil => Ok(None),
                answer => tail(answer)
                    .map(Some)
                    .map_err(|reason| LedgerError::Unreadable(format!("session {session:?}: {reason}").into())),
            }
        })
    }

    fn append(&self, append: Append) -> LedgerFuture<Appended> {
        let begun = Instant::now();
        let observer = Arc::clone(&self.shared.observer);
        let result = self.operation(async move |this| {
            let partition = partition_of(&append.session);
            let mut node = this.node(SlotKey::Partition(partition)).await?;
            // fails at once without a connection, and encodes nothing
            node.connected().await?;
            loop {
                let (map, call) = (this.map(), this.append_call(partition, &append)?);
                match node.appender.append(call).await {
                    Err(error) if is_moved(map, &error).await => {
                        node = this.node(SlotKey::Partition(partition)).await?
                    }
                    result => return result,
                }
            }
        });
        Box::pin(async move {
            let result = result.await;
            observer.append_ended(outcome(&result), begun.elapsed());
            result
        })
    }

    fn is_replicated(&self, session: &Arc<str>) -> LedgerFuture<bool> {
        let partition = partition_of(session);
        self.operation(async move |this| {
            let node = this.node(SlotKey::Partition(partition)).await?;
            node.connected().await?;
            node.appender.confirm(key(partition, "w")).await
        })
    }

    fn delete(&self, session: &Arc<str>, birth: Uid) -> LedgerFuture<bool> {
        let session = Arc::clone(session);
        self.operation(async move |this| {
            let partition = partition_of(&session);
            let call = Call::new(&script::DELETE).key(list_key(&session)).key(key(partition, "u"));
            let call = call.key(deletion_key(&session)).key(key(partition, "l"));
            let call = call.arg(birth.to_bytes()).arg(session.as_bytes()).number(this.shared.ttl_ms());
            Ok(this.run(SlotKey::Partition(partition), &call).await? == Value::Int(1))
        })
    }

    fn deletion(&self, session: &Arc<str>) -> LedgerFuture<Option<Deletion>> {
        let session = Arc::clone(session);
        self.operation(async move |this| {
            let call = Call::new(&script::DELETION).key(deletion_key(&session));
            match this.run(SlotKey::Partition(partition_of(&session)), &call).await? {
                Value::Nil => Ok(None),
                answer => deletion(&answer)
                    .map(Some)
                    .ok_or_else(|| LedgerError::Unreadable(format!("the deletion of session {session:?}").into())),
            }
        })
    }

    fn restore_deletion(&self, session: &Arc<str>, birth: Uid, deleted_ms: u64) -> LedgerFuture<()> {
        let session = Arc::clone(session);
        self.operation(async move |this| {
            let call = Call::new(&script::RESTORE_DELETION).key(deletion_key(&session)).arg(birth.to_bytes());
            let call = call.number(deleted_ms).number(this.shared.ttl_ms());
            this.run(SlotKey::Partition(partition_of(&session)), &call).await.map(drop)
        })
    }

    fn now_ms(&self, partition: u16) -> LedgerFuture<u64> {
        self.operation(async move |this| {
            let call = Call::new(&script::NOW).key(key(partition, "w"));
            let answer = this.run(SlotKey::Partition(partition), &call).await?;
            number(&answer).ok_or_else(|| LedgerError::Unreadable("the time of the server".into()))
        })
    }

    fn finished(&self, partition: u16, after: StreamId, limit: usize) -> LedgerFuture<FinishedPage> {
        self.operation(async move |this| {
            let call =
                Call::new(&script::FINISHED).key(key(partition, "f")).arg(format!("({after}")).number(count(limit));
            finished_page(&this.run(SlotKey::Partition(partition), &call).await?, after)
                .ok_or_else(|| LedgerError::Unreadable(format!("the stream of partition {partition}").into()))
        })
    }

    fn renew(&self, sessions: Vec<Arc<str>>) -> LedgerFuture<()> {
        self.operation(async move |this| {
            let mut sessions: Vec<_> = sessions.into_iter().map(|session| (partition_of(&session), session)).collect();
            sessions.sort_unstable();
            for (partition, sessions) in sessions.chunk_by(|a, b| a.0 == b.0).map(|chunk| (chunk[0].0, chunk)) {
                for sessions in sessions.chunks(RENEWALS) {
                    let mut call = Call::new(&script::RENEW).key(key(partition, "u")).key(key(partition, "l"));
                    call = call.number(this.shared.ttl_ms());
                    for (_, session) in sessions {
                        call = call.key(list_key(session)).arg(session.as_bytes());
                    }
                    this.run(SlotKey::Partition(partition), &call).await?;
                }
            }
            Ok(())
        })
    }

    fn idle(&self, partition: u16, idle: Duration, limit: usize) -> LedgerFuture<Vec<LastUse>> {
        self.operation(async move |this| {
            let call = Call::new(&script::IDLE).key(key(partition, "o")).key(key(partition, "u"));
            let pause = millis((idle / 10).min(LONGEST_SWEEP)).max(1);
            let call = call.number(millis(idle)).number(pause).number(count(limit));
            last_uses(this.run(SlotKey::Partition(partition), &call).await?)
                .ok_or_else(|| LedgerError::Unreadable(format!("the index of use of partition {partition}").into()))
        })
    }

    fn end_use(&self, idle: LastUse) -> LedgerFuture<()> {
        self.operation(async move |this| {
            let partition = partition_of(&idle.session);
            let call = Call::new(&script::END_USE).key(key(partition, "u"));
            this.run(SlotKey::Partition(partition), &call.arg(idle.session.as_bytes()).number(idle.used_ms))
                .await
                .map(drop)
        })
    }

    fn list(&self, partition: u16, order: ListOrder, from: Option<u64>, limit: usize) -> LedgerFuture<Vec<LastUse>> {
        self.operation(async move |this| {
            let call = Call::new(&script::LIST).key(key(partition, "l")).number((order == ListOrder::Newest).into());
            let call = call.arg(from.map(|from| from.to_string()).unwrap_or_default());
            let call = call.number(count(limit)).number(this.shared.ttl_ms());
            last_uses(this.run(SlotKey::Partition(partition), &call).await?)
                .ok_or_else(|| LedgerError::Unreadable(format!("the index of partition {partition}").into()))
        })
    }

    fn claim(&self, partition: u16, owner: Uid, lease: Duration) -> LedgerFuture<bool> {
        self.operation(async move |this| {
            let lease = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX).clamp(1, MAX_TTL);
            let call = Call::new(&script::CLAIM).key(key(partition, "a")).arg(owner.to_bytes()).number(lease);
            Ok(this.run(SlotKey::Partition(partition), &call).await? == Value::Int(1))
        })
    }

    fn hold_images(&self, session: Uid, images: Vec<ImageKey>) -> LedgerFuture<HeldImages> {
        self.operation(async move |this| {
            let call = this.images_call(&script::HOLD_IMAGES, Some(session), &images);
            held_images(&this.run(SlotKey::Images, &call).await?)
                .filter(|held| held.present.len() == images.len())
                .ok_or_else(|| LedgerError::Unreadable("the index of pictures".into()))
        })
    }

    fn put_image(&self, session: Uid, image: ImageKey, bytes: Bytes) -> LedgerFuture<bool> {
        let size = bytes.len() as u64;
        self.operation_within(self.shared.options.timeout + sending_time(size), async move |this| {
            let call = this.images_call(&script::PUT_IMAGE, Some(session), &[image]).arg(bytes);
            Ok(this.run_images(call, size).await? == Value::Int(1))
        })
    }

    fn images(&self, images: Vec<ImageKey>) -> LedgerFuture<Vec<Option<Bytes>>> {
        let size = images.iter().map(|image| image.size).sum();
        self.operation_within(self.shared.options.timeout + sending_time(size), async move |this| {
            let call = Call::new(&script::IMAGES);
            let call = images.iter().fold(call, |call, image| call.key(image_key("i", image.digest)));
            let unknown = || LedgerError::Unreadable("an answer to the request of pictures".into());
            let Value::Array(answers) = this.run_images(call, size).await? else { return Err(unknown()) };
            let image = |answer| match answer {
                Value::BulkString(bytes) => Ok(Some(Bytes::from(bytes))),
                Value::Nil => Ok(None),
                _ => Err(unknown()),
            };
            answers.into_iter().map(image).collect()
        })
    }

    fn release_images(&self, session: Option<Uid>, images: Vec<ImageKey>) -> LedgerFuture<()> {
        self.operation(async move |this| {
            let call = this.images_call(&script::RELEASE_IMAGES, session, &images);
            this.run(SlotKey::Images, &call).await.map(drop)
        })
    }

    fn probe(&self, partition: u16) -> LedgerFuture<()> {
        self.operation(async move |this| {
            let call = Call::new(&script::MARK).key(key(partition, "w"));
            this.run(SlotKey::Partition(partition), &call).await.map(drop)
        })
    }

    fn partitions_by_primary(&self) -> Vec<Vec<u16>> {
        let all = || (0..PARTITIONS).collect();
        match &self.primaries {
            Primaries::One(_) => vec![all()],
            Primaries::Cluster(cluster) => match &*cluster.map().borrow() {
                Map::Known(slots) => {
                    let slot = |partition: u16| cluster::slot(partition.to_string().as_bytes());
                    slots.by_node((0..PARTITIONS).map(|partition| (slot(partition), partition)))
                }
                Map::Failed(_) | Map::Unknown => vec![all()],
            },
        }
    }

    fn disruptions(&self) -> watch::Receiver<u64> {
        self.shared.disruptions.subscribe()
    }
}

impl Valkey {
    /// A call of a script that changes pictures.
    fn images_call(&self, script: &'static script::LuaScript, session: Option<Uid>, images: &[ImageKey]) -> Call {
        let call = Call::new(script).key(images_key("x")).key(images_key("b"));
        // a number of Lua is exact up to here
        let limit = self.shared.options.image_bytes.min(1 << 53);
        let call = call.number(self.shared.image_ttl_ms()).number(limit);
        let call = call.arg(session.map_or_else(Vec::new, |session| session.to_bytes().to_vec()));
        images.iter().fold(call, |call, ImageKey { digest, size }| {
            call.key(image_key("i", *digest)).key(image_key("s", *digest)).arg(format!("{digest}:{size}"))
        })
    }

    fn append_call(&self, partition: u16, append: &Append) -> Result<Call, LedgerError> {
        let mut call = Call::new(&script::APPEND).key(list_key(&append.session));
        call = call.key(key(partition, "f")).key(key(partition, "u"));
        call = at(call.key(deletion_key(&append.session)).key(key(partition, "l")), append.after);
        call = call.number(self.shared.ttl_ms()).arg(append.session.as_bytes()).number(append.in_use.into());
        call = call.number(millis(append.begun_ago)).number(count(append.finished.len()));
        for leaf in &append.finished {
            call = call.arg(leaf.to_bytes());
        }
        for entry in &append.entries {
            if entry.body.len() > element::MAX_BODY {
                return Err(LedgerError::Refused("an entry is too large".into()));
            }
            call = call.arg(element::encode(entry));
        }
        Ok(call)
    }
}

/// Whether another node of the cluster has the keys, so that the operation was not executed. Waits for the new map.
async fn is_moved(map: Option<watch::Receiver<Map>>, error: &LedgerError) -> bool {
    match (map, error) {
        (Some(mut map), LedgerError::Unavailable(reason)) if connection::is_moved(reason) => {
            map.changed().await.is_ok()
        }
        _ => false,
    }
}

/// Milliseconds of the longest TTL, a hundred years.
const MAX_TTL: u64 = 100 * 365 * 86_400_000;

fn key(partition: u16, kind: &str) -> Vec<u8> {
    format!("tt:{{{partition}}}:{kind}").into()
}

fn images_key(kind: &str) -> Vec<u8> {
    format!("tt:{{{IMAGES}}}:{kind}").into()
}

fn image_key(kind: &str, digest: ImageDigest) -> Vec<u8> {
    format!("tt:{{{IMAGES}}}:{kind}:{digest}").into()
}

fn deletion_key(session: &str) -> Vec<u8> {
    format!("tt:{{{}}}:d:{session}", partition_of(session)).into()
}

fn list_key(session: &str) -> Vec<u8> {
    format!("tt:{{{}}}:s:{session}", partition_of(session)).into()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).min(MAX_TTL)
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX).min(i64::MAX as u64)
}

/// With the arguments of a position.
fn at(call: Call, position: Option<Position>) -> Call {
    match position {
        Some(Position { birth, length, last }) => call.number(length).arg(birth.to_bytes()).arg(last.to_bytes()),
        None => call.number(0).arg(Vec::new()).arg(Vec::new()),
    }
}

fn outcome(result: &Result<Appended, LedgerError>) -> &'static str {
    match result {
        Ok(Appended::Stored { replicated: true }) => "stored",
        Ok(Appended::Stored { replicated: false }) => "unreplicated",
        Ok(Appended::Behind) => "behind",
        Ok(Appended::Gone) => "gone",
        Err(LedgerError::Timeout(_) | LedgerError::Unconfirmed) => "timeout",
        Err(
            LedgerError::Unavailable(_)
            | LedgerError::FleetUnknown(_)
            | LedgerError::Recovering
            | LedgerError::AwaitsImages,
        ) => "unavailable",
        Err(LedgerError::Refused(_)) => "refused",
        Err(LedgerError::OtherSchema(_) | LedgerError::Unreadable(_)) => "unreadable",
    }
}

/// Reads the description of the ledger, or writes that of a new one.
fn meta_call() -> Call {
    // SipHash under keys from the system's entropy; different at each call, because a ledger that lost its data is another fleet
    let fleet = RandomState::new().hash_one("fleet");
    let call = Call::new(&script::META).key(META).arg(format!("{fleet:016x}"));
    call.number(SCHEMA).number(PARTITIONS.into())
}

/// The fleet id, if this build can use the ledger.
fn meta(answer: &Value) -> Result<Arc<str>, LedgerError> {
    let unreadable = |reason: String| LedgerError::Unreadable(reason.into());
    let text = |at: usize| match answer {
        Value::Array(fields) => fields.get(at).and_then(text),
        _ => None,
    };
    let (Some(fleet), Some(schema), Some(partitions)) = (text(0), text(1), text(2)) else {
        return Err(unreadable("the key tt:meta lacks a field".into()));
    };
    if *schema != SCHEMA.to_string() {
        return Err(LedgerError::OtherSchema(schema));
    }
    if *partitions != PARTITIONS.to_string() {
        return Err(unreadable(format!(
            "the key tt:meta has {partitions} partitions, and this build has {PARTITIONS}: give it another ledger"
        )));
    }
    Ok(fleet)
}

fn text(value: &Value) -> Option<Arc<str>> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok().map(Into::into),
        Value::SimpleString(text) => Some(text.as_str().into()),
        _ => None,
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        other => text(other)?.parse().ok(),
    }
}

fn uid(value: &Value) -> Option<Uid> {
    match value {
        Value::BulkString(bytes) => {
            bytes.first_chunk().filter(|_| bytes.len() == 16).map(|bytes| Uid::from_bytes(*bytes))
        }
        _ => None,
    }
}

fn tail(answer: Value) -> Result<Tail, String> {
    let unknown = || String::from("an unknown answer");
    let Value::Array(parts) = answer else { return Err(unknown()) };
    let [start, length, Value::Array(elements)] = &parts[..] else { return Err(unknown()) };
    let (start, length) = (number(start).ok_or_else(unknown)?, number(length).ok_or_else(unknown)?);
    let decode = |(at, element): (u64, &Value)| match element {
        Value::BulkString(element) => element::decode(element).map_err(|reason| format!("entry {at}: {reason}")),
        _ => Err(unknown()),
    };
    let entries: Vec<Entry> = (start..).zip(elements).map(decode).collect::<Result<_, _>>()?;
    Ok(Tail { start, length, entries })
}

fn deletion(answer: &Value) -> Option<Deletion> {
    let Value::Array(parts) = answer else { return None };
    let [birth, ago] = &parts[..] else { return None };
    Some(Deletion { birth: uid(birth)?, ago: Duration::from_millis(number(ago)?) })
}

fn held_images(answer: &Value) -> Option<HeldImages> {
    let Value::Array(parts) = answer else { return None };
    let (free, present) = parts.split_first()?;
    Some(HeldImages { present: present.iter().map(|part| *part == Value::Int(1)).collect(), free: number(free)? })
}

fn last_uses(answer: Value) -> Option<Vec<LastUse>> {
    let Value::Array(parts) = answer else { return None };
    let pairs = parts.chunks_exact(2);
    pairs.map(|pair| Some(LastUse { session: text(&pair[0])?, used_ms: number(&pair[1])? })).collect()
}

fn finished_entry(element: &Value) -> Option<FinishedEntry> {
    let Value::Array(parts) = element else { return None };
    let [id, Value::Array(fields)] = &parts[..] else { return None };
    let field = |name: &[u8]| {
        fields
            .chunks_exact(2)
            .find(|pair| matches!(&pair[0], Value::BulkString(key) if key == name))
            .map(|pair| &pair[1])
    };
    Some(FinishedEntry {
        id: text(id)?.parse().ok()?,
        session: text(field(b"s")?)?,
        birth: uid(field(b"b")?)?,
        leaf: uid(field(b"l")?)?,
    })
}

fn finished_page(answer: &Value, after: StreamId) -> Option<FinishedPage> {
    let Value::Array(parts) = answer else { return None };
    let [trimmed, first, Value::Array(elements)] = &parts[..] else { return None };
    let first: Option<StreamId> = text(first)?.parse().ok();
    let entries = elements.iter().map(finished_entry).collect::<Option<_>>()?;
    // the newest element is never trimmed, so a reader that has read all never sees a later first element
    let trimmed = number(trimmed).is_some_and(|trimmed| trimmed > 0) && first.is_none_or(|first| first > after);
    Some(FinishedPage { entries, trimmed })
}
