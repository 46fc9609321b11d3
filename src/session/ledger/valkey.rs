//! The shared ledger on Valkey, or Redis 7 and later.
//!
//! | key | type | content |
//! |---|---|---|
//! | `tt:{p}:s:SESSION` | list | the entries of a session |
//! | `tt:{p}:d:BIRTH` | string with TTL | a session of this birth was deleted |
//! | `tt:{p}:f` | stream | finished paths: `s` session, `b` birth, `l` uid of the leaf |
//! | `tt:{p}:u` | sorted set | sessions by their last use, in milliseconds of the server's clock |
//! | `tt:{p}:o` | string with TTL | set while a process sweeps the partition |
//! | `tt:{p}:w` | string with TTL | a write for `WAIT` |
//! | `tt:policy` | hash | policy labels and their numbers |
//! | `tt:meta` | hash | `fleet` id, `schema` number and number of `partitions` |
//!
//! `p` is the partition in decimal. Its braces keep all keys of a partition on one node of a cluster.

mod appender;
mod connection;
mod element;
mod node;
mod options;
mod script;
mod sentinel;
mod server;
mod tls;

#[cfg(test)]
mod tests;

use std::fmt::{self, Debug};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::Value;
use tokio::sync::watch;

pub use options::{ClientCertificate, InvalidUrl, TlsFiles, ValkeyOptions, ValkeyUrl};

use super::{
    Append, Appended, Entry, Fetching, FinishedEntry, FinishedPage, IdleSession, Ledger, LedgerError, PARTITIONS,
    Position, StreamId, Tail, partition_of,
};
use crate::session::Uid;
use element::Encoder;
use node::{Node, Place, State};
use script::Call;

/// The number of the data layout.
const SCHEMA: u64 = 1;
/// Entries that one fetch returns at most.
const PAGE: u64 = 256;
/// Bytes of elements after which a fetch reads no more of them.
const PAGE_BYTES: u64 = 4 << 20;
/// Sessions in one call of a renewal.
const RENEWALS: usize = 100;
/// The longest pause between two sweeps of a partition.
const LONGEST_SWEEP: Duration = Duration::from_secs(86_400);

/// Receives what happens in a ledger. Its methods must return quickly.
pub trait ValkeyObserver: Debug + Send + Sync {
    /// An append ended. The outcome is `stored`, `unreplicated`, `behind`, `gone`, `timeout`, `unavailable`, `refused` or `unreadable`.
    fn append_ended(&self, outcome: &'static str, elapsed: Duration);

    /// A group of appends is sent.
    fn group_sent(&self, appends: usize, bytes: usize);

    /// A connection is usable or not.
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
    node: Arc<Node>,
}

/// What all tasks of a ledger share.
struct Shared {
    options: ValkeyOptions,
    observer: Arc<dyn ValkeyObserver>,
    disruptions: watch::Sender<u64>,
    // locked while an append is encoded
    encoder: Mutex<Encoder>,
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

    /// Entries may have been lost.
    fn disrupted(&self) {
        self.disruptions.send_modify(|count| *count += 1);
    }
}

impl Valkey {
    /// A ledger that is not connected yet. Must be called in a runtime.
    ///
    /// # Errors
    /// If memory for compression cannot be allocated.
    pub fn try_new(options: ValkeyOptions, observer: Arc<dyn ValkeyObserver>) -> std::io::Result<Self> {
        let encoder = Mutex::new(Encoder::try_new()?);
        let shared = Arc::new(Shared { options, observer, disruptions: watch::Sender::new(0), encoder });
        let node = Arc::new(Node::new(Place::Url, Arc::clone(&shared)));
        Ok(Self { shared, node })
    }

    /// Why operations fail now, if they do. It does not ask the server.
    ///
    /// # Errors
    /// The reason.
    pub fn status(&self) -> Result<(), LedgerError> {
        match self.node.state() {
            State::Up(_) => Ok(()),
            State::Down(error) => Err(error),
            State::Connecting => Err(LedgerError::Unavailable("the first connection is being made".into())),
        }
    }

    /// The primary of a partition. `None`: that of the keys without a partition.
    async fn node(&self, _partition: Option<u16>) -> Result<Arc<Node>, LedgerError> {
        Ok(Arc::clone(&self.node))
    }

    /// Runs an operation within the time limit.
    fn operation<T: 'static, F>(&self, operation: impl FnOnce(Self) -> F + Send + 'static) -> Fetching<T>
    where
        F: Future<Output = Result<T, LedgerError>> + Send,
    {
        let (limit, this) = (self.shared.options.timeout, self.clone());
        Box::pin(async move {
            tokio::time::timeout(limit, operation(this)).await.unwrap_or(Err(LedgerError::Timeout(limit)))
        })
    }

    async fn run(&self, partition: Option<u16>, call: &Call) -> Result<Value, LedgerError> {
        self.node(partition).await?.run(call).await
    }
}

impl Ledger for Valkey {
    fn fleet(&self) -> Fetching<Arc<str>> {
        self.operation(async move |this| meta(&this.run(None, &meta_call()).await?))
    }

    fn fetch(&self, session: &Arc<str>, after: Option<Position>) -> Fetching<Option<Tail>> {
        let session = Arc::clone(session);
        self.operation(async move |this| {
            let partition = partition_of(&session);
            let call = at(Call::new(&script::FETCH).key(list_key(&session)), after).number(PAGE).number(PAGE_BYTES);
            match this.run(Some(partition), &call).await? {
                Value::Nil => Ok(None),
                answer => tail(answer)
                    .map(Some)
                    .map_err(|reason| LedgerError::Unreadable(format!("session {session:?}: {reason}").into())),
            }
        })
    }

    fn append(&self, append: Append) -> Fetching<Appended> {
        let begun = Instant::now();
        let observer = Arc::clone(&self.shared.observer);
        let result = self.operation(async move |this| {
            let partition = partition_of(&append.session);
            let node = this.node(Some(partition)).await?;
            // fails at once without a connection
            node.connected().await?;
            let call = this.append_call(partition, &append)?;
            node.appender.append(call).await
        });
        Box::pin(async move {
            let result = result.await;
            observer.append_ended(outcome(&result), begun.elapsed());
            result
        })
    }

    fn is_replicated(&self, session: &Arc<str>) -> Fetching<bool> {
        let partition = partition_of(session);
        self.operation(async move |this| {
            let node = this.node(Some(partition)).await?;
            node.connected().await?;
            node.appender.confirm(key(partition, "w")).await
        })
    }

    fn delete(&self, session: &Arc<str>, birth: Uid) -> Fetching<bool> {
        let session = Arc::clone(session);
        self.operation(async move |this| {
            let partition = partition_of(&session);
            let call = Call::new(&script::DELETE).key(list_key(&session)).key(key(partition, "u"));
            let call = call.key(tombstone_key(partition, birth));
            let call = call.arg(birth.to_bytes()).arg(session.as_bytes()).number(this.shared.ttl_ms());
            Ok(this.run(Some(partition), &call).await? == Value::Int(1))
        })
    }

    fn is_deleted(&self, session: &Arc<str>, birth: Uid) -> Fetching<bool> {
        let partition = partition_of(session);
        self.operation(async move |this| {
            let call = Call::new(&script::IS_DELETED).key(tombstone_key(partition, birth));
            Ok(this.run(Some(partition), &call).await? == Value::Int(1))
        })
    }

    fn finished(&self, partition: u16, after: StreamId, limit: usize) -> Fetching<FinishedPage> {
        self.operation(async move |this| {
            let node = this.node(Some(partition)).await?;
            let connected = node.connected().await?;
            let stream = key(partition, "f");
            connected.stream_page(&stream, after, limit).await
        })
    }

    fn renew(&self, sessions: Vec<Arc<str>>) -> Fetching<()> {
        self.operation(async move |this| {
            let mut sessions: Vec<_> = sessions.into_iter().map(|session| (partition_of(&session), session)).collect();
            sessions.sort_unstable();
            for (partition, sessions) in sessions.chunk_by(|a, b| a.0 == b.0).map(|chunk| (chunk[0].0, chunk)) {
                for sessions in sessions.chunks(RENEWALS) {
                    let mut call = Call::new(&script::RENEW).key(key(partition, "u"));
                    for (_, session) in sessions {
                        call = call.key(list_key(session)).arg(session.as_bytes());
                    }
                    this.run(Some(partition), &call).await?;
                }
            }
            Ok(())
        })
    }

    fn idle(&self, partition: u16, idle: Duration, limit: usize) -> Fetching<Vec<IdleSession>> {
        self.operation(async move |this| {
            let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
            let call = Call::new(&script::IDLE).key(key(partition, "o")).key(key(partition, "u"));
            let pause = millis((idle / 10).min(LONGEST_SWEEP)).max(1);
            let call = call.number(millis(idle)).number(pause).number(count(limit));
            idle_sessions(this.run(Some(partition), &call).await?)
                .ok_or_else(|| LedgerError::Unreadable(format!("the index of use of partition {partition}").into()))
        })
    }

    fn end_use(&self, idle: IdleSession) -> Fetching<()> {
        self.operation(async move |this| {
            let partition = partition_of(&idle.session);
            let call = Call::new(&script::END_USE).key(key(partition, "u"));
            this.run(Some(partition), &call.arg(idle.session.as_bytes()).number(idle.used_ms)).await.map(drop)
        })
    }

    fn policy(&self, label: Box<str>) -> Fetching<u64> {
        self.operation(async move |this| {
            let call = Call::new(&script::POLICY).key(*b"tt:policy").arg(label.as_bytes());
            match this.run(None, &call).await? {
                Value::Int(number) => u64::try_from(number).map_err(|_| number),
                _ => Err(0),
            }
            .map_err(|_| LedgerError::Unreadable(format!("the number of the policy {label:?}").into()))
        })
    }

    fn disruptions(&self) -> watch::Receiver<u64> {
        self.shared.disruptions.subscribe()
    }
}

impl Valkey {
    fn append_call(&self, partition: u16, append: &Append) -> Result<Call, LedgerError> {
        let mut call = Call::new(&script::APPEND).key(list_key(&append.session));
        call = call.key(key(partition, "f")).key(key(partition, "u"));
        let first = append.after.map_or(append.entries[0].uid, |after| after.birth);
        call = at(call.key(tombstone_key(partition, first)), append.after);
        call = call.number(self.shared.ttl_ms()).arg(append.session.as_bytes()).number(append.in_use.into());
        call = call.number(count(append.finished.len()));
        for leaf in &append.finished {
            call = call.arg(leaf.to_bytes());
        }
        let mut encoder = self.shared.encoder.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in &append.entries {
            if entry.body.len() > element::MAX_BODY {
                return Err(LedgerError::Refused("an entry is too large".into()));
            }
            call = call.arg(encoder.encode(entry));
        }
        Ok(call)
    }
}

/// Milliseconds of the longest TTL, a hundred years.
const MAX_TTL: u64 = 100 * 365 * 86_400_000;

fn key(partition: u16, kind: &str) -> Vec<u8> {
    format!("tt:{{{partition}}}:{kind}").into()
}

fn tombstone_key(partition: u16, birth: Uid) -> Vec<u8> {
    format!("tt:{{{partition}}}:d:{birth}").into()
}

fn list_key(session: &str) -> Vec<u8> {
    format!("tt:{{{}}}:s:{session}", partition_of(session)).into()
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
        Err(LedgerError::Timeout(_)) => "timeout",
        Err(LedgerError::Unavailable(_)) => "unavailable",
        Err(LedgerError::Refused(_)) => "refused",
        Err(LedgerError::Unreadable(_)) => "unreadable",
    }
}

/// Reads the description of the ledger, or writes that of a new one.
fn meta_call() -> Call {
    // SipHash under keys from the system's entropy, other ones each time: a ledger that has lost its data gets another id
    let new = RandomState::new().hash_one("fleet");
    let call = Call::new(&script::META).key(*b"tt:meta").arg(format!("{new:016x}"));
    call.number(SCHEMA).number(PARTITIONS.into())
}

/// The fleet id, if this version can use the ledger.
fn meta(answer: &Value) -> Result<Arc<str>, LedgerError> {
    let unreadable = |reason: String| LedgerError::Unreadable(reason.into());
    let text = |at: usize| match answer {
        Value::Array(fields) => fields.get(at).and_then(text),
        _ => None,
    };
    let (Some(fleet), Some(schema), Some(partitions)) = (text(0), text(1), text(2)) else {
        return Err(unreadable("the key tt:meta lacks a field".into()));
    };
    if *schema != SCHEMA.to_string() || *partitions != PARTITIONS.to_string() {
        return Err(unreadable(format!(
            "the key tt:meta has schema {schema:?} and partitions {partitions:?}; this version has {SCHEMA} and {PARTITIONS}"
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

fn idle_sessions(answer: Value) -> Option<Vec<IdleSession>> {
    let Value::Array(parts) = answer else { return None };
    let pairs = parts.chunks_exact(2);
    pairs.map(|pair| Some(IdleSession { session: text(&pair[0])?, used_ms: number(&pair[1])? })).collect()
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

impl connection::Connected {
    /// A part of a stream.
    async fn stream_page(&self, stream: &[u8], after: StreamId, limit: usize) -> Result<FinishedPage, LedgerError> {
        let call = Call::new(&script::FINISHED).key(stream).arg(format!("({after}")).number(count(limit));
        let unreadable = || LedgerError::Unreadable("a stream of finished paths".into());
        let Value::Array(parts) = self.run(&call).await? else { return Err(unreadable()) };
        let [trimmed, first, Value::Array(elements)] = &parts[..] else { return Err(unreadable()) };
        let first: Option<StreamId> = text(first).and_then(|id| id.parse().ok());
        let entries = elements.iter().map(finished_entry).collect::<Option<_>>().ok_or_else(unreadable)?;
        // an element of the reader's position is kept with the first one after it, so a later first element hides others
        let trimmed = number(trimmed).is_some_and(|trimmed| trimmed > 0) && first.is_none_or(|first| first > after);
        Ok(FinishedPage { entries, trimmed })
    }
}
