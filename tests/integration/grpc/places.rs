//! How long a call of Compute may be silent, and who makes room for a newcomer.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http_body_util::BodyExt;
use safetensors::tensor::Dtype as Stored;
use tokentap::serve::grpc::pb::Slice;
use tokio::sync::mpsc;
use tonic::transport::Endpoint;
use tonic::{Code, Streaming};

use super::client::{Entropy, by_hand, entropy, framed};
use super::measuring::{asked, next, said};
use crate::slices::Slice as Truth;
use crate::support::client::get;
use crate::support::hand::{Hand, soon};
use crate::support::proxy::Proxy;

/// Calls of a port, as `src/serve/grpc/call_slots.rs` has it.
const CALLS: usize = 64;

/// Lets so much time pass for everything in this process.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Slices as they are sent; the stream ends with their sender.
fn fed() -> (mpsc::UnboundedSender<Slice>, impl Stream<Item = Slice> + Send + 'static) {
    let (sender, mut slices) = mpsc::unbounded_channel();
    (sender, stream::poll_fn(move |cx| slices.poll_recv(cx)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_comes_byte_by_byte_ends_its_call() {
    let proxy = Proxy::start(Hand::start().await.addr, &["--client-body-timeout", "1s"]).await;
    let message = framed(&asked(3, &Truth::new(Stored::F32, 100, 1000)));
    let (sender, reply) = by_hand(proxy.data, "/tokentap.v1.Entropy/Compute").await;
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
    assert!(trailers["grpc-message"].to_str().unwrap().contains("--client-body-timeout"), "{trailers:?}");
}

#[tokio::test]
async fn between_slices_a_caller_may_be_silent_for_an_hour_and_not_longer() {
    let proxy = Proxy::start(Hand::start().await.addr, &["--client-body-timeout", "1s"]).await;
    let truth = Truth::new(Stored::F32, 2, 100);
    let (sender, slices) = fed();
    let mut answers = entropy(proxy.data).await.compute(slices).await.unwrap().into_inner();
    for id in 0..3 {
        sender.send(asked(id, &truth)).unwrap();
        truth.check(&said(&next(&mut answers).await));
        pass(Duration::from_secs(3590)).await;
    }
    pass(Duration::from_secs(20)).await;
    let status = soon("the end", answers.message()).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    assert!(status.message().contains("an hour"), "{status:?}");
}

#[tokio::test]
async fn while_answers_wait_to_be_read_the_hour_does_not_run() {
    let proxy = Proxy::start(Hand::start().await.addr, &["--slice-memory", "4MiB"]).await;
    // of so many rows that the sixth slice waits: one answer fills the window, one waits behind it, and three are all that may
    let (large, small) = (Truth::new(Stored::F32, 20_000, 8), Truth::new(Stored::F32, 2, 100));
    let (sender, slices) = fed();
    let narrow = Endpoint::from_shared(format!("http://{}", proxy.data)).unwrap().initial_stream_window_size(64 << 10);
    let mut client = Entropy::new(narrow.connect().await.unwrap());
    let mut answers = client.compute(slices).await.unwrap().into_inner();
    for id in 0..6 {
        sender.send(asked(id, &large)).unwrap();
    }
    let measured = "tokentap_slice_batch_rows_sum";
    let rows = async || {
        let text = get(proxy.control, "/metrics").await.text();
        let lines = text.lines().filter(|line| line.starts_with(measured) && line.contains("work=\"rows\""));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum::<f64>()
    };
    soon("five are measured", async { while rows().await < 100_000.0 {} }).await;
    for _ in 0..100 {
        assert_eq!(get(proxy.control, "/livez").await.status, 200);
    }
    assert_eq!(rows().await, 100_000.0, "the sixth waits");
    pass(Duration::from_secs(7200)).await;
    for _ in 0..6 {
        assert_eq!(next(&mut answers).await.entropy.len(), 20_000);
    }
    sender.send(asked(9, &small)).unwrap();
    small.check(&said(&next(&mut answers).await));
}

#[tokio::test]
async fn who_has_been_silent_longest_makes_room_for_a_newcomer() {
    let proxy = Proxy::start(Hand::start().await.addr, &[]).await;
    let truth = Truth::new(Stored::F32, 2, 100);
    let shed = |reason| format!("tokentap_shed_total{{reason=\"{reason}\"}}");
    // one whose answer nobody has taken: it waits for its caller, not the other way round
    let deaf = Endpoint::from_shared(format!("http://{}", proxy.data)).unwrap().initial_stream_window_size(0);
    let slices = stream::iter([asked(1, &truth)]).chain(stream::pending());
    let _unread = Entropy::new(deaf.connect().await.unwrap()).compute(slices).await.unwrap();
    let (sender, slices) = fed();
    let mut client = entropy(proxy.data).await;
    let mut active = client.compute(slices).await.unwrap().into_inner();
    let mut silent: Vec<Streaming<_>> = Vec::new();
    for _ in 2..CALLS {
        silent.push(client.compute(stream::pending::<Slice>()).await.unwrap().into_inner());
    }
    let refused = client.compute(stream::pending::<Slice>()).await.expect_err("nobody has been silent for long");
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("64 calls"), "{refused:?}");
    assert_eq!(proxy.metric(&shed("entropy_calls")).await, 1.0);
    pass(Duration::from_secs(20)).await;
    sender.send(asked(2, &truth)).unwrap();
    truth.check(&said(&next(&mut active).await));
    pass(Duration::from_secs(20)).await;
    // one goes for each that comes, in the order in which they fell silent
    for gone in 0..3 {
        let slices = stream::iter([asked(3, &truth)]);
        let mut newcomer = client.compute(slices).await.expect("there is room").into_inner();
        truth.check(&said(&next(&mut newcomer).await));
        let status = soon("it is told", silent[gone].message()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("silent"), "{status:?}");
        assert_eq!(proxy.metric(&shed("entropy_silent")).await, (gone + 1) as f64);
        // the newcomer's own place is free again, and is taken
        assert_eq!(soon("the end", newcomer.message()).await.unwrap(), None);
        silent.push(client.compute(stream::pending::<Slice>()).await.expect("its place").into_inner());
    }
    sender.send(asked(4, &truth)).unwrap();
    truth.check(&said(&next(&mut active).await));
    assert_eq!(proxy.metric(&shed("entropy_calls")).await, 1.0);
}
