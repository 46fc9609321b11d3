// SPDX-License-Identifier: Apache-2.0
//! The same with an engine whose weights actually change.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokentap::demo::{Engine, EngineOptions, Streaming};
use tokentap::serve::connection::{Phase, ServerLimits, serve};
use tokio::sync::watch;

use super::{epoch, spans};
use crate::crash::trainers::{generate_turn, post_control};
use crate::support::client::{Answer, Connection, get, post, written};
use crate::support::demo::Demo;
use crate::support::manual_upstream::soon;
use crate::support::proxy::Proxy;

async fn demo(options: EngineOptions) -> Demo {
    Demo::start(EngineOptions { streaming: Streaming::Incremental, ..options }, &[]).await
}

async fn rows(proxy: &Proxy, session: &str) -> Vec<Value> {
    let trajectories = get(proxy.control, &format!("/v1/sessions/{session}/trajectories")).await.json();
    trajectories["trajectories"].as_array().unwrap().clone()
}

/// The epoch and names of a session's only turn, which one policy sampled.
async fn sampled(proxy: &Proxy, session: &str) -> (u64, Value, Value) {
    generate_turn(proxy.data, session, &[1, 2, 3], "").await;
    let row = rows(proxy, session).await.remove(0);
    let [span] = &row["policy"].as_array().unwrap()[..] else { panic!("one policy: {row}") };
    assert_eq!(span["until"], Value::Null, "{span}");
    (span["epoch"].as_u64().unwrap(), span["weight_version"].clone(), span["version"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn weight_update_through_either_port_starts_an_epoch() {
    let options = EngineOptions { streaming: Streaming::Incremental, ..EngineOptions::default() };
    let demo = Demo::start(options, &["--allow-control"]).await;
    let start = epoch(&demo.proxy).await;
    assert_eq!(sampled(&demo.proxy, "a").await, (start, "default".into(), Value::Null));
    let update = json!({"model_path": "m", "weight_version": "v1"});
    let ports = [demo.proxy.data, demo.proxy.control];
    for (at, (port, name)) in ports.into_iter().zip(["b", "c"]).enumerate() {
        post_control(port, "/update_weights_from_disk", &update).await;
        assert_eq!(sampled(&demo.proxy, name).await, (start + 1 + at as u64, "v1".into(), Value::Null));
    }
    let failed = json!({"model_path": "/nonexistent"}).to_string();
    for port in ports {
        let (ours, engines) = (
            post(port, "/update_weights_from_disk", failed.as_bytes()).await,
            post(demo.direct, "/update_weights_from_disk", failed.as_bytes()).await,
        );
        assert_eq!((ours.status, &ours.body), (400, &engines.body), "the error of the engine");
    }
    assert_eq!(epoch(&demo.proxy).await, start + 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn weight_update_at_the_engine_starts_one_epoch() {
    let demo = demo(EngineOptions::default()).await;
    let (start, ..) = sampled(&demo.proxy, "a").await;
    post_control(demo.direct, "/update_weights_from_disk", &json!({"model_path": "m", "weight_version": "v1"})).await;
    for session in ["b", "c", "d"] {
        assert_eq!(sampled(&demo.proxy, session).await, (start + 1, "v1".into(), Value::Null));
    }
    assert_eq!(epoch(&demo.proxy).await, start + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn trainer_can_name_the_weights() {
    let demo = demo(EngineOptions::default()).await;
    let start = epoch(&demo.proxy).await;
    let reply = post_control(demo.proxy.control, "/v1/policy", &json!({"version": 7})).await;
    assert_eq!(reply, json!({"epoch": start + 1, "version": "7"}));
    assert_eq!(sampled(&demo.proxy, "a").await, (start + 1, "default".into(), "7".into()));
    post_control(demo.proxy.control, "/v1/policy", &json!({"version": 7})).await;
    assert_eq!(epoch(&demo.proxy).await, start + 1, "the same name again changes nothing");
}

/// `min_global_steps` and `max_global_steps` of sessions of one row each.
async fn steps(demo: &Demo, sessions: &[&str]) -> (Value, Value) {
    let body = json!({"sessions": sessions, "format": "verl"}).to_string();
    let file = post(demo.proxy.control, "/v1/samples", body.as_bytes()).await;
    assert_eq!(file.status, 200, "{}", file.text());
    let (_, head) = safetensors::SafeTensors::read_metadata(&file.body).unwrap();
    let table: Value = serde_json::from_str(&head.metadata().as_ref().unwrap()["non_tensor_batch"]).unwrap();
    (table["min_global_steps"].clone(), table["max_global_steps"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn unnamed_weight_updates_start_epochs() {
    let demo = demo(EngineOptions::default()).await;
    let start = epoch(&demo.proxy).await;
    for (at, session) in ["a", "b", "c"].into_iter().enumerate() {
        assert_eq!(sampled(&demo.proxy, session).await, (start + at as u64, "default".into(), Value::Null));
        post_control(demo.proxy.control, "/update_weights_from_disk", &json!({"model_path": "m"})).await;
    }
    // a conversation continues with the next policy
    let row = rows(&demo.proxy, "a").await.remove(0);
    let mut prompt: Vec<u32> = serde_json::from_value(row["token_ids"].clone()).unwrap();
    prompt.push(4);
    generate_turn(demo.proxy.data, "a", &prompt, "").await;
    let row = rows(&demo.proxy, "a").await.remove(0);
    assert_eq!(row["flags"], json!(["crosses_versions", "extends_length"]), "{row}");
    let epochs: Vec<&Value> = row["policy"].as_array().unwrap().iter().map(|span| &span["epoch"]).collect();
    assert_eq!(epochs, [start, start + 3]);
    let (first, last) = steps(&demo, &["a", "b", "c"]).await;
    assert_eq!(first, json!([start, start + 1, start + 2]));
    assert_eq!(last, json!([start + 3, start + 1, start + 2]));
}

/// A stream of 300 tokens, of which the client has received some.
async fn streaming(proxy: &Proxy, session: &str) -> Connection {
    let sampling = json!({"max_new_tokens": 300, "temperature": 1.0, "ignore_eos": true});
    let body = json!({"input_ids": [1, 2, 3], "stream": true, "sampling_params": sampling}).to_string();
    let mut client = Connection::open(proxy.data).await;
    client.send(&written(proxy.data, "POST", "/generate", &[("x-session-id", session)], body.as_bytes())).await;
    let events = |read: &[u8]| memchr::memmem::find_iter(read, b"data: ").count();
    assert!(client.read_until(|read| events(read) > 4).await, "the stream runs");
    client
}

/// A stream that is paused while weights change and then continues; returns the answer to the change.
async fn across(proxy: &Proxy, session: &str, update: &Value) -> Answer {
    let control = proxy.control;
    let mut client = streaming(proxy, session).await;
    post_control(control, "/pause_generation", &json!({"mode": "in_place"})).await;
    let answer = post(control, "/update_weights_from_disk", update.to_string().as_bytes()).await;
    post_control(control, "/continue_generation", &json!({})).await;
    let answered = client.answer().await;
    assert!(answered.complete && answered.body.ends_with(b"data: [DONE]\n\n"), "the stream is complete");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn turn_paused_in_place_has_two_policies() {
    let delay = Some(Duration::from_millis(2));
    let demo = demo(EngineOptions { token_delay: delay, ..EngineOptions::default() }).await;
    let (mut before, ..) = sampled(&demo.proxy, "first").await;
    let mut known = "default".to_owned();
    // the second update is rejected although the weights have changed: the cache cannot be flushed while the stream is paused
    for (version, flush, status) in [("v1", false, 200), ("v2", true, 400), ("v3", true, 400), ("v4", false, 200)] {
        let update = json!({"model_path": "m", "weight_version": version, "flush_cache": flush});
        let answer = across(&demo.proxy, version, &update).await;
        assert_eq!(answer.status, status, "{}", answer.text());
        assert_eq!(status == 400, answer.text().contains("Weights were updated, but the cache was not flushed"));
        let row = rows(&demo.proxy, version).await.remove(0);
        let [old, new] = &spans(&row)[..] else { panic!("two policies: {}", row["policy"]) };
        assert_eq!((&*old.version, old.start, old.epoch), (&*known, 0, before));
        assert_eq!((&*new.version, new.end, new.epoch), (version, 300, before + 1));
        assert!(old.end == new.start && (1..300).contains(&new.start), "{old:?} {new:?}");
        assert_eq!(row["flags"], json!(["crosses_versions"]));
        (before, known) = (before + 1, version.to_owned());
        assert_eq!(sampled(&demo.proxy, &format!("behind-{version}")).await, (before, version.into(), Value::Null));
    }
    assert_eq!(epoch(&demo.proxy).await, before, "no other new epoch");
}

/// A demo engine that counts the requests to /model_info.
async fn watched(options: EngineOptions, stopped: watch::Receiver<Phase>) -> (SocketAddr, watch::Receiver<usize>) {
    let (engine, looks) = (Engine::new(options), Arc::new(watch::Sender::new(0)));
    let counted = looks.subscribe();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let service = tower::service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let (engine, looks) = (Arc::clone(&engine), Arc::clone(&looks));
        async move {
            let is_look = request.uri().path() == "/model_info";
            let answer = engine.handle(request).await;
            looks.send_modify(|count| *count += usize::from(is_look));
            Ok::<_, Infallible>(answer)
        }
    });
    let (time, connections) = (Duration::from_secs(60), 64);
    let limits = ServerLimits {
        header_timeout: time,
        idle_timeout: time,
        read_timeout: time,
        connections,
        drain: Duration::ZERO,
        cutting: Arc::default(),
    };
    tokio::spawn(serve(listener, service, limits, stopped));
    (addr, counted)
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_model_info_label_starts_no_epoch() {
    let (_stop, stopped) = watch::channel(Phase::Serving);
    let options = EngineOptions {
        streaming: Streaming::Incremental,
        token_delay: Some(Duration::from_millis(2)),
        ..EngineOptions::default()
    };
    let (direct, mut looks) = watched(options, stopped).await;
    let proxy = Proxy::probed(direct, &[]).await;
    let (before, ..) = sampled(&proxy, "first").await;
    let update = json!({"model_path": "m", "weight_version": "v1"});
    assert_eq!(across(&proxy, "across", &update).await.status, 400);
    let info = get(direct, "/model_info").await.json();
    assert_eq!(info["weight_version"], "default", "the HTTP server of the engine does not know the new label");
    for look in 0..3 {
        // the third request follows the evaluation of the second
        let seen = *looks.borrow_and_update();
        soon("tokentap looks", looks.wait_for(|looks| *looks > seen)).await.unwrap();
        assert_eq!(sampled(&proxy, &format!("behind-{look}")).await, (before + 1, "v1".into(), Value::Null));
    }
    assert_eq!(epoch(&proxy).await, before + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn weight_update_at_the_engine_is_detected_without_a_generation() {
    let (_stop, stopped) = watch::channel(Phase::Serving);
    let (direct, mut looks) = watched(EngineOptions::default(), stopped).await;
    let proxy = Proxy::probed(direct, &[]).await;
    let before = epoch(&proxy).await;
    post_control(direct, "/update_weights_from_disk", &json!({"model_path": "m", "weight_version": "v1"})).await;
    let seen = *looks.borrow_and_update();
    soon("two more requests", looks.wait_for(|looks| *looks > seen + 1)).await.unwrap();
    assert_eq!(get(proxy.control, "/v1/policy").await.json()["weight_version"], "v1");
    assert_eq!(sampled(&proxy, "s").await, (before + 1, "v1".into(), Value::Null));
}

async fn begin(proxy: &Proxy) {
    post_control(proxy.control, "/begin_weight_update", &json!({})).await;
}

async fn load(proxy: &Proxy, version: &str) {
    let body = json!({"serialized_named_tensors": ["t"], "weight_version": version, "flush_cache": false});
    post_control(proxy.control, "/update_weights_from_tensor", &body).await;
}

async fn end(proxy: &Proxy) {
    post_control(proxy.control, "/end_weight_update", &json!({})).await;
}

async fn policy(proxy: &Proxy) -> Value {
    get(proxy.control, "/v1/policy").await.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn update_with_begin_and_end_is_one_epoch() {
    let demo = demo(EngineOptions::default()).await;
    let start = epoch(&demo.proxy).await;
    for (at, version) in ["v1", "v2"].into_iter().enumerate() {
        begin(&demo.proxy).await;
        load(&demo.proxy, version).await;
        load(&demo.proxy, version).await;
        assert_eq!(
            (epoch(&demo.proxy).await, &policy(&demo.proxy).await["updating"]),
            (start + at as u64, &json!(true))
        );
        end(&demo.proxy).await;
        let now = start + 1 + at as u64;
        let known =
            json!({"epoch": now, "weight_version": version, "version": null, "updating": false, "adapters": []});
        assert_eq!(policy(&demo.proxy).await, known, "the label is known before a reply names it");
        assert_eq!(sampled(&demo.proxy, version).await, (now, version.into(), Value::Null));
    }
}

/// The epochs of a session's only row, `until` included, and whether it is flagged.
async fn ranges(proxy: &Proxy, session: &str) -> (Vec<[u64; 2]>, bool) {
    let row = rows(proxy, session).await.remove(0);
    let range = |span: &Value| {
        let epoch = span["epoch"].as_u64().unwrap();
        [epoch, span["until"].as_u64().unwrap_or(epoch)]
    };
    let ranges = row["policy"].as_array().unwrap().iter().map(range).collect();
    (ranges, row["flags"].as_array().unwrap().contains(&json!("policy_uncertain")))
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_sampled_within_an_update_are_uncertain() {
    let options = EngineOptions { streaming: Streaming::Incremental, ..EngineOptions::default() };
    let demo = Demo::start(options, &["--tokenizer", crate::chat::TOKENIZER]).await;
    let (proxy, start) = (&demo.proxy, epoch(&demo.proxy).await);
    let chat = async |session: &str| {
        let body =
            json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": true});
        let path = format!("/sessions/{session}/v1/chat/completions");
        assert_eq!(post(proxy.data, &path, body.to_string().as_bytes()).await.status, 200);
    };
    sampled(proxy, "before").await;
    begin(proxy).await;
    generate_turn(proxy.data, "begun", &[1, 2, 3], "").await;
    load(proxy, "v1").await;
    generate_turn(proxy.data, "loaded", &[1, 2, 3], "").await;
    chat("chat").await;
    load(proxy, "v1").await;
    end(proxy).await;
    assert_eq!(sampled(proxy, "after").await, (start + 1, "v1".into(), Value::Null));
    for session in ["begun", "loaded", "chat"] {
        assert_eq!(ranges(proxy, session).await, (vec![[start, start + 1]], true), "{session}");
    }
    for (session, epoch) in [("before", start), ("after", start + 1)] {
        assert_eq!(ranges(proxy, session).await, (vec![[epoch; 2]], false), "{session}");
    }
    let (first, last) = steps(&demo, &["begun"]).await;
    assert_eq!((first, last), (json!([start]), json!([start + 1])), "an export has both epochs");
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_that_is_paused_for_an_update_has_two_certain_policies() {
    let delay = Some(Duration::from_millis(2));
    let demo = demo(EngineOptions { token_delay: delay, ..EngineOptions::default() }).await;
    let (proxy, start) = (&demo.proxy, epoch(&demo.proxy).await);
    // the second generation continues before the end of its update
    for (session, resumed_early) in [("paused", false), ("resumed", true)] {
        let mut client = streaming(proxy, session).await;
        post_control(proxy.control, "/pause_generation", &json!({"mode": "in_place"})).await;
        begin(proxy).await;
        load(proxy, session).await;
        if resumed_early {
            post_control(proxy.control, "/continue_generation", &json!({})).await;
            assert!(client.answer().await.complete, "the stream is complete");
            end(proxy).await;
        } else {
            end(proxy).await;
            post_control(proxy.control, "/continue_generation", &json!({})).await;
            assert!(client.answer().await.complete, "the stream is complete");
        }
    }
    assert_eq!(ranges(proxy, "paused").await, (vec![[start; 2], [start + 1; 2]], false));
    let (resumed, flagged) = ranges(proxy, "resumed").await;
    assert!(flagged && resumed.contains(&[start + 1, start + 2]), "{resumed:?}");
    assert!(resumed.iter().all(|[first, until]| *first == start + 1 && *until <= start + 2), "{resumed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_call_ends_an_update_with_an_epoch() {
    let demo = demo(EngineOptions::default()).await;
    let (proxy, start) = (&demo.proxy, epoch(&demo.proxy).await);
    let refused = async |path: &str| {
        let answer = post(proxy.control, path, b"{}").await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
    };
    refused("/end_weight_update").await;
    refused("/update_weights_from_tensor").await;
    assert_eq!(epoch(proxy).await, start, "nothing changed");
    begin(proxy).await;
    refused("/begin_weight_update").await;
    assert_eq!(policy(proxy).await["updating"], true, "it is the same update");
    refused("/update_weights_from_tensor").await;
    assert_eq!((epoch(proxy).await, &policy(proxy).await["updating"]), (start + 1, &json!(false)));
    // each further call counts by itself
    load(proxy, "v1").await;
    end(proxy).await;
    assert_eq!(epoch(proxy).await, start + 3);
    begin(proxy).await;
    post_control(demo.direct, "/end_weight_update", &json!({})).await;
    refused("/end_weight_update").await;
    assert_eq!(epoch(proxy).await, start + 4, "the engine lost the update");
}

#[tokio::test(flavor = "multi_thread")]
async fn name_given_within_an_update_is_that_of_its_epoch() {
    let demo = demo(EngineOptions::default()).await;
    let (proxy, start) = (&demo.proxy, epoch(&demo.proxy).await);
    begin(proxy).await;
    let reply = post_control(proxy.control, "/v1/policy", &json!({"version": 7})).await;
    assert_eq!((reply, epoch(proxy).await), (json!({"epoch": start + 1, "version": "7"}), start));
    end(proxy).await;
    assert_eq!(sampled(proxy, "a").await, (start + 1, "default".into(), "7".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn name_of_an_update_that_fails_is_dropped() {
    let demo = demo(EngineOptions::default()).await;
    let (proxy, start) = (&demo.proxy, epoch(&demo.proxy).await);
    begin(proxy).await;
    post_control(proxy.control, "/v1/policy", &json!({"version": "step-1"})).await;
    assert_eq!(post(proxy.control, "/update_weights_from_tensor", b"{}").await.status, 400);
    assert_eq!(sampled(proxy, "a").await, (start + 1, "default".into(), Value::Null));
    assert_eq!(policy(proxy).await["version"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn update_without_an_end_does_not_hide_later_policies() {
    let demo = demo(EngineOptions::default()).await;
    let (proxy, start) = (&demo.proxy, epoch(&demo.proxy).await);
    begin(proxy).await;
    load(proxy, "v0").await;
    // the next trainer loads whole checkpoints
    for (at, version) in ["v1", "v2"].into_iter().enumerate() {
        let now = start + 1 + at as u64;
        let body = json!({"model_path": "m", "weight_version": version});
        post_control(proxy.control, "/update_weights_from_disk", &body).await;
        let known =
            json!({"epoch": now, "weight_version": version, "version": null, "updating": false, "adapters": []});
        assert_eq!(policy(proxy).await, known);
        assert_eq!(sampled(proxy, version).await, (now, version.into(), Value::Null));
    }
    post_control(demo.direct, "/end_weight_update", &json!({})).await;

    // the next trainer only names its versions
    begin(proxy).await;
    let name = async |version: &str| {
        post_control(proxy.control, "/v1/policy", &json!({"version": version})).await["epoch"].as_u64().unwrap()
    };
    assert_eq!((name("step-1").await, name("step-1").await, epoch(proxy).await), (start + 3, start + 3, start + 2));
    generate_turn(proxy.data, "named", &[1, 2, 3], "").await;
    for (at, version) in ["step-2", "step-3"].into_iter().enumerate() {
        let now = start + 4 + at as u64;
        assert_eq!((name(version).await, epoch(proxy).await), (now, now));
        assert_eq!(sampled(proxy, version).await, (now, "v2".into(), version.into()));
    }
    assert_eq!(ranges(proxy, "named").await, (vec![[start + 2, start + 3]], true));
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_that_the_engine_ended_does_not_make_the_tokens_of_an_update_certain() {
    let demo = demo(EngineOptions::default()).await;
    let (proxy, start) = (&demo.proxy, epoch(&demo.proxy).await);
    let within = async |session: &str| {
        generate_turn(proxy.data, session, &[1, 2, 3], "").await;
        post_control(proxy.control, "/end_weight_update", &json!({})).await;
        ranges(proxy, session).await
    };
    for (at, begins_first) in [false, true].into_iter().enumerate() {
        post_control(proxy.control, "/pause_generation", &json!({"mode": "retract"})).await;
        if begins_first {
            begin(proxy).await;
        }
        post_control(demo.direct, "/continue_generation", &json!({})).await;
        if !begins_first {
            sampled(proxy, "between").await;
            begin(proxy).await;
        }
        let now = start + at as u64;
        assert_eq!(within(&format!("within-{at}")).await, (vec![[now, now + 1]], true), "{begins_first}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_has_the_label_of_the_engine_at_once() {
    let demo = demo(EngineOptions::default()).await;
    let label = async || policy(&demo.proxy).await["weight_version"].clone();
    assert_eq!(label().await, "default");
    post_control(demo.proxy.control, "/v1/policy", &json!({"version": "a"})).await;
    assert_eq!(label().await, "default", "a name changes no weights");
    post_control(demo.proxy.control, "/update_weights_from_disk", &json!({"model_path": "m"})).await;
    assert_eq!(label().await, "default", "an update without a label");
    let update = json!({"model_path": "m", "weight_version": "v1"});
    post_control(demo.proxy.control, "/update_weights_from_disk", &update).await;
    assert_eq!(label().await, "v1");
}
