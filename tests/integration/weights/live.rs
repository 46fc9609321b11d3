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

/// A stream that is paused while weights change and then continues; returns the answer to the change.
async fn across(proxy: &Proxy, session: &str, update: &Value) -> Answer {
    let (data, control) = (proxy.data, proxy.control);
    let sampling = json!({"max_new_tokens": 300, "temperature": 1.0, "ignore_eos": true});
    let body = json!({"input_ids": [1, 2, 3], "stream": true, "sampling_params": sampling}).to_string();
    let mut client = Connection::open(data).await;
    client.send(&written(data, "POST", "/generate", &[("x-session-id", session)], body.as_bytes())).await;
    let events = |read: &[u8]| memchr::memmem::find_iter(read, b"data: ").count();
    assert!(client.read_until(|read| events(read) > 4).await, "the stream runs");
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
