// SPDX-License-Identifier: Apache-2.0
//! A router between tokentap and the engines: the fake behaves like sglang-router 0.3.2.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tokentap::engine::capabilities::{Capabilities, StreamMode};
use tokentap::engine::engines::EngineSource;

use crate::support::binary::{Binary, output};
use crate::support::client::{Connection, get, post, request, written};
use crate::support::manual_upstream::soon;
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, FakeReply, Router, Upstream, UpstreamRequest, json_message};

/// An engine with incremental streams that accepts aborts.
async fn engine() -> Upstream {
    with(EngineProfile { streaming: "incremental", tokenizes: true, ..EngineProfile::default() }).await
}

async fn with(profile: EngineProfile) -> Upstream {
    Upstream::start(profile, answer).await
}

fn answer(asked: &UpstreamRequest) -> FakeReply {
    match asked.path.as_str() {
        "/tokenize" => json_message(200, br#"{"tokens":[7]}"#),
        _ => json_message(200, b"{}"),
    }
}

/// A router that never answers a generation, and drops the fields for flat logprobs.
async fn router(router: Router) -> Upstream {
    let profile = EngineProfile { flat: false, router: Some(router), ..EngineProfile::default() };
    Upstream::start(profile, |asked| {
        // the stream of the probe, which does not show the mode
        let probing = asked.json()["input_ids"] == json!([10, 11, 12]);
        if probing { json_message(200, b"{}") } else { FakeReply::Silence }
    })
    .await
}

/// The ids of the aborts that an engine received.
fn aborted(engine: &Upstream) -> Vec<Value> {
    let asked = engine.asked();
    asked.iter().filter(|asked| asked.path == "/abort_request").map(|asked| asked.json()["rid"].clone()).collect()
}

/// Starts a generation, which stays in flight.
async fn generating(addr: SocketAddr, router: &Upstream, rid: &str) -> Connection {
    let mut client = Connection::open(addr).await;
    let body = json!({"input_ids": [1], "rid": rid}).to_string();
    let key = [("authorization", "Bearer client")];
    client.send(&written(addr, "POST", "/generate", &key, body.as_bytes())).await;
    let arrived = async {
        while !router.generations().iter().any(|body| body["rid"] == rid) {
            tokio::task::yield_now().await;
        }
    };
    soon("the generation is at the router", arrived).await;
    client
}

async fn aborts_sent(proxy: &Proxy, count: f64) {
    let name = "tokentap_aborts_sent_total";
    soon("the aborts are counted", async { while proxy.metric(name).await != count {} }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnect_aborts_the_request_at_every_worker() {
    let engines = [engine().await, engine().await];
    let router = router(Router::of(&[engines[0].addr, engines[1].addr])).await;
    let proxy = Proxy::probed(router.addr, &[]).await;
    let client = generating(proxy.data, &router, "r-1").await;
    drop(client);
    aborts_sent(&proxy, 1.0).await;
    for engine in &engines {
        assert_eq!(aborted(engine), ["r-1"]);
        let signed = engine.asked().into_iter().find(|asked| asked.path == "/abort_request").unwrap();
        assert_eq!(signed.header("authorization"), Some("Bearer client"));
    }
}

/// An engine that answers nothing while `silent` is set.
async fn silenced(silent: &Arc<AtomicBool>) -> Upstream {
    let silent = Arc::clone(silent);
    let script = move |asked: &UpstreamRequest| {
        if silent.load(Ordering::Relaxed) {
            return FakeReply::Silence;
        }
        let profile = EngineProfile { streaming: "incremental", ..EngineProfile::default() };
        profile.answer(asked).unwrap_or_else(|| answer(asked))
    };
    Upstream::start(EngineProfile { answers_probe: false, ..EngineProfile::default() }, script).await
}

async fn until_ready(proxy: &Proxy) {
    let ready = async {
        while get(proxy.control, "/readyz").await.status != 200 {
            tokio::task::yield_now().await;
        }
    };
    soon("tokentap is ready", ready).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hung_worker_does_not_delay_readiness() {
    let hung = silenced(&Arc::new(AtomicBool::new(true))).await;
    let workers = [hung.addr, engine().await.addr];
    let listed = router(Router::of(&workers)).await;
    // a router that does not list its workers; `--engine` names them
    let unlisted = router(Router { first: Some(hung.addr), ..Router::default() }).await;
    let urls = format!("http://{},http://{}", workers[0], workers[1]);
    for (router, flags) in [(listed, &[][..]), (unlisted, &["--engine", &urls][..])] {
        let proxy = Proxy::start(router.addr, flags).await;
        until_ready(&proxy).await;
        let notes = proxy.parts.upstream.borrow().notes.join(" ");
        assert!(notes.contains(&hung.addr.to_string()), "{flags:?}: the hung worker is named: {notes}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn late_worker_is_probed_and_a_hung_worker_starts_no_epoch() {
    let silent = Arc::new(AtomicBool::new(true));
    let late = silenced(&silent).await;
    let workers = [late.addr, engine().await.addr];
    let listed = Router::of(&workers);
    let list = listed.workers.clone().unwrap();
    let router = router(listed).await;
    let proxy = Proxy::start(router.addr, &[]).await;
    until_ready(&proxy).await;
    let named = |found: &Capabilities| found.notes.iter().any(|note| note.contains(&workers[0].to_string()));
    silent.store(false, Ordering::Relaxed);
    soon("the worker is probed", proxy.until(|found| !named(found) && found.original_logprobs.is_some())).await;
    let epoch = async || get(proxy.control, "/v1/policy").await.json()["epoch"].as_u64().unwrap();
    let before = epoch().await;
    silent.store(true, Ordering::Relaxed);
    let joined = engine().await;
    list.lock().push(joined.addr);
    soon("the worker is unreachable", proxy.until(named)).await;
    assert_eq!((get(proxy.control, "/readyz").await.status, epoch().await), (200, before));
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_that_does_not_generate_does_not_block_the_probe() {
    let profile = EngineProfile { streaming: "incremental", ..EngineProfile::default() };
    let paused = Upstream::start(EngineProfile { answers_probe: false, ..EngineProfile::default() }, move |asked| {
        let answer = profile.answer(asked).filter(|_| asked.path != "/generate");
        answer.unwrap_or(FakeReply::Silence)
    });
    let paused = paused.await;
    let router = router(Router::of(&[engine().await.addr, paused.addr])).await;
    let proxy = Proxy::start(router.addr, &[]).await;
    soon("the other worker is probed", proxy.until(|found| found.original_logprobs.is_some())).await;
    let notes = proxy.parts.upstream.borrow().notes.join(" ");
    assert!(notes.contains(&format!("http://{} did not answer the probe in time", paused.addr)), "{notes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn configured_engines_receive_the_aborts() {
    let engines = [engine().await, engine().await];
    let router = router(Router::default()).await;
    let urls = format!("http://{},http://{}/", engines[0].addr, engines[1].addr);
    let proxy = Proxy::probed(router.addr, &["--engine", &urls]).await;
    assert_eq!(proxy.parts.engines.current().source, EngineSource::Flag);
    drop(generating(proxy.data, &router, "r-1").await);
    aborts_sent(&proxy, 1.0).await;
    assert!(engines.iter().all(|engine| aborted(engine) == ["r-1"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn client_aborts_go_to_every_worker() {
    let engines = [engine().await, engine().await];
    let router = router(Router::of(&[engines[0].addr, engines[1].addr])).await;
    let proxy = Proxy::probed(router.addr, &["--allow-control"]).await;
    let all = br#"{"abort_all":true}"#;
    assert_eq!(post(proxy.control, "/abort_request", all).await.status, 200);
    assert_eq!(post(proxy.data, "/abort_request", all).await.status, 200);
    for engine in &engines {
        let bodies: Vec<Value> = engine.asked().iter().map(UpstreamRequest::json).collect();
        assert_eq!(bodies, [json!({"abort_all": true}), json!({"abort_all": true})]);
    }
    let proxy = Proxy::probed(router.addr, &[]).await;
    let _client = generating(proxy.data, &router, "agent-1").await;
    let answer = post(proxy.data, "/abort_request", br#"{"rid":"agent-1"}"#).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(engines.iter().all(|engine| aborted(engine).last() == Some(&json!("agent-1"))));
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_that_rejects_an_abort_is_named() {
    let open = engine().await;
    let locked = Upstream::start(EngineProfile::default(), |_| json_message(401, b"{}")).await;
    let router = router(Router::of(&[open.addr, locked.addr])).await;
    let proxy = Proxy::probed(router.addr, &[]).await;
    let answer = post(proxy.control, "/abort_request", br#"{"rid":"x"}"#).await;
    assert_eq!(answer.status, 401);
    let text = answer.text();
    assert!(text.contains(&locked.addr.to_string()) && text.contains("--upstream-admin-key"), "{text}");
    assert!(!text.contains(&open.addr.to_string()), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn router_without_workers_logs_lost_aborts_once() {
    let router = router(Router::default()).await;
    let mut binary = Binary::with_flags(router.addr, &[]).await;
    for rid in ["r-1", "r-2"] {
        drop(generating(binary.data, &router, rid).await);
    }
    let left = async {
        while !get(binary.control, "/metrics").await.text().contains("tokentap_client_disconnects_total 2") {}
    };
    soon("both disconnects", left).await;
    // shutdown waits for pending aborts
    binary.terminate();
    binary.logged("drained").await;
    let lines: Vec<String> = binary.skipped_lines.iter().map(ToString::to_string).collect();
    let abort_lines: Vec<&String> = lines.iter().filter(|line| line.contains("abort")).collect();
    assert_eq!(abort_lines.len(), 1, "{abort_lines:#?}");
    assert!(abort_lines[0].contains("--engine") && !abort_lines[0].contains("admin"), "{abort_lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn abort_of_an_unknown_request_at_a_tokentap_worker_is_404() {
    let engine = engine().await;
    let workers = [Proxy::probed(engine.addr, &[]).await, Proxy::probed(engine.addr, &[]).await];
    let router = router(Router::of(&[workers[0].data, workers[1].data])).await;
    let mut binary = Binary::with_flags(router.addr, &[]).await;
    drop(generating(binary.data, &router, "r-1").await);
    let left = async {
        while !get(binary.control, "/metrics").await.text().contains("tokentap_client_disconnects_total 1") {}
    };
    soon("the disconnect", left).await;
    let refused = post(binary.control, "/abort_request", br#"{"rid":"r-1"}"#).await;
    assert!(refused.status == 404 && refused.text().contains("does not run this request"), "{}", refused.text());
    binary.terminate();
    binary.logged("drained").await;
    let requests = |line: &&Value| line["message"] == "request";
    let lines: Vec<String> =
        binary.skipped_lines.iter().filter(|line| !requests(line)).map(ToString::to_string).collect();
    assert!(!lines.iter().any(|line| line.contains("abort")), "{lines:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn capabilities_are_probed_at_the_engines() {
    let mut info = json!({"version": "0.5.23", "context_length": 2048, "tool_call_parser": "qwen25"});
    info["enable_return_routed_experts"] = json!(true);
    let profile = || EngineProfile {
        streaming: "incremental",
        server_info: info.clone(),
        masks: true,
        ..EngineProfile::default()
    };
    let engines = [with(profile()).await, with(profile()).await];
    let router = router(Router::of(&[engines[0].addr, engines[1].addr])).await;
    let proxy = Proxy::probed(router.addr, &[]).await;
    let found = proxy.parts.upstream.borrow().clone();
    assert_eq!((found.version.as_deref(), found.streaming), (Some("0.5.23"), Some(StreamMode::Incremental)));
    assert_eq!((found.vocab_size, found.chat.tool_call_parser.as_deref()), (Some(151_936), Some("qwen25")));
    assert!(!found.flat, "the router drops the fields for flat base64");
    assert_eq!(found.sampling_mask, None, "and the field for the sampling mask");
    assert_eq!(found.dropped[1..], ["return_sampling_mask", "return_routed_experts"]);
    assert!(found.notes.iter().any(|note| note.contains("the router drops fields")), "{:?}", found.notes);
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_that_the_router_drops_are_not_requested() {
    let info = json!({"version": "0.5.23", "enable_return_routed_experts": true});
    let engine = with(EngineProfile { masks: true, server_info: info, ..EngineProfile::default() }).await;
    for returns_experts in [false, true] {
        let listed = Some(Router::of(&[engine.addr]));
        let profile = EngineProfile { flat: false, router: listed, returns_experts, ..EngineProfile::default() };
        let router = Upstream::start(profile, crate::support::engine::answer).await;
        let proxy = Proxy::probed(router.addr, &["--columns", "routed_experts,sampling_mask"]).await;
        let body = br#"{"input_ids":[7],"sampling_params":{"top_k":5}}"#;
        let answer = request(proxy.data, "POST", "/generate", &[("x-session-id", "s")], body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let sent = router.generations().pop().unwrap();
        assert_eq!(sent["return_routed_experts"], if returns_experts { json!(true) } else { Value::Null }, "{sent}");
        let metrics = get(proxy.control, "/metrics").await.text();
        for (column, is_dropped) in [("routed_experts", !returns_experts), ("sampling_mask", true)] {
            let line = format!("tokentap_missing_columns_total{{column=\"{column}\",reason=\"dropped_by_router\"}} 1");
            assert_eq!(metrics.contains(&line), is_dropped, "{column}, {returns_experts}: {metrics}");
        }
        let text = check(router.addr, &["--columns", "routed_experts,sampling_mask", "--moe-shape", "2x2x4"]).await;
        let line = "warn  column       routed_experts: the router drops return_routed_experts";
        assert_eq!(text.contains(line), !returns_experts, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn differing_engines_leave_a_capability_unknown() {
    let engines = [engine().await, with(EngineProfile::default()).await];
    let router = router(Router::of(&[engines[0].addr, engines[1].addr])).await;
    let proxy = Proxy::probed(router.addr, &[]).await;
    let found = proxy.parts.upstream.borrow().clone();
    assert_eq!((found.streaming, found.vocab_size), (None, Some(151_936)));
    assert!(found.notes.iter().any(|note| note.contains("differ in the form of their streams")), "{:?}", found.notes);
}

#[tokio::test(flavor = "multi_thread")]
async fn router_without_workers_leaves_the_stream_mode_unknown() {
    let router = router(Router::default()).await;
    let proxy = Proxy::probed(router.addr, &[]).await;
    assert_eq!(proxy.parts.upstream.borrow().streaming, None);
    assert_eq!(proxy.parts.engines.current().source, EngineSource::Unlisted);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_worker_is_probed_and_receives_aborts() {
    let first = engine().await;
    let later = with(EngineProfile::default()).await;
    let listed = Router::of(&[first.addr]);
    let workers = listed.workers.clone().unwrap();
    let router = router(listed).await;
    let proxy = Proxy::probed(router.addr, &[]).await;
    assert_eq!(proxy.parts.upstream.borrow().streaming, Some(StreamMode::Incremental));
    workers.lock().push(later.addr);
    proxy.until(|found| found.streaming.is_none() && found.original_logprobs.is_some()).await;
    drop(generating(proxy.data, &router, "r-1").await);
    aborts_sent(&proxy, 1.0).await;
    assert_eq!((aborted(&first), aborted(&later)), (vec![json!("r-1")], vec![json!("r-1")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_are_tokenized_at_an_engine() {
    let engine = engine().await;
    let profile = EngineProfile { flat: false, router: Some(Router::of(&[engine.addr])), ..EngineProfile::default() };
    let router = Upstream::start(profile, crate::support::engine::answer).await;
    let proxy = Proxy::probed(router.addr, &[]).await;
    let answer = request(proxy.data, "POST", "/generate", &[("x-session-id", "s")], br#"{"text":"a"}"#).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(engine.asked().iter().any(|asked| asked.path == "/tokenize" && asked.json()["prompt"] == "a"));
}

async fn check(upstream: SocketAddr, flags: &[&str]) -> String {
    let url = format!("http://{upstream}");
    let args: Vec<&str> = ["check", "--upstream", &url].into_iter().chain(flags.iter().copied()).collect();
    String::from_utf8(output(&args).await.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn check_reports_the_limits_of_a_router() {
    let profile = || EngineProfile {
        streaming: "incremental",
        server_info: json!({"version": "0.5.23"}),
        tokenizes: true,
        ..EngineProfile::default()
    };
    let engines = [with(profile()).await, with(profile()).await];
    let router = router(Router::of(&[engines[0].addr, engines[1].addr])).await;
    let text = check(router.addr, &[]).await;
    for line in [
        "warn  upstream",
        "ok    engines      2 from its /workers: ",
        "ok    streams      incremental",
        "warn  top-k form   nested JSON only",
        "ok    aborts",
        "ok    prompts      the ids of text prompts come from /tokenize",
        "warn  weights      weight_version default: an update is recognised only if it sets weight_version",
        "the router drops fields that its engines answer: return_flat_raw_top_logprobs_b64",
    ] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
    let opaque = crate::router::router(Router::default()).await;
    let text = check(opaque.addr, &[]).await;
    for line in [
        "is a router that does not name its engines",
        "warn  engines      unknown; name each with --engine URL",
        "warn  streams      mode unknown",
        "warn  aborts       no /abort_request",
        "warn  prompts",
    ] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
    assert!(!text.contains("cumulative") && !text.contains("admin-key"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn abort_succeeds_if_one_worker_accepts_it() {
    let open = engine().await;
    let elsewhere = Upstream::start(EngineProfile::default(), |_| json_message(404, b"{}")).await;
    let router = router(Router::of(&[open.addr, elsewhere.addr])).await;
    let proxy = Proxy::probed(router.addr, &[]).await;
    assert_eq!(post(proxy.control, "/abort_request", br#"{"rid":"x"}"#).await.status, 200);
    assert_eq!(aborted(&open), ["x"]);
}

/// The routing key that the upstream gets with a generation.
async fn routing_key(proxy: &Proxy, upstream: &Upstream, path: &str, headers: &[(&str, &str)]) -> Option<String> {
    let before = upstream.generations().len();
    let mut client = Connection::open(proxy.data).await;
    client.send(&written(proxy.data, "POST", path, headers, br#"{"input_ids":[1]}"#)).await;
    let arrived = async {
        while upstream.generations().len() == before {
            tokio::task::yield_now().await;
        }
    };
    soon("the generation arrives", arrived).await;
    let asked = upstream.asked().into_iter().rfind(|asked| asked.path == "/generate").unwrap();
    asked.header("x-smg-routing-key").map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_named_session_have_one_routing_key() {
    let listed = router(Router::of(&[engine().await.addr])).await;
    let proxy = Proxy::probed(listed.addr, &[]).await;
    let by_path = routing_key(&proxy, &listed, "/sessions/run-1/generate", &[]).await.unwrap();
    // the first half of SHA-256 of `run-1`, as sha256sum prints it
    assert_eq!(by_path, "4e65d3fbe8ad6535681b021b30785b12");
    let by_header = routing_key(&proxy, &listed, "/generate", &[("x-session-id", "run-1")]).await;
    assert_eq!(by_header, Some(by_path.clone()));
    assert_ne!(routing_key(&proxy, &listed, "/sessions/run-2/generate", &[]).await, Some(by_path));
    assert_eq!(routing_key(&proxy, &listed, "/generate", &[]).await, None, "the session has no name");
    let own = [("x-smg-routing-key", "mine")];
    assert_eq!(routing_key(&proxy, &listed, "/sessions/run-1/generate", &own).await.as_deref(), Some("mine"));
    let off = Proxy::probed(listed.addr, &["--routing-key", "off"]).await;
    assert_eq!(routing_key(&off, &listed, "/sessions/run-1/generate", &[]).await, None);
    let single = engine().await;
    for (flags, is_sent) in [(&[][..], false), (&["--routing-key", "always"][..], true)] {
        let proxy = Proxy::probed(single.addr, flags).await;
        assert_eq!(routing_key(&proxy, &single, "/sessions/run-1/generate", &[]).await.is_some(), is_sent, "{flags:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn admin_key_is_not_sent_to_discovered_workers() {
    let worker = engine().await;
    let router = router(Router::of(&[worker.addr])).await;
    let flags = ["--upstream-api-key", "api", "--upstream-admin-key", "admin"];
    let proxy = Proxy::probed(router.addr, &flags).await;
    drop(generating(proxy.data, &router, "r-1").await);
    aborts_sent(&proxy, 1.0).await;
    let signed = worker.asked().into_iter().find(|asked| asked.path == "/abort_request").unwrap();
    assert_eq!(signed.header("authorization"), Some("Bearer api"));
}

#[tokio::test(flavor = "multi_thread")]
async fn abort_without_a_key_gets_none_for_a_worker() {
    let worker = engine().await;
    let router = router(Router::of(&[worker.addr])).await;
    let proxy = Proxy::probed(router.addr, &["--upstream-api-key", "api"]).await;
    let _client = generating(proxy.data, &router, "r-1").await;
    assert_eq!(post(proxy.data, "/abort_request", br#"{"rid":"r-1"}"#).await.status, 200);
    let sent = worker.asked().into_iter().find(|asked| asked.path == "/abort_request").unwrap();
    assert_eq!(sent.header("authorization"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn router_with_server_errors_is_unready_although_its_engines_answer() {
    let engine = engine().await;
    let fake = Router::of(&[engine.addr]);
    let fails = Arc::clone(&fake.fails);
    let router = router(fake).await;
    let proxy = Proxy::probed(router.addr, &[]).await;
    let status = async |expected: u16| {
        soon("readiness follows the router", async { while get(proxy.control, "/readyz").await.status != expected {} })
            .await;
    };
    status(200).await;
    fails.store(true, Ordering::Relaxed);
    status(503).await;
    fails.store(false, Ordering::Relaxed);
    status(200).await;
}

/// The reply to a prompt of one id, from the engine of that id.
fn sampled(asked: &UpstreamRequest, spans: bool) -> FakeReply {
    let body = asked.json();
    let label = if body["input_ids"] == json!([1]) { "default" } else { "new" };
    let mut meta = json!({
        "id": body["rid"], "finish_reason": {"type": "length", "length": 1}, "prompt_tokens": 1, "completion_tokens": 1,
        "weight_version": label, "output_token_logprobs": [[-0.5, 7, null]],
    });
    if spans {
        meta["weight_versions"] = json!([{"version": label, "start": 0, "end": 1}]);
    }
    json_message(200, json!({"text": "x", "output_ids": [7], "meta_info": meta}).to_string().as_bytes())
}

/// The policy of the only turn of each session, after requests to alternating engines.
async fn alternating(spans: bool) -> Vec<Value> {
    let engines = [engine().await, engine().await];
    let listed = Router::of(&[engines[0].addr, engines[1].addr]);
    let profile = EngineProfile { flat: false, router: Some(listed), ..EngineProfile::default() };
    let router = Upstream::start(profile, move |asked| sampled(asked, spans)).await;
    let proxy = Proxy::probed(router.addr, &["--entropy", "off"]).await;
    let mut policies = Vec::new();
    for (session, engine) in [1, 2, 1, 2].into_iter().enumerate() {
        let body = json!({"input_ids": [engine], "return_logprob": true}).to_string();
        let path = format!("/sessions/s{session}/generate");
        assert_eq!(post(proxy.data, &path, body.as_bytes()).await.status, 200);
        let rows = get(proxy.control, &format!("/v1/sessions/s{session}/trajectories")).await.json();
        policies.push(rows["trajectories"][0]["policy"][0].clone());
    }
    policies
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_with_different_weights_alternate_between_two_epochs() {
    let policies = alternating(true).await;
    let epochs: Vec<_> = policies.iter().map(|span| (span["epoch"].clone(), span["weight_version"].clone())).collect();
    let first = policies[0]["epoch"].as_u64().unwrap();
    let (old, new) = ((json!(first), json!("default")), (json!(first + 1), json!("new")));
    assert_eq!(epochs, [old.clone(), new.clone(), old, new]);
    assert!(policies.iter().all(|span| span["until"] == Value::Null), "all are certain: {policies:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_spans_a_turn_may_belong_to_the_weights_of_any_engine() {
    let policies = alternating(false).await;
    let first = policies[0]["epoch"].as_u64().unwrap();
    let ranges: Vec<_> = policies.iter().map(|span| (span["epoch"].clone(), span["until"].clone())).collect();
    let either = (json!(first), json!(first + 1));
    assert_eq!(ranges, [(json!(first), Value::Null), either.clone(), either.clone(), either]);
}
