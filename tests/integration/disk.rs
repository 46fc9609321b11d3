// SPDX-License-Identifier: Apache-2.0
//! A log that cannot be written loses records, never replies. The tests simulate a full disk without a separate file system: no file may
//! grow (`ulimit -f`).

use std::net::SocketAddr;

use crate::crash::StandaloneEngine;
use crate::crash::trainers::generate_turn;
use crate::support::binary::Binary;
use crate::support::client::get;

/// A row of `docs/faults.md`.
pub const REMOVED: &str = "the log's directory is removed";

async fn metric(control: SocketAddr, name: &str) -> f64 {
    let text = get(control, "/metrics").await.text();
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
}

async fn start_limited(alone: &StandaloneEngine, dir: &tempfile::TempDir, blocks: u32) -> Binary {
    Binary::with_small_files(alone.addr, &["--data-dir", dir.path().to_str().unwrap()], blocks).await
}

#[tokio::test(flavor = "multi_thread")]
async fn full_disk_keeps_replies_and_sets_log_degraded() {
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let mut binary = start_limited(&alone, &dir, 0).await;
    let control = binary.control;
    assert_eq!(metric(control, "tokentap_log_degraded").await, 1.0);
    for turn in 1..=5 {
        generate_turn(binary.data, "s", &[1, 2, 3], "").await;
        let shown = get(control, "/v1/sessions/s").await.json();
        assert_eq!(shown["turns"], turn, "the turn is in memory");
    }
    assert_eq!(metric(control, "tokentap_log_failures_total{reason=\"write\"}").await, 5.0);
    assert_eq!(metric(control, "tokentap_log_lost_records_total").await, 5.0);
    assert_eq!(metric(control, "tokentap_log_records_total").await, 0.0);
    assert_eq!(metric(control, "tokentap_log_degraded").await, 1.0);
    binary.terminate();
    assert_eq!(binary.code().await, Some(0));
    let binary = alone.start_binary(&dir, &[]).await;
    assert_eq!(
        get(binary.control, "/v1/sessions/s").await.status,
        404,
        "the records that were counted as lost are lost"
    );
    assert_eq!(metric(binary.control, "tokentap_log_degraded").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn freed_disk_loses_only_the_records_in_between() {
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    // some turns fit into a file
    let binary = start_limited(&alone, &dir, 8).await;
    let control = binary.control;
    let (mut turns, mut recovered) = (0, false);
    while !recovered {
        generate_turn(binary.data, &format!("s-{turns}"), &[1, 2, 3], "").await;
        turns += 1;
        let lost = metric(control, "tokentap_log_lost_records_total").await;
        // the log tries the next file a second after a failure
        recovered = lost > 0.0 && metric(control, "tokentap_log_degraded").await == 0.0;
        assert!(turns < 5_000, "the log recovers");
    }
    let (lost, written) =
        (metric(control, "tokentap_log_lost_records_total").await, metric(control, "tokentap_log_records_total").await);
    assert_eq!((written > 1.0, lost + written), (true, f64::from(turns)), "each turn is in one of the counts");
    let on_disk: u64 =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(metric(control, "tokentap_log_bytes").await, on_disk as f64);
    binary.kill();
    let binary = alone.start_binary(&dir, &[]).await;
    let listed = get(binary.control, "/v1/sessions?limit=10000").await.json();
    assert_eq!(listed["sessions"].as_array().unwrap().len() as f64, written, "the written records are restored");
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_log_directory_sets_log_degraded_until_it_exists_again() {
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let data = dir.path().join("data");
    let flags = ["--data-dir", data.to_str().unwrap()];
    let mut binary = Binary::with_flags(alone.addr, &flags).await;
    let control = binary.control;
    generate_turn(binary.data, "before", &[1, 2, 3], "").await;
    std::fs::remove_dir_all(&data).unwrap();
    generate_turn(binary.data, "removed", &[1, 2, 3], "").await;
    assert_eq!(metric(control, "tokentap_log_degraded").await, 1.0, "records in a removed file are lost");
    assert_eq!(
        metric(control, "tokentap_log_lost_records_total").await,
        2.0,
        "the record of the file, and the new one"
    );
    let line =
        binary.logged("a file of the log was removed or renamed: its records are lost, the next file begins").await;
    assert_eq!(line["records"], 1, "{line}");
    binary.logged("the log cannot be written: a crash loses the records from now on until it can").await;
    assert_eq!(get(control, "/v1/sessions/before").await.json()["turns"], 1, "the session is in memory");

    std::fs::create_dir(&data).unwrap();
    let mut turns = 0;
    while metric(control, "tokentap_log_degraded").await == 1.0 {
        // the log tries the next file a second after a failure
        generate_turn(binary.data, &format!("after-{turns}"), &[1, 2, 3], "").await;
        turns += 1;
        assert!(turns < 5_000, "the log recovers");
    }
    binary.kill();
    let binary = Binary::with_flags(alone.addr, &flags).await;
    let last = get(binary.control, &format!("/v1/sessions/after-{}", turns - 1)).await;
    assert_eq!(last.json()["turns"], 1, "later records are restored");
}
