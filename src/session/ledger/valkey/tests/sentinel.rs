// SPDX-License-Identifier: Apache-2.0
//! A failover by Sentinels.

use std::time::{Duration, Instant};

use redis::Value;

use super::append;
use super::process::{Binary, ledger, options};
use crate::session::ledger::valkey::{ValkeyOptions, inspect};
use crate::session::ledger::{Appended, Ledger};

#[tokio::test]
async fn the_primary_of_the_sentinels_is_used_and_followed() {
    let Some(binary) = Binary::any() else { return };
    let mut primary = binary.start(&[]);
    let replica = primary.replica(&binary).await;
    let config = format!(
        "sentinel monitor main 127.0.0.1 {} 2\nsentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n",
        primary.port
    );
    let sentinels: Vec<_> = (0..3).map(|_| binary.sentinel(&config)).collect();
    for sentinel in &sentinels {
        // they find each other and the replica through the primary
        let mut raw = sentinel.raw().await;
        let length = |value: Value| if let Value::Array(parts) = value { parts.len() } else { 0 };
        let begun = Instant::now();
        while length(raw.send("SENTINEL REPLICAS main").await) < 1
            || length(raw.send("SENTINEL SENTINELS main").await) < 2
        {
            assert!(begun.elapsed() < Duration::from_secs(30), "the Sentinels find each other");
        }
    }
    // the first one does not exist
    let hosts: Vec<String> = sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
    let url = format!("redis-sentinel://127.0.0.1:{},{}/main", super::process::free_port(), hosts.join(","));
    let (valkey, observer) = ledger(ValkeyOptions { replicas: 1, ..options(&url) });
    assert_eq!(valkey.append(append("s")).await, Ok(Appended::Stored { replicated: true }));

    let inspected = inspect(&options(&url)).await.unwrap();
    assert_eq!(inspected[0].address, format!("127.0.0.1:{}", primary.port), "the primary that they name is inspected");
    assert_eq!((inspected.len(), inspected[0].facts.as_ref().map(|facts| facts.replicas)), (1, Ok(1)));

    let mut disruptions = valkey.disruptions();
    let begun = Instant::now();
    primary.kill();
    disruptions.changed().await.unwrap();
    observer.until_up(1).await;
    eprintln!("the promoted replica is used {:?} after the loss of the primary (down-after 1 s)", begun.elapsed());
    assert!(valkey.fetch(&"s".into(), None).await.unwrap().is_some(), "what the replica confirmed is there");
    assert_eq!(valkey.append(append("t")).await, Ok(Appended::Stored { replicated: false }));
    drop(replica);

    let wrong = format!("redis-sentinel://{}/other", hosts.join(","));
    let (valkey, _) = ledger(options(&wrong));
    let error = valkey.fleet().await.unwrap_err().to_string();
    assert!(error.contains("knows no primary \"other\""), "{error}");
}
