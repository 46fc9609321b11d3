// SPDX-License-Identifier: Apache-2.0
//! Replies above the size limit are forwarded unchanged and counted.

use crate::support::client::{Connection, post, written};
use crate::support::manual_upstream::{END, ManualUpstream, STREAM, chunk, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::message;

const FLAGS: [&str; 2] = ["limit:max-reply-bytes", "4096"];
const COUNTED: &str = "tokentap_entropy_skipped_total{reason=\"reply_too_large\"}";

/// A reply that tokentap would enrich, padded to a size.
pub fn reply(size: usize) -> Vec<u8> {
    let body = |pad: usize| {
        let text = "a".repeat(pad);
        format!(
            "{{\"text\":\"{text}\",\"output_ids\":[5],\"meta_info\":{{\"id\":\"r\",\"finish_reason\":{{\"type\":\"length\",\
             \"length\":1}},\"prompt_tokens\":3,\"completion_tokens\":1,\"output_token_logprobs\":[[-0.5,5,null]],\
             \"output_top_logprobs\":[[[-0.5,5,null],[-1.5,7,null]]]}}}}"
        )
    };
    body(size - body(0).len()).into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn oversize_reply_is_forwarded_unchanged() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &FLAGS).await;
    let whole = reply(4096);
    let client = tokio::spawn(post(proxy.data, "/generate", b"{\"text\":\"a\"}"));
    upstream.next().await.reply(&message(200, &[("content-type", "application/json")], &whole)).await;
    let answer = client.await.unwrap();
    assert!(answer.text().contains("output_token_entropy"), "the limit itself is allowed: {}", answer.text());
    let large = reply(4097);
    let client = tokio::spawn(post(proxy.data, "/generate", b"{\"text\":\"a\"}"));
    upstream.next().await.reply(&message(200, &[("content-type", "application/json")], &large)).await;
    let answer = client.await.unwrap();
    assert_eq!((answer.body == large, answer.complete), (true, true), "with a length: {}", answer.text());
    assert_eq!(answer.header("content-length"), Some("4097"));
    let client = tokio::spawn(post(proxy.data, "/generate", b"{\"text\":\"a\"}"));
    let mut call = upstream.next().await;
    call.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").await;
    for piece in large.chunks(1000) {
        call.send(&chunk(piece)).await;
    }
    call.reply(END).await;
    let answer = client.await.unwrap();
    assert_eq!((answer.body == large, answer.complete), (true, true), "without one: {}", answer.text());
    assert_eq!(proxy.metric(COUNTED).await, 2.0);
    assert_eq!(proxy.metric("tokentap_client_disconnects_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn oversize_reply_is_streamed() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &FLAGS).await;
    let mut client = Connection::open(proxy.data).await;
    client.send(&written(proxy.data, "POST", "/generate", &[], b"{\"text\":\"a\"}")).await;
    let large = reply(10_000);
    let mut call = upstream.next().await;
    call.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").await;
    call.send(&chunk(&large[..5000])).await;
    let head = b"{\"text\":\"aaa";
    let begun = client.read_until(|read| memchr::memmem::find(read, head).is_some());
    assert!(soon("the beginning", begun).await, "memory is released as soon as the reply is known to be oversize");
    call.send(&chunk(&large[5000..])).await;
    call.reply(END).await;
    assert_eq!(client.answer().await.body, large);
}

#[tokio::test(flavor = "multi_thread")]
async fn oversize_event_is_forwarded_unchanged() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &FLAGS).await;
    let client =
        tokio::spawn(post(proxy.data, "/generate", b"{\"text\":\"a\",\"stream\":true,\"return_entropy\":true}"));
    let event = |size: usize| [b"data: ", &reply(size)[..], b"\n\n"].concat();
    let (small, large) = (event(1000), event(9000));
    let mut call = upstream.next().await;
    call.send(STREAM).await;
    call.send(&chunk(&small)).await;
    for piece in large.chunks(1000) {
        call.send(&chunk(piece)).await;
    }
    call.send(&chunk(b"data: [DONE]\n\n")).await;
    call.reply(END).await;
    let answer = client.await.unwrap();
    assert!(answer.complete, "the stream is complete");
    let at = memchr::memmem::find(&answer.body, b"\n\n").unwrap() + 2;
    let first = String::from_utf8_lossy(&answer.body[..at]).into_owned();
    assert!(first.contains("output_token_entropy"), "events before it are enriched: {first}");
    assert!(answer.body[at..] == [&large[..], b"data: [DONE]\n\n"].concat(), "later bytes are forwarded unchanged");
    assert_eq!(proxy.metric(COUNTED).await, 1.0);
    assert_eq!(proxy.metric("tokentap_client_disconnects_total").await, 0.0);
}
