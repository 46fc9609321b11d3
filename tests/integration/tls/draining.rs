// SPDX-License-Identifier: Apache-2.0
//! Graceful shutdown with TLS on the ports.

use std::io::ErrorKind;

use tokentap::serve::connection::Phase;
use tokio::net::TcpStream;

use super::authority::{Authority, borrowed};
use crate::support::client::{Connection, written};
use crate::support::manual_upstream::{Call, END, ManualUpstream, event, soon};
use crate::support::proxy::Proxy;

/// Starts a stream; the client has received one event.
async fn streaming(authority: &Authority, upstream: &mut ManualUpstream, proxy: &Proxy) -> (Connection, Call) {
    upstream.streaming_to(authority.client().open(proxy.data).await, proxy.data).await
}

#[tokio::test(flavor = "multi_thread")]
async fn running_replies_complete_and_close() {
    let authority = Authority::new();
    let mut upstream = ManualUpstream::start().await;
    let flags = authority.flags().0;
    let proxy = Proxy::probed(upstream.addr, &borrowed(&flags)).await;
    let mut handshaking = Connection::open(proxy.data).await;
    let mut idle = authority.client().open(proxy.data).await;
    idle.send(&written(proxy.data, "GET", "/flush_cache", &[], b"")).await;
    assert_eq!(idle.answer().await.status, 403, "a control route");
    let (mut client, mut call) = streaming(&authority, &mut upstream, &proxy).await;
    proxy.phase.send_replace(Phase::Draining);
    handshaking.closed().await;
    idle.closed().await;
    assert!(matches!(idle.ended, Some(Ok(()))), "closed with close_notify: {:?}", idle.ended);
    assert!(TcpStream::connect(proxy.data).await.is_err(), "new connections are refused");
    call.send(&event("running", 0)).await;
    call.reply(END).await;
    let answer = client.answer().await;
    assert_eq!((answer.complete, answer.events().len()), (true, 2), "the stream is complete");
    client.closed().await;
    assert!(matches!(client.ended, Some(Ok(()))), "close_notify after the complete reply: {:?}", client.ended);
    assert_eq!(soon("tokentap ends", proxy.task).await.unwrap(), 0, "no connection was cut");
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_off_replies_are_visibly_incomplete() {
    let authority = Authority::new();
    let mut upstream = ManualUpstream::start().await;
    let flags = authority.flags().0;
    let flags = [&borrowed(&flags)[..], &["--drain-timeout", "200ms"]].concat();
    let proxy = Proxy::probed(upstream.addr, &flags).await;
    let (mut client, call) = streaming(&authority, &mut upstream, &proxy).await;
    proxy.phase.send_replace(Phase::Draining);
    assert_eq!(soon("tokentap ends", proxy.task).await.unwrap(), 1, "one connection was cut");
    assert!(!client.answer().await.complete);
    let end = client.ended.expect("it has ended").map_err(|error| error.kind());
    assert_eq!(end, Err(ErrorKind::UnexpectedEof), "no close_notify for an incomplete reply");
    call.closed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_close_notify_aborts_the_generation() {
    let authority = Authority::new();
    let mut upstream = ManualUpstream::start().await;
    let flags = authority.flags().0;
    let proxy = Proxy::probed(upstream.addr, &borrowed(&flags)).await;
    let (mut client, call) = streaming(&authority, &mut upstream, &proxy).await;
    client.finish().await;
    call.closed().await;
    let abort = upstream.next().await;
    assert_eq!(abort.aborted(), "running");
    abort.ok().await;
}
