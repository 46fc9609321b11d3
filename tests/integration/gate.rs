// SPDX-License-Identifier: Apache-2.0
//! Restrictions on agents that share an engine.

use serde_json::json;
use tonic::Code;

use crate::grpc::client::generate as grpc;
use crate::support::client::{Connection, post, request, written};
use crate::support::manual_upstream::{END, ManualUpstream, STREAM, chunk, event, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::message;

async fn start(flags: &[&str]) -> (ManualUpstream, Proxy) {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, flags).await;
    (upstream, proxy)
}

#[tokio::test(flavor = "multi_thread")]
async fn control_routes_return_403_on_the_data_port() {
    let (mut upstream, proxy) = start(&[]).await;
    let paths = [
        "/update_weights_from_disk",
        "/update_weight_version?x=1",
        "/%66lush_cache",
        "/flush_cache/",
        "/flush_cache%0a",
        "/flush_cache%0A?x=1",
        "//flush_cache",
        "/x/..//flush_cache",
        "/sessions/s/pause_generation",
        "/sessions/s/%63ontinue_generation",
        "/set_internal_state",
        "/load_lora_adapter",
        "/release_memory_occupation",
        "/start_profile",
        "/stop_anything_new",
        "/hicache/storage-backend",
        "/configure_logging",
    ];
    for path in paths {
        for method in ["POST", "GET", "PUT"] {
            let answer = request(proxy.data, method, path, &[], b"{}").await;
            assert_eq!(answer.status, 403, "{method} {path}");
            let text = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(text.contains("control port") && text.contains("--allow-control"), "{text}");
        }
    }
    assert!(!upstream.has_more(), "nothing reached the engine");
    for (port, path) in [(proxy.control, "/flush_cache"), (proxy.data, "/start"), (proxy.data, "/flush_caches")] {
        let asking = tokio::spawn(post(port, path, b"{}"));
        upstream.next().await.ok().await;
        assert_eq!(asking.await.unwrap().status, 200, "{path}");
    }
    let (mut upstream, proxy) = start(&["--allow-control"]).await;
    let asking = tokio::spawn(post(proxy.data, "/flush_cache", b"{}"));
    upstream.next().await.ok().await;
    assert_eq!(asking.await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_may_abort_a_running_request_by_its_exact_id() {
    let (mut upstream, proxy) = start(&[]).await;
    let mut running = Vec::new();
    for rid in ["job-1", "job-10", "job-2"] {
        let body = json!({"text": "a", "rid": rid, "stream": true}).to_string();
        let client = tokio::spawn(async move { post(proxy.data, "/generate", body.as_bytes()).await });
        let mut call = upstream.next().await;
        call.send(STREAM).await;
        call.send(&event(rid, 0)).await;
        running.push((client, call));
    }
    let refused = [
        (r#"{"rid": "job-1"}"#, 403, "begin with"),
        (r#"{"rid": "job"}"#, 404, "no request with the id"),
        (r#"{"rid": "job-3"}"#, 404, "no request with the id"),
        (r#"{"rid": ""}"#, 403, "without an id"),
        ("{}", 403, "without an id"),
        (r#"{"rid": null}"#, 403, "without an id"),
        (r#"{"rid": "job-2", "abort_all": true}"#, 403, "all requests"),
        (r#"{"rid": "job-2", "rid": ""}"#, 400, "duplicate"),
        (r#"{"rid": ["job-2", ""]}"#, 400, "expected a string"),
        ("", 400, "the body"),
    ];
    for (body, status, words) in refused {
        let answer = post(proxy.data, "/abort_request", body.as_bytes()).await;
        assert_eq!(answer.status, status, "{body}: {}", answer.text());
        assert!(answer.text().contains(words), "{body}: {}", answer.text());
    }
    for (method, path) in
        [("GET", "/abort_request"), ("DELETE", "/abort_request"), ("PUT", "/sessions/s/abort_request")]
    {
        let answer = request(proxy.data, method, path, &[], br#"{"rid": "job-2"}"#).await;
        assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")), "{method}: {}", answer.text());
    }
    assert!(!upstream.has_more(), "nothing reached the engine");
    for path in ["/abort_request", "/sessions/s/%61bort_request"] {
        let asking = tokio::spawn(post(proxy.data, path, br#"{"abort_all": false, "more": 1, "rid": "job-2"}"#));
        let call = upstream.next().await;
        assert_eq!(call.json(), json!({"rid": "job-2"}), "and nothing else");
        call.ok().await;
        assert_eq!(asking.await.unwrap().status, 200);
    }
    for (client, mut call) in running {
        call.send(&chunk(b"data: [DONE]\n\n")).await;
        call.reply(END).await;
        assert_eq!(client.await.unwrap().status, 200);
    }
    assert_eq!(post(proxy.data, "/abort_request", br#"{"rid": "job-2"}"#).await.status, 404, "it has ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn short_ids_are_not_aborted_while_unknown_ids_run() {
    let (mut upstream, proxy) = start(&[]).await;
    let whole = "0123456789abcdef0123456789abcdef";
    // the engine's own ids are hexadecimal; ids of chats and of headers are arbitrary
    for (path, headers, body, hides_any) in [
        ("/v1/chat/completions", &[][..], json!({"messages": []}), true),
        ("/generate", &[("x-override-rid", "job-10")], json!({"text": "a"}), true),
        ("/generate", &[], json!({"text": "a", "sampling_params": {"n": 2}}), false),
    ] {
        let unknown = body.to_string();
        let unknown = tokio::spawn(async move { request(proxy.data, "POST", path, headers, unknown.as_bytes()).await });
        let theirs = upstream.next().await;
        for (rid, aborts) in [("c", false), ("job", !hides_any), (whole, true)] {
            let body = json!({"text": "a", "rid": rid, "stream": true}).to_string();
            let mut client = Connection::open(proxy.data).await;
            client.send(&written(proxy.data, "POST", "/generate", &[], body.as_bytes())).await;
            let call = upstream.next().await;
            let asking = json!({"rid": rid}).to_string();
            let asking = tokio::spawn(async move { post(proxy.data, "/abort_request", asking.as_bytes()).await });
            if aborts {
                upstream.next().await.ok().await;
            }
            let answer = asking.await.unwrap();
            assert_eq!(answer.status, if aborts { 200 } else { 403 }, "{path}: {}", answer.text());
            // the same applies when its client leaves
            drop(client);
            call.closed().await;
            if aborts {
                let abort = upstream.next().await;
                assert_eq!(abort.aborted(), rid);
                abort.ok().await;
            }
        }
        assert!(!upstream.has_more(), "{path}: nothing else was aborted");
        theirs.ok().await;
        unknown.await.unwrap();
    }
    let body = json!({"text": "a", "rid": "c", "stream": true}).to_string();
    let mut client = Connection::open(proxy.data).await;
    client.send(&written(proxy.data, "POST", "/generate", &[], body.as_bytes())).await;
    let call = upstream.next().await;
    drop(client);
    call.closed().await;
    assert_eq!(upstream.next().await.aborted(), "c", "without other requests the id is aborted");
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_keys_are_hidden_from_agents() {
    let (mut upstream, proxy) = start(&["--upstream-api-key", "our-key"]).await;
    let info = r#"{"model_path":"m", "api_key": "k1","x":1e2,"internal_states":[{"admin_api_key":"k2"}]}"#;
    let json = [("content-type", "application/json"), ("etag", "\"1\"")];
    for path in [
        "/server_info",
        "/get_server_info",
        "/%73erver_info",
        "/server_info/",
        "/server_info%0a",
        "//server_info",
        "/%2fserver_info//",
        "/sessions/s/server_info",
        "/sessions/s//server_info",
    ] {
        let encodings = [("accept-encoding", "gzip"), ("accept", "application/json")];
        let asking = tokio::spawn(async move { request(proxy.data, "GET", path, &encodings, b"").await });
        let call = upstream.next().await;
        assert_eq!(call.asked.header("accept-encoding"), None, "a reply that is searched must not be compressed");
        call.reply(&message(200, &json, info.as_bytes())).await;
        let answer = asking.await.unwrap();
        assert_eq!(answer.text(), info.replace("\"k1\"", "null").replace("\"k2\"", "null"), "{path}");
        assert_eq!(answer.header("etag"), None);
    }
    for odd in [&b"{\"api_key\": \"k1\""[..], b"\x1f\x8b\x08", br#"{"arguments":"--api-key our-key"}"#] {
        let accept = [("accept", "application/json")];
        let asking = tokio::spawn(async move { request(proxy.data, "GET", "/server_info", &accept, b"").await });
        upstream.next().await.reply(&message(200, &json, odd)).await;
        let answer = asking.await.unwrap();
        assert_eq!(answer.status, 502);
        assert!(!answer.text().contains("k1") && !answer.text().contains("our-key"), "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_token_is_required_and_not_forwarded() {
    let flags = ["--agent-token", "agents", "--upstream-api-key", "engine", "--upstream-admin-key", "admin"];
    let (mut upstream, proxy) = start(&flags).await;
    let body = br#"{"text": "a", "rid": "mine"}"#;
    let wrong: [&[(&str, &str)]; 7] = [
        &[],
        &[("authorization", "Bearer agent")],
        &[("authorization", "Bearer agentss")],
        &[("authorization", "Bearer engine")],
        &[("authorization", "Basic agents")],
        &[("authorization", "agents")],
        &[("x-api-key", "")],
    ];
    for headers in wrong {
        for (method, path) in [("POST", "/generate"), ("GET", "/health"), ("OPTIONS", "/generate"), ("GET", "/nope")] {
            let answer = request(proxy.data, method, path, headers, body).await;
            assert_eq!(answer.status, 401, "{headers:?} {path}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
    }
    assert!(!upstream.has_more(), "nothing reached the engine");
    for right in [("authorization", "bearer agents"), ("x-api-key", "agents")] {
        let asking = tokio::spawn(async move { request(proxy.data, "POST", "/generate", &[right], body).await });
        let call = upstream.next().await;
        assert_eq!(call.values("authorization"), ["Bearer engine"]);
        assert!(call.values("x-api-key").is_empty());
        let abort = [right];
        let aborting =
            tokio::spawn(
                async move { request(proxy.data, "POST", "/abort_request", &abort, br#"{"rid":"mine"}"#).await },
            );
        let abort = upstream.next().await;
        assert_eq!(abort.values("authorization"), ["Bearer admin"], "tokentap knows the owner of the id");
        abort.ok().await;
        assert_eq!(aborting.await.unwrap().status, 200);
        call.ok().await;
        assert_eq!(asking.await.unwrap().status, 200);
    }
    let mut client = grpc(proxy.data).await;
    let message = || tokentap::serve::grpc::pb::GenerateRequest {
        json: (&br#"{"text":"a"}"#[..]).into(),
        session: String::new(),
    };
    let denied = soon("an answer", client.generate(message())).await.unwrap_err();
    assert_eq!(denied.code(), Code::Unauthenticated);
    let mut signed = tonic::Request::new(message());
    signed.metadata_mut().insert("authorization", "Bearer agents".parse().unwrap());
    let asking = tokio::spawn(async move { client.generate(signed).await });
    let call = upstream.next().await;
    assert_eq!(call.values("authorization"), ["Bearer engine"]);
    call.ok().await;
    assert!(asking.await.unwrap().is_ok());
}
