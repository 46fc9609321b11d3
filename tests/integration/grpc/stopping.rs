// SPDX-License-Identifier: Apache-2.0
//! Shutdown: calls finish, and watches do not delay it.

use bytes::Bytes;
use tokentap::serve::connection::Phase;
use tokentap::serve::grpc::pb::{GenerateRequest, WatchRequest};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;

use super::client::{generate, health, trajectories};
use crate::support::manual_upstream::{END, ManualUpstream, STREAM, chunk, event, soon};
use crate::support::proxy::Proxy;

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_finishes_generations_and_then_ends_watches() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let mut client = generate(proxy.data).await;
    let json = Bytes::from_static(br#"{"text":"a","rid":"last","stream":true}"#);
    let asking = tokio::spawn(async move { client.generate(GenerateRequest { json, session: String::new() }).await });
    let mut call = upstream.next().await;
    call.send(STREAM).await;
    call.send(&event("last", 0)).await;
    let mut replies = asking.await.unwrap().unwrap().into_inner();
    assert!(replies.message().await.unwrap().is_some());
    // on the data port, which drains as long as a request runs there
    let mut health = health(proxy.data).await.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(health.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let mut watching = trajectories(proxy.control).await.watch(WatchRequest::default()).await.unwrap().into_inner();

    proxy.phase.send_replace(Phase::Draining);
    assert_eq!(health.message().await.unwrap().unwrap().status(), ServingStatus::NotServing, "first the new state");
    let status = soon("the end", health.message()).await.expect_err("it does not delay the shutdown");
    assert_eq!(status.code(), Code::Unavailable);
    let more = event("last", 0);
    tokio::select! {
        biased;
        early = watching.message() => panic!("the control port stays until the last request has ended: {early:?}"),
        () = call.send(&more) => {}
    }
    assert!(soon("the stream continues", replies.message()).await.unwrap().is_some());
    call.send(&chunk(b"data: [DONE]\n\n")).await;
    call.reply(END).await;
    assert!(soon("the end", replies.message()).await.unwrap().is_none(), "the generation is complete");
    let status = soon("the end of the watch", watching.message()).await.expect_err("nothing more can come");
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "tokentap is stopping"));
    drop((replies, health, watching));
    assert_eq!(soon("tokentap ends", proxy.task).await.unwrap(), 0, "no connection was cut");
}
