// SPDX-License-Identifier: Apache-2.0
//! A cluster of three primaries with a replica each.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use redis::Value;

use super::process::{Binary, Process, ledger, options};
use super::{append, next};
use crate::images::Image;
use crate::session::Uid;
use crate::session::ledger::valkey::cluster::slot;
use crate::session::ledger::valkey::{Description, ValkeyOptions, inspect};
use crate::session::ledger::{Appended, ImageKey, Ledger, PARTITIONS, partition_of};

const NODES: usize = 6;

/// Starts a cluster. The first three nodes are the primaries.
async fn start(binary: &Binary) -> Vec<Process> {
    let settings =
        ["--cluster-enabled", "yes", "--cluster-node-timeout", "1500", "--cluster-replica-validity-factor", "0"];
    // the port of the bus must be free as well
    let nodes: Vec<Process> = (0..NODES)
        .map(|_| {
            let bus = super::process::free_port().to_string();
            binary.start(&[&settings[..], &["--cluster-port", &bus]].concat())
        })
        .collect();
    let mut raws = Vec::new();
    for node in &nodes {
        raws.push(node.raw().await);
    }
    for (at, (first, last)) in [(0, 5460), (5461, 10_922), (10_923, 16_383)].into_iter().enumerate() {
        raws[at].send(&format!("CLUSTER ADDSLOTSRANGE {first} {last}")).await;
        raws[at].send(&format!("CLUSTER SET-CONFIG-EPOCH {}", at + 1)).await;
    }
    let mut buses = Vec::new();
    for raw in &mut raws {
        let Value::Array(port) = raw.send("CONFIG GET cluster-port").await else { panic!("a pair") };
        let Value::BulkString(port) = &port[1] else { panic!("a text") };
        buses.push(String::from_utf8(port.clone()).unwrap());
    }
    for (node, bus) in nodes.iter().zip(&buses).skip(1) {
        raws[0].send(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", node.port)).await;
    }
    let begun = Instant::now();
    let soon = || assert!(begun.elapsed() < Duration::from_secs(60), "the cluster forms");
    for at in 3..NODES {
        let Value::BulkString(primary) = raws[at - 3].send("CLUSTER MYID").await else { panic!("an id") };
        let primary = String::from_utf8(primary).unwrap();
        while raws[at].try_send(&format!("CLUSTER REPLICATE {primary}")).await.is_err() {
            soon();
        }
    }
    for raw in &mut raws {
        while raw.info("cluster_enabled").await != "1" || !is_complete(&raw.send("CLUSTER SLOTS").await) {
            soon();
        }
        let state = async |raw: &mut super::process::Raw| {
            let Value::BulkString(text) = raw.send("CLUSTER INFO").await else { panic!("a text") };
            String::from_utf8(text).unwrap().contains("cluster_state:ok")
        };
        while !state(raw).await {
            soon();
        }
    }
    for raw in &mut raws[..3] {
        while raw.info("connected_slaves").await != "1" || !raw.info("slave0").await.contains("state=online") {
            soon();
        }
    }
    nodes
}

/// Whether each range of slots has a replica.
fn is_complete(slots: &Value) -> bool {
    let Value::Array(ranges) = slots else { return false };
    ranges.len() == 3 && ranges.iter().all(|range| matches!(range, Value::Array(parts) if parts.len() == 4))
}

#[tokio::test]
async fn each_partition_is_on_its_primary_and_follows_it() {
    let Some(binary) = Binary::any() else { return };
    let mut nodes = start(&binary).await;
    // one of them is a replica, and one does not exist
    let hosts = [super::process::free_port(), nodes[4].port, nodes[0].port].map(|port| format!("127.0.0.1:{port}"));
    let url = format!("redis-cluster://{}", hosts.join(","));
    let (valkey, observer) = ledger(ValkeyOptions { replicas: 1, ..options(&url) });
    observer.until_up(3).await;
    valkey.fleet().await.unwrap();

    let sessions: Vec<String> = (0..200).map(|i| format!("s{i}")).collect();
    let partitions: BTreeSet<u16> = sessions.iter().map(|session| partition_of(session)).collect();
    assert!(partitions.len() > usize::from(PARTITIONS) / 2);
    for session in &sessions {
        let session = session.as_str().into();
        while valkey.is_replicated(&session).await != Ok(true) {}
        assert_eq!(valkey.append(append(&session)).await, Ok(Appended::Stored { replicated: true }), "{session}");
    }
    let mut keys = 0;
    for node in &nodes[..3] {
        let Value::Int(size) = node.raw().await.send("DBSIZE").await else { panic!("a number") };
        assert!(size > 10, "the sessions are on all primaries");
        keys += size;
    }
    assert!(keys >= 200);

    // one limit for the pictures of all partitions
    let images: Vec<_> = (0..3).map(|content| Image::new(vec![content; 300 << 10].into())).collect();
    let mut stored = Vec::new();
    let key = |image: &Image| ImageKey { digest: image.digest, size: image.size };
    for image in &images {
        stored.push(valkey.put_image(Uid::unique(), key(image), image.bytes.clone().unwrap()).await.unwrap());
    }
    assert_eq!(stored, [true, false, false]);
    assert_eq!(valkey.images(images.iter().map(key).collect()).await.unwrap(), [images[0].bytes.clone(), None, None]);

    // a partition moves to another node; the ledger learns it from the answer
    let session = sessions.iter().find(|session| slot(partition_of(session).to_string().as_bytes()) <= 5460).unwrap();
    let place = slot(partition_of(session).to_string().as_bytes());
    let (mut from, mut to) = (nodes[0].raw().await, nodes[1].raw().await);
    let id = async |raw: &mut super::process::Raw| {
        let Value::BulkString(id) = raw.send("CLUSTER MYID").await else { panic!("an id") };
        String::from_utf8(id).unwrap()
    };
    let (from_id, to_id) = (id(&mut from).await, id(&mut to).await);
    to.send(&format!("CLUSTER SETSLOT {place} IMPORTING {from_id}")).await;
    from.send(&format!("CLUSTER SETSLOT {place} MIGRATING {to_id}")).await;
    let Value::Array(moving) = from.send(&format!("CLUSTER GETKEYSINSLOT {place} 1000")).await else { panic!("keys") };
    for key in moving {
        let Value::BulkString(key) = key else { panic!("a key") };
        let key = String::from_utf8(key).unwrap();
        from.send(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", nodes[1].port)).await;
    }
    to.send(&format!("CLUSTER SETSLOT {place} NODE {to_id}")).await;
    from.send(&format!("CLUSTER SETSLOT {place} NODE {to_id}")).await;
    let tail = valkey.fetch(&session.as_str().into(), None).await.unwrap().unwrap();
    assert_eq!(tail.length, 1);
    let after = crate::session::ledger::Position::after(None, &tail.entries);
    let mut first = append(session);
    first.after = after;
    assert_eq!(valkey.append(first.clone()).await, Ok(Appended::Stored { replicated: true }));
    assert_eq!(valkey.append(next(&first)).await, Ok(Appended::Stored { replicated: true }));

    // its replica is promoted
    let lost: Vec<&String> =
        sessions.iter().filter(|session| slot(partition_of(session).to_string().as_bytes()) > 10_922).collect();
    let mut disruptions = valkey.disruptions();
    let begun = Instant::now();
    nodes[2].kill();
    disruptions.changed().await.unwrap();
    let other = valkey.append(append("after the loss")).await;
    if slot(partition_of("after the loss").to_string().as_bytes()) <= 10_922 {
        assert!(other.is_ok(), "the other primaries are used: {other:?}");
    }
    while valkey.fetch(&lost[0].as_str().into(), None).await.is_err() {
        disruptions.borrow_and_update();
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", valkey.status());
        tokio::task::yield_now().await;
    }
    eprintln!("the promoted replica of the cluster is used {:?} after the loss (node timeout 1.5 s)", begun.elapsed());
    for session in lost {
        let session = session.as_str().into();
        assert!(valkey.fetch(&session, None).await.unwrap().is_some(), "{session}: confirmed entries are there");
    }
    assert!(*valkey.disruptions().borrow() >= 2, "it rises again with the new primary");
}

#[tokio::test]
async fn the_form_of_the_url_must_fit_the_server() {
    let Some(binary) = Binary::any() else { return };
    let single = binary.start(&[]);
    let (valkey, _) = ledger(options(&format!("redis-cluster://127.0.0.1:{}", single.port)));
    let text = valkey.append(append("s")).await.unwrap_err().to_string();
    assert!(text.contains("cluster"), "{text}");
    let bus = super::process::free_port().to_string();
    let node = binary.start(&["--cluster-enabled", "yes", "--cluster-port", &bus]);
    let (valkey, _) = ledger(options(&node.url()));
    let text = valkey.append(append("s")).await.unwrap_err().to_string();
    assert!(text.contains("redis-cluster://"), "{text}");
}

#[tokio::test]
async fn each_primary_of_a_cluster_is_inspected() {
    let Some(binary) = Binary::any() else { return };
    let nodes = start(&binary).await;
    let found = inspect(&options(&format!("redis-cluster://127.0.0.1:{}", nodes[4].port))).await.unwrap();
    let addresses: BTreeSet<String> = found.iter().map(|inspection| inspection.address.clone()).collect();
    assert_eq!(addresses, nodes[..3].iter().map(|node| format!("127.0.0.1:{}", node.port)).collect());
    let facts: Vec<_> = found.into_iter().map(|inspection| inspection.facts.unwrap()).collect();
    assert!(facts.iter().all(|facts| facts.replicas == 1 && facts.permissions == Default::default()), "{facts:?}");
    let described = facts.iter().filter(|facts| facts.description == Description::Absent).count();
    assert_eq!(described, 1, "the key tt:meta is on one of them");
}
