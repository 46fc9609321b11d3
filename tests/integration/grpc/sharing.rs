// SPDX-License-Identifier: Apache-2.0
//! Calls of one connection do not wait for a caller that does not read another call's answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use safetensors::tensor::Dtype as Stored;
use tokentap::serve::grpc::pb::{GenerateRequest, Slice};
use tonic::transport::Endpoint;

use super::client::{Entropy, Generate};
use super::measuring::{as_http_json, next, slice_of, slices_until_blocked};
use crate::slices::Slice as Truth;
use crate::support::manual_upstream::{ManualUpstream, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::message;

#[tokio::test(flavor = "multi_thread")]
async fn unread_answers_do_not_block_other_calls_of_the_connection() {
    const EACH: u64 = 50;
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &["limit:slice-memory", "4MiB"]).await;
    // unread answers must not fill the window of the connection either
    let endpoint = Endpoint::from_shared(format!("http://{}", proxy.data)).unwrap();
    let channel = endpoint.initial_connection_window_size(16 << 20).connect().await.unwrap();
    let (truth, small) = (Truth::new(Stored::F32, 4000, 64), Truth::new(Stored::F32, 3, 100));
    let sent = Arc::new(AtomicUsize::new(0));
    let mut unread = Vec::new();
    for _ in 0..3 {
        let slices = stream::iter(0..EACH).map({
            let (sent, slice) = (Arc::clone(&sent), slice_of(0, &truth));
            move |id| {
                sent.fetch_add(1, Ordering::Relaxed);
                Slice { id, ..slice.clone() }
            }
        });
        unread.push(Entropy::new(channel.clone()).compute(slices).await.unwrap().into_inner());
    }
    let before = slices_until_blocked(&proxy, &sent).await;
    assert!(before < 100, "{before} slices were taken from callers that read no answer");
    let slices = stream::iter([slice_of(7, &small)]);
    let mut others = soon("another call", Entropy::new(channel.clone()).compute(slices)).await.unwrap().into_inner();
    small.check(&as_http_json(&next(&mut others).await));
    let mut client = Generate::new(channel);
    let asking = tokio::spawn(async move {
        // more than the remainder of a filled window
        let json = Bytes::from(format!("{{\"text\":\"{}\"}}", "a".repeat(300_000)));
        client.generate(GenerateRequest { json, session: String::new() }).await
    });
    upstream.next().await.reply(&message(200, &[("content-type", "application/json")], b"{}")).await;
    let mut reply = soon("the reply", asking).await.unwrap().unwrap().into_inner();
    assert_eq!(soon("its object", reply.message()).await.unwrap().unwrap().json, "{}");
    for mut answers in unread {
        let mut read = 0u64;
        while let Some(measured) = soon("an answer", answers.message()).await.unwrap() {
            assert_eq!(measured.entropy.len(), 4000);
            read += 1;
        }
        assert_eq!(read, EACH, "all answers arrived");
    }
}
