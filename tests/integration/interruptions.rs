//! A trainer that pauses the engine or aborts its generations: `--pause-wait` and `--on-abort`.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokentap::demo::{EngineOptions, Streaming};

use crate::crash::trainers::post_control;
use crate::support::client::{Answer, Connection, get, post, written};
use crate::support::demo::Demo;
use crate::support::manual_upstream::soon;

/// A demo engine that is slow enough for an abort, behind a tokentap with these flags.
async fn slow(streaming: Streaming, flags: &[&str]) -> Demo {
    let delay = Some(Duration::from_millis(4));
    Demo::start(EngineOptions { streaming, token_delay: delay, ..EngineOptions::default() }, flags).await
}

fn body(rid: &str, stream: bool) -> Value {
    let sampling = json!({"max_new_tokens": 300, "ignore_eos": true});
    json!({"input_ids": [5, 6, 7], "rid": rid, "stream": stream, "sampling_params": sampling})
}

/// Sends a call in the background.
fn call(addr: SocketAddr, path: &str, body: &Value) -> tokio::task::JoinHandle<Answer> {
    let (path, body) = (path.to_owned(), body.to_string());
    tokio::spawn(async move { post(addr, &path, body.as_bytes()).await })
}

async fn has_metric(demo: &Demo, line: &str) -> bool {
    get(demo.proxy.control, "/metrics").await.text().lines().any(|found| found == line)
}

async fn wait_for_metric(demo: &Demo, line: &str) {
    soon(line, async { while !has_metric(demo, line).await {} }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_call_waits_until_the_trainer_continues() {
    let options = EngineOptions { journal: true, ..EngineOptions::default() };
    let demo = Demo::start(options, &["--pause-wait", "60s"]).await;
    let control = demo.proxy.control;
    post_control(control, "/pause_generation", &json!({})).await;
    let probed = demo.engine.journal().len();
    let prompt = json!({"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 3}});
    let waiting = call(demo.proxy.data, "/sessions/s/generate", &prompt);
    let completion = json!({"model": "m", "prompt": [5, 6], "max_tokens": 2});
    let other = call(demo.proxy.data, "/v1/completions", &completion);
    wait_for_metric(&demo, "tokentap_pause_waiting 2").await;
    assert_eq!(demo.engine.journal().len(), probed, "the engine gets no call");
    post_control(control, "/update_weights_from_disk", &json!({"model_path": "m", "weight_version": "v1"})).await;
    assert!(!waiting.is_finished(), "an update does not end the pause");
    post_control(control, "/continue_generation", &json!({})).await;
    assert_eq!(
        (soon("a reply", waiting).await.unwrap().status, soon("a reply", other).await.unwrap().status),
        (200, 200)
    );
    wait_for_metric(&demo, "tokentap_pause_waiting 0").await;
    assert!(has_metric(&demo, "tokentap_pause_waits_total{outcome=\"continued\"} 2").await);
    let rows = get(control, "/v1/sessions/s/trajectories").await.json();
    let policy = &rows["trajectories"][0]["policy"];
    assert_eq!((&policy[0]["weight_version"], &policy[0]["until"]), (&json!("v1"), &Value::Null), "{policy}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_ends_with_the_time_or_with_the_client() {
    let demo = Demo::start(EngineOptions::default(), &["--pause-wait", "300ms"]).await;
    let refused = post(demo.proxy.control, "/pause_generation", br#"{"mode":"wrong"}"#).await;
    assert!(!(200..300).contains(&refused.status));
    let prompt = json!({"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 3}});
    assert_eq!(demo.post("/generate", &prompt).await.status, 200, "a refused pause holds no call");
    post_control(demo.proxy.control, "/pause_generation", &json!({})).await;
    for (path, body) in [("/generate", prompt.clone()), ("/v1/completions", json!({"model": "m", "prompt": [5]}))] {
        let answer = demo.post(path, &body).await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{path}");
        assert!(answer.text().contains("--pause-wait 0.3s"), "{}", answer.text());
    }
    assert!(has_metric(&demo, "tokentap_pause_waits_total{outcome=\"timeout\"} 2").await);
    let mut connection = Connection::open(demo.proxy.data).await;
    connection.send(&written(demo.proxy.data, "POST", "/generate", &[], prompt.to_string().as_bytes())).await;
    wait_for_metric(&demo, "tokentap_pause_waiting 1").await;
    drop(connection);
    wait_for_metric(&demo, "tokentap_pause_waiting 0").await;
    post_control(demo.proxy.control, "/continue_generation", &json!({})).await;
    assert_eq!(demo.post("/generate", &prompt).await.status, 200);
}

/// Calls a route again and again until the call has its reply: it may not have reached the engine yet.
async fn interrupt(port: SocketAddr, path: &str, body: &Value, running: tokio::task::JoinHandle<Answer>) -> Answer {
    let body = body.to_string();
    let repeated = async {
        while !running.is_finished() {
            post(port, path, body.as_bytes()).await;
        }
    };
    soon("the call ends", repeated).await;
    running.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_call_is_answered_with_an_error_that_clients_retry() {
    let all = json!({"abort_all": true});
    let completion = json!({"model": "m", "prompt": [5, 6, 7], "max_tokens": 300, "ignore_eos": true});
    let demo = slow(Streaming::Cumulative, &["--on-abort", "retry"]).await;
    let (data, control) = (demo.proxy.data, demo.proxy.control);
    for (path, body) in [("/sessions/s/generate", body("whole", false)), ("/sessions/s/v1/completions", completion)] {
        let answer = interrupt(control, "/abort_request", &all, call(data, path, &body)).await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{path}: {}", answer.text());
        assert!(answer.text().contains("the trainer aborted the generation"), "{path}");
    }
    let update = json!({"model_path": "m", "abort_all_requests": true});
    let answer =
        interrupt(control, "/update_weights_from_disk", &update, call(data, "/generate", &body("u", false))).await;
    assert_eq!(answer.status, 503, "an update that aborts all requests");
    let answer =
        interrupt(control, "/abort_request", &all, call(data, "/sessions/s/generate", &body("stream", true))).await;
    let events = answer.events();
    let last = events.last().unwrap();
    assert!(last["error"]["message"].as_str().is_some_and(|text| text.contains("the trainer aborted")), "{last}");
    assert!(events.iter().all(|event| event["meta_info"]["finish_reason"].is_null()), "no event ends the reply");
    assert!(has_metric(&demo, "tokentap_interrupted_generations_total{outcome=\"retry\"} 4").await);
    let session = get(control, "/v1/sessions/s").await.json();
    let faults = session["list"].as_array().unwrap().iter().map(|turn| turn["fault"].clone());
    assert!(faults.clone().all(|fault| fault == "aborted"), "{session}");
    // a call that was aborted in the queue has no tokens
    assert!(faults.count() >= 1, "what was sampled is recorded");
}

#[tokio::test(flavor = "multi_thread")]
async fn abort_of_a_client_or_of_the_engine_is_passed() {
    let demo = slow(Streaming::Incremental, &["--on-abort", "retry"]).await;
    let (data, control) = (demo.proxy.data, demo.proxy.control);
    for port in [data, demo.direct] {
        let own = json!({"rid": "own"});
        let answer = interrupt(port, "/abort_request", &own, call(data, "/generate", &body("own", false))).await;
        assert_eq!((answer.status, &answer.json()["meta_info"]["finish_reason"]["type"]), (200, &json!("abort")));
    }
    let passing = slow(Streaming::Incremental, &[]).await;
    let running = call(passing.proxy.data, "/generate", &body("passed", false));
    let answer = interrupt(passing.proxy.control, "/abort_request", &json!({"abort_all": true}), running).await;
    assert_eq!((answer.status, &answer.json()["meta_info"]["finish_reason"]["type"]), (200, &json!("abort")));
    assert!(!get(control, "/metrics").await.text().contains("interrupted_generations_total{outcome=\"retry\"} 1"));
}
