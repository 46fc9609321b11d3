//! What calls are counted as that did not go well.

use bytes::Bytes;
use tokentap::serve::grpc::pb::GenerateRequest;
use tokio::io::AsyncWriteExt;
use tonic::Code;

use super::client::{by_hand, framed};
use super::generating::{called, counted};
use crate::support::hand::{Hand, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::{Deed, Nature, Upstream};

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_does_not_come_whole_is_counted_as_a_body_over_http_is() {
    let hand = Hand::start().await;
    let proxy = Proxy::probed(hand.addr, &["--client-body-timeout", "2s"]).await;
    let message = framed(&GenerateRequest { json: Bytes::from_static(b"{\"text\":\"a\"}"), session: String::new() });
    let half = message.slice(..message.len() / 2);
    let active = "tokentap_http_requests_active{endpoint=\"/generate\"}";
    let path = "/tokentap.v1.Generate/Generate";
    let counts = async || {
        let mut counts = Vec::new();
        for status in ["200", "400", "408", "500", "502"] {
            counts.push(counted(&proxy, status).await);
        }
        counts
    };

    // whoever leaves midway
    let head = format!("POST /generate HTTP/1.1\r\nhost: {}\r\ncontent-length: 100\r\n\r\nhalf", proxy.data);
    let mut leaving = tokio::net::TcpStream::connect(proxy.data).await.unwrap();
    leaving.write_all(head.as_bytes()).await.unwrap();
    soon("it has come", async { while proxy.metric(active).await != 1.0 {} }).await;
    drop(leaving);
    soon("it has left", async { while proxy.metric(active).await != 0.0 {} }).await;
    let http = counts().await;
    assert_eq!(http, [0.0, 1.0, 0.0, 0.0, 0.0], "of 200, 400, 408, 500, 502");
    let (sender, reply) = by_hand(proxy.data, path).await;
    sender.send(half.clone()).unwrap();
    soon("it has come", async { while proxy.metric(active).await != 1.0 {} }).await;
    reply.abort();
    soon("it has left", async { while proxy.metric(active).await != 0.0 {} }).await;
    let twice: Vec<f64> = http.iter().map(|count| 2.0 * count).collect();
    assert_eq!(counts().await, twice, "of 200, 400, 408, 500, 502");

    // whoever pauses
    let (sender, reply) = by_hand(proxy.data, path).await;
    sender.send(half).unwrap();
    let reply = soon("an answer", reply).await.unwrap().unwrap();
    assert_eq!(reply.headers()["grpc-status"], "4");
    assert_eq!(reply.headers()["tokentap-http-status"], "408");
    soon("it is counted", async { while counted(&proxy, "408").await != 1.0 {} }).await;

    // and what is whole and no message
    let (sender, reply) = by_hand(proxy.data, path).await;
    sender.send(Bytes::from_static(&[0, 0, 0, 0, 1, 255])).unwrap();
    drop(sender);
    assert_eq!(soon("an answer", reply).await.unwrap().unwrap().headers()["grpc-status"], "13");
    soon("it is counted", async { while counted(&proxy, "400").await != 2.0 * http[1] + 1.0 {} }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_breaks_off_is_counted_as_what_the_caller_got() {
    let upstream = Upstream::start(Nature::default(), |_| {
        Deed::SayAndClose(vec![
            b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 9\r\n\r\nhalf".to_vec(),
        ])
    })
    .await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let status = called(&proxy, b"[1]", "", &[]).await.end.expect_err("it broke off");
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!((counted(&proxy, "502").await, counted(&proxy, "200").await), (1.0, 0.0));
}
