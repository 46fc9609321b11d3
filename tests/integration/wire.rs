// SPDX-License-Identifier: Apache-2.0
//! Malformed and malicious requests: tokentap forwards one well-formed request, or none.
//!
//! Each case of the table is sent on a new connection, followed by an ordinary request, in one write and byte by byte. The upstream records
//! every byte it receives and parses strictly, so that it detects a smuggled request or a surplus byte on any connection.

mod case;
mod exchange;
mod h2;
mod peers;
mod recorder;
mod replies;
mod strict;
mod table;

use std::collections::HashSet;
use std::sync::Arc;

use tokentap::serve::connection::Phase;
use tokio::task::JoinSet;

use crate::support::proxy::Proxy;
use case::{Case, Check, Port};
use exchange::{Exchange, Pace, exchange};
use recorder::{JournalEntry, Recorder};

/// A case on a port, sent in one write or byte by byte.
#[derive(Clone)]
struct Variant {
    case: Arc<Case>,
    port: Port,
    pace: Pace,
    tag: String,
}

/// Every variant of every case. Only short cases are sent byte by byte, and only to one port, because all ports share the parser.
fn variants() -> Vec<Variant> {
    let mut variants = Vec::new();
    for case in table::all().into_iter().map(Arc::new) {
        for port in case.ports {
            for pace in [Pace::Whole, Pace::Bytes] {
                if pace == Pace::Whole || *port == Port::Plain && case.bytes.len() < 1000 {
                    let tag = format!("t{:04}", variants.len());
                    variants.push(Variant { case: Arc::clone(&case), port: *port, pace, tag });
                }
            }
        }
    }
    variants
}

/// Shuts tokentap down; returns the malformed, smuggled and surplus bytes that the upstream received.
async fn shut_down(proxy: Proxy, recorder: &Recorder) -> Vec<String> {
    proxy.phase.send_replace(Phase::Ending);
    proxy.task.await.unwrap();
    drop(proxy.parts);
    let wrong = recorder.all().await.into_iter().filter_map(|entry| match entry {
        JournalEntry::Malformed(problem) => Some(format!("not well formed: {problem}")),
        JournalEntry::Complete(seen) if seen.target.contains("/smuggled") => Some(format!("smuggled: {seen:?}")),
        JournalEntry::Truncated(None, bytes) => Some(format!("left over: {}", bytes.escape_ascii())),
        _ => None,
    });
    wrong.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_receives_only_well_formed_requests_that_were_sent() {
    let recorder = Arc::new(Recorder::start().await);
    let proxy = Proxy::start(recorder.addr, &[]).await;
    let mut wrong = Vec::new();
    let mut running = JoinSet::new();
    let variants = variants();
    for variant in variants.clone() {
        if running.len() == 32 {
            wrong.extend(running.join_next().await.unwrap().unwrap());
        }
        let addr = if variant.port == Port::Control { proxy.control } else { proxy.data };
        running.spawn(check(variant, addr, Arc::clone(&recorder)));
    }
    wrong.extend(running.join_all().await.into_iter().flatten());
    wrong.extend(shut_down(proxy, &recorder).await);
    assert!(wrong.is_empty(), "{} of {} variants:\n{}", wrong.len(), variants.len(), wrong.join("\n"));
}

/// Sends a variant; returns the difference from the expected outcome, if any.
async fn check(variant: Variant, addr: std::net::SocketAddr, recorder: Arc<Recorder>) -> Option<String> {
    let Variant { case, port, pace, tag } = &variant;
    let got = exchange(addr, &case.written(*port, tag), case.ends, *pace, case.method() == "HEAD").await;
    let entries = recorder.of(tag);
    let problem = compare(case, *port, tag, &got, &entries).err()?;
    let statuses: Vec<u16> = got.answers.iter().map(|(status, _)| *status).collect();
    let first = got.answers.first().map(|(_, body)| String::from_utf8_lossy(&body[..body.len().min(120)]).into_owned());
    Some(format!(
        "{:?} ({port:?}, {pace:?}): {problem}; answers {statuses:?} {first:?}, entries {entries:.300?}",
        case.name
    ))
}

fn compare(case: &Case, port: Port, tag: &str, got: &Exchange, entries: &[JournalEntry]) -> Result<(), String> {
    if got.hung || !got.rest.is_empty() {
        return Err(format!("hung: {}, bytes after the answers: {}", got.hung, got.rest.escape_ascii()));
    }
    let kept = if case.either { got.answers.len() > case.statuses.len() } else { case.kept };
    let mut statuses = case.statuses.to_vec();
    statuses.extend(kept.then_some(200));
    if !got.answers.iter().map(|(status, _)| status).eq(&statuses) {
        return Err(format!("expected {statuses:?}"));
    }
    let whole = entries.iter().filter_map(|entry| match entry {
        JournalEntry::Complete(seen) => Some(seen),
        _ => None,
    });
    let (next, seen): (Vec<_>, Vec<_>) = whole.partition(|seen| seen.target.starts_with("/livez?"));
    let reaches = usize::from(kept && port != Port::Control);
    let bodies = case.bodies(tag);
    if next.len() != reaches || !seen.iter().map(|seen| &seen.body).eq(&bodies) {
        let expected: Vec<String> = bodies.iter().map(|body| body.escape_ascii().to_string()).collect();
        return Err(format!("expected the bodies {expected:?}"));
    }
    for request in seen {
        if request.method != case.method() {
            return Err(format!("another method: {}", request.method));
        }
        for check in &case.checks {
            let holds = match check {
                Check::With(name, value) => request.values(name).contains(&value.as_bytes()),
                Check::Without(name) => request.values(name).is_empty(),
                Check::Target(target) => request.target == target.replace(case::TAG, tag),
            };
            if !holds {
                return Err(format!("expected {check:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn case_names_are_unique() {
    let cases = table::all();
    let names: HashSet<&str> = cases.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases.len());
    assert!(cases.len() >= 200, "{}", cases.len());
}
