// SPDX-License-Identifier: Apache-2.0
//! What operations return while servers fail, and afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::process::{Binary, Observer, ledger, options};
use super::{append, entries, next};
use crate::images::Image;
use crate::session::Uid;
use crate::session::ledger::valkey::{Valkey, ValkeyOptions};
use crate::session::ledger::{Append, Appended, ImageKey, Ledger, LedgerError, ListOrder, StreamId, partition_of};

const STORED: Appended = Appended::Stored { replicated: true };
const UNREPLICATED: Appended = Appended::Stored { replicated: false };

fn short(url: &str) -> ValkeyOptions {
    ValkeyOptions { timeout: Duration::from_millis(800), ..options(url) }
}

#[tokio::test]
async fn replicas_confirm_appends_unless_they_are_stopped() {
    let Some(binary) = Binary::any() else { return };
    let primary = binary.start(&[]);
    // WAIT ends at three quarters of the limit, and a slow machine needs the rest for the answer
    let timeout = Duration::from_secs(3);
    let process = |replicas| ledger(ValkeyOptions { replicas, timeout, ..options(&primary.url()) }).0;
    let lone = process(1);
    assert_eq!(lone.append(append("lone")).await, Ok(UNREPLICATED), "there is no replica");
    assert_eq!(lone.is_replicated(&"lone".into()).await, Ok(false));

    let replica = primary.replica(&binary).await;
    let valkey = process(1);
    // before this connection has written anything
    // a replica that has just joined does not acknowledge for a moment
    while valkey.is_replicated(&"s".into()).await != Ok(true) {}
    let first = append("s");
    assert_eq!(valkey.append(first.clone()).await, Ok(STORED));
    let both = process(2);
    assert_eq!(both.append(append("both")).await, Ok(UNREPLICATED), "there is one replica");

    replica.set_stopped(true);
    let second = next(&first);
    assert_eq!(valkey.append(second.clone()).await, Ok(UNREPLICATED));
    let begun = Instant::now();
    assert_eq!(valkey.append(next(&second)).await, Ok(UNREPLICATED));
    assert!(begun.elapsed() < timeout / 2, "only the first one waits long: {:?}", begun.elapsed());
    assert_eq!(valkey.is_replicated(&"s".into()).await, Ok(false));
    // a process that has not written anything cannot tell that nothing is missing
    let other = process(1);
    assert_eq!(other.is_replicated(&"s".into()).await, Ok(false));

    replica.set_stopped(false);
    while valkey.is_replicated(&"s".into()).await != Ok(true) {}
    assert_eq!(valkey.append(append("later")).await, Ok(STORED));
}

#[tokio::test]
async fn operations_fail_at_once_while_the_server_is_down_and_work_afterwards() {
    let Some(binary) = Binary::any() else { return };
    let mut server = binary.start(&[]);
    let (valkey, observer) = ledger(options(&server.url()));
    let mut disruptions = valkey.disruptions();
    let fleet = valkey.fleet().await.unwrap();
    assert_eq!(valkey.append(append("s")).await, Ok(STORED));
    assert!(!disruptions.has_changed().unwrap());

    server.kill();
    disruptions.changed().await.unwrap();
    let begun = Instant::now();
    for _ in 0..100 {
        all_operations_are(&valkey, |error| matches!(error, LedgerError::Unavailable(_))).await;
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "900 operations: {:?}", begun.elapsed());
    assert!(matches!(valkey.status(), Err(LedgerError::Unavailable(_))));

    disruptions.borrow_and_update();
    let _server = binary.start_on(server.port, &[]);
    observer.until_up(1).await;
    assert!(disruptions.has_changed().unwrap(), "the server is another one");
    assert_ne!(valkey.fleet().await.unwrap(), fleet, "the server is empty");
    assert_eq!(valkey.fetch(&"s".into(), None).await, Ok(None));
    assert_eq!(valkey.append(append("s")).await, Ok(STORED));
}

async fn all_operations_are(valkey: &Valkey, expected: impl Fn(LedgerError) -> bool) {
    let session: Arc<str> = "s".into();
    assert!(expected(valkey.fleet().await.unwrap_err()));
    assert!(expected(valkey.fetch(&session, None).await.unwrap_err()));
    assert!(expected(valkey.append(append("s")).await.unwrap_err()));
    assert!(expected(valkey.is_replicated(&session).await.unwrap_err()));
    assert!(expected(valkey.delete(&session, Uid::unique()).await.unwrap_err()));
    assert!(expected(valkey.finished(0, StreamId::default(), 1).await.unwrap_err()));
    assert!(expected(valkey.renew(vec![session]).await.unwrap_err()));
    assert!(expected(valkey.idle(0, Duration::ZERO, 1).await.unwrap_err()));
    assert!(expected(valkey.deletion(&"s".into()).await.unwrap_err()));
    assert!(expected(valkey.list(0, ListOrder::Oldest, None, 1).await.unwrap_err()));
    assert!(expected(valkey.claim(0, Uid::unique(), Duration::ZERO).await.unwrap_err()));
    assert!(expected(valkey.probe(0).await.unwrap_err()));
}

#[tokio::test]
async fn a_server_that_starts_later_is_found() {
    let Some(binary) = Binary::any() else { return };
    let port = super::process::free_port();
    let (valkey, observer) = ledger(options(&format!("redis://127.0.0.1:{port}")));
    let error = valkey.append(append("s")).await.unwrap_err();
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
    let _server = binary.start_on(port, &[]);
    observer.until_up(1).await;
    assert_eq!(valkey.append(append("s")).await, Ok(STORED));
}

#[tokio::test]
async fn a_server_that_hangs_costs_one_time_limit() {
    let Some(binary) = Binary::any() else { return };
    let server = binary.start(&[]);
    let (valkey, observer) = ledger(short(&server.url()));
    assert_eq!(valkey.append(append("s")).await, Ok(STORED));
    server.set_stopped(true);
    let begun = Instant::now();
    // the limit of the command ends before that of the operation, so that the connection is judged
    let limit = Duration::from_millis(700);
    assert_eq!(valkey.fetch(&"s".into(), None).await, Err(LedgerError::Timeout(limit)));
    for _ in 0..20 {
        assert!(valkey.append(append("t")).await.is_err());
    }
    assert!(begun.elapsed() < limit * 4, "later operations fail at once: {:?}", begun.elapsed());
    server.set_stopped(false);
    observer.until_up(1).await;
    assert!(valkey.fetch(&"s".into(), None).await.unwrap().is_some());
}

#[tokio::test]
async fn a_server_without_the_scripts_gets_them_again() {
    let Some(binary) = Binary::any() else { return };
    let server = binary.start(&[]);
    let (valkey, _) = ledger(options(&server.url()));
    let first = append("s");
    assert_eq!(valkey.append(first.clone()).await, Ok(STORED));
    server.raw().await.send("SCRIPT FLUSH").await;
    assert_eq!(valkey.append(next(&first)).await, Ok(STORED));
    assert_eq!(valkey.fetch(&"s".into(), None).await.unwrap().unwrap().length, 2);
    assert_eq!(*valkey.disruptions().borrow(), 0);
}

#[tokio::test]
async fn a_full_server_refuses_appends_but_not_reads_and_deletions() {
    let Some(binary) = Binary::any() else { return };
    let server = binary.start(&["--maxmemory-policy", "noeviction"]);
    let (valkey, _) = ledger(options(&server.url()));
    let first = append("s");
    valkey.append(first.clone()).await.unwrap();
    let mut raw = server.raw().await;
    raw.send("CONFIG SET maxmemory 1").await;
    let error = valkey.append(next(&first)).await.unwrap_err();
    assert!(matches!(&error, LedgerError::Refused(text) if text.contains("OOM")), "{error}");
    let tail = valkey.fetch(&"s".into(), None).await.unwrap().unwrap();
    assert_eq!(tail.entries, first.entries, "nothing is half done");
    assert_eq!(valkey.idle(partition_of("s"), Duration::ZERO, 9).await.unwrap().len(), 1);
    assert_eq!(valkey.delete(&"s".into(), first.entries[0].uid).await, Ok(true));
    raw.send("CONFIG SET maxmemory 0").await;
    assert_eq!(valkey.append(append("s")).await, Ok(STORED));
}

#[tokio::test]
async fn a_server_that_evicts_keys_is_refused() {
    let Some(binary) = Binary::any() else { return };
    let server = binary.start(&["--maxmemory-policy", "allkeys-lru"]);
    let (valkey, observer) = ledger(options(&server.url()));
    let error = valkey.append(append("s")).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, LedgerError::Refused(_)) && text.contains("set it to noeviction"), "{text}");
    server.raw().await.send("CONFIG SET maxmemory-policy noeviction").await;
    observer.until_up(1).await;
    assert_eq!(valkey.append(append("s")).await, Ok(STORED));
}

#[tokio::test]
async fn a_replica_is_not_used() {
    let Some(binary) = Binary::any() else { return };
    let primary = binary.start(&[]);
    let replica = primary.replica(&binary).await;
    let (valkey, _) = ledger(options(&replica.url()));
    let error = valkey.append(append("s")).await.unwrap_err();
    assert!(error.to_string().contains("not a primary"), "{error}");
}

#[tokio::test]
async fn a_primary_that_becomes_a_replica_is_left() {
    let Some(binary) = Binary::any() else { return };
    let (server, other) = (binary.start(&[]), binary.start(&[]));
    let (valkey, observer) = ledger(options(&server.url()));
    valkey.append(append("s")).await.unwrap();
    let mut raw = server.raw().await;
    raw.send(&format!("REPLICAOF 127.0.0.1 {}", other.port)).await;
    let mut disruptions = valkey.disruptions();
    let error = valkey.append(append("t")).await.unwrap_err();
    assert!(matches!(error, LedgerError::Unavailable(_)), "{error}");
    disruptions.changed().await.unwrap();
    raw.send("REPLICAOF NO ONE").await;
    observer.until_up(1).await;
    assert_eq!(valkey.append(append("t")).await, Ok(STORED));
}

#[tokio::test]
async fn a_wrong_password_is_refused_and_a_corrected_file_is_read_again() {
    let Some(binary) = Binary::any() else { return };
    let server = binary.start(&["--requirepass", "right"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "wrong\n").unwrap();
    let (valkey, observer) = ledger(ValkeyOptions { password_file: Some(file.clone()), ..options(&server.url()) });
    let text = valkey.append(append("s")).await.unwrap_err().to_string();
    assert!(text.contains("authentication failed, check the user and the password"), "{text}");
    assert!(!text.contains("wrong\n"));
    std::fs::write(&file, "right\n").unwrap();
    observer.until_up(1).await;
    assert_eq!(valkey.append(append("s")).await, Ok(STORED));

    let url = |password: &str| format!("redis://:{password}@127.0.0.1:{}", server.port);
    let (valkey, _) = ledger(options(&url("right")));
    assert_eq!(valkey.append(append("t")).await, Ok(STORED));
    let (valkey, _) = ledger(options(&server.url()));
    let text = valkey.append(append("s")).await.unwrap_err().to_string();
    assert!(text.contains("authentication failed, check the user and the password"), "{text}");
}

#[tokio::test]
async fn lists_expire_and_streams_are_trimmed() {
    let Some(binary) = Binary::any() else { return };
    let server = binary.start(&[]);
    let (valkey, _) = ledger(options(&server.url()));
    let partition = partition_of("s");
    let stream = format!("tt:{{{partition}}}:f");
    let mut raw = server.raw().await;
    let hex = |uid: Uid| uid.to_bytes().map(|byte| char::from(byte % 26 + b'a')).iter().collect::<String>();
    for ms in 1..=250 {
        let (birth, leaf) = (hex(Uid::unique()), hex(Uid::unique()));
        raw.send(&format!("XADD {stream} {ms}-0 s s b {birth} l {leaf}")).await;
    }
    let (begin, last) = (StreamId::default(), StreamId { ms: 250, seq: 0 });
    let page = valkey.finished(partition, begin, 10).await.unwrap();
    assert_eq!((page.entries.len(), page.trimmed), (10, false));

    let index = format!("tt:{{{partition}}}:l");
    for old in ["old-1", "old-2"] {
        raw.send(&format!("ZADD {index} 1 {old}")).await;
    }
    for order in [ListOrder::Oldest, ListOrder::Newest] {
        assert_eq!(valkey.list(partition, order, None, 10).await.unwrap(), [], "their lists have expired");
    }
    let finishing = Append { finished: vec![Uid::unique()], ..append("s") };
    valkey.append(finishing).await.unwrap();
    let page = valkey.finished(partition, begin, 1000).await.unwrap();
    assert!(page.trimmed && page.entries.len() < 250, "{}", page.entries.len());
    let page = valkey.finished(partition, last, 1000).await.unwrap();
    assert_eq!((page.entries.len(), page.trimmed), (1, false), "a reader that has read all misses nothing");
    assert_eq!(raw.send(&format!("ZCARD {index}")).await, redis::Value::Int(1), "the new session has replaced them");

    let redis::Value::Int(ttl) = raw.send(&format!("PTTL tt:{{{partition}}}:s:s")).await else { panic!("a number") };
    assert!((3_590_000..=3_600_000).contains(&ttl), "{ttl}");
}

#[tokio::test]
async fn pictures_expire_and_free_their_bytes() {
    let Some(binary) = Binary::any() else { return };
    let server = binary.start(&[]);
    let (valkey, _) = ledger(options(&server.url()));
    let mut raw = server.raw().await;
    let session = Uid::unique();
    let images: Vec<_> = (0..3).map(|content| Image::new(vec![content; 300 << 10].into())).collect();
    let key = |image: &Image| ImageKey { digest: image.digest, size: image.size };
    let put = async |at: usize| valkey.put_image(session, key(&images[at]), images[at].bytes.clone().unwrap()).await;
    let place = |kind: &str, at: usize| format!("tt:{{images}}:{kind}:{}", images[at].digest);
    assert_eq!((put(0).await, put(1).await, put(0).await), (Ok(true), Ok(false), Ok(true)), "the limit is 512 KiB");
    for kind in ["i", "s"] {
        let redis::Value::Int(ttl) = raw.send(&format!("PTTL {}", place(kind, 0))).await else { panic!("a number") };
        assert!((4_490_000..=4_500_000).contains(&ttl), "{kind}: {ttl}");
    }
    // it expires
    raw.send(&format!("ZADD tt:{{images}}:x 1 {}:{}", images[0].digest, images[0].size)).await;
    raw.send(&format!("DEL {}", place("i", 0))).await;
    assert_eq!(put(1).await, Ok(true));
    // the server evicts it, which the index does not show
    raw.send(&format!("DEL {}", place("i", 1))).await;
    let held = valkey.hold_images(session, images.iter().map(key).collect()).await.unwrap();
    assert_eq!((held.present, held.free), (vec![false; 3], 512 << 10));
    assert_eq!(put(2).await, Ok(true));
    assert_eq!(raw.send("ZCARD tt:{images}:x").await, redis::Value::Int(1));
    assert_eq!(valkey.images(images.iter().map(key).collect()).await, Ok(vec![None, None, images[2].bytes.clone()]));
    valkey.release_images(Some(session), vec![key(&images[2])]).await.unwrap();
    for kind in ["i", "s"] {
        assert_eq!(raw.send(&format!("EXISTS {}", place(kind, 2))).await, redis::Value::Int(0));
    }
    assert_eq!(raw.send("GET tt:{images}:b").await, redis::Value::BulkString(b"0".to_vec()));
    // more have expired than a script forgets in any case, and they take all the room
    for at in 0..250 {
        raw.send(&format!("ZADD tt:{{images}}:x 1 {at:064x}:2000")).await;
    }
    raw.send(&format!("SET tt:{{images}}:b {}", 250 * 2256)).await;
    assert_eq!(put(2).await, Ok(true));
    let left = raw.send("ZCARD tt:{images}:x").await;
    assert_eq!(left, redis::Value::Int(51), "no more than are in the way");
}

#[tokio::test]
async fn pictures_that_hang_keep_their_room() {
    let Some(binary) = Binary::any() else { return };
    let server = binary.start(&[]);
    let (valkey, observer) = ledger(short(&server.url()));
    let image = Image::new(vec![1; 400 << 10].into());
    let key = ImageKey { digest: image.digest, size: image.size };
    let put = || valkey.put_image(Uid::unique(), key, image.bytes.clone().unwrap());
    assert_eq!(put().await, Ok(true));
    let all = valkey.shared.image_room.available_permits();

    server.set_stopped(true);
    let (stored, read) = tokio::join!(put(), valkey.images(vec![key]));
    assert!(matches!(stored, Err(LedgerError::Timeout(_))), "{stored:?}");
    assert!(matches!(read, Err(LedgerError::Timeout(_))), "{read:?}");
    assert!(valkey.shared.image_room.available_permits() < all, "the client still has them");
    valkey.status().expect("only a command tells that the server does not answer");
    // the connection is closed, though the server is still stopped
    let room = valkey.shared.image_room.acquire_many(all.try_into().unwrap()).await.unwrap();
    drop(room);
    server.set_stopped(false);
    observer.until_up(1).await;
    assert_eq!(valkey.images(vec![key]).await, Ok(vec![image.bytes]));
}

#[tokio::test]
async fn picture_that_takes_long_delays_no_command() {
    let Some(binary) = Binary::any() else { return };
    let server = binary.start(&[]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let port = server.port;
    // the network takes no more of a connection than this
    let mut proxy = JoinSet::new();
    proxy.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let (read, mut write) = client.into_split();
            let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let (mut answers, mut commands) = server.into_split();
            connections.spawn(async move { tokio::io::copy(&mut answers, &mut write).await.map(drop) });
            connections.spawn(async move {
                tokio::io::copy(&mut read.take(100 << 10), &mut commands).await?;
                std::future::pending().await
            });
        }
    });
    let (valkey, _) = ledger(short(&url));
    let image = Image::new(vec![1; 400 << 10].into());
    let key = ImageKey { digest: image.digest, size: image.size };
    let put = valkey.put_image(Uid::unique(), key, image.bytes.clone().unwrap());
    tokio::pin!(put);
    for number in 0..9 {
        let session = format!("s{number}");
        assert_eq!(valkey.append(append(&session)).await, Ok(STORED));
        let fetched = valkey.fetch(&session.as_str().into(), None);
        tokio::select! {
            stored = &mut put, if number == 0 => panic!("{stored:?}"),
            fetched = fetched => assert_eq!(fetched.unwrap().unwrap().length, 1),
        }
    }
    assert!(matches!(put.await, Err(LedgerError::Timeout(_))));
    assert!(valkey.fetch(&"s0".into(), None).await.unwrap().is_some());
}

#[tokio::test]
async fn picture_is_released_when_the_other_sessions_have_expired() {
    let Some(binary) = Binary::any() else { return };
    let server = binary.start(&[]);
    let (valkey, _) = ledger(options(&server.url()));
    let mut raw = server.raw().await;
    let image = Image::new(vec![1; 1000].into());
    let key = ImageKey { digest: image.digest, size: image.size };
    let sessions = format!("tt:{{images}}:s:{}", image.digest);
    for number in 0..3 {
        // sessions that no one deletes
        raw.send(&format!("ZADD {sessions} 1 session{number}")).await;
    }
    let session = Uid::unique();
    assert_eq!(valkey.put_image(session, key, image.bytes.clone().unwrap()).await, Ok(true));
    assert_eq!(raw.send(&format!("ZCARD {sessions}")).await, redis::Value::Int(1), "it does not grow");
    raw.send(&format!("ZADD {sessions} 1 another")).await;
    valkey.release_images(Some(session), vec![key]).await.unwrap();
    assert_eq!(raw.send("KEYS tt:{images}:[is]:*").await, redis::Value::Array(Vec::new()));
}

#[tokio::test]
async fn data_of_another_schema_and_damage_are_unreadable() {
    let Some(binary) = Binary::any() else { return };
    let server = binary.start(&[]);
    let (valkey, _) = ledger(options(&server.url()));
    let mut raw = server.raw().await;
    let key = format!("tt:{{{}}}:s:s", partition_of("s"));
    raw.send(&format!("RPUSH {key} a-short-element")).await;
    let error = valkey.fetch(&"s".into(), None).await.unwrap_err();
    assert!(matches!(&error, LedgerError::Unreadable(text) if text.contains("entry 0")), "{error}");
    raw.send("HSET tt:meta schema 1").await;
    let keys = raw.send("KEYS *").await;
    let (later, _) = ledger(options(&server.url()));
    let error = later.append(append("t")).await.unwrap_err();
    assert_eq!(error, LedgerError::OtherSchema("1".into()));
    assert!(error.to_string().contains("has the schema 1, and this build reads and writes the schema 8"), "{error}");
    for error in [later.fleet().await.unwrap_err(), later.fetch(&"s".into(), None).await.unwrap_err()] {
        assert_eq!(error, LedgerError::OtherSchema("1".into()));
    }
    assert_eq!(later.delete(&"s".into(), Uid::unique()).await.unwrap_err(), LedgerError::OtherSchema("1".into()));
    assert_eq!(raw.send("KEYS *").await, keys, "nothing is written");
}

#[tokio::test]
async fn concurrent_appends_are_sent_in_groups() {
    let Some(binary) = Binary::any() else { return };
    let server = binary.start(&[]);
    let (valkey, observer): (Valkey, Arc<Observer>) = ledger(options(&server.url()));
    valkey.fleet().await.unwrap();
    let all: Vec<_> = (0..300).map(|i| tokio::spawn(valkey.append(append(&format!("s{i}"))))).collect();
    for one in all {
        assert_eq!(one.await.unwrap(), Ok(STORED));
    }
    assert!(observer.groups() < 100, "{}", observer.groups());
    let large = Append { entries: entries(1, 65 << 20), ..append("large") };
    let (patient, _) = ledger(ValkeyOptions { timeout: Duration::from_secs(60), ..options(&server.url()) });
    assert_eq!(patient.append(large).await, Ok(STORED), "more bytes than the queue has room for");
}
