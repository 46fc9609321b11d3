// SPDX-License-Identifier: Apache-2.0
//! The status with which failed calls are counted.

use bytes::Bytes;
use tokentap::serve::grpc::pb::GenerateRequest;
use tokio::io::AsyncWriteExt;
use tonic::Code;

use super::client::{encode_frame, raw_call};
use super::generating::{call_generate, request_count};
use crate::support::manual_upstream::{ManualUpstream, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, FakeReply, Upstream};

#[tokio::test(flavor = "multi_thread")]
async fn incomplete_message_is_counted_like_an_incomplete_http_body() {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &["limit:client-body-timeout", "2s"]).await;
    let message =
        encode_frame(&GenerateRequest { json: Bytes::from_static(b"{\"text\":\"a\"}"), session: String::new() });
    let half = message.slice(..message.len() / 2);
    let active = "tokentap_http_requests_active{endpoint=\"/generate\"}";
    let path = "/tokentap.v1.Generate/Generate";
    let counts = async || {
        let mut counts = Vec::new();
        for status in ["200", "400", "408", "500", "502"] {
            counts.push(request_count(&proxy, status).await);
        }
        counts
    };

    // a client that leaves midway
    let head = format!("POST /generate HTTP/1.1\r\nhost: {}\r\ncontent-length: 100\r\n\r\nhalf", proxy.data);
    let mut leaving = tokio::net::TcpStream::connect(proxy.data).await.unwrap();
    leaving.write_all(head.as_bytes()).await.unwrap();
    soon("the request is active", async { while proxy.metric(active).await != 1.0 {} }).await;
    drop(leaving);
    soon("the request has ended", async { while proxy.metric(active).await != 0.0 {} }).await;
    let http = counts().await;
    assert_eq!(http, [0.0, 1.0, 0.0, 0.0, 0.0], "of 200, 400, 408, 500, 502");
    let (sender, reply) = raw_call(proxy.data, path).await;
    sender.send(half.clone()).unwrap();
    soon("the request is active", async { while proxy.metric(active).await != 1.0 {} }).await;
    reply.abort();
    soon("the request has ended", async { while proxy.metric(active).await != 0.0 {} }).await;
    let twice: Vec<f64> = http.iter().map(|count| 2.0 * count).collect();
    assert_eq!(counts().await, twice, "of 200, 400, 408, 500, 502");

    // a caller that pauses
    let (sender, reply) = raw_call(proxy.data, path).await;
    sender.send(half).unwrap();
    let reply = soon("an answer", reply).await.unwrap().unwrap();
    assert_eq!(reply.headers()["grpc-status"], "4");
    assert_eq!(reply.headers()["tokentap-http-status"], "408");
    soon("it is counted", async { while request_count(&proxy, "408").await != 1.0 {} }).await;

    // complete bytes that are not a message
    let (sender, reply) = raw_call(proxy.data, path).await;
    sender.send(Bytes::from_static(&[0, 0, 0, 0, 1, 255])).unwrap();
    drop(sender);
    assert_eq!(soon("an answer", reply).await.unwrap().unwrap().headers()["grpc-status"], "13");
    soon("it is counted", async { while request_count(&proxy, "400").await != 2.0 * http[1] + 1.0 {} }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_reply_is_counted_as_502() {
    let upstream = Upstream::start(EngineProfile::default(), |_| {
        FakeReply::Close(vec![b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 9\r\n\r\nhalf".to_vec()])
    })
    .await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let status = call_generate(&proxy, b"[1]", "", &[]).await.end.expect_err("the reply broke");
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!((request_count(&proxy, "502").await, request_count(&proxy, "200").await), (1.0, 0.0));
}
