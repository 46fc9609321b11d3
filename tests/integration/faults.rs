//! What may break, what its client sees then, and what is kept: one table of cases. `docs/faults.md` has a row for each.

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
use crate::support::hand::{Hand, soon};
use cases::{CASES, End, Script, Seen};
use doors::Door;
use stage::{goes_on, idle, metric, read, turns};

/// Faults that are not an engine's; each is the name of a row, and of a test below it.
const OTHERS: &[&str] = &[
    "the engine is not there",
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

/// Pieces of a body as a client has them: events of a stream, else what the engine's pieces are.
fn pieces(door: Door, body: &[u8]) -> Vec<Vec<u8>> {
    if !door.is_stream() {
        let first = door.pieces()[0].len();
        let (first, second) = body.split_at(first.min(body.len()));
        return vec![first.to_vec(), second.to_vec()];
    }
    let text = String::from_utf8(body.to_vec()).unwrap();
    text.split_inclusive("\n\n").map(|event| event.as_bytes().to_vec()).collect()
}

/// Plays a script to one request; returns what its client saw.
async fn play(hand: &mut Hand, client: &mut Connection, script: &Script, healthy: &[Vec<u8>]) -> Answer {
    let mut call = hand.next().await;
    if script.spelt {
        call.spell(&script.said).await;
    } else {
        call.say(&script.said).await;
    }
    match &script.end {
        End::Keep => call.reply(b"").await,
        End::Close => drop(call),
        End::Reset(pieces) => {
            // what a reset overtakes is lost on the way, which is the network's doing and not tokentap's
            if let Seen::Cut(_) = script.seen {
                let last = &healthy[pieces - 1];
                let found = |read: &[u8]| memchr::memmem::find(read, last).is_some();
                assert!(soon("what came before is delivered", client.read_until(found)).await);
            }
            call.reset();
        }
        End::HalfClose => {
            call.finish().await;
            call.gone().await;
        }
        End::Refused => call.gone().await,
        End::Late(stray) => {
            let answer = soon("an answer", client.answer()).await;
            call.say(stray).await;
            call.gone().await;
            return answer;
        }
    }
    soon("an answer, or its end", client.answer()).await
}

/// Holds what a client saw against what it should have seen.
fn check(about: &str, answer: &Answer, seen: &Seen, healthy: &[Vec<u8>], door: Door) {
    let (status, complete) = (answer.status, answer.complete);
    let all = healthy.concat();
    match seen {
        Seen::Refusal => {
            assert_eq!((status, complete), (502, true), "{about}: {}", answer.text());
            let message = answer.json()["error"]["message"].to_string();
            assert!(message.contains("SGLang server"), "{about}: {message}");
        }
        Seen::Cut(pieces) => {
            assert_eq!((status, complete), (200, false), "{about}: a cut shows: {}", answer.text());
            assert_eq!(answer.text(), String::from_utf8_lossy(&healthy[..*pieces].concat()), "{about}");
        }
        Seen::Ended(pieces) => {
            assert_eq!((status, complete), (200, true), "{about}");
            // what cannot be read passes as the engine sent it
            let sent =
                if door == Door::Whole { door.pieces()[..*pieces].concat() } else { healthy[..*pieces].concat() };
            assert_eq!(answer.text(), String::from_utf8_lossy(&sent), "{about}");
        }
        Seen::Short(bytes) => {
            let sent = door.pieces().concat();
            assert_eq!((status, complete), (200, true), "{about}");
            assert_eq!(answer.body, sent[..sent.len() - bytes], "{about}");
        }
        Seen::Whole => {
            assert_eq!((status, complete), (200, true), "{about}");
            assert_eq!(answer.text(), String::from_utf8_lossy(&all), "{about}");
        }
    }
}

/// What a client sees of a healthy reply, in pieces.
async fn healthy(hand: &mut Hand, binary: &Binary, door: Door) -> Vec<Vec<u8>> {
    let mut client = Connection::open(binary.data).await;
    client.send(&door.request(binary.data, &format!("healthy-{door:?}"))).await;
    hand.next().await.reply(&door.healthy()).await;
    let answer = soon("an answer", client.answer()).await;
    assert!(answer.complete, "{door:?}");
    if door != Door::Forward {
        assert!(answer.text().contains("output_token_entropy"), "{door:?}: {}", answer.text());
    }
    pieces(door, &answer.body)
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_an_engine_does_its_client_sees_it_and_what_came_whole_is_kept_over_a_kill() {
    let mut played = 0;
    for (streaming, doors) in Door::ALL {
        let (mut hand, dir) = (Hand::streaming(streaming).await, tempfile::tempdir().unwrap());
        let flags = ["--data-dir", dir.path().to_str().unwrap()];
        let binary = Binary::with_flags(hand.addr, &flags).await;
        let mut kept = Vec::new();
        for door in doors {
            kept.extend(all(&mut hand, &binary, *door).await);
        }
        let control = binary.control;
        assert_eq!(metric(control, "tokentap_client_disconnects_total", "").await, 0.0, "no client left");
        assert_eq!(metric(control, "tokentap_aborts_sent_total", "").await, 0.0, "what the engine cut is not aborted");
        assert_eq!(metric(control, "tokentap_panics_caught_total", "").await, 0.0);
        assert!(!hand.has_more(), "each was asked once");
        binary.kill();

        let binary = Binary::with_flags(hand.addr, &flags).await;
        played += kept.len();
        for Kept { about, session, turns, read: before } in kept {
            let after = read(binary.control, &session).await;
            assert!(!turns || after == before, "{about}: {after} was {before}");
            assert_eq!(after.contains("\"token_ids\""), turns, "{about}: {after}");
        }
    }
    assert!(played >= 50, "{played} cases");
}

/// What a case has left.
struct Kept {
    about: String,
    session: String,
    turns: bool,
    /// What a trainer can read of the session.
    read: String,
}

/// Plays every case at one door.
async fn all(hand: &mut Hand, binary: &Binary, door: Door) -> Vec<Kept> {
    let control = binary.control;
    let healthy = healthy(hand, binary, door).await;
    let mut client = Connection::open(binary.data).await;
    let mut left = Vec::new();
    for (at, case) in CASES.iter().enumerate() {
        let Some(script) = (case.script)(door) else { continue };
        let (about, session) = (format!("{door:?}: {}", case.name), format!("{door:?}-{at}"));
        let resets = metric(control, "tokentap_upstream_errors_total", "reset").await;
        client.send(&door.request(binary.data, &session)).await;
        let answer = play(hand, &mut client, &script, &healthy).await;
        check(&about, &answer, &script.seen, &healthy, door);
        if !answer.complete {
            client.closed().await;
            client = Connection::open(binary.data).await;
        }
        // on the same connection wherever that has not been cut
        goes_on(hand, &mut client, binary.data, &about).await;
        idle(control).await;
        let blamed = metric(control, "tokentap_upstream_errors_total", "reset").await - resets;
        assert_eq!(blamed, f64::from(u8::from(script.blamed)), "{about}: failures of the engine");
        let turns = turns(control, &session).await;
        let turns: Vec<_> = turns.iter().map(|(tokens, fault)| (*tokens, fault.as_deref())).collect();
        assert_eq!(turns, Vec::from_iter(script.kept), "{about}: what is kept");
        if door == Door::Whole && matches!(script.seen, Seen::Short(_) | Seen::Ended(_)) {
            let shown = get(control, &format!("/v1/sessions/{session}")).await.json();
            assert_eq!(shown["incomplete"], true, "{about}: what cannot be read is missing: {shown}");
        }
        let read = read(control, &session).await;
        left.push(Kept { about, session, turns: script.kept.is_some(), read });
    }
    left
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_not_there_is_told_at_once() {
    let nobody = tokio::net::TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let binary = Binary::serve(nobody.local_addr().unwrap(), &[]).await;
    for door in Door::ALL.iter().flat_map(|(_, doors)| *doors).copied() {
        let before = metric(binary.control, "tokentap_http_requests_total", "502").await;
        let mut client = Connection::open(binary.data).await;
        client.send(&door.request(binary.data, "s")).await;
        check(&format!("{door:?}"), &soon("an answer", client.answer()).await, &Seen::Refusal, &[], door);
        idle(binary.control).await;
        assert_eq!(metric(binary.control, "tokentap_http_requests_total", "502").await, before + 1.0, "{door:?}");
        assert_eq!(turns(binary.control, "s").await, vec![], "{door:?}");
    }
    assert!(metric(binary.control, "tokentap_upstream_errors_total", "connect").await >= 4.0);
}

#[test]
fn every_fault_has_its_row_and_every_row_its_fault() {
    let table = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/faults.md")).unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let rows: Vec<&str> = rows.filter(|row| *row != "fault").collect();
    let names: Vec<&str> = CASES.iter().map(|case| case.name).chain(OTHERS.iter().copied()).collect();
    assert_eq!(rows, names, "docs/faults.md, in the order of the cases");
}
