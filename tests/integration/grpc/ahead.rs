//! How far a call of Compute runs ahead of its caller, and what a slice takes before it is whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{StreamExt, stream};
use prost::Message;
use safetensors::tensor::Dtype as Stored;
use tokentap::entropy::{Backend, Cpu};
use tokentap::serve::grpc::pb::{Measurement, Slice};
use tonic::transport::{Channel, Endpoint};

use super::client::{Entropy, by_hand, entropy, framed};
use super::measuring::{asked, next, said};
use crate::slices::{Slice as Truth, send};
use crate::support::client::get;
use crate::support::hand::{Hand, soon};
use crate::support::proxy::Proxy;

/// Slices of a call that are under way, as `src/serve/grpc/entropy.rs` has it.
const SLICES: usize = 16;

/// Rows of them, as there.
const ROWS: usize = 1 << 16;

/// A connection that takes nothing but heads: not a byte of an answer is read, neither by the caller nor by what it stands on.
async fn deaf(proxy: &Proxy) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", proxy.data)).unwrap();
    endpoint.initial_stream_window_size(0).connect().await.unwrap()
}

/// Rows that have been measured.
fn measured(proxy: &Proxy) -> usize {
    let rows = proxy.parts.metrics.slices.rows.with_label_values(&[Cpu::new().name(), "rows"]).get();
    usize::try_from(rows).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_caller_that_reads_nothing_so_much_is_taken_and_no_more() {
    // Many slices of few rows, and few of many. Beside those under way there is one whose numbers nobody takes, of more bytes than are
    // sent at a time; and where rows do not hold the next slice up, one that waits for its place.
    for (rows, most) in [(1_100, SLICES + 2), (20_000, ROWS / 20_000 + 1)] {
        let proxy = Proxy::start(Hand::start().await.addr, &["--slice-memory", "4MiB"]).await;
        // half a megabyte or so either way
        let truth = Truth::new(Stored::F32, rows, 120_000 / rows);
        let sent = Arc::new(AtomicUsize::new(0));
        let slices = stream::iter(0..1000).map({
            let (sent, slice) = (Arc::clone(&sent), asked(0, &truth));
            move |id| {
                sent.fetch_add(1, Ordering::Relaxed);
                Slice { id, ..slice.clone() }
            }
        });
        let answers = Entropy::new(deaf(&proxy).await).compute(slices).await.unwrap();
        // so much is measured, and after a hundred other answers not a row more
        let livez = async || assert_eq!(get(proxy.control, "/livez").await.status, 200);
        soon("so much is taken", async {
            while measured(&proxy) < most * rows {
                livez().await
            }
        })
        .await;
        for _ in 0..100 {
            livez().await;
        }
        assert_eq!(measured(&proxy), most * rows, "rows taken from a caller that reads nothing: {most} slices");
        let sent = sent.load(Ordering::Relaxed);
        // what the sockets hold
        assert!(sent <= most + 10, "{sent} slices were sent, and {most} taken");
        // who is held up holds nobody else up
        let small = Truth::new(Stored::F32, 3, 100);
        for addr in [proxy.data, proxy.control] {
            let mut others = entropy(addr).await.compute(stream::iter([asked(7, &small)])).await.unwrap().into_inner();
            small.check(&said(&next(&mut others).await));
        }
        small.check(&send(proxy.control, &small.file(false)).await.json());
        assert_eq!(measured(&proxy), most * rows + 3 * 3, "of the one that is held up nothing was measured meanwhile");
        drop(answers);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slice_takes_room_when_it_is_whole() {
    let proxy = Proxy::start(Hand::start().await.addr, &["--slice-memory", "4MiB"]).await;
    let (slow, other) = (Truth::new(Stored::F32, 5, 1000), Truth::new(Stored::BF16, 2, 100));
    let message = framed(&asked(3, &slow));
    let (sender, reply) = by_hand(proxy.data, "/tokentap.v1.Entropy/Compute").await;
    let reply = soon("the call begins", reply).await.unwrap().unwrap();
    // the only slot is for whoever has a whole slice, as often as one comes
    let mut slowly = message.chunks(message.len().div_ceil(20)).map(|piece| message.slice_ref(piece));
    let last = slowly.next_back().unwrap();
    for piece in slowly {
        sender.send(piece).unwrap();
        let mut others =
            entropy(proxy.data).await.compute(stream::iter([asked(7, &other)])).await.unwrap().into_inner();
        other.check(&said(&next(&mut others).await));
        other.check(&soon("room", send(proxy.control, &other.file(true))).await.json());
    }
    sender.send(last).unwrap();
    drop(sender);
    let answer = soon("its answer", http_body_util::BodyExt::collect(reply.into_body())).await.unwrap().to_bytes();
    slow.check(&said(&Measurement::decode(&answer[5..]).unwrap()));
}
