//! A disk that is full while streams run, and has room again. It is full in the way that needs no file system of its own: files of the
//! process may not grow from now on (`prlimit`).

use std::process::Command;

use super::doors::{Door, TOKENS};
use super::stage::{idle, metric, read, turns};
use crate::support::binary::Binary;
use crate::support::client::{Connection, get};
use crate::support::hand::{Call, Hand, soon};

pub const FULL: &str = "the disk is full";

/// Gives the disk of a process so much room; it may be given more again.
fn room(binary: &Binary, bytes: &str) {
    let args = ["--pid".to_owned(), binary.id().to_string(), format!("--fsize={bytes}:")];
    assert!(Command::new("prlimit").args(args).status().unwrap().success(), "a limit may be lowered and raised");
}

/// A generation of which the engine has said the beginning.
async fn begin(hand: &mut Hand, binary: &Binary, door: Door, session: &str) -> (Connection, Call) {
    let mut client = Connection::open(binary.data).await;
    client.send(&door.request(binary.data, session)).await;
    let mut call = hand.next().await;
    call.say(&door.begun(1)).await;
    (client, call)
}

/// Its rest, which arrives whatever the disk does.
async fn end(door: Door, client: &mut Connection, call: Call) {
    call.reply(&door.healthy()[door.begun(1).len()..]).await;
    let answer = soon("an answer", client.answer()).await;
    assert_eq!((answer.status, answer.complete), (200, true), "{door:?}: {}", answer.text());
    assert!(answer.text().contains("output_token_entropy"), "{door:?}: {}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fills_under_a_stream_costs_the_record_and_not_the_reply() {
    let (mut hand, dir) = (Hand::start().await, tempfile::tempdir().unwrap());
    let flags = ["--data-dir", dir.path().to_str().unwrap()];
    let binary = Binary::with_flags(hand.addr, &flags).await;
    let control = binary.control;
    let doors = [Door::Whole, Door::Cumulative];
    let mut before = Vec::new();
    for door in doors {
        let (mut client, call) = begin(&mut hand, &binary, door, &format!("before-{door:?}")).await;
        end(door, &mut client, call).await;
        before.push(read(control, &format!("before-{door:?}")).await);
    }
    // all of them run when the disk fills
    let mut running = Vec::new();
    for door in doors {
        running.push((door, begin(&mut hand, &binary, door, &format!("full-{door:?}")).await));
    }
    room(&binary, "0");
    for (door, (mut client, call)) in running {
        end(door, &mut client, call).await;
        assert_eq!(turns(control, &format!("full-{door:?}")).await, [(TOKENS, None)], "{door:?}: memory has it");
    }
    assert_eq!(metric(control, "tokentap_log_degraded", "").await, 1.0);
    assert_eq!(metric(control, "tokentap_log_failures_total", "write").await, 2.0, "each reply that is not on disk");
    assert_eq!(metric(control, "tokentap_log_lost_records_total", "").await, 2.0);
    assert_eq!(get(control, "/readyz").await.status, 200, "agents are served");
    room(&binary, "unlimited");
    let mut after = 0;
    while metric(control, "tokentap_log_degraded", "").await == 1.0 {
        // it is tried again a second after it has failed
        let (mut client, call) = begin(&mut hand, &binary, Door::Whole, &format!("after-{after}")).await;
        end(Door::Whole, &mut client, call).await;
        after += 1;
        assert!(after < 5_000, "a second passes");
    }
    let last = format!("after-{}", after - 1);
    let (lost, written) = (read(control, "full-Whole").await, read(control, &last).await);
    idle(control).await;
    binary.kill();

    let binary = Binary::with_flags(hand.addr, &flags).await;
    for (door, before) in doors.iter().zip(before) {
        assert_eq!(read(binary.control, &format!("before-{door:?}")).await, before, "{door:?}");
        assert_eq!(turns(binary.control, &format!("full-{door:?}")).await, vec![], "what was counted as lost is lost");
    }
    assert!(lost.contains("\"token_ids\""), "{lost}");
    assert_eq!(read(binary.control, &last).await, written, "the log goes on where there is room");
}
