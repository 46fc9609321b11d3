// SPDX-License-Identifier: Apache-2.0
//! Sends the table to nginx and haproxy as well: a list in the repository explains where tokentap is laxer. `make wire`.

#![allow(clippy::print_stdout, reason = "make wire reports to its terminal")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::case::{Case, Port};
use super::exchange::{Pace, exchange};
use super::recorder::{JournalEntry, Recorder};
use super::table;
use crate::support::manual_upstream::soon;
use crate::support::proxy::Proxy;

/// A server with its recorder as the upstream.
struct Peer {
    name: &'static str,
    addr: SocketAddr,
    recorder: Recorder,
    child: Option<Child>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// The outcome of a case: the number of requests that reached the upstream, and whether all were well formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Refused,
    Passed(usize),
    /// A malformed or smuggled request reached the upstream.
    Malformed,
}

async fn started(name: &'static str, dir: &Path) -> Peer {
    let recorder = Recorder::start().await;
    // assumes that no other process takes the port before the server does
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    let template = std::fs::read_to_string(format!("tests/wire/{name}.conf")).unwrap();
    let own = dir.join(name);
    std::fs::create_dir(&own).unwrap();
    let settings = template
        .replace("LISTEN", &addr.to_string())
        .replace("UPSTREAM", &recorder.addr.to_string())
        .replace("DIR", own.to_str().unwrap());
    let file = own.join("conf");
    std::fs::write(&file, settings).unwrap();
    let mut command = Command::new(name);
    match name {
        "nginx" => command.arg("-c").arg(&file).arg("-p").arg(&own),
        _ => command.arg("-db").arg("-f").arg(&file),
    };
    let child =
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
    soon("the server listens", async {
        while tokio::net::TcpStream::connect(addr).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    Peer { name, addr, recorder, child: Some(child) }
}

async fn outcome(peer: &Peer, case: &Case, tag: &str) -> (Outcome, Vec<u16>) {
    let bytes = case.written(Port::Plain, tag);
    let got = exchange(peer.addr, &bytes, case.ends, Pace::Whole, case.method() == "HEAD").await;
    let mut passed = 0;
    let mut malformed = false;
    for entry in peer.recorder.of(tag) {
        match entry {
            JournalEntry::Complete(seen) if seen.target.contains("/smuggled") => malformed = true,
            JournalEntry::Complete(seen) if seen.target.starts_with("/livez?") => {}
            JournalEntry::Complete(_) => passed += 1,
            JournalEntry::Malformed(_) => malformed = true,
            JournalEntry::Truncated(..) => {}
        }
    }
    let outcome = match (malformed, passed) {
        (true, _) => Outcome::Malformed,
        (false, 0) => Outcome::Refused,
        (false, passed) => Outcome::Passed(passed),
    };
    (outcome, got.answers.iter().map(|(status, _)| *status).collect())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nginx and haproxy: make wire"]
async fn tokentap_is_laxer_only_in_explained_cases() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::start().await;
    let proxy = Proxy::start(recorder.addr, &[]).await;
    let tokentap = Peer { name: "tokentap", addr: proxy.data, recorder, child: None };
    let peers = [tokentap, started("nginx", dir.path()).await, started("haproxy", dir.path()).await];
    let peers = Arc::new(peers);
    let cases: Vec<Case> = table::all().into_iter().filter(|case| case.ports.contains(&Port::Plain)).collect();
    let mut running = JoinSet::new();
    let mut rows = Vec::new();
    for (number, case) in cases.into_iter().enumerate() {
        if running.len() == 32 {
            rows.push(running.join_next().await.unwrap().unwrap());
        }
        let peers = Arc::clone(&peers);
        running.spawn(async move {
            let mut outcomes = Vec::new();
            for peer in &*peers {
                outcomes.push(outcome(peer, &case, &format!("t{number:04}")).await);
            }
            (number, case, outcomes)
        });
    }
    rows.extend(running.join_all().await);
    rows.sort_by_key(|(number, ..)| *number);
    let mut laxer = BTreeSet::new();
    let mut counts = [[0; 3]; 2];
    for (_, case, outcomes) in &rows {
        let (own, _) = outcomes[0];
        let mut verdicts = Vec::new();
        for (at, peer) in peers.iter().enumerate().skip(1) {
            let order = own.cmp(&outcomes[at].0);
            let verdict = match order {
                std::cmp::Ordering::Less => "stricter",
                std::cmp::Ordering::Equal => "equal",
                std::cmp::Ordering::Greater => "LAXER",
            };
            counts[at - 1][usize::try_from(order as i8 + 1).unwrap()] += 1;
            if order.is_gt() {
                laxer.insert(format!("{}: {}", peer.name, case.name));
            }
            verdicts.push(verdict);
        }
        let outcomes: Vec<String> =
            outcomes.iter().map(|(outcome, statuses)| format!("{outcome:?} {statuses:?}")).collect();
        let name = case.name.escape_debug();
        println!("{:<10} {name:<48} {} | {}", case.rfc, outcomes.join(" | "), verdicts.join(" | "));
    }
    println!("{} cases; outcomes of tokentap", rows.len());
    for (peer, [stricter, equal, laxer]) in peers[1..].iter().zip(counts) {
        println!("  compared with {}: {stricter} stricter, {equal} equal, {laxer} laxer", peer.name);
    }
    let list = std::fs::read_to_string("tests/wire/laxer.txt").unwrap();
    let explained: BTreeSet<String> = list
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.split_once(" | ").unwrap_or_else(|| panic!("no reason in {line:?}")).0.to_owned())
        .collect();
    let named: BTreeSet<String> = laxer.iter().map(|line| line.escape_debug().to_string()).collect();
    assert_eq!(named, explained, "laxer cases, and those that tests/wire/laxer.txt explains");
}
