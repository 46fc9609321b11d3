//! The same faults of an engine under a gRPC `Generate`: what HTTP shows by a missing end, a status says here.

use bytes::Bytes;
use tokentap::serve::grpc::pb::{GenerateReply, GenerateRequest};
use tonic::{Code, Status, Streaming};

use super::cases::{CASES, End, Script, Seen};
use super::doors::{Door, TOKENS};
use super::stage::{idle, metric, turns};
use crate::grpc::client::generate;
use crate::support::hand::{Hand, soon};
use crate::support::proxy::Proxy;

/// What a caller gets: objects, and how that ended.
type Got = (Vec<Bytes>, Result<(), Status>);

/// Reads answers up to so many, or to their end.
async fn answers(replies: &mut Streaming<GenerateReply>, objects: &mut Vec<Bytes>, most: usize) -> Result<(), Status> {
    while objects.len() < most {
        match soon("an answer", replies.message()).await? {
            Some(reply) => objects.push(reply.json),
            None => break,
        }
    }
    Ok(())
}

/// Plays a script to one call.
async fn play(hand: &mut Hand, proxy: &Proxy, door: Door, session: &str, script: &Script) -> Got {
    let mut client = generate(proxy.data).await;
    let request = GenerateRequest { json: door.body().to_string().into(), session: session.to_owned() };
    let asking = tokio::spawn(async move { client.generate(request).await });
    let mut call = hand.next().await;
    if script.spelt {
        call.spell(&script.said).await;
    } else {
        call.say(&script.said).await;
    }
    let mut objects = Vec::new();
    let mut asking = Some(asking);
    let mut replies = None;
    if let (Seen::Cut(_), End::Reset(first)) = (&script.seen, &script.end) {
        let mut begun = asking.take().unwrap().await.unwrap().unwrap().into_inner();
        answers(&mut begun, &mut objects, *first).await.unwrap();
        replies = Some(begun);
    }
    let mut late = None;
    match &script.end {
        End::Keep => call.reply(b"").await,
        End::Close => drop(call),
        End::Reset(_) => call.reset(),
        End::HalfClose => {
            call.finish().await;
            call.gone().await;
        }
        End::Refused => call.gone().await,
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
        call.say(stray).await;
        call.gone().await;
    }
    (objects, ended)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_told_by_its_status_what_http_shows_by_a_missing_end() {
    for (streaming, doors) in Door::ALL {
        let mut hand = Hand::streaming(streaming).await;
        let proxy = Proxy::probed(hand.addr, &[]).await;
        for door in doors.iter().filter(|door| **door != Door::Forward) {
            all(&mut hand, &proxy, *door).await;
        }
        assert_eq!(proxy.metric("tokentap_aborts_sent_total").await, 0.0);
        assert!(!hand.has_more(), "each was asked once");
    }
}

/// Plays every case at one door.
async fn all(hand: &mut Hand, proxy: &Proxy, door: Door) {
    for (at, case) in CASES.iter().enumerate() {
        let Some(script) = (case.script)(door) else { continue };
        let (about, session) = (format!("{door:?}: {}", case.name), format!("{door:?}-{at}"));
        let resets = metric(proxy.control, "tokentap_upstream_errors_total", "reset").await;
        let (objects, ended) = play(hand, proxy, door, &session, &script).await;
        let whole = if door.is_stream() { TOKENS } else { 1 };
        let (count, ok) = match script.seen {
            Seen::Refusal => (0, false),
            Seen::Cut(pieces) => (pieces.min(TOKENS), false),
            // a stream has an end mark, a reply in one piece has not
            Seen::Ended(pieces) => (pieces, !door.is_stream()),
            Seen::Short(_) => (1, true),
            Seen::Whole => (whole, true),
        };
        assert_eq!((objects.len(), ended.is_ok()), (count, ok), "{about}: {ended:?}");
        if let Err(status) = ended {
            assert_eq!(status.code(), Code::Unavailable, "{about}: {status:?}");
        }
        idle(proxy.control).await;
        let blamed = metric(proxy.control, "tokentap_upstream_errors_total", "reset").await - resets;
        assert_eq!(blamed, f64::from(u8::from(script.blamed)), "{about}: failures of the engine");
        let turns = turns(proxy.control, &session).await;
        let turns: Vec<_> = turns.iter().map(|(tokens, fault)| (*tokens, fault.as_deref())).collect();
        assert_eq!(turns, Vec::from_iter(script.kept), "{about}: what is kept");
    }
}
