// SPDX-License-Identifier: Apache-2.0
//! Another engine at the same address: restarted with another model, or chosen by a load balancer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::Value;

use crate::faults::doors::RequestKind;
use crate::faults::stage::turns;
use crate::support::client::{Answer, Connection, get, post};
use crate::support::manual_upstream::{Call, ManualUpstream, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, Upstream, UpstreamRequest, json_message};

/// The name of its row in `docs/faults.md`.
pub const REPLACED: &str = "another engine answers at the address";

/// The engine of [`ManualUpstream::streaming`] with other names and another vocabulary.
fn other() -> EngineProfile {
    EngineProfile {
        vocab: Some(32_000),
        model: "other",
        flat: false,
        streaming: "incremental",
        ..EngineProfile::default()
    }
}

/// Starts a stream in a session; the client has received one event.
async fn streaming(upstream: &mut ManualUpstream, proxy: &Proxy, session: &str) -> (Connection, Call) {
    let kind = RequestKind::Incremental;
    let mut client = Connection::open(proxy.data).await;
    client.send(&kind.request(proxy.data, session)).await;
    let mut call = upstream.next().await;
    call.send(&kind.prefix(1)).await;
    assert!(client.read_until(|read| read.ends_with(b"\n\n\r\n")).await);
    (client, call)
}

/// Finishes such a stream.
async fn finished(mut client: Connection, call: Call) -> Answer {
    let kind = RequestKind::Incremental;
    call.reply(&kind.healthy()[kind.prefix(1).len()..]).await;
    soon("the stream ends", client.answer()).await
}

/// The model and the policy epoch of each turn.
async fn sampled_by(proxy: &Proxy, session: &str) -> Vec<(String, u64)> {
    let shown = get(proxy.control, &format!("/v1/sessions/{session}/trajectories")).await.json();
    let mut found = Vec::new();
    for row in shown["trajectories"].as_array().unwrap() {
        for (turn, span) in row["turns"].as_array().unwrap().iter().zip(row["policy"].as_array().unwrap()) {
            found.push((turn["model"].as_str().unwrap().to_owned(), span["epoch"].as_u64().unwrap()));
        }
    }
    found
}

fn vocabulary(answer: &Answer) -> Value {
    let info = answer.events().last().unwrap()["meta_info"]["entropy_info"].clone();
    info["vocab_size"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_engine_is_probed_again_and_a_running_stream_keeps_its_vocabulary() {
    let mut upstream = ManualUpstream::streaming("incremental").await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let before = get(proxy.control, "/v1/policy").await.json()["epoch"].as_u64().unwrap();
    let (kept, rest) = streaming(&mut upstream, &proxy, "kept").await;
    let (mut cut, call) = streaming(&mut upstream, &proxy, "cut").await;
    upstream.replace(other());
    drop(call);
    assert!(!soon("the stream is cut", cut.answer()).await.complete);
    let known = proxy.until(|found| &*found.model == "other" && found.vocab_size == Some(32_000));
    soon("the other engine is probed", known).await;

    let (client, call) = streaming(&mut upstream, &proxy, "after").await;
    let after = finished(client, call).await;
    assert_eq!(vocabulary(&after), 32_000, "the bounds are those of the engine that sampled");
    let running = finished(kept, rest).await;
    assert_eq!(vocabulary(&running), 151_936, "a stream keeps the vocabulary it began with");
    let epoch = get(proxy.control, "/v1/policy").await.json()["epoch"].as_u64().unwrap();
    assert!(epoch > before, "another model is another policy: {epoch}");
    assert_eq!(sampled_by(&proxy, "after").await, [("other".to_owned(), epoch)]);
    assert_eq!(sampled_by(&proxy, "kept").await, [("tiny".to_owned(), before)]);
    assert_eq!(turns(proxy.control, "cut").await, [(1, Some("broken".to_owned()))], "the cut turn is not exported");
}

#[tokio::test(flavor = "multi_thread")]
async fn returning_engine_starts_a_policy_epoch() {
    let mut upstream = ManualUpstream::streaming("incremental").await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let epoch = async || get(proxy.control, "/v1/policy").await.json()["epoch"].as_u64().unwrap();
    let before = epoch().await;
    let begin = tokio::spawn(post(proxy.control, "/begin_weight_update", b"{}"));
    upstream.next().await.ok().await;
    assert_eq!(begin.await.unwrap().status, 200);
    // from now on the test receives every request, and leaves it unanswered
    upstream.replace(EngineProfile { answers_probe: false, ..other() });
    let gone = async {
        while proxy.metric("tokentap_upstream_up").await != 0.0 {
            drop(upstream.next().await);
        }
    };
    soon("the engine is gone", gone).await;
    upstream.replace(EngineProfile { flat: false, streaming: "incremental", ..EngineProfile::default() });
    // requests received in the meantime get no reply either
    while upstream.has_more() {}
    soon("the engine is up again", async { while proxy.metric("tokentap_upstream_up").await != 1.0 {} }).await;
    soon("a new epoch", async { while epoch().await == before {} }).await;
    assert_eq!(epoch().await, before + 1, "the label is the same, but the weights may be the initial ones again");
    assert_eq!(get(proxy.control, "/v1/policy").await.json()["updating"], false, "the engine has lost the update");
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_replaced_during_the_probe_is_detected() {
    let swapped = AtomicBool::new(false);
    let script = move |asked: &UpstreamRequest| {
        let profile = if swapped.load(Ordering::Relaxed) { other() } else { EngineProfile::default() };
        // the last of the information routes
        swapped.fetch_or(asked.path == "/server_info", Ordering::Relaxed);
        profile.answer(asked).unwrap_or_else(|| json_message(200, b"{}"))
    };
    let upstream = Upstream::start(EngineProfile { answers_probe: false, ..EngineProfile::default() }, script).await;
    let proxy = Proxy::start(upstream.addr, &[]).await;
    soon("the first engine is probed", proxy.until(|found| &*found.model == "tiny")).await;
    soon("the other engine is probed", proxy.until(|found| &*found.model == "other")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn balancer_between_engines_starts_no_policy_epochs() {
    tokio::join!(balanced(&[true, false]), balanced(&[true, false, false]));
}

/// Runs a balancer that sends requests to the first engine where `turns` is true, in a cycle, and to another engine otherwise.
async fn balanced(turns: &'static [bool]) {
    let asked_for = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked_for);
    let script = move |asked: &UpstreamRequest| {
        let first = asked.path != "/model_info" || turns[count.fetch_add(1, Ordering::Relaxed) % turns.len()];
        let profile = if first { EngineProfile::default() } else { other() };
        profile.answer(asked).unwrap_or_else(|| json_message(200, b"{}"))
    };
    let upstream = Upstream::start(EngineProfile { answers_probe: false, ..EngineProfile::default() }, script).await;
    let proxy = Proxy::start(upstream.addr, &[]).await;
    let epoch = async || get(proxy.control, "/v1/policy").await.json()["epoch"].as_u64().unwrap();
    let answered = async |times| {
        soon("the engines answer", async {
            while asked_for.load(Ordering::Relaxed) < times {
                epoch().await;
            }
        })
        .await;
    };
    answered(2).await;
    let before = epoch().await;
    answered(8).await;
    assert_eq!(epoch().await, before, "{turns:?}: two engines take turns, and neither is replaced");
}
