//! Uploads of rows by clients that take their time: room is lent to them for as long as they were told, and no longer.

use std::time::Duration;

use safetensors::tensor::Dtype;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::slices::{BINARY, Slice, send};
use crate::support::client::{Answer, Connection, written};
use crate::support::hand::{Hand, soon};
use crate::support::proxy::Proxy;

/// What `--client-body-timeout` is set to: much longer than an upload takes, short enough to wait for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Bytes that the last rows lack when a client begins to dawdle: more than it sends until it is answered.
const LACKING: usize = 1000;

/// Begins an upload and goes on a byte at a time, so that it never pauses; the answer, and how long that took to come.
async fn dawdle(proxy: &Proxy, slice: &Slice, late: bool) -> (Answer, Duration) {
    let begin = Instant::now();
    let bytes = written(proxy.control, "POST", "/v1/entropy", &[BINARY], &slice.file(late));
    // behind late rows comes what goes with them
    let behind = if late { slice.rows() * (4 + 8) } else { 0 };
    let (mut next, end) = (bytes.len() - behind - LACKING, bytes.len() - behind);
    let mut client = Connection::open(proxy.control).await;
    client.send(&bytes[..next]).await;
    let mut drops = interval(Duration::from_millis(20));
    drops.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = client.read_until(|read| !read.is_empty()) => break,
            _ = drops.tick() => {
                assert!(next < end, "it is not answered as long as it sends");
                client.send(&bytes[next..=next]).await;
                next += 1;
            }
        }
    }
    (client.answer().await, begin.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn room_that_is_not_filled_in_time_goes_to_who_waits_for_it() {
    let flags = ["--slice-memory", "4MiB", "--client-body-timeout", "1s"];
    let proxy = Proxy::start(Hand::start().await.addr, &flags).await;
    let (slow, other) = (Slice::new(Dtype::F32, 3, 20_000), Slice::new(Dtype::F32, 2, 100));
    // with the room for all of its rows reserved before they come, too
    for late in [false, true] {
        let waits = async {
            // the only slot is free until the slow one takes it, and from then on waited for
            let mut longest = Duration::ZERO;
            while longest < PATIENCE / 2 {
                let begin = Instant::now();
                let answer = send(proxy.control, &other.file(late)).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
                other.check(&answer.json());
                longest = longest.max(begin.elapsed());
            }
        };
        let both = async { tokio::join!(dawdle(&proxy, &slow, late), waits) };
        let ((answer, elapsed), ()) = soon("the slow one is answered, and who waits is served", both).await;
        assert_eq!(answer.status, 408, "{}", answer.text());
        let error = &answer.json()["error"];
        assert_eq!(error["code"], "slow");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("4 MiB") && message.contains("--client-body-timeout"), "{message}");
        assert!(elapsed >= PATIENCE, "{elapsed:?}: it had its time");
        slow.check(&send(proxy.control, &slow.file(late)).await.json());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slice_that_fills_its_slots_in_time_may_take_longer_than_one_is_given() {
    let given = Duration::from_secs(4);
    let proxy =
        Proxy::start(Hand::start().await.addr, &["--slice-memory", "16MiB", "--client-body-timeout", "4s"]).await;
    // two slots full
    let slice = Slice::new(Dtype::F32, 8192, 64);
    let upload = async |late| {
        let begin = Instant::now();
        let bytes = written(proxy.control, "POST", "/v1/entropy", &[BINARY], &slice.file(late));
        let mut client = Connection::open(proxy.control).await;
        let mut pieces = interval(given * 11 / 10 / 10);
        pieces.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for piece in bytes.chunks(bytes.len().div_ceil(11)) {
            pieces.tick().await;
            client.send(piece).await;
        }
        let answer = client.answer().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        slice.check(&answer.json());
        assert!(begin.elapsed() > given, "{:?}: a slot is given {given:?}", begin.elapsed());
    };
    soon("both are answered", async { tokio::join!(upload(false), upload(true)) }).await;
}
