// SPDX-License-Identifier: Apache-2.0
//! Slow uploads of rows: tokentap reserves memory for them for a limited time.

use std::time::Duration;

use safetensors::tensor::Dtype;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::slices::{BINARY, Slice, send};
use crate::support::client::{Answer, Connection, written};
use crate::support::manual_upstream::{ManualUpstream, soon};
use crate::support::proxy::Proxy;

/// The limit of a pause in a body: much longer than an upload takes, and short enough to wait for.
const BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes of the last rows that are missing when a client slows down: more than it sends until it is answered.
const MISSING: usize = 1000;

/// Starts an upload and continues it a byte at a time, without a pause; returns the answer and the elapsed time.
async fn upload_slowly(proxy: &Proxy, slice: &Slice, late: bool) -> (Answer, Duration) {
    let begin = Instant::now();
    let bytes = written(proxy.control, "POST", "/v1/entropy", &[BINARY], &slice.file(late));
    // late rows are followed by their per-row values
    let trailing = if late { slice.rows() * (4 + 8) } else { 0 };
    let (mut next, end) = (bytes.len() - trailing - MISSING, bytes.len() - trailing);
    let mut client = Connection::open(proxy.control).await;
    client.send(&bytes[..next]).await;
    let mut drops = interval(Duration::from_millis(20));
    drops.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = client.read_until(|read| !read.is_empty()) => break,
            _ = drops.tick() => {
                assert!(next < end, "the upload ends before its answer");
                client.send(&bytes[next..=next]).await;
                next += 1;
            }
        }
    }
    (client.answer().await, begin.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_upload_times_out_and_its_memory_goes_to_the_next_upload() {
    let flags = ["limit:slice-memory", "4MiB", "limit:client-body-timeout", "1s"];
    let proxy = Proxy::start(ManualUpstream::start().await.addr, &flags).await;
    let (slow, other) = (Slice::new(Dtype::F32, 3, 20_000), Slice::new(Dtype::F32, 2, 100));
    // also with the memory for all rows reserved before they arrive
    for late in [false, true] {
        let waits = async {
            // the only slot is free until the slow upload takes it; later uploads wait for it
            let mut longest = Duration::ZERO;
            while longest < BODY_TIMEOUT / 2 {
                let begin = Instant::now();
                let answer = send(proxy.control, &other.file(late)).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
                other.check(&answer.json());
                longest = longest.max(begin.elapsed());
            }
        };
        let both = async { tokio::join!(upload_slowly(&proxy, &slow, late), waits) };
        let ((answer, elapsed), ()) = soon("the slow upload is answered, and the waiting one is served", both).await;
        assert_eq!(answer.status, 408, "{}", answer.text());
        let error = &answer.json()["error"];
        assert_eq!(error["code"], "slow");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("4 MiB") && message.contains("each 4 MiB"), "{message}");
        assert!(elapsed >= BODY_TIMEOUT, "{elapsed:?}: not before its timeout");
        slow.check(&send(proxy.control, &slow.file(late)).await.json());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_that_fills_each_slot_in_time_may_exceed_the_timeout() {
    let timeout = Duration::from_secs(4);
    let proxy = Proxy::start(
        ManualUpstream::start().await.addr,
        &["limit:slice-memory", "16MiB", "limit:client-body-timeout", "4s"],
    )
    .await;
    // fills two slots
    let slice = Slice::new(Dtype::F32, 8192, 64);
    let upload = async |late| {
        let begin = Instant::now();
        let bytes = written(proxy.control, "POST", "/v1/entropy", &[BINARY], &slice.file(late));
        let mut client = Connection::open(proxy.control).await;
        let mut pieces = interval(timeout * 11 / 10 / 10);
        pieces.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for piece in bytes.chunks(bytes.len().div_ceil(11)) {
            pieces.tick().await;
            client.send(piece).await;
        }
        let answer = client.answer().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        slice.check(&answer.json());
        assert!(begin.elapsed() > timeout, "{:?}: the timeout of a slot is {timeout:?}", begin.elapsed());
    };
    soon("both are answered", async { tokio::join!(upload(false), upload(true)) }).await;
}
