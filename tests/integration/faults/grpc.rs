// SPDX-License-Identifier: Apache-2.0
//! The same faults of an engine under a gRPC `Generate`: a broken reply ends with a status instead of a missing end.

use bytes::Bytes;
use tokentap::serve::grpc::pb::{GenerateReply, GenerateRequest};
use tonic::{Code, Status, Streaming};

use super::cases::{CASES, ClientView, End, Script};
use super::doors::{RequestKind, TOKENS};
use super::stage::{metric, turns, wait_until_idle};
use crate::grpc::client::generate;
use crate::support::manual_upstream::{ManualUpstream, soon};
use crate::support::proxy::Proxy;

/// A caller's objects, and the status of the call.
type CallResult = (Vec<Bytes>, Result<(), Status>);

/// Reads answers until there are `most` objects or the stream ends.
async fn answers(replies: &mut Streaming<GenerateReply>, objects: &mut Vec<Bytes>, most: usize) -> Result<(), Status> {
    while objects.len() < most {
        match soon("an answer", replies.message()).await? {
            Some(reply) => objects.push(reply.json),
            None => break,
        }
    }
    Ok(())
}

/// Plays a script for one call.
async fn play(
    upstream: &mut ManualUpstream,
    proxy: &Proxy,
    kind: RequestKind,
    session: &str,
    script: &Script,
) -> CallResult {
    let mut client = generate(proxy.data).await;
    let request = GenerateRequest { json: kind.body().to_string().into(), session: session.to_owned() };
    let asking = tokio::spawn(async move { client.generate(request).await });
    let mut call = upstream.next().await;
    if script.bytewise {
        call.send_byte_by_byte(&script.reply).await;
    } else {
        call.send(&script.reply).await;
    }
    let mut objects = Vec::new();
    let mut asking = Some(asking);
    let mut replies = None;
    if let (ClientView::Cut(_), End::Reset(first)) = (&script.view, &script.end) {
        let mut stream = asking.take().unwrap().await.unwrap().unwrap().into_inner();
        answers(&mut stream, &mut objects, *first).await.unwrap();
        replies = Some(stream);
    }
    let mut late = None;
    match &script.end {
        End::Keep => call.reply(b"").await,
        End::Close => drop(call),
        End::Reset(_) => call.reset(),
        End::HalfClose => {
            call.finish().await;
            call.closed().await;
        }
        End::Refused => call.closed().await,
        End::Late(stray) => late = Some((call, stray)),
    }
    if let Some(asking) = asking {
        match soon("an answer", asking).await.unwrap() {
            Ok(reply) => replies = Some(reply.into_inner()),
            Err(status) => return (objects, Err(status)),
        }
    }
    let ended = answers(&mut replies.unwrap(), &mut objects, usize::MAX).await;
    if let Some((mut call, stray)) = late {
        call.send(stray).await;
        call.closed().await;
    }
    (objects, ended)
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_reply_ends_the_call_with_unavailable() {
    for (streaming, kinds) in RequestKind::ALL {
        let mut upstream = ManualUpstream::streaming(streaming).await;
        let proxy = Proxy::probed(upstream.addr, &[]).await;
        for kind in kinds.iter().filter(|kind| **kind != RequestKind::Forward) {
            all(&mut upstream, &proxy, *kind).await;
        }
        assert_eq!(proxy.metric("tokentap_aborts_sent_total").await, 0.0);
        assert!(!upstream.has_more(), "each was sent once");
    }
}

/// Plays every case with one kind of request.
async fn all(upstream: &mut ManualUpstream, proxy: &Proxy, kind: RequestKind) {
    for (at, case) in CASES.iter().enumerate() {
        let Some(script) = (case.script)(kind) else { continue };
        let (about, session) = (format!("{kind:?}: {}", case.name), format!("{kind:?}-{at}"));
        let resets = metric(proxy.control, "tokentap_upstream_errors_total", "reset").await;
        let (objects, ended) = play(upstream, proxy, kind, &session, &script).await;
        let whole = if kind.is_stream() { TOKENS } else { 1 };
        let (count, ok) = match script.view {
            ClientView::Refusal => (0, false),
            ClientView::Cut(pieces) => (pieces.min(TOKENS), false),
            // a stream has an end mark, a non-streaming reply does not
            ClientView::Ended(pieces) => (pieces, !kind.is_stream()),
            ClientView::Short(_) => (1, true),
            ClientView::Whole => (whole, true),
        };
        assert_eq!((objects.len(), ended.is_ok()), (count, ok), "{about}: {ended:?}");
        if let Err(status) = ended {
            assert_eq!(status.code(), Code::Unavailable, "{about}: {status:?}");
        }
        wait_until_idle(proxy.control).await;
        let blamed = metric(proxy.control, "tokentap_upstream_errors_total", "reset").await - resets;
        assert_eq!(blamed, f64::from(u8::from(script.blamed)), "{about}: failures of the engine");
        let turns = turns(proxy.control, &session).await;
        let turns: Vec<_> = turns.iter().map(|(tokens, fault)| (*tokens, fault.as_deref())).collect();
        assert_eq!(turns, Vec::from_iter(script.turn), "{about}: recorded turns");
    }
}
