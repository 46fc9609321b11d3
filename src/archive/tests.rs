// SPDX-License-Identifier: Apache-2.0
//! Archivers over storage that fails, and over a session store.

mod blobs;
mod faulty;
mod shared;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path as Location;
use parking_lot::Mutex;
use proptest::prelude::*;
use tokio::sync::Notify;

use super::chain::Chain;
use super::*;
use crate::export::parquet_row_texts as row_texts;
use crate::export::row_key;
use crate::metrics::Metrics;
use crate::rl;
use crate::session::{Path, Span, Step, Turn, TurnMetadata};
use faulty::{Faulty, Random};

/// A path of one turn. Its policy label depends on the number.
fn path(number: u64) -> Path {
    let label = format!("step {}", number / 7).into();
    let about = TurnMetadata {
        uid: format!("{number:032x}").parse().unwrap(),
        model: "m".into(),
        started_ms: number,
        policy: vec![Span {
            start: 0,
            end: 1,
            epoch: 1,
            until: 1,
            weight_version: None,
            version: Some(label),
            process: None,
            adapter: None,
        }],
        ..TurnMetadata::default()
    };
    let turn = Turn {
        id: 0,
        parent: None,
        prompt: [1].into(),
        response: [2].into(),
        logprobs: [-0.5].into(),
        entropy: Box::default(),
        about,
    };
    let steps = vec![Step { turn: Arc::new(turn), trained: true, reward: None, scores: None }];
    Path::new(format!("s{number}").into(), 1, steps)
}

/// Entries in one or more partitions, which tests add.
#[derive(Debug, Clone)]
struct Source {
    partitions: Arc<Vec<Mutex<Vec<Entry>>>>,
    added: Arc<Notify>,
    recovered: Option<u64>,
}

impl Source {
    fn new(partitions: u32) -> Self {
        let partitions = (0..partitions).map(|_| Mutex::default()).collect();
        Self { partitions: Arc::new(partitions), added: Arc::default(), recovered: None }
    }

    /// Adds the path of this number, or an entry without one.
    fn add(&self, partition: usize, number: u64, content: Content) {
        self.partitions[partition].lock().push(Entry { position: Position::from(number), content });
        self.added.notify_waiters();
    }
}

impl FinishedSource for Source {
    fn store_id(&self) -> String {
        "f00d".to_owned()
    }

    fn partitions(&self) -> u32 {
        u32::try_from(self.partitions.len()).unwrap()
    }

    fn start(&self) -> Position {
        Position::from(0)
    }

    fn recovered(&self, _: u32) -> Option<Position> {
        self.recovered.map(Position::from)
    }

    fn page(&self) -> usize {
        512
    }

    async fn changed(&self, partition: u32, after: &Position) {
        loop {
            let added = self.added.notified();
            if !self.next(partition, after, 1).await.unwrap().is_empty() {
                return;
            }
            added.await;
        }
    }

    async fn next(&self, partition: u32, after: &Position, limit: usize) -> Result<Vec<Entry>, ArchiveError> {
        let entries = self.partitions[partition as usize].lock();
        Ok(entries.iter().filter(|entry| entry.position > *after).take(limit).cloned().collect())
    }
}

fn archiver<S: FinishedSource>(storage: Storage, source: S, options: Options) -> Archiver<S> {
    let annotate: CurrentAnnotate = Arc::new(|| Arc::new(|path: &Path| rl::thinking(path, None, rl::HIGH_ENTROPY)));
    Archiver::new(storage, source, options, annotate, Arc::new(Metrics::new("none")))
}

fn storage(inner: &Arc<InMemory>) -> Storage {
    let inner: Arc<dyn object_store::ObjectStore> = Arc::clone(inner) as _;
    Storage::new(inner, Location::from("a/prefix"))
}

const HOUR: Duration = Duration::from_secs(3600);

/// Archives what the source has now.
async fn archive_all(storage: &Storage, source: Source) {
    let running = archiver(storage.clone(), source, Options { interval: HOUR, bytes: 1 << 20 }).spawn();
    assert!(running.finish(HOUR).await, "it ends");
}

/// The row keys of the archive in the order of the chains, and the positions of missed paths.
async fn contents(storage: &Storage) -> (Vec<String>, Vec<(String, u64)>) {
    let (mut keys, mut missed) = (Vec::new(), Vec::new());
    for chain in chains(storage).await.unwrap() {
        let mut manifests = Manifests::list(storage, chain).await.unwrap();
        while let Some((manifest, _)) = manifests.next().await.unwrap() {
            for file in &manifest.files {
                keys.extend(row_texts(storage.get(&file.path).await.unwrap().unwrap()).unwrap().keys);
            }
            missed.extend(manifest.missed.iter().map(|missed| (missed.reason.clone(), missed.count.unwrap())));
        }
    }
    (keys, missed)
}

/// The path of a number with its row key as an entry's content.
fn content(number: u64, expected: &mut Vec<String>) -> Content {
    let path = path(number);
    expected.push(row_key(&path));
    Content::Path(path)
}

/// Two archivers of one source with different limits, over storage that fails. One of them is killed and replaced at random times.
async fn two_archivers(seed: u64) {
    let (inner, mut random) = (Arc::new(InMemory::new()), Random::new(seed));
    let partitions = 1 + random.below(2);
    let source = Source::new(u32::try_from(partitions).unwrap());
    let storage_with = |seed| {
        let faulty: Arc<dyn object_store::ObjectStore> = Arc::new(Faulty::new(Arc::clone(&inner), seed, 60));
        Storage::new(faulty, Location::from("a/prefix"))
    };
    let start = |seed: u64, random: &mut Random| {
        let interval = Duration::from_millis(1 + random.below(20_000));
        let options = Options { interval, bytes: 1 + random.below(4000) };
        archiver(storage_with(seed), source.clone(), options).spawn()
    };
    let mut running = [start(seed + 1, &mut random), start(seed + 2, &mut random)];
    let (mut expected, mut missed) = (Vec::new(), 0);
    for number in 1..=40 {
        let partition = usize::try_from(random.below(partitions)).unwrap();
        let entry = match random.below(10) {
            0 => {
                missed += 1;
                Content::Missed { count: Some(1), reason: "evicted", session: Some("s".into()) }
            }
            _ => content(number, &mut expected),
        };
        source.add(partition, number, entry);
        tokio::time::sleep(Duration::from_millis(random.below(4000))).await;
        if random.below(12) == 0 {
            let at = usize::try_from(random.below(2)).unwrap();
            let killed = std::mem::replace(&mut running[at], start(seed + 10 + number, &mut random));
            killed.kill();
        }
    }
    for running in running {
        assert!(running.finish(HOUR).await, "it ends");
    }
    // puts whose answers were lost may still arrive
    tokio::time::sleep(HOUR).await;
    let storage = storage(&inner);
    let (mut keys, found_missed) = contents(&storage).await;
    keys.sort();
    expected.sort();
    assert_eq!(keys, expected, "each row once");
    assert_eq!(found_missed.iter().map(|(_, count)| count).sum::<u64>(), missed, "each missed path once");
    assert_eq!(verify(&storage, |_| ()).await.unwrap().problems, Vec::<String>::new());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn two_archivers_archive_each_row_once_over_storage_that_fails(seed in any::<u32>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(two_archivers(u64::from(seed)));
    }
}

#[tokio::test(start_paused = true)]
async fn path_is_archived_within_the_interval() {
    let (inner, source) = (Arc::new(InMemory::new()), Source::new(1));
    let storage = storage(&inner);
    let options = Options { interval: Duration::from_secs(30), bytes: 1 << 20 };
    let running = archiver(storage.clone(), source.clone(), options).spawn();
    tokio::time::sleep(Duration::from_secs(100)).await;
    let mut expected = Vec::new();
    source.add(0, 1, content(1, &mut expected));
    tokio::time::sleep(Duration::from_secs(10)).await;
    source.add(0, 2, content(2, &mut expected));
    tokio::time::sleep(Duration::from_secs(19)).await;
    assert_eq!(contents(&storage).await.0, Vec::<String>::new(), "neither its time nor its bytes are reached");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(contents(&storage).await.0, expected, "both in one file");
    drop(running);
}

#[tokio::test(start_paused = true)]
async fn full_batch_is_archived_at_once() {
    let (inner, source) = (Arc::new(InMemory::new()), Source::new(1));
    let storage = storage(&inner);
    let running = archiver(storage.clone(), source.clone(), Options { interval: HOUR, bytes: 1 }).spawn();
    let mut expected = Vec::new();
    (1..=3).for_each(|number| source.add(0, number, content(number, &mut expected)));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(contents(&storage).await.0, expected);
    assert_eq!(verify(&storage, |_| ()).await.unwrap().manifests, 3, "each path fills a batch");
    drop(running);
}

#[tokio::test(start_paused = true)]
async fn age_is_that_of_the_oldest_path_while_storage_fails() {
    let (inner, source) = (Arc::new(InMemory::new()), Source::new(1));
    let faulty: Arc<dyn object_store::ObjectStore> = Arc::new(faulty::Broken);
    let metrics = Arc::new(Metrics::new("none"));
    let options = Options { interval: Duration::from_secs(30), bytes: 1 << 20 };
    let annotate: CurrentAnnotate = Arc::new(|| Arc::new(|path: &Path| rl::thinking(path, None, rl::HIGH_ENTROPY)));
    // it opens the chain, and then cannot write
    let broken = Storage::new(faulty, Location::from("a"));
    let archiver = Archiver::new(broken, source.clone(), options, annotate, Arc::clone(&metrics));
    let running = archiver.spawn();
    tokio::time::sleep(Duration::from_secs(1000)).await;
    assert!(metrics.archive.oldest.get() < 0.5, "{}", metrics.archive.oldest.get());
    source.add(0, 1, Content::Path(path(1)));
    tokio::time::sleep(Duration::from_secs(200)).await;
    let age = metrics.archive.oldest.get();
    assert!((198.0..=201.0).contains(&age), "{age}");
    assert!(metrics.archive.failures.with_label_values(&["data"]).get() > 2);
    assert!(!running.finish(Duration::from_secs(5)).await, "the drain ends without it");
    drop(inner);
}

#[tokio::test(start_paused = true)]
async fn source_that_lost_positions_continues_in_a_new_chain() {
    let (inner, mut source) = (Arc::new(InMemory::new()), Source::new(1));
    let (storage, mut expected) = (storage(&inner), Vec::new());
    (1..=5).for_each(|number| source.add(0, number, content(number, &mut expected)));
    archive_all(&storage, source.clone()).await;
    // a crash loses the paths 4 and 5, and others get their numbers
    source.partitions[0].lock().truncate(3);
    source.recovered = Some(3);
    source.add(0, 4, content(104, &mut expected));
    archive_all(&storage, source.clone()).await;
    source.add(0, 5, content(105, &mut expected));
    source.recovered = Some(4);
    archive_all(&storage, source).await;
    assert_eq!(contents(&storage).await.0, expected, "each row once, none skipped");
    let parts: Vec<String> = chains(&storage).await.unwrap().into_iter().map(|chain| chain.part).collect();
    assert_eq!(parts, ["0", "0.1"], "a restart without a loss continues the chain");
    assert_eq!(verify(&storage, |_| ()).await.unwrap().problems, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn manifest_that_a_listing_lacks_is_read() {
    let inner = Arc::new(InMemory::new());
    let (storage, found) = three_manifests(&inner).await;
    let at = Location::from(format!("a/prefix/{}", found[1].name()));
    let content = inner.get(&at).await.unwrap().bytes().await.unwrap();
    inner.delete(&at).await.unwrap();
    let mut manifests = Manifests::list(&storage, chains(&storage).await.unwrap().remove(0)).await.unwrap();
    // it is added while the others are listed
    inner.put(&at, content.into()).await.unwrap();
    for expected in found {
        assert_eq!(manifests.next().await.unwrap(), Some((expected, None)));
    }
    assert_eq!(manifests.next().await.unwrap(), None);
}

/// Three manifests of a row each.
async fn three_manifests(inner: &Arc<InMemory>) -> (Storage, Vec<Manifest>) {
    let (storage, source) = (storage(inner), Source::new(1));
    let mut found = Vec::new();
    for number in 1..=3 {
        source.add(0, number, Content::Path(path(number)));
        archive_all(&storage, source.clone()).await;
    }
    let mut manifests = Manifests::list(&storage, chains(&storage).await.unwrap().remove(0)).await.unwrap();
    while let Some((manifest, problem)) = manifests.next().await.unwrap() {
        assert_eq!(problem, None);
        found.push(manifest);
    }
    assert_eq!(found.len(), 3);
    (storage, found)
}

#[tokio::test(start_paused = true)]
async fn verify_reports_missing_and_damaged_objects() {
    let at = |name: &str| Location::from(format!("a/prefix/{name}"));
    let problems: BTreeMap<&str, String> = {
        let mut found = BTreeMap::new();
        for fault in ["file", "content", "manifest", "first", "twice", "rows", "json", "version"] {
            let inner = Arc::new(InMemory::new());
            let (storage, manifests) = three_manifests(&inner).await;
            let file = at(&manifests[1].files[0].path);
            match fault {
                "file" => inner.delete(&file).await.unwrap(),
                "content" => drop(inner.put(&file, "x".into()).await.unwrap()),
                "manifest" => inner.delete(&at(&manifests[1].name())).await.unwrap(),
                "first" => inner.delete(&at(&manifests[0].name())).await.unwrap(),
                "json" => drop(inner.put(&at(&manifests[1].name()), "{}".into()).await.unwrap()),
                "version" => {
                    let later = r#"{"archive_version": 2, "files": {}}"#;
                    drop(inner.put(&at(&manifests[1].name()), later.into()).await.unwrap());
                }
                _ => {
                    let mut changed = manifests[1].clone();
                    match fault {
                        "twice" => changed.files = manifests[0].files.clone(),
                        _ => changed.rows = 2,
                    }
                    drop(inner.put(&at(&changed.name()), changed.to_bytes().into()).await.unwrap());
                }
            }
            found.insert(fault, verify(&storage, |_| ()).await.unwrap().problems.join("\n"));
        }
        found
    };
    for (fault, part) in [
        ("file", "does not exist; manifest/store=f00d/part=0/00000000000000000001.json names it"),
        ("content", "the content has another hash"),
        ("manifest", "a gap between 00000000000000000001 and 00000000000000000002"),
        ("first", "the manifests up to 00000000000000000001 are missing"),
        ("twice", "is archived twice"),
        ("rows", "rows is 2, and the files have 1"),
        ("json", "is not a manifest"),
        (
            "version",
            "00000000000000000001.json has archive_version 2, and this build reads and writes 1: use the build",
        ),
    ] {
        assert!(problems[fault].contains(part), "{fault}: {:?}", problems[fault]);
    }
}

#[tokio::test(start_paused = true)]
async fn archive_of_another_version_gets_no_chain() {
    let inner = Arc::new(InMemory::new());
    let (storage, manifests) = three_manifests(&inner).await;
    let own = Source::new(1);
    let other =
        |store: &str| Location::from(format!("a/prefix/manifest/store={store}/part=0/00000000000000000001.json"));
    inner.put(&other("damaged"), "{}".into()).await.unwrap();
    assert!(Chain::open(&storage, &own, 0).await.is_ok_and(|chain| chain.has_begun));
    for manifest in &manifests {
        inner.delete(&Location::from(format!("a/prefix/{}", manifest.name()))).await.unwrap();
    }
    assert!(
        Chain::open(&storage, &own, 0).await.is_ok_and(|chain| !chain.has_begun),
        "a damaged one is not another version"
    );
    inner.put(&other("later"), r#"{"archive_version": 2}"#.into()).await.unwrap();
    let refused = Chain::open(&storage, &own, 0).await;
    assert!(matches!(refused, Err(ArchiveError::OtherVersion { found: 2, .. })), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn folder_is_an_archive() {
    let folder = tempfile::tempdir().unwrap();
    let uri = format!("file://{}/made", folder.path().display());
    let storage = Storage::open(&uri).unwrap();
    let (source, mut expected) = (Source::new(1), Vec::new());
    (1..=9).for_each(|number| source.add(0, number, content(number, &mut expected)));
    archive_all(&storage, source.clone()).await;
    source.add(0, 10, content(10, &mut expected));
    // a second archiver that was behind
    archive_all(&Storage::open(&uri).unwrap(), source).await;
    let (mut keys, _) = contents(&storage).await;
    keys.sort();
    expected.sort();
    assert_eq!(keys, expected);
    assert_eq!(storage.probe().await, Ok(()));
    let found = verify(&storage, |_| ()).await.unwrap();
    assert_eq!((found.problems.len(), found.rows, found.unused), (0, 10, 0), "{found:?}");
}

#[test]
fn uri_of_another_form_is_refused() {
    for uri in
        ["/folder", "ftp://a/b", "s3://", "s3://user:hush@bucket/x", "user:hush@bucket/x", "file://relative/folder"]
    {
        let error = Storage::open(uri).unwrap_err();
        assert!(error.contains("s3://BUCKET/PREFIX") && !error.contains("hush"), "{error}");
    }
    assert!(Storage::open_existing("file:///there/is/no/such").unwrap_err().contains("no such folder"));
}
