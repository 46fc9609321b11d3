// SPDX-License-Identifier: Apache-2.0
//! Faults, their effect on the client, and the recorded turns: one table of cases. `docs/faults.md` has a row for each.

mod cases;
mod clients;
mod clock;
mod cuts;
mod disk;
pub(crate) mod doors;
mod grpc;
mod killed;
pub(crate) mod stage;

use crate::support::binary::Binary;
use crate::support::client::{Answer, Connection, get};
use crate::support::manual_upstream::{ManualUpstream, soon};
use cases::{CASES, ClientView, End, Script};
use doors::RequestKind;
use stage::{assert_next_request, metric, read, turns, wait_until_idle};

/// Faults outside the engine: names of rows of the table, each with a separate test.
const OTHERS: &[&str] = &[
    "the engine is unreachable",
    clients::HALF_CLOSE,
    clients::RESET,
    clients::UPLOAD,
    clients::SILENCE,
    disk::FULL,
    killed::KILLED,
    clock::JUMPS,
    crate::disk::REMOVED,
    crate::replaced::REPLACED,
];

/// Splits a body into the pieces that a client receives: the events of a stream, else the engine's pieces.
fn pieces(kind: RequestKind, body: &[u8]) -> Vec<Vec<u8>> {
    if !kind.is_stream() {
        let first = kind.pieces()[0].len();
        let (first, second) = body.split_at(first.min(body.len()));
        return vec![first.to_vec(), second.to_vec()];
    }
    let text = String::from_utf8(body.to_vec()).unwrap();
    text.split_inclusive("\n\n").map(|event| event.as_bytes().to_vec()).collect()
}

/// Plays a script for one request; returns the client's answer.
async fn play(upstream: &mut ManualUpstream, client: &mut Connection, script: &Script, healthy: &[Vec<u8>]) -> Answer {
    let mut call = upstream.next().await;
    if script.bytewise {
        call.send_byte_by_byte(&script.reply).await;
    } else {
        call.send(&script.reply).await;
    }
    match &script.end {
        End::Keep => call.reply(b"").await,
        End::Close => drop(call),
        End::Reset(pieces) => {
            // a reset discards bytes in flight; that loss is the network's, not tokentap's
            if let ClientView::Cut(_) = script.view {
                let last = &healthy[pieces - 1];
                let found = |read: &[u8]| memchr::memmem::find(read, last).is_some();
                assert!(soon("the earlier pieces are delivered", client.read_until(found)).await);
            }
            call.reset();
        }
        End::HalfClose => {
            call.finish().await;
            call.closed().await;
        }
        End::Refused => call.closed().await,
        End::Late(stray) => {
            let answer = soon("an answer", client.answer()).await;
            call.send(stray).await;
            call.closed().await;
            return answer;
        }
    }
    soon("an answer, or its end", client.answer()).await
}

/// Compares a client's answer with the expected view.
fn check(about: &str, answer: &Answer, view: &ClientView, healthy: &[Vec<u8>], kind: RequestKind) {
    let (status, complete) = (answer.status, answer.complete);
    let all = healthy.concat();
    match view {
        ClientView::Refusal => {
            assert_eq!((status, complete), (502, true), "{about}: {}", answer.text());
            let message = answer.json()["error"]["message"].to_string();
            assert!(message.contains("SGLang server"), "{about}: {message}");
        }
        ClientView::Cut(pieces) => {
            assert_eq!((status, complete), (200, false), "{about}: a cut reply is incomplete: {}", answer.text());
            assert_eq!(answer.text(), String::from_utf8_lossy(&healthy[..*pieces].concat()), "{about}");
        }
        ClientView::Ended(pieces) => {
            assert_eq!((status, complete), (200, true), "{about}");
            // an unreadable reply passes unchanged
            let sent = if kind == RequestKind::Whole {
                kind.pieces()[..*pieces].concat()
            } else {
                healthy[..*pieces].concat()
            };
            assert_eq!(answer.text(), String::from_utf8_lossy(&sent), "{about}");
        }
        ClientView::Short(bytes) => {
            let sent = kind.pieces().concat();
            assert_eq!((status, complete), (200, true), "{about}");
            assert_eq!(answer.body, sent[..sent.len() - bytes], "{about}");
        }
        ClientView::Whole => {
            assert_eq!((status, complete), (200, true), "{about}");
            assert_eq!(answer.text(), String::from_utf8_lossy(&all), "{about}");
        }
    }
}

/// The pieces that a client receives of a healthy reply.
async fn healthy(upstream: &mut ManualUpstream, binary: &Binary, kind: RequestKind) -> Vec<Vec<u8>> {
    let mut client = Connection::open(binary.data).await;
    client.send(&kind.request(binary.data, &format!("healthy-{kind:?}"))).await;
    upstream.next().await.reply(&kind.healthy()).await;
    let answer = soon("an answer", client.answer()).await;
    assert!(answer.complete, "{kind:?}");
    if kind != RequestKind::Forward {
        assert!(answer.text().contains("output_token_entropy"), "{kind:?}: {}", answer.text());
    }
    pieces(kind, &answer.body)
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_faults_are_visible_to_clients_and_complete_events_survive_a_kill() {
    let mut played = 0;
    for (streaming, kinds) in RequestKind::ALL {
        let (mut upstream, dir) = (ManualUpstream::streaming(streaming).await, tempfile::tempdir().unwrap());
        let flags = ["--data-dir", dir.path().to_str().unwrap()];
        let binary = Binary::with_flags(upstream.addr, &flags).await;
        let mut results = Vec::new();
        for kind in kinds {
            results.extend(all(&mut upstream, &binary, *kind).await);
        }
        let control = binary.control;
        assert_eq!(metric(control, "tokentap_client_disconnects_total", "").await, 0.0, "no client left");
        assert_eq!(
            metric(control, "tokentap_aborts_sent_total", "").await,
            0.0,
            "a reply that the engine cut is not aborted"
        );
        assert_eq!(metric(control, "tokentap_panics_caught_total", "").await, 0.0);
        assert!(!upstream.has_more(), "each was sent once");
        binary.kill();

        let binary = Binary::with_flags(upstream.addr, &flags).await;
        played += results.len();
        for CaseResult { about, session, turns, read: before } in results {
            let after = read(binary.control, &session).await;
            assert!(!turns || after == before, "{about}: {after} was {before}");
            assert_eq!(after.contains("\"token_ids\""), turns, "{about}: {after}");
        }
    }
    assert!(played >= 50, "{played} cases");
}

/// The recorded result of a case.
struct CaseResult {
    about: String,
    session: String,
    turns: bool,
    /// The export of the session.
    read: String,
}

/// Plays every case with one kind of request.
async fn all(upstream: &mut ManualUpstream, binary: &Binary, kind: RequestKind) -> Vec<CaseResult> {
    let control = binary.control;
    let healthy = healthy(upstream, binary, kind).await;
    let mut client = Connection::open(binary.data).await;
    let mut results = Vec::new();
    for (at, case) in CASES.iter().enumerate() {
        let Some(script) = (case.script)(kind) else { continue };
        let (about, session) = (format!("{kind:?}: {}", case.name), format!("{kind:?}-{at}"));
        let resets = metric(control, "tokentap_upstream_errors_total", "reset").await;
        client.send(&kind.request(binary.data, &session)).await;
        let answer = play(upstream, &mut client, &script, &healthy).await;
        check(&about, &answer, &script.view, &healthy, kind);
        if !answer.complete {
            client.closed().await;
            client = Connection::open(binary.data).await;
        }
        // on the same connection unless it was cut
        assert_next_request(upstream, &mut client, binary.data, &about).await;
        wait_until_idle(control).await;
        let blamed = metric(control, "tokentap_upstream_errors_total", "reset").await - resets;
        assert_eq!(blamed, f64::from(u8::from(script.blamed)), "{about}: failures of the engine");
        let turns = turns(control, &session).await;
        let turns: Vec<_> = turns.iter().map(|(tokens, fault)| (*tokens, fault.as_deref())).collect();
        assert_eq!(turns, Vec::from_iter(script.turn), "{about}: recorded turns");
        if kind == RequestKind::Whole && matches!(script.view, ClientView::Short(_) | ClientView::Ended(_)) {
            let shown = get(control, &format!("/v1/sessions/{session}")).await.json();
            assert_eq!(shown["incomplete"], true, "{about}: an unreadable reply marks the session: {shown}");
        }
        let read = read(control, &session).await;
        results.push(CaseResult { about, session, turns: script.turn.is_some(), read });
    }
    results
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_engine_returns_502_at_once() {
    let closed = tokio::net::TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let binary = Binary::serve(closed.local_addr().unwrap(), &[]).await;
    for kind in RequestKind::ALL.iter().flat_map(|(_, kinds)| *kinds).copied() {
        let before = metric(binary.control, "tokentap_http_requests_total", "502").await;
        let mut client = Connection::open(binary.data).await;
        client.send(&kind.request(binary.data, "s")).await;
        check(&format!("{kind:?}"), &soon("an answer", client.answer()).await, &ClientView::Refusal, &[], kind);
        wait_until_idle(binary.control).await;
        assert_eq!(metric(binary.control, "tokentap_http_requests_total", "502").await, before + 1.0, "{kind:?}");
        assert_eq!(turns(binary.control, "s").await, vec![], "{kind:?}");
    }
    assert!(metric(binary.control, "tokentap_upstream_errors_total", "connect").await >= 4.0);
}

#[test]
fn cases_are_the_rows_of_the_documented_faults() {
    let table = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/faults.md")).unwrap();
    let (table, _) =
        table.split_once("## The shared ledger").expect("the section of the faults that tests/fleet causes");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let rows: Vec<&str> = rows.filter(|row| *row != "fault").collect();
    let names: Vec<&str> = CASES.iter().map(|case| case.name).chain(OTHERS.iter().copied()).collect();
    assert_eq!(rows, names, "docs/faults.md, in the order of the cases");
}
