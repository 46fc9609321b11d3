// SPDX-License-Identifier: Apache-2.0
//! Random commands to the ledger in memory and to a real server. All answers must be equal.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;

use super::process::{Binary, Raw, ledger, options};
use crate::images::Image;
use crate::session::Uid;
use crate::session::ledger::memory::MemoryLedger;
use crate::session::ledger::{
    Append, Appended, Entry, FinishedEntry, ImageKey, LastUse, Ledger, ListOrder, Position, StreamId, Tail,
    partition_of,
};

/// The largest difference between the clocks of both.
const CLOSE: Duration = Duration::from_secs(5);

/// A generator of pseudorandom numbers.
struct Random(u64);

impl Random {
    /// A number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// Both ledgers, and what the test knows of them.
struct Pair {
    random: Random,
    memory: MemoryLedger,
    valkey: Box<dyn Ledger>,
    raw: Raw,
    sessions: Vec<Arc<str>>,
    /// Positions of all sessions, old ones too.
    positions: Vec<Option<Position>>,
    /// The ids of the same elements of streams.
    ids: Vec<(StreamId, StreamId)>,
    idle: Vec<(LastUse, LastUse)>,
    /// How often each kind of result was seen.
    seen: std::collections::BTreeMap<&'static str, u32>,
}

impl Pair {
    fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn entries(&mut self) -> Vec<Entry> {
        let many = self.random.below(20) == 0;
        let count = if many { 300 } else { 1 + self.random.below(3) };
        let body = |random: &mut Random| {
            let length = random.pick(&[0, 1, 300, 5000]);
            (0..length).map(|_| random.below(4) as u8).collect::<Vec<u8>>()
        };
        let random = &mut self.random;
        (0..count).map(|_| Entry { uid: Uid::unique(), body: body(random).into() }).collect()
    }

    /// A position that is right, old, of another session, or made up.
    fn position(&mut self, session: &Arc<str>) -> Option<Position> {
        let state = self.memory.state();
        let list = state.lists.get(session).map_or(&[][..], Vec::as_slice);
        let now = Position::after(None, list);
        drop(state);
        match self.random.below(10) {
            0..6 => now,
            6 => now.map(|now| Position { length: now.length + 1, ..now }),
            7 => now.map(|now| Position { last: Uid::unique(), ..now }),
            8 => now.map(|now| Position { birth: Uid::unique(), ..now }),
            _ => {
                let positions = std::mem::take(&mut self.positions);
                let old = self.random.pick(&positions);
                self.positions = positions;
                old
            }
        }
    }

    async fn step(&mut self) {
        let sessions = self.sessions.clone();
        let session = self.random.pick(&sessions);
        let partition = partition_of(&session);
        match self.random.below(28) {
            0..8 => self.append(session).await,
            8..12 => self.fetch(&session).await,
            12 => {
                let birth = match self.random.below(3) {
                    0 => Uid::unique(),
                    _ => self.memory.state().lists.get(&session).map_or_else(Uid::unique, |list| list[0].uid),
                };
                let deleted = self.valkey.delete(&session, birth).await.unwrap();
                assert_eq!(deleted, self.memory.delete(&session, birth).await.unwrap());
                self.count(if deleted { "deleted" } else { "not deleted" });
            }
            13..15 => self.finished(partition).await,
            15 => {
                let some: Vec<Arc<str>> = sessions.into_iter().filter(|_| self.random.below(2) == 0).collect();
                self.valkey.renew(some.clone()).await.unwrap();
                self.memory.renew(some).await.unwrap();
                self.count("renewed");
            }
            16 => self.idle(partition).await,
            17 => {
                if !self.idle.is_empty() {
                    let at = self.random.below(self.idle.len());
                    let (valkey, memory) = self.idle[at].clone();
                    self.valkey.end_use(valkey).await.unwrap();
                    self.memory.end_use(memory).await.unwrap();
                    self.count("use ended");
                }
            }
            18 => {
                let deletion = self.valkey.deletion(&session).await.unwrap();
                let expected = self.memory.deletion(&session).await.unwrap();
                assert_eq!(deletion.map(|deletion| deletion.birth), expected.map(|deletion| deletion.birth));
                if let Some((deletion, expected)) = deletion.zip(expected) {
                    assert!(deletion.ago.abs_diff(expected.ago) < CLOSE, "{deletion:?} {expected:?}");
                }
                self.count(if deletion.is_some() { "has a tombstone" } else { "has no tombstone" });
                let ago = self.random.pick(&[Duration::from_secs(60), Duration::from_secs(600)]);
                if self.random.below(3) == 0 {
                    let (birth, ago_ms) = (Uid::unique(), u64::try_from(ago.as_millis()).unwrap());
                    for ledger in [&*self.valkey, &self.memory as &dyn Ledger] {
                        let now_ms = ledger.now_ms(partition).await.unwrap();
                        ledger.restore_deletion(&session, birth, now_ms - ago_ms).await.unwrap();
                    }
                    self.count("deletion restored");
                }
            }
            19 => {
                // a lease of an hour is not over, and one of a millisecond is, when the next command runs
                let owner = Uid::from_bytes([self.random.pick(&[1, 2]); 16]);
                let lease = self.random.pick(&[Duration::from_millis(1), Duration::from_secs(3600)]);
                let claimed = self.valkey.claim(partition, owner, lease).await.unwrap();
                assert_eq!(claimed, self.memory.claim(partition, owner, lease).await.unwrap());
                self.count(if claimed { "claimed" } else { "not claimed" });
            }
            20..22 => self.list(partition).await,
            22..27 => self.images().await,
            _ => {
                // nothing is idle for an hour, and the partition counts as swept
                let hour = Duration::from_secs(3600);
                assert_eq!(self.valkey.idle(partition, hour, 9).await.unwrap(), []);
                assert_eq!(self.memory.idle(partition, hour, 9).await.unwrap(), []);
            }
        }
        self.next_millisecond().await;
    }

    async fn append(&mut self, session: Arc<str>) {
        let after = self.position(&session);
        let finished = (0..self.random.below(4) / 2).map(|_| Uid::unique()).collect();
        let begun_ago = self.random.pick(&[Duration::ZERO, Duration::from_secs(7200)]);
        let in_use = self.random.below(3) > 0;
        let append = Append { after, entries: self.entries(), finished, in_use, begun_ago, session };
        self.positions.push(Position::after(after, &append.entries));
        let appended = self.valkey.append(append.clone()).await.unwrap();
        assert_eq!(appended, self.memory.append(append.clone()).await.unwrap(), "{append:?}");
        self.count(match appended {
            Appended::Stored { .. } => "stored",
            Appended::Behind => "behind",
            Appended::Gone => "gone",
        });
    }

    async fn fetch(&mut self, session: &Arc<str>) {
        let mut after = self.position(session);
        loop {
            let tail = self.valkey.fetch(session, after).await.unwrap();
            assert_eq!(tail, self.memory.fetch(session, after).await.unwrap());
            let Some(Tail { start, length, entries }) = tail else { return self.count("fetched nothing") };
            if start > 0 {
                self.count("fetched a tail");
            }
            let before = after.filter(|_| start > 0);
            after = Position::after(before, &entries);
            if start + entries.len() as u64 == length {
                return self.count("fetched");
            }
            self.count("fetched a page");
        }
    }

    async fn finished(&mut self, partition: u16) {
        let (valkey, memory) = match self.random.below(self.ids.len() + 1) {
            0 => Default::default(),
            at => self.ids[at - 1],
        };
        let limit = self.random.pick(&[1, 2, 1000]);
        let real = self.valkey.finished(partition, valkey, limit).await.unwrap();
        let model = self.memory.finished(partition, memory, limit).await.unwrap();
        let content = |entry: &FinishedEntry| (Arc::clone(&entry.session), entry.birth, entry.leaf);
        let contents = |entries: &[FinishedEntry]| entries.iter().map(content).collect::<Vec<_>>();
        // ids of one partition say nothing about another one
        let is_own = valkey == StreamId::default() || self.own(partition).await.contains(&memory);
        if is_own {
            assert_eq!(contents(&real.entries), contents(&model.entries));
            assert_eq!(real.trimmed, model.trimmed);
            assert!(real.entries.is_sorted_by_key(|entry| entry.id));
            let pairs = real.entries.iter().zip(&model.entries).map(|(real, model)| (real.id, model.id));
            self.ids.extend(pairs);
            self.count(if real.entries.is_empty() { "no finished path" } else { "finished paths" });
        }
    }

    /// The ids in the stream of a partition in memory.
    async fn own(&self, partition: u16) -> Vec<StreamId> {
        let all = self.memory.finished(partition, StreamId::default(), usize::MAX).await.unwrap();
        all.entries.iter().map(|entry| entry.id).collect()
    }

    async fn idle(&mut self, partition: u16) {
        let limit = self.random.pick(&[1, 100]);
        let real = self.valkey.idle(partition, Duration::ZERO, limit).await.unwrap();
        let model = self.memory.idle(partition, Duration::ZERO, limit).await.unwrap();
        let names = |all: &[LastUse]| all.iter().map(|idle| Arc::clone(&idle.session)).collect::<Vec<_>>();
        assert_eq!(names(&real), names(&model));
        self.count(if real.is_empty() { "none idle" } else { "idle" });
        self.idle.extend(real.into_iter().zip(model));
    }

    /// Reads the list from a session on that both ledgers have. Each time belongs to one command, which may be a renewal of several sessions.
    async fn list(&mut self, partition: u16) {
        let (order, limit) =
            (self.random.pick(&[ListOrder::Oldest, ListOrder::Newest]), self.random.pick(&[1, 2, 100]));
        let real = self.valkey.list(partition, order, None, 100).await.unwrap();
        let model = self.memory.list(partition, order, None, 100).await.unwrap();
        let names = |all: &[LastUse]| all.iter().map(|last| Arc::clone(&last.session)).collect::<Vec<_>>();
        assert_eq!(names(&real), names(&model));
        self.count(if real.is_empty() { "none listed" } else { "listed" });
        if real.is_empty() {
            return;
        }
        let at = self.random.below(real.len());
        let (valkey, memory) = (real[at].used_ms, model[at].used_ms);
        let real = self.valkey.list(partition, order, Some(valkey), limit).await.unwrap();
        assert_eq!(names(&real), names(&self.memory.list(partition, order, Some(memory), limit).await.unwrap()));
    }

    /// Uses pictures in some sessions. The limit is that of a few.
    async fn images(&mut self) {
        let image = |content: u8| Image::new(vec![content; 30_000 * usize::from(content)].into());
        let key = |image: &Image| ImageKey { digest: image.digest, size: image.size };
        let all: Vec<_> = (1..8).map(image).collect();
        let some: Vec<_> = all.iter().filter(|_| self.random.below(2) == 0).collect();
        let keys: Vec<_> = some.iter().map(|image| key(image)).collect();
        let session = Uid::from_bytes([self.random.pick(&[1, 2]); 16]);
        match self.random.below(5) {
            4 => {
                let birth = session.to_bytes();
                let name = std::str::from_utf8(&birth).unwrap();
                for image in some {
                    self.raw.send(&format!("ZADD tt:{{images}}:s:{} XX 1 {name}", image.digest)).await;
                    let mut state = self.memory.state();
                    let stored = state.images.get_mut(&image.digest);
                    let until_ms = stored.and_then(|stored| stored.sessions.get_mut(&session));
                    let is_used = until_ms.map(|until_ms| *until_ms = 1).is_some();
                    drop(state);
                    if is_used {
                        self.count("use of a picture ended");
                    }
                }
            }
            0 => {
                let held = self.valkey.hold_images(session, keys.clone()).await.unwrap();
                assert_eq!(held, self.memory.hold_images(session, keys).await.unwrap());
                self.count("pictures held");
            }
            1 => {
                let session = self.random.pick(&[Some(session), Some(session), None]);
                self.valkey.release_images(session, keys.clone()).await.unwrap();
                self.memory.release_images(session, keys).await.unwrap();
                self.count(if session.is_some() { "pictures released" } else { "pictures removed" });
            }
            2 => {
                let mut left = keys;
                while !left.is_empty() {
                    let read = self.valkey.images(left.clone()).await.unwrap();
                    for (image, bytes) in left.drain(..read.len()).zip(read) {
                        assert_eq!(self.memory.images(vec![image]).await.unwrap(), [bytes]);
                    }
                }
                self.count("pictures read");
            }
            _ => {
                for image in some {
                    let (key, bytes) = (key(image), image.bytes.clone().unwrap());
                    let is_stored = self.valkey.put_image(session, key, bytes.clone()).await.unwrap();
                    assert_eq!(is_stored, self.memory.put_image(session, key, bytes).await.unwrap());
                    self.count(if is_stored { "picture stored" } else { "picture refused" });
                }
            }
        }
    }

    /// Waits until times of later commands differ from those before, in both ledgers, and a sweep of no duration is over.
    async fn next_millisecond(&mut self) {
        let begun = std::time::Instant::now();
        let now = async |raw: &mut Raw| match raw.send("TIME").await {
            Value::Array(parts) => {
                let part = |at: usize| super::super::number(&parts[at]).unwrap();
                part(0) * 1000 + part(1) / 1000
            }
            other => panic!("{other:?}"),
        };
        let before = now(&mut self.raw).await;
        while now(&mut self.raw).await < before + 2 || begun.elapsed() < Duration::from_millis(2) {}
    }
}

#[tokio::test]
async fn random_commands_have_the_answers_of_the_ledger_in_memory() {
    let Some(binary) = Binary::any() else { return };
    let server = binary.start(&[]);
    let mut seen = std::collections::BTreeMap::<&str, u32>::new();
    for seed in 0..30 {
        let mut raw = server.raw().await;
        raw.send("FLUSHALL").await;
        let mut pair = Pair {
            random: Random(seed),
            memory: MemoryLedger::new(),
            valkey: Box::new(ledger(options(&server.url())).0),
            raw,
            // the last two are in one partition
            sessions: ["a", "b {x}\r\n", "s2", "s102"].map(Arc::from).into(),
            positions: vec![None],
            ids: Vec::new(),
            idle: Vec::new(),
            seen: Default::default(),
        };
        pair.memory.image_limit.store(512 << 10, Ordering::Relaxed);
        for _ in 0..70 {
            pair.step().await;
        }
        for (what, count) in pair.seen {
            *seen.entry(what).or_default() += count;
        }
    }
    for what in [
        "stored",
        "behind",
        "gone",
        "fetched",
        "fetched nothing",
        "fetched a tail",
        "fetched a page",
        "deleted",
        "not deleted",
        "finished paths",
        "no finished path",
        "idle",
        "none idle",
        "use ended",
        "renewed",
        "listed",
        "none listed",
        "has a tombstone",
        "has no tombstone",
        "deletion restored",
        "use of a picture ended",
        "pictures held",
        "pictures released",
        "pictures removed",
        "pictures read",
        "picture stored",
        "picture refused",
    ] {
        assert!(seen.get(what).is_some_and(|count| *count > 5), "too few of {what:?}: {seen:?}");
    }
}
