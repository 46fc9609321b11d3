//! Another engine at the same address: one restarted with another model, or one to which a load balancer moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::Value;

use crate::faults::doors::RequestKind;
use crate::faults::stage::turns;
use crate::support::client::{Answer, Connection, get};
use crate::support::hand::{Call, Hand, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::{Nature, Upstream, UpstreamRequest, json_message};

/// A row of `docs/faults.md`.
pub const REPLACED: &str = "another engine answers at the address";

/// The first engine as [`Hand::streaming`] makes it, with other names and another vocabulary.
fn other() -> Nature {
    Nature { vocab: Some(32_000), model: "other", flat: false, streaming: "incremental", ..Nature::default() }
}

/// A stream in a session of which the client has one event.
async fn streaming(hand: &mut Hand, proxy: &Proxy, session: &str) -> (Connection, Call) {
    let kind = RequestKind::Incremental;
    let mut client = Connection::open(proxy.data).await;
    client.send(&kind.request(proxy.data, session)).await;
    let mut call = hand.next().await;
    call.say(&kind.prefix(1)).await;
    assert!(client.read_until(|read| read.ends_with(b"\n\n\r\n")).await);
    (client, call)
}

/// The rest of such a stream.
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
async fn engine_with_another_vocabulary_is_asked_again_and_a_running_stream_keeps_the_first() {
    let mut hand = Hand::streaming("incremental").await;
    let proxy = Proxy::probed(hand.addr, &[]).await;
    let before = get(proxy.control, "/v1/policy").await.json()["epoch"].as_u64().unwrap();
    let (kept, rest) = streaming(&mut hand, &proxy, "kept").await;
    let (mut cut, call) = streaming(&mut hand, &proxy, "cut").await;
    hand.replace(other());
    drop(call);
    assert!(!soon("the stream is cut", cut.answer()).await.complete);
    let known = proxy.until(|found| &*found.model == "other" && found.vocab_size == Some(32_000));
    soon("the other engine is asked", known).await;

    let (client, call) = streaming(&mut hand, &proxy, "after").await;
    let after = finished(client, call).await;
    assert_eq!(vocabulary(&after), 32_000, "the bounds are those of the engine that sampled");
    let running = finished(kept, rest).await;
    assert_eq!(vocabulary(&running), 151_936, "a stream keeps the vocabulary it began with");
    let epoch = get(proxy.control, "/v1/policy").await.json()["epoch"].as_u64().unwrap();
    assert!(epoch > before, "another model is another policy: {epoch}");
    assert_eq!(sampled_by(&proxy, "after").await, [("other".to_owned(), epoch)]);
    assert_eq!(sampled_by(&proxy, "kept").await, [("tiny".to_owned(), before)]);
    assert_eq!(turns(proxy.control, "cut").await, [(1, Some("broken".to_owned()))], "it is never trained");
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_that_is_back_after_it_was_gone_begins_a_policy_epoch() {
    let mut hand = Hand::streaming("incremental").await;
    let proxy = Proxy::probed(hand.addr, &[]).await;
    let epoch = async || get(proxy.control, "/v1/policy").await.json()["epoch"].as_u64().unwrap();
    let before = epoch().await;
    // every question is one for the test from now on, and is left without an answer
    hand.replace(Nature { answers_probe: false, ..other() });
    let gone = async {
        while proxy.metric("tokentap_upstream_up").await != 0.0 {
            drop(hand.next().await);
        }
    };
    soon("the engine is gone", gone).await;
    hand.replace(Nature { flat: false, streaming: "incremental", ..Nature::default() });
    // what came meanwhile gets no answer either
    while hand.has_more() {}
    soon("it is back", async { while proxy.metric("tokentap_upstream_up").await != 1.0 {} }).await;
    soon("the epoch moves", async { while epoch().await == before {} }).await;
    assert_eq!(epoch().await, before + 1, "the same label hides that weights are those of the start again");
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_that_is_replaced_right_after_its_first_answers_is_noticed() {
    let swapped = AtomicBool::new(false);
    let script = move |asked: &UpstreamRequest| {
        let nature = if swapped.load(Ordering::Relaxed) { other() } else { Nature::default() };
        // the last of the routes that tell what an engine is
        swapped.fetch_or(asked.path == "/server_info", Ordering::Relaxed);
        nature.answer(asked).unwrap_or_else(|| json_message(200, b"{}"))
    };
    let upstream = Upstream::start(Nature { answers_probe: false, ..Nature::default() }, script).await;
    let proxy = Proxy::start(upstream.addr, &[]).await;
    soon("the first engine is asked", proxy.until(|found| &*found.model == "tiny")).await;
    soon("the other engine is asked", proxy.until(|found| &*found.model == "other")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn balancer_between_engines_with_different_tokenizer_paths_begins_no_policy_epochs() {
    tokio::join!(balanced(&[true, false]), balanced(&[true, false, false]));
}

/// A balancer that chooses the first engine for these of its questions, over and over, and another engine for the rest.
async fn balanced(turns: &'static [bool]) {
    let asked_for = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked_for);
    let script = move |asked: &UpstreamRequest| {
        let first = asked.path != "/model_info" || turns[count.fetch_add(1, Ordering::Relaxed) % turns.len()];
        let nature = if first { Nature::default() } else { other() };
        nature.answer(asked).unwrap_or_else(|| json_message(200, b"{}"))
    };
    let upstream = Upstream::start(Nature { answers_probe: false, ..Nature::default() }, script).await;
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
