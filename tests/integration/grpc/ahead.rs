// SPDX-License-Identifier: Apache-2.0
//! How many slices of a Compute call tokentap reads ahead of its caller, and the memory of an incomplete slice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{StreamExt, stream};
use prost::Message;
use safetensors::tensor::Dtype as Stored;
use tokentap::entropy::Cpu;
use tokentap::serve::grpc::pb::{Measurement, Slice};
use tonic::transport::{Channel, Endpoint};

use super::client::{Entropy, encode_frame, entropy, raw_call};
use super::measuring::{as_http_json, next, slice_of};
use crate::slices::{Slice as Truth, send};
use crate::support::client::get;
use crate::support::manual_upstream::{ManualUpstream, soon};
use crate::support::proxy::Proxy;

/// Slices of a call in progress, as in `src/serve/grpc/entropy.rs`.
const SLICES: usize = 16;

/// Rows of these slices, as there.
const ROWS: usize = 1 << 16;

/// A connection with a window of 0: it receives heads and no byte of an answer.
async fn zero_window_channel(proxy: &Proxy) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", proxy.data)).unwrap();
    endpoint.initial_stream_window_size(0).connect().await.unwrap()
}

/// The number of rows that were measured.
fn measured_rows(proxy: &Proxy) -> usize {
    let rows = proxy.parts.metrics.slices.rows.with_label_values(&[Cpu::new().name()]).get();
    usize::try_from(rows).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn read_ahead_for_a_caller_that_reads_nothing_is_bounded() {
    // Many slices of few rows, and few of many. Besides those in progress there is one whose unread numbers exceed one write; and if the
    // number of rows does not block the next slice, one that waits for a slot.
    for (rows, most) in [(1_100, SLICES + 2), (20_000, ROWS / 20_000 + 1)] {
        let proxy = Proxy::start(ManualUpstream::start().await.addr, &["limit:slice-memory", "4MiB"]).await;
        // about half a megabyte in both cases
        let truth = Truth::new(Stored::F32, rows, 120_000 / rows);
        let sent = Arc::new(AtomicUsize::new(0));
        let slices = stream::iter(0..1000).map({
            let (sent, slice) = (Arc::clone(&sent), slice_of(0, &truth));
            move |id| {
                sent.fetch_add(1, Ordering::Relaxed);
                Slice { id, ..slice.clone() }
            }
        });
        let answers = Entropy::new(zero_window_channel(&proxy).await).compute(slices).await.unwrap();
        // this much is measured, and no further row during a hundred other requests
        let livez = async || assert_eq!(get(proxy.control, "/livez").await.status, 200);
        soon("the limit is reached", async {
            while measured_rows(&proxy) < most * rows {
                livez().await
            }
        })
        .await;
        for _ in 0..100 {
            livez().await;
        }
        assert_eq!(measured_rows(&proxy), most * rows, "rows taken from a caller that reads nothing: {most} slices");
        let sent = sent.load(Ordering::Relaxed);
        // the difference is in socket buffers
        assert!(sent <= most + 10, "{sent} slices were sent, and {most} taken");
        // a blocked caller does not block others
        let small = Truth::new(Stored::F32, 3, 100);
        for addr in [proxy.data, proxy.control] {
            let mut others =
                entropy(addr).await.compute(stream::iter([slice_of(7, &small)])).await.unwrap().into_inner();
            small.check(&as_http_json(&next(&mut others).await));
        }
        small.check(&send(proxy.control, &small.file(false)).await.json());
        assert_eq!(measured_rows(&proxy), most * rows + 3 * 3, "no row of the blocked call was measured meanwhile");
        drop(answers);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slice_takes_memory_only_when_complete() {
    let proxy = Proxy::start(ManualUpstream::start().await.addr, &["limit:slice-memory", "4MiB"]).await;
    let (slow, other) = (Truth::new(Stored::F32, 5, 1000), Truth::new(Stored::BF16, 2, 100));
    let message = encode_frame(&slice_of(3, &slow));
    let (sender, reply) = raw_call(proxy.data, "/tokentap.v1.Entropy/Compute").await;
    let reply = soon("the call begins", reply).await.unwrap().unwrap();
    // the only slot goes to each caller with a complete slice
    let mut pieces = message.chunks(message.len().div_ceil(20)).map(|piece| message.slice_ref(piece));
    let last = pieces.next_back().unwrap();
    for piece in pieces {
        sender.send(piece).unwrap();
        let mut others =
            entropy(proxy.data).await.compute(stream::iter([slice_of(7, &other)])).await.unwrap().into_inner();
        other.check(&as_http_json(&next(&mut others).await));
        other.check(&soon("a slot", send(proxy.control, &other.file(true))).await.json());
    }
    sender.send(last).unwrap();
    drop(sender);
    let answer = soon("its answer", http_body_util::BodyExt::collect(reply.into_body())).await.unwrap().to_bytes();
    slow.check(&as_http_json(&Measurement::decode(&answer[5..]).unwrap()));
}
