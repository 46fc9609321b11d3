// SPDX-License-Identifier: Apache-2.0
//! Requests of both ports, HTTP and gRPC, in the metrics and in the access log.

use serde_json::json;
use tokentap::serve::grpc::pb::{ListRequest, Slice};
use tokio_stream::StreamExt;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tower::{Service, ServiceExt};

use crate::grpc::client::{channel, entropy, health, trajectories};
use crate::support::binary::Binary;
use crate::support::client::{Connection, get, post, request, written};
use crate::support::manual_upstream::{ManualUpstream, STREAM, chunk, soon};
use crate::support::proxy::Proxy;

/// The value of the request counter for this endpoint, method and status.
async fn request_count(proxy: &Proxy, endpoint: &str, method: &str, status: u16) -> f64 {
    let labels = format!("endpoint=\"{endpoint}\",method=\"{method}\",status_code=\"{status}\"");
    proxy.metric(&format!("tokentap_http_requests_total{{{labels}}}")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn control_requests_are_counted_by_route() {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    for (method, path, status, endpoint) in [
        ("GET", "/v1/sessions", 200, "/v1/sessions"),
        ("GET", "/v1/sessions/a%2Fb", 404, "/v1/sessions/{id}"),
        ("DELETE", "/v1/sessions/nobody", 404, "/v1/sessions/{id}"),
        ("GET", "/v1/sessions/nobody/paths/1", 404, "/v1/sessions/{id}/paths/{leaf}"),
        ("POST", "/v1/sessions/nobody/freeze", 404, "/v1/sessions/{id}/freeze"),
        ("GET", "/v1/requests/r/entropy", 404, "/v1/requests/{rid}/entropy"),
        ("POST", "/v1/samples", 400, "/v1/samples"),
        ("GET", "/v1/samples", 405, "/v1/samples"),
        ("GET", "/v1/policy", 200, "/v1/policy"),
        ("GET", "/livez", 200, "/livez"),
        ("GET", "/readyz", 200, "/readyz"),
        ("GET", "/", 200, "/page"),
        ("GET", "/page/main.js", 200, "/page"),
        ("GET", "/v1/sessions/a/b/c/d", 404, "other"),
        ("POST", "/generate", 404, "other"),
        ("POST", "/nobody", 404, "other"),
    ] {
        let before = request_count(&proxy, endpoint, method, status).await;
        assert_eq!(request(proxy.control, method, path, &[], b"").await.status, status, "{method} {path}");
        let counts = async { while request_count(&proxy, endpoint, method, status).await != before + 1.0 {} };
        soon(&format!("{method} {path} is counted as {endpoint}"), counts).await;
    }
    let foreign = request(proxy.control, "GET", "/v1/policy", &[("origin", "http://elsewhere")], b"").await;
    assert_eq!(foreign.status, 403);
    soon("a refused request is counted", async {
        while request_count(&proxy, "/v1/policy", "GET", 403).await != 1.0 {}
    })
    .await;
    let duration = "tokentap_request_duration_seconds_count{endpoint=\"/v1/policy\",is_streaming=\"false\"}";
    assert_eq!(proxy.metric(duration).await, 2.0);
    assert_eq!(proxy.metric("tokentap_http_requests_active{endpoint=\"/v1/policy\"}").await, 0.0);
    let text = get(proxy.control, "/metrics").await.text();
    assert!(!text.contains("tokentap_http_requests_active{endpoint=\"/metrics\"}"), "a scrape does not see itself");
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_calls_are_counted_by_method_with_the_http_status() {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    trajectories(proxy.control).await.list(ListRequest::default()).await.unwrap();
    let missing = tokentap::serve::grpc::pb::GetRequest { session: "nobody".to_owned(), ..Default::default() };
    assert_eq!(trajectories(proxy.control).await.get(missing).await.expect_err("no session").code(), Code::NotFound);
    let on_data =
        trajectories(proxy.data).await.list(ListRequest::default()).await.expect_err("the data port refuses it");
    assert_eq!(on_data.code(), Code::Unimplemented);
    // a call with an invalid slice fails after its response head
    let mut answers =
        entropy(proxy.data).await.compute(tokio_stream::once(Slice::default())).await.unwrap().into_inner();
    while let Some(answer) = answers.next().await {
        drop(answer);
    }
    health(proxy.control).await.check(HealthCheckRequest::default()).await.unwrap();
    for (endpoint, status) in [
        ("/tokentap.v1.Trajectories/List", 200),
        ("/tokentap.v1.Trajectories/Get", 404),
        ("/tokentap.v1.Trajectories/List", 501),
        ("/tokentap.v1.Entropy/Compute", 200),
        ("/grpc.health.v1.Health", 200),
    ] {
        let counts = async { while request_count(&proxy, endpoint, "POST", status).await != 1.0 {} };
        soon(&format!("{endpoint} is counted with {status}"), counts).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_call_with_two_hosts_is_refused() {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    for (addr, path) in
        [(proxy.data, "/tokentap.v1.Generate/Generate"), (proxy.control, "/tokentap.v1.Trajectories/List")]
    {
        let call = |hosts: &[&str]| {
            let mut call =
                http::Request::post(path).header("content-type", "application/grpc").header("te", "trailers");
            for host in hosts {
                call = call.header("host", *host);
            }
            call.body(tonic::body::Body::empty()).unwrap()
        };
        let mut channel = channel(addr).await;
        let reply = channel.ready().await.unwrap().call(call(&["a", "b"])).await.unwrap();
        assert_eq!(reply.headers()["grpc-status"], "3", "{path}: INVALID_ARGUMENT");
        assert_eq!(reply.headers()["tokentap-http-status"], "400", "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn control_requests_are_logged_and_probes_only_at_debug() {
    let upstream = ManualUpstream::start().await;
    let mut binary = Binary::with_flags(upstream.addr, &[]).await;
    get(binary.control, "/livez").await;
    get(binary.control, "/metrics").await;
    // as the page and `tokentap top` poll
    request(binary.control, "GET", "/v1/requests", &[("x-tokentap-viewer", "page")], b"").await;
    request(binary.control, "POST", "/v1/advantages", &[("x-tokentap-viewer", "page")], b"{}").await;
    post(binary.control, "/v1/samples", b"{}").await;
    trajectories(binary.control).await.list(ListRequest::default()).await.unwrap();
    let line = binary.logged("request").await;
    assert_eq!((&line["endpoint"], &line["method"]), (&"/v1/samples".into(), &"POST".into()), "{line}");
    assert!(line["status"].is_u64() && line["ms"].is_u64(), "{line}");
    let line = binary.logged("request").await;
    assert_eq!((&line["endpoint"], &line["status"]), (&"/tokentap.v1.Trajectories/List".into(), &200.into()), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reply_that_is_cut_is_logged_with_its_cause_and_tokens() {
    let mut upstream = ManualUpstream::streaming("true").await;
    let mut binary = Binary::with_flags(upstream.addr, &[]).await;
    let body = br#"{"text":"a","stream":true}"#;
    let tokens = |rid: &str| {
        let meta = json!({"id": rid, "finish_reason": null, "prompt_tokens": 3, "completion_tokens": 2});
        let event = json!({"text": "ab", "output_ids": [5, 6], "meta_info": meta});
        chunk(format!("data: {event}\n\n").as_bytes())
    };
    for cause in ["client", "error"] {
        let mut client = Connection::open(binary.data).await;
        client.send(&written(binary.data, "POST", "/generate", &[], body)).await;
        let mut call = upstream.next().await;
        let rid = call.json()["rid"].as_str().unwrap().to_owned();
        call.send(STREAM).await;
        call.send(&tokens(&rid)).await;
        // the ids in the head are hexadecimal
        assert!(
            client.read_until(|seen| seen.windows(6).any(|some| some == b"[5, 6]" || &some[..5] == b"[5,6]")).await
        );
        match cause {
            "client" => {
                drop(client);
                assert_eq!(upstream.next().await.aborted(), rid);
            }
            _ => call.reset(),
        }
        let line = binary.logged("request").await;
        let found = (&line["cut"], &line["tokens"], &line["status"]);
        assert_eq!(found, (&cause.into(), &2.into(), &200.into()), "{line}");
    }
    let read = get(binary.control, "/v1/policy").await;
    assert!(read.complete);
    let line = binary.logged("request").await;
    assert_eq!((&line["endpoint"], line.get("cut")), (&"/v1/policy".into(), None), "{line}");
}
