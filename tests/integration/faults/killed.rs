//! tokentap itself is killed: behind the last byte of a reply, and within one.

use super::doors::{Door, TOKENS};
use super::stage::turns;
use crate::support::binary::Binary;
use crate::support::client::Connection;
use crate::support::hand::{Hand, soon};

pub const KILLED: &str = "tokentap is killed";

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_has_to_its_last_byte_is_there_after_a_kill_and_what_was_cut_shows() {
    for (streaming, doors) in Door::ALL {
        let (mut hand, dir) = (Hand::streaming(streaming).await, tempfile::tempdir().unwrap());
        let flags = ["--data-dir", dir.path().to_str().unwrap()];
        let mut binary = Binary::with_flags(hand.addr, &flags).await;
        for door in doors {
            binary = kill(&mut hand, binary, *door, &flags).await;
        }
    }
}

/// Kills one while it passes a reply on, behind the last byte of another; returns the next.
async fn kill(hand: &mut Hand, binary: Binary, door: Door, flags: &[&str]) -> Binary {
    let cut = format!("cut-{door:?}");
    let mut within = Connection::open(binary.data).await;
    within.send(&door.request(binary.data, &cut)).await;
    let mut running = hand.next().await;
    running.say(&door.begun(1)).await;
    if door != Door::Whole {
        // the head and the first piece
        let last: &[u8] = if door.is_stream() { b"\n\n\r\n" } else { &door.pieces()[0] };
        assert!(soon("its beginning", within.read_until(|read| read.ends_with(last))).await);
    }
    let whole = format!("whole-{door:?}");
    let mut behind = Connection::open(binary.data).await;
    behind.send(&door.request(binary.data, &whole)).await;
    hand.next().await.reply(&door.healthy()).await;
    let answer = soon("an answer", behind.answer()).await;
    binary.kill();
    assert!(answer.complete, "{door:?}");
    let answer = soon("an end", within.answer()).await;
    assert!(!answer.complete, "{door:?}: a reply that was cut does not look complete: {}", answer.text());
    running.gone().await;
    let binary = Binary::with_flags(hand.addr, flags).await;
    let kept = if door == Door::Forward { vec![] } else { vec![(TOKENS, None)] };
    assert_eq!(turns(binary.control, &whole).await, kept, "{door:?}: its client has all of it");
    assert_eq!(turns(binary.control, &cut).await, vec![], "{door:?}: its client was told that it is not whole");
    binary
}

/// Bytes of the log, whoever writes it.
fn logged(dir: &tempfile::TempDir) -> u64 {
    std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_is_in_the_log_before_its_last_byte_is_with_its_client() {
    for (streaming, doors) in Door::ALL {
        let (mut hand, dir) = (Hand::streaming(streaming).await, tempfile::tempdir().unwrap());
        let binary = Binary::with_flags(hand.addr, &["--data-dir", dir.path().to_str().unwrap()]).await;
        for door in doors.iter().filter(|door| **door != Door::Forward) {
            let mut client = Connection::open(binary.data).await;
            // so often that a writer which may be late is late
            for at in 0..100 {
                let before = logged(&dir);
                client.send(&door.request(binary.data, &format!("{door:?}-{at}"))).await;
                hand.next().await.reply(&door.healthy()).await;
                assert!(soon("an answer", client.answer()).await.complete, "{door:?}");
                assert!(logged(&dir) > before, "{door:?}, reply {at}: a kill now would lose what its client has");
            }
        }
    }
}
