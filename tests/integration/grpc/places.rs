// SPDX-License-Identifier: Apache-2.0
//! How long a Compute call may be silent, and which silent call gives up its slot to a new one.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http_body_util::BodyExt;
use safetensors::tensor::Dtype as Stored;
use tokentap::serve::grpc::pb::Slice;
use tokio::sync::mpsc;
use tonic::transport::Endpoint;
use tonic::{Code, Streaming};

use super::client::{Entropy, encode_frame, entropy, raw_call};
use super::measuring::{as_http_json, next, slice_of};
use crate::slices::Slice as Truth;
use crate::support::client::get;
use crate::support::manual_upstream::{ManualUpstream, soon};
use crate::support::proxy::Proxy;

/// The limit of calls of a port, as in `src/serve/grpc/call_slots.rs`.
const CALLS: usize = 64;

/// Advances tokio's clock in this process.
async fn advance_clock(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// A channel of slices; the stream ends when the sender is dropped.
fn slice_channel() -> (mpsc::UnboundedSender<Slice>, impl Stream<Item = Slice> + Send + 'static) {
    let (sender, mut slices) = mpsc::unbounded_channel();
    (sender, stream::poll_fn(move |cx| slices.poll_recv(cx)))
}

#[tokio::test(flavor = "multi_thread")]
async fn too_slow_message_ends_its_call() {
    let proxy = Proxy::start(ManualUpstream::start().await.addr, &["limit:client-body-timeout", "1s"]).await;
    let message = encode_frame(&slice_of(3, &Truth::new(Stored::F32, 100, 1000)));
    let (sender, reply) = raw_call(proxy.data, "/tokentap.v1.Entropy/Compute").await;
    let reply = soon("the call begins", reply).await.unwrap().unwrap();
    let ended = tokio::spawn(reply.into_body().collect());
    soon("the end", async {
        for byte in &message {
            if ended.is_finished() || sender.send(Bytes::copy_from_slice(&[*byte])).is_err() {
                break;
            }
            assert_eq!(get(proxy.control, "/livez").await.status, 200);
        }
    })
    .await;
    let ended = ended.await.unwrap().unwrap();
    let trailers = ended.trailers().expect("a status");
    assert_eq!(trailers["grpc-status"], "4");
    assert_eq!(trailers["tokentap-http-status"], "408");
    assert!(
        trailers["grpc-message"].to_str().unwrap().contains("a%20slice%20took%20longer%20than%201%20s"),
        "{trailers:?}"
    );
}

#[tokio::test]
async fn caller_may_be_silent_for_an_hour_between_slices() {
    let proxy = Proxy::start(ManualUpstream::start().await.addr, &["limit:client-body-timeout", "1s"]).await;
    let truth = Truth::new(Stored::F32, 2, 100);
    let (sender, slices) = slice_channel();
    let mut answers = entropy(proxy.data).await.compute(slices).await.unwrap().into_inner();
    for id in 0..3 {
        sender.send(slice_of(id, &truth)).unwrap();
        truth.check(&as_http_json(&next(&mut answers).await));
        advance_clock(Duration::from_secs(3590)).await;
    }
    advance_clock(Duration::from_secs(20)).await;
    let status = soon("the end", answers.message()).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    assert!(status.message().contains("an hour"), "{status:?}");
}

#[tokio::test]
async fn silence_limit_is_paused_while_answers_are_unread() {
    let proxy = Proxy::start(ManualUpstream::start().await.addr, &["limit:slice-memory", "4MiB"]).await;
    // enough rows that the sixth slice waits: one answer fills the window, one waits after it, and three more are the limit
    let (large, small) = (Truth::new(Stored::F32, 20_000, 8), Truth::new(Stored::F32, 2, 100));
    let (sender, slices) = slice_channel();
    let narrow = Endpoint::from_shared(format!("http://{}", proxy.data)).unwrap().initial_stream_window_size(64 << 10);
    let mut client = Entropy::new(narrow.connect().await.unwrap());
    let mut answers = client.compute(slices).await.unwrap().into_inner();
    for id in 0..6 {
        sender.send(slice_of(id, &large)).unwrap();
    }
    let measured = "tokentap_slice_batch_rows_sum";
    let rows = async || {
        let text = get(proxy.control, "/metrics").await.text();
        let lines = text.lines().filter(|line| line.starts_with(measured));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum::<f64>()
    };
    soon("five slices are measured", async { while rows().await < 100_000.0 {} }).await;
    for _ in 0..100 {
        assert_eq!(get(proxy.control, "/livez").await.status, 200);
    }
    assert_eq!(rows().await, 100_000.0, "the sixth waits");
    advance_clock(Duration::from_secs(7200)).await;
    for _ in 0..6 {
        assert_eq!(next(&mut answers).await.entropy.len(), 20_000);
    }
    sender.send(slice_of(9, &small)).unwrap();
    small.check(&as_http_json(&next(&mut answers).await));
}

#[tokio::test]
async fn longest_silent_call_is_closed_for_a_new_one() {
    let proxy = Proxy::start(ManualUpstream::start().await.addr, &[]).await;
    let truth = Truth::new(Stored::F32, 2, 100);
    let shed = |reason| format!("tokentap_shed_total{{reason=\"{reason}\"}}");
    // a call with an unread answer: it waits for its caller and does not count as silent
    let blocked = Endpoint::from_shared(format!("http://{}", proxy.data)).unwrap().initial_stream_window_size(0);
    let slices = stream::iter([slice_of(1, &truth)]).chain(stream::pending());
    let _unread = Entropy::new(blocked.connect().await.unwrap()).compute(slices).await.unwrap();
    let (sender, slices) = slice_channel();
    let mut client = entropy(proxy.data).await;
    let mut active = client.compute(slices).await.unwrap().into_inner();
    let mut silent: Vec<Streaming<_>> = Vec::new();
    for _ in 2..CALLS {
        silent.push(client.compute(stream::pending::<Slice>()).await.unwrap().into_inner());
    }
    let refused = client.compute(stream::pending::<Slice>()).await.expect_err("no call has been silent for long");
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("64 calls"), "{refused:?}");
    assert_eq!(proxy.metric(&shed("entropy_calls")).await, 1.0);
    advance_clock(Duration::from_secs(20)).await;
    sender.send(slice_of(2, &truth)).unwrap();
    truth.check(&as_http_json(&next(&mut active).await));
    advance_clock(Duration::from_secs(20)).await;
    // each new call closes one, in the order in which they fell silent
    for gone in 0..3 {
        let slices = stream::iter([slice_of(3, &truth)]);
        let mut newcomer = client.compute(slices).await.expect("a slot").into_inner();
        truth.check(&as_http_json(&next(&mut newcomer).await));
        let status = soon("the call ends", silent[gone].message()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("idle"), "{status:?}");
        assert_eq!(proxy.metric(&shed("entropy_silent")).await, (gone + 1) as f64);
        // the new call's own slot is free again, and is taken
        assert_eq!(soon("the end", newcomer.message()).await.unwrap(), None);
        silent.push(client.compute(stream::pending::<Slice>()).await.expect("a free slot").into_inner());
    }
    sender.send(slice_of(4, &truth)).unwrap();
    truth.check(&as_http_json(&next(&mut active).await));
    assert_eq!(proxy.metric(&shed("entropy_calls")).await, 1.0);
}
