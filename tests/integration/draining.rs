// SPDX-License-Identifier: Apache-2.0
//! Shutdown: running requests finish, new ones are refused.

use serde_json::json;
use tokio::net::TcpStream;

use crate::support::binary::{Binary, output};
use crate::support::client::{Connection, get, post, written};
use crate::support::engine;
use crate::support::manual_upstream::{Call, END, ManualUpstream, event, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, Upstream, message};
use tokentap::serve::connection::Phase;

/// Starts a stream and reads its first event.
async fn start_stream(upstream: &mut ManualUpstream, data: std::net::SocketAddr) -> (Connection, Call) {
    upstream.streaming_to(Connection::open(data).await, data).await
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_finishes_running_requests_and_refuses_new_connections() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    assert_eq!(get(proxy.control, "/readyz").await.status, 200);
    let mut silent = Connection::open(proxy.data).await;
    let (mut client, mut call) = start_stream(&mut upstream, proxy.data).await;
    let mut idle = Connection::open(proxy.data).await;
    idle.send(b"GET /health HTTP/1.1\r\nhost: agent\r\n\r\n").await;
    upstream.next().await.ok().await;
    assert_eq!(idle.answer().await.status, 200);

    proxy.phase.send_replace(Phase::Draining);
    let ready = get(proxy.control, "/readyz").await;
    assert_eq!((ready.status, ready.text().as_str()), (503, "draining\n"));
    assert_eq!(get(proxy.control, "/livez").await.status, 200, "a draining tokentap is alive");
    // idle connections are closed after the port
    idle.closed().await;
    silent.closed().await;
    assert!(TcpStream::connect(proxy.data).await.is_err(), "new connections are refused");
    assert_eq!(proxy.metric("tokentap_draining").await, 1.0);

    call.send(&event("running", 0)).await;
    call.reply(END).await;
    let answer = client.answer().await;
    assert_eq!((answer.complete, answer.events().len()), (true, 2), "the stream is complete");
    client.closed().await;
    assert_eq!(soon("tokentap ends", proxy.task).await.unwrap(), 0, "no connection was cut");
    assert!(!upstream.has_more(), "nothing was aborted");
}

#[tokio::test(flavor = "multi_thread")]
async fn request_after_a_stream_that_began_before_the_drain_is_served() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let (mut client, call) = start_stream(&mut upstream, proxy.data).await;
    proxy.phase.send_replace(Phase::Draining);
    assert_eq!(get(proxy.control, "/readyz").await.status, 503);
    call.reply(END).await;
    let streamed = client.answer().await;
    assert!(streamed.complete && streamed.header("connection").is_none(), "its head was sent before the drain");
    client.send(&written(proxy.data, "POST", "/generate", &[], b"{\"text\":\"b\"}")).await;
    upstream.next().await.ok().await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    client.closed().await;
    assert_eq!(soon("tokentap ends", proxy.task).await.unwrap(), 0, "no connection was cut");
}

#[tokio::test(flavor = "multi_thread")]
async fn reply_while_draining_has_connection_close() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let mut client = Connection::open(proxy.data).await;
    client.send(&written(proxy.data, "POST", "/generate", &[], b"{\"text\":\"a\"}")).await;
    let call = upstream.next().await;
    proxy.phase.send_replace(Phase::Draining);
    call.ok().await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    client.closed().await;
    assert_eq!(soon("tokentap ends", proxy.task).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn immediate_shutdown_cuts_running_requests() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let (mut client, call) = start_stream(&mut upstream, proxy.data).await;
    let waiting = tokio::spawn(post(proxy.data, "/generate", b"{\"text\":\"a\",\"rid\":\"waiting\"}"));
    let silent = upstream.next().await;
    proxy.phase.send_replace(Phase::Draining);
    proxy.phase.send_replace(Phase::Ending);
    assert_eq!(soon("tokentap ends", proxy.task).await.unwrap(), 2, "two connections were cut");
    assert!(!client.answer().await.complete, "a stream that was cut does not look complete");
    assert_eq!(waiting.await.unwrap().status, 0, "there was no answer");
    let counted = |status: &str| proxy.parts.metrics.requests.with_label_values(&["/generate", "POST", status]).get();
    assert_eq!((counted("503"), counted("499")), (1, 0), "counted with 503, because the client has not disconnected");
    call.closed().await;
    silent.closed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_timeout_bounds_draining() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &["--drain-timeout", "200ms"]).await;
    let (mut client, call) = start_stream(&mut upstream, proxy.data).await;
    proxy.phase.send_replace(Phase::Draining);
    assert_eq!(soon("tokentap ends", proxy.task).await.unwrap(), 1, "one connection was cut");
    assert!(!client.answer().await.complete);
    call.closed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_that_waits_for_a_last_request_is_closed_before_the_drain_ends() {
    let mut upstream = ManualUpstream::start().await;
    // shorter than the longest time that such a connection is kept
    let proxy = Proxy::probed(upstream.addr, &["--drain-timeout", "900ms"]).await;
    let (mut client, call) = start_stream(&mut upstream, proxy.data).await;
    proxy.phase.send_replace(Phase::Draining);
    call.reply(END).await;
    assert!(client.answer().await.complete);
    assert_eq!(soon("tokentap ends", proxy.task).await.unwrap(), 0, "its reply was complete");
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_that_waits_for_a_last_request_is_not_counted_as_cut() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let (mut client, call) = start_stream(&mut upstream, proxy.data).await;
    proxy.phase.send_replace(Phase::Draining);
    call.reply(END).await;
    assert!(client.answer().await.complete);
    proxy.phase.send_replace(Phase::Ending);
    assert_eq!(soon("tokentap ends", proxy.task).await.unwrap(), 0, "its reply was complete");
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_with_an_unread_reply_is_counted_as_cut() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let mut client = Connection::open(proxy.data).await;
    client.send(&written(proxy.data, "POST", "/generate", &[], b"{\"text\":\"a\"}")).await;
    // more than the buffers of two sockets hold, written to the connection at once
    let body = json!({"text": "x".repeat(32 << 20), "meta_info": {"id": "a"}}).to_string();
    upstream.next().await.reply(&message(200, &[("content-type", "application/json")], body.as_bytes())).await;
    assert!(client.read_until(|read| read.len() > 1000).await, "the reply has begun");
    proxy.phase.send_replace(Phase::Draining);
    proxy.phase.send_replace(Phase::Ending);
    assert_eq!(soon("tokentap ends", proxy.task).await.unwrap(), 1, "its client misses the end of the reply");
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_drains_and_exits_with_0() {
    let mut upstream = ManualUpstream::start().await;
    let mut binary = Binary::serve(upstream.addr, &[]).await;
    assert_eq!(get(binary.control, "/livez").await.status, 200);
    let (mut client, call) = start_stream(&mut upstream, binary.data).await;
    binary.terminate();
    binary.logged("signal").await;
    assert_eq!(get(binary.control, "/readyz").await.status, 503);
    call.reply(END).await;
    assert!(client.answer().await.complete, "the stream is complete");
    binary.logged("drained").await;
    assert_eq!(binary.code().await, Some(0));
}

/// Sends short requests over one connection until it closes; returns the ids that were answered, and the last one if it was not.
async fn short_requests(data: std::net::SocketAddr, agent: usize) -> (Vec<String>, Option<String>) {
    let mut client = Connection::open(data).await;
    let mut answered = Vec::new();
    loop {
        let rid = format!("{agent}-{}", answered.len());
        let body = json!({"input_ids": [1, 2, 3], "rid": rid}).to_string();
        if !client.try_send(&written(data, "POST", "/generate", &[], body.as_bytes())).await {
            return (answered, Some(rid));
        }
        let answer = soon("an answer or the end", client.answer()).await;
        if !answer.complete {
            return (answered, Some(rid));
        }
        assert_eq!(answer.status, 200, "{}", answer.text());
        answered.push(rid);
        if answer.header("connection") == Some("close") {
            return (answered, None);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_answers_or_does_not_forward_requests_of_keepalive_connections() {
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    let mut binary = Binary::with_flags(upstream.addr, &[]).await;
    let agents: Vec<_> = (0..16).map(|agent| tokio::spawn(short_requests(binary.data, agent))).collect();
    soon("requests are served", async {
        while upstream.generations().len() < 200 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    binary.terminate();
    let (mut answered, mut unanswered) = (Vec::new(), Vec::new());
    for agent in agents {
        let (known, last) = agent.await.unwrap();
        answered.extend(known);
        unanswered.extend(last);
    }
    assert_eq!(binary.code().await, Some(0));
    let generations = upstream.generations();
    let mut sent: Vec<&str> = generations.iter().map(|body| body["rid"].as_str().unwrap()).collect();
    sent.sort_unstable();
    answered.sort_unstable();
    assert_eq!(sent, answered, "each generation was answered completely, once; not answered: {unanswered:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn second_signal_ends_the_program_and_aborts_running_requests() {
    let mut upstream = ManualUpstream::start().await;
    let mut binary = Binary::serve(upstream.addr, &[]).await;
    let (_client, call) = start_stream(&mut upstream, binary.data).await;
    binary.terminate();
    binary.logged("signal").await;
    binary.terminate();
    call.closed().await;
    let abort = upstream.next().await;
    assert_eq!(abort.aborted(), "running", "the engine stops the abandoned request");
    abort.ok().await;
    assert_eq!(binary.code().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_setting_prints_one_line_and_exits_with_64() {
    for (args, named) in [
        (&["serve", "--no-such-flag"][..], "--no-such-flag"),
        (&["serve", "--top-logprobs", "many"], "--top-logprobs"),
        (&["serve", "--log", "!!"], "--log"),
        (&["no-such-command"], "no-such-command"),
    ] {
        let output = output(args).await;
        assert_eq!(output.status.code(), Some(64), "{args:?}");
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(line.starts_with("tokentap: ") && line.contains(named), "{line}");
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn help_and_version_go_to_standard_output_and_exit_with_0() {
    for (args, found) in
        [(&["--help"][..], "serve"), (&["serve", "--help"], "--upstream"), (&["--version"], "tokentap ")]
    {
        let output = output(args).await;
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(found), "{args:?}: {text}");
        assert!(output.stderr.is_empty(), "{args:?}");
    }
}
