//! Bytes of clients that mean harm, or know no better: what tokentap passes on is one well-formed request, or nothing.
//!
//! Every case of the table uses a new connection with an ordinary request after it, in one write and byte by byte. The
//! upstream records and parses strictly what it receives, to the end of its connections, so that a request that no client sent, or a byte
//! too many, is seen wherever it lands.

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

/// One way of one case.
#[derive(Clone)]
struct Way {
    case: Arc<Case>,
    port: Port,
    pace: Pace,
    tag: String,
}

/// Every way of every case; one by one only where they are few, and on one port, for below it all ports are the same.
fn ways() -> Vec<Way> {
    let mut ways = Vec::new();
    for case in table::all().into_iter().map(Arc::new) {
        for port in case.ports {
            for pace in [Pace::Whole, Pace::Bytes] {
                if pace == Pace::Whole || *port == Port::Plain && case.bytes.len() < 1000 {
                    let tag = format!("t{:04}", ways.len());
                    ways.push(Way { case: Arc::clone(&case), port: *port, pace, tag });
                }
            }
        }
    }
    ways
}

/// Ends tokentap and its connections; returns what the upstream received to their last byte.
async fn ended(proxy: Proxy, recorder: &Recorder) -> Vec<String> {
    proxy.phase.send_replace(Phase::Ending);
    proxy.task.await.unwrap();
    drop(proxy.parts);
    let wrong = recorder.all().await.into_iter().filter_map(|entry| match entry {
        JournalEntry::Wrong(said) => Some(format!("not well formed: {said}")),
        JournalEntry::Whole(seen) if seen.target.contains("/smuggled") => Some(format!("smuggled: {seen:?}")),
        JournalEntry::Cut(None, bytes) => Some(format!("left over: {}", bytes.escape_ascii())),
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
    let ways = ways();
    for way in ways.clone() {
        if running.len() == 32 {
            wrong.extend(running.join_next().await.unwrap().unwrap());
        }
        let addr = if way.port == Port::Control { proxy.control } else { proxy.data };
        running.spawn(check(way, addr, Arc::clone(&recorder)));
    }
    wrong.extend(running.join_all().await.into_iter().flatten());
    wrong.extend(ended(proxy, &recorder).await);
    assert!(wrong.is_empty(), "{} of {} ways:\n{}", wrong.len(), ways.len(), wrong.join("\n"));
}

/// What is not as the case has it.
async fn check(way: Way, addr: std::net::SocketAddr, recorder: Arc<Recorder>) -> Option<String> {
    let Way { case, port, pace, tag } = &way;
    let got = exchange(addr, &case.written(*port, tag), case.ends, *pace, case.method() == "HEAD").await;
    let entries = recorder.of(tag);
    let said = compared(case, *port, tag, &got, &entries).err()?;
    let statuses: Vec<u16> = got.answers.iter().map(|(status, _)| *status).collect();
    let first = got.answers.first().map(|(_, body)| String::from_utf8_lossy(&body[..body.len().min(120)]).into_owned());
    Some(format!(
        "{:?} ({port:?}, {pace:?}): {said}; answers {statuses:?} {first:?}, entries {entries:.300?}",
        case.name
    ))
}

fn compared(case: &Case, port: Port, tag: &str, got: &Exchange, entries: &[JournalEntry]) -> Result<(), String> {
    if got.hung || !got.rest.is_empty() {
        return Err(format!("hung: {}, behind the answers: {}", got.hung, got.rest.escape_ascii()));
    }
    let kept = if case.either { got.answers.len() > case.statuses.len() } else { case.kept };
    let mut statuses = case.statuses.to_vec();
    statuses.extend(kept.then_some(200));
    if !got.answers.iter().map(|(status, _)| status).eq(&statuses) {
        return Err(format!("expected {statuses:?}"));
    }
    let whole = entries.iter().filter_map(|entry| match entry {
        JournalEntry::Whole(seen) => Some(seen),
        _ => None,
    });
    let (behind, seen): (Vec<_>, Vec<_>) = whole.partition(|seen| seen.target.starts_with("/livez?"));
    let reaches = usize::from(kept && port != Port::Control);
    let bodies = case.bodies(tag);
    if behind.len() != reaches || !seen.iter().map(|seen| &seen.body).eq(&bodies) {
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
fn names_are_unique_and_cases_many() {
    let cases = table::all();
    let names: HashSet<&str> = cases.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases.len());
    assert!(cases.len() >= 200, "{}", cases.len());
}
