// SPDX-License-Identifier: Apache-2.0
//! Watch: live finished paths, turns and entropies.

use std::time::Duration;

use prost::Message;
use serde_json::json;
use tokentap::demo::{EngineOptions, SamplingParams, Streaming as Events};
use tokentap::serve::grpc::pb::watch_reply::What as WatchItem;
use tokentap::serve::grpc::pb::watch_request::{Entropies, Finished, Turns, What};
use tokentap::serve::grpc::pb::{WatchReply, WatchRequest};
use tonic::{Code, Streaming};

use super::client::{Trajectories, trajectories};
use crate::support::client::{Connection, post, request, written};
use crate::support::demo::{Demo, assert_close, few_ids, sampling};
use crate::support::manual_upstream::{ManualUpstream, STREAM, chunk, event, soon};
use crate::support::proxy::Proxy;

async fn watch(client: &mut Trajectories, what: What) -> Streaming<WatchReply> {
    client.watch(WatchRequest { what: Some(what) }).await.unwrap().into_inner()
}

async fn finished(client: &mut Trajectories, since: &str) -> Streaming<WatchReply> {
    watch(client, What::Finished(Finished { since: since.into(), ..Finished::default() })).await
}

async fn next(replies: &mut Streaming<WatchReply>) -> WatchReply {
    soon("a message", replies.message()).await.unwrap().expect("the stream continues")
}

async fn turn(demo: &Demo, session: &str) -> serde_json::Value {
    demo.ask(&json!({"text": "The lamp", "session_id": session, "sampling_params": {"max_new_tokens": 4}})).await
}

async fn freeze(demo: &Demo, session: &str) {
    let answer = post(demo.proxy.control, &format!("/v1/sessions/{session}/freeze"), b"").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn path(reply: &WatchReply) -> &tokentap::serve::grpc::pb::Sample {
    match &reply.what {
        Some(WatchItem::Path(path)) => path,
        other => panic!("expected a path: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_paths_are_sent_once_as_they_finish() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let mut client = trajectories(demo.proxy.control).await;
    turn(&demo, "before").await;
    freeze(&demo, "before").await;
    // the default: finished paths from the beginning
    let mut replies = client.watch(WatchRequest::default()).await.unwrap().into_inner();
    let first = next(&mut replies).await;
    assert_eq!(path(&first).session, "before");
    turn(&demo, "running").await;
    let reply = turn(&demo, "while").await;
    freeze(&demo, "while").await;
    let second = next(&mut replies).await;
    assert_eq!(path(&second).session, "while", "an unfinished path is not sent");
    let sampled = path(&second).token_ids.iter().zip(&path(&second).loss_mask).filter(|(_, trained)| **trained);
    assert_eq!(json!(sampled.map(|(id, _)| *id).collect::<Vec<_>>()), reply["output_ids"]);

    let http = request(demo.proxy.control, "GET", "/v1/trajectories", &[], b"").await.text();
    let cursors: Vec<String> = http
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["cursor"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(cursors, [first.cursor.clone(), second.cursor.clone()], "HTTP has the same cursors");
    let mut later = finished(&mut client, &first.cursor).await;
    // as bytes, since NaN is not equal to itself
    assert_eq!(next(&mut later).await.encode_to_vec(), second.encode_to_vec(), "after a cursor");
    freeze(&demo, "running").await;
    for replies in [&mut replies, &mut later] {
        assert_eq!(path(&next(replies).await).session, "running", "each watch receives it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn path_of_a_deleted_session_is_reported() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let mut client = trajectories(demo.proxy.control).await;
    turn(&demo, "gone").await;
    freeze(&demo, "gone").await;
    assert_eq!(request(demo.proxy.control, "DELETE", "/v1/sessions/gone", &[], b"").await.status, 200);
    let mut replies = finished(&mut client, "").await;
    let reply = next(&mut replies).await;
    let Some(WatchItem::Gone(gone)) = reply.what else { panic!("expected Gone: {reply:?}") };
    assert_eq!((gone.session.as_str(), gone.reason.as_str()), ("gone", "deleted"));
    assert!(!reply.cursor.is_empty(), "it has a cursor like every path");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_and_foreign_cursors_are_refused() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let mut client = trajectories(demo.proxy.control).await;
    for (since, code, name) in
        [("nonsense", Code::InvalidArgument, "bad_request"), ("other-1", Code::NotFound, "other_store")]
    {
        let what = Some(What::Finished(Finished { since: since.into(), ..Finished::default() }));
        let status = client.watch(WatchRequest { what }).await.expect_err("no such cursor");
        assert_eq!((status.code(), status.metadata().get("tokentap-code").unwrap().to_str().unwrap()), (code, name));
    }
    let what = Some(What::Entropies(Entropies { rid: "nobody".into(), index: None, since: 0 }));
    let status = client.watch(WatchRequest { what }).await.expect_err("no such request");
    assert_eq!(status.code(), Code::NotFound);
    assert!(status.message().contains("300 s"), "{}", status.message());
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_are_sent_with_their_tokens_as_they_end() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let mut client = trajectories(demo.proxy.control).await;
    turn(&demo, "one").await;
    let mut every = watch(&mut client, What::Turns(Turns::default())).await;
    let mut one = watch(&mut client, What::Turns(Turns { session: "one".into() })).await;
    let other = turn(&demo, "other").await;
    let own = turn(&demo, "one").await;
    for (replies, expected) in
        [(&mut every, vec![("other", &other, 0), ("one", &own, 1)]), (&mut one, vec![("one", &own, 1)])]
    {
        for (session, http_reply, id) in expected {
            let reply = next(replies).await;
            let Some(WatchItem::Turn(ended)) = &reply.what else { panic!("expected a turn: {reply:?}") };
            let about = ended.turn.as_ref().unwrap();
            assert_eq!((ended.session.as_str(), about.id), (session, id), "earlier turns are not sent");
            assert_eq!(json!(ended.response), http_reply["output_ids"]);
            assert_eq!(about.rid.as_deref(), http_reply["meta_info"]["id"].as_str());
            assert_eq!(about.finish_reason.as_deref(), Some("length"));
            let entropy: Vec<f64> = ended.entropy.iter().map(|value| f64::from(*value)).collect();
            let truth = crate::support::demo::all_numbers(&http_reply["meta_info"]["output_token_entropy"]);
            assert_close(&entropy, &truth, 1e-6, "entropies of the turn");
            assert_eq!(ended.logprobs.len(), ended.response.len());
            if id == 0 {
                assert_eq!(ended.prompt, demo.encode("The lamp"), "a root has its whole prompt");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_watch_receives_the_number_of_missed_turns() {
    let demo = Demo::start(EngineOptions::default(), &["--session-bytes", "4MiB"]).await;
    let store = &demo.proxy.parts.sessions;
    let mut client = trajectories(demo.proxy.control).await;
    let mut replies = watch(&mut client, What::Turns(Turns::default())).await;
    turn(&demo, "first").await;
    let first = next(&mut replies).await;
    // more than the connection and the change feed hold
    let size = 1 << 12;
    let draft = |at: u32| tokentap::session::Draft {
        prompt: Some(vec![at; size].into()),
        response: vec![1; size],
        ..tokentap::session::Draft::default()
    };
    let count = 2500;
    for at in 0..count {
        let mut call = tokentap::session::Call::new(std::sync::Arc::clone(store), format!("s{at}").into());
        let _ = call.commit(draft(at));
    }
    let (mut seen, mut missed) = (0, 0);
    while seen + missed < u64::from(count) {
        match next(&mut replies).await.what {
            Some(WatchItem::Turn(_)) => seen += 1,
            Some(WatchItem::Missed(turns)) => missed += turns,
            other => panic!("turns: {other:?}"),
        }
    }
    assert_eq!(seen + missed, u64::from(count), "every turn is accounted for");
    assert!(missed > 0 && seen > 0, "{seen} seen, {missed} missed");
    assert!(matches!(first.what, Some(WatchItem::Turn(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn live_entropies_equal_those_of_the_engine() {
    let allowed = few_ids("the light of the lamp comes and the sea is dark at night", false);
    let options = EngineOptions {
        streaming: Events::Incremental,
        token_delay: Some(Duration::from_millis(5)),
        allowed: Some(allowed),
        ..EngineOptions::default()
    };
    let demo = Demo::start(options, &[]).await;
    let params =
        SamplingParams { max_new_tokens: Some(40), temperature: 0.8, ignore_eos: true, ..SamplingParams::default() };
    let body = json!({
        "text": "the light", "rid": "live", "stream": true, "sampling_params": sampling(&params),
    });
    let mut agent = Connection::open(demo.proxy.data).await;
    agent.send(&written(demo.proxy.data, "POST", "/generate", &[], body.to_string().as_bytes())).await;
    assert!(agent.read_until(|read| memchr::memmem::find(read, b"data: ").is_some()).await);
    let mut client = trajectories(demo.proxy.control).await;
    let of = |since, index| What::Entropies(Entropies { rid: "live".into(), index, since });
    let mut replies = watch(&mut client, of(0, None)).await;
    let (mut entropy, mut messages, mut reason) = (Vec::new(), 0, None);
    while let Some(reply) = soon("more entropies", replies.message()).await.unwrap() {
        let Some(WatchItem::Progress(progress)) = reply.what else { panic!("progress: {reply:?}") };
        entropy.extend(progress.entropy.iter().map(|value| f64::from(*value)));
        assert_eq!((progress.index, progress.next), (0, entropy.len() as u64));
        messages += 1;
        if progress.finished {
            reason = progress.finish_reason;
        } else {
            assert!(!progress.entropy.is_empty(), "a message has new entropies");
        }
    }
    assert_eq!(reason.as_deref(), Some("length"));
    assert!(messages > 2, "sent while the request ran, in {messages} messages");
    let answer = agent.answer().await;
    let output: Vec<u32> = answer.events().iter().flat_map(crate::support::demo::ids).collect();
    let truth = demo.entropies(&demo.encode("the light"), &output, &params);
    assert_close(&entropy, &truth, 1e-5, "live entropies");

    let mut remaining = watch(&mut client, of(38, Some(0))).await;
    let Some(WatchItem::Progress(progress)) = next(&mut remaining).await.what else { panic!("progress") };
    assert_eq!((progress.entropy.len(), progress.next, progress.finished), (2, 40, true), "the new part, at once");
    assert!(soon("the end", remaining.message()).await.unwrap().is_none(), "no message follows the end");
    let what = Some(of(0, Some(1)));
    assert_eq!(client.watch(WatchRequest { what }).await.expect_err("one sequence").code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_of_a_sequence_without_events_ends_with_the_request() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let mut agent = Connection::open(proxy.data).await;
    let body = br#"{"text":["a","b"],"rid":["x","y"],"stream":true}"#;
    agent.send(&written(proxy.data, "POST", "/generate", &[], body)).await;
    let mut call = upstream.next().await;
    call.send(STREAM).await;
    call.send(&event("x", 0)).await;
    assert!(agent.read_until(|read| memchr::memmem::find(read, b"data: ").is_some()).await);
    let mut client = trajectories(proxy.control).await;
    let what = What::Entropies(Entropies { rid: "y".into(), index: None, since: 0 });
    let mut replies = watch(&mut client, what).await;
    call.send(&chunk(b"data: [DONE]\n\n")).await;
    call.reply(crate::support::manual_upstream::END).await;
    let Some(WatchItem::Progress(progress)) = next(&mut replies).await.what else { panic!("progress") };
    assert_eq!((progress.index, progress.next, progress.finished), (1, 0, true));
    assert!(soon("the end", replies.message()).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_path_of_another_class_is_refused() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let body = json!({"text": "The lamp", "session_id": "s", "sampling_params": {"max_new_tokens": 4}}).to_string();
    let headers = [("x-claude-code-request-class", "auxiliary"), ("x-claude-code-context-compacted", "auto")];
    request(demo.proxy.data, "POST", "/generate", &headers, body.as_bytes()).await;
    freeze(&demo, "s").await;
    let mut client = trajectories(demo.proxy.control).await;
    let reply = next(&mut finished(&mut client, "").await).await;
    let Some(WatchItem::Refused(refused)) = &reply.what else { panic!("expected a refused leaf: {reply:?}") };
    assert_eq!((&*refused.session, refused.leaf, &*refused.reason), ("s", 0, "class_auxiliary"));
    assert!(!reply.cursor.is_empty());
    let all = Finished { classes: vec!["all".into()], ..Finished::default() };
    let reply = next(&mut watch(&mut client, What::Finished(all)).await).await;
    let labels = path(&reply).turns[0].labels.as_ref().expect("the request has headers of an agent");
    assert_eq!((labels.request_class.as_deref(), labels.after_compaction), (Some("auxiliary"), true));
    let unknown = What::Finished(Finished { classes: vec!["title".into()], ..Finished::default() });
    let status = client.watch(WatchRequest { what: Some(unknown) }).await.expect_err("no class has this name");
    assert_eq!(status.code(), Code::InvalidArgument);
}
