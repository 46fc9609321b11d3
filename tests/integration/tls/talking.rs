// SPDX-License-Identifier: Apache-2.0
//! Agents and trainers use the same protocols over TLS as without it.

use std::process::Command;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokentap::serve::grpc::pb::GenerateRequest;
use tokio_rustls::rustls::ProtocolVersion;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::authority::{Authority, Client, borrowed};
use crate::grpc::client::Generate;
use crate::support::engine::answer;
use crate::support::manual_upstream::soon;
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, Upstream};

const ASKED: &[u8] = br#"{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":4}}"#;

async fn proxy(authority: &Authority) -> Proxy {
    let upstream = Upstream::start(EngineProfile::default(), answer).await;
    Proxy::probed(upstream.addr, &borrowed(&authority.flags().0)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ports_serve_http_1_over_tls_1_2_and_1_3() {
    let authority = Authority::new();
    let proxy = proxy(&authority).await;
    for (version, spoken) in [(&TLS12, ProtocolVersion::TLSv1_2), (&TLS13, ProtocolVersion::TLSv1_3)] {
        for alpn in [vec!["http/1.1"], vec![]] {
            let client = Client { versions: vec![version], alpn: alpn.clone(), ..authority.client() };
            let stream = client.connect(proxy.data).await;
            assert_eq!(stream.get_ref().1.protocol_version(), Some(spoken));
            assert_eq!(stream.get_ref().1.alpn_protocol(), alpn.first().map(|name| name.as_bytes()));
            let reply = client.request(proxy.data, "POST", "/generate", ASKED).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            let entropies = reply.json()["meta_info"]["output_token_entropy"].as_array().unwrap().len();
            assert!(reply.complete && entropies == 4, "{}", reply.text());
        }
    }
    let client = authority.client();
    assert_eq!(client.request(proxy.control, "GET", "/livez", b"").await.text(), "ok\n");
    let page = client.request(proxy.control, "GET", "/", b"").await;
    assert!(page.status == 200 && !page.text().contains("http://"), "the page requests nothing over plain HTTP");
    let listed = client.request(proxy.control, "GET", "/v1/sessions", b"").await;
    assert_eq!(listed.json()["sessions"].as_array().unwrap().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_streamed_over_tls() {
    let authority = Authority::new();
    let proxy = proxy(&authority).await;
    let body = br#"{"input_ids":[1,2,3],"stream":true,"sampling_params":{"max_new_tokens":4}}"#;
    let reply = authority.client().request(proxy.data, "POST", "/generate", body).await;
    assert!(reply.complete, "it is complete");
    let events = reply.events();
    assert_eq!(events.len(), 4);
    assert_eq!(events[3]["meta_info"]["entropy_info"]["unit"], "nats");
}

#[tokio::test(flavor = "multi_thread")]
async fn http_2_is_negotiated_or_detected() {
    let authority = Authority::new();
    let proxy = proxy(&authority).await;
    for alpn in [vec!["h2", "http/1.1"], vec![]] {
        let stream = Client { alpn: alpn.clone(), ..authority.client() }.connect(proxy.data).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), alpn.first().map(|name| name.as_bytes()));
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::post(format!("https://{}/generate", proxy.data))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from_static(ASKED)))
            .unwrap();
        let reply = soon("an answer", sender.send_request(request)).await.unwrap();
        assert_eq!((reply.status().as_u16(), reply.version()), (200, http::Version::HTTP_2));
        let body = reply.into_body().collect().await.unwrap().to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["output_ids"], json!([10, 10, 10, 10]));
    }
    let odd = Client { alpn: vec!["acme-tls/1"], ..authority.client() };
    assert!(odd.try_connect(proxy.data).await.is_err(), "no other protocol is accepted");
}

async fn channel(authority: &Authority, addr: std::net::SocketAddr) -> tonic::transport::Channel {
    let client = Client { alpn: vec!["h2"], ..authority.client() };
    let connector = tower::service_fn(move |_: http::Uri| {
        let client = client.clone();
        async move { client.try_connect(addr).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_shared(format!("http://{addr}")).unwrap();
    endpoint.connect_with_connector(connector).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ports_serve_grpc_over_tls() {
    let authority = Authority::new();
    let proxy = proxy(&authority).await;
    let mut generate = Generate::new(channel(&authority, proxy.data).await);
    let request = GenerateRequest { json: Bytes::from_static(ASKED), session: "grpc".into() };
    let mut replies = soon("a reply", generate.generate(request)).await.unwrap().into_inner();
    let reply = soon("a message", replies.message()).await.unwrap().unwrap();
    let reply: serde_json::Value = serde_json::from_slice(&reply.json).unwrap();
    assert_eq!(reply["output_ids"], json!([10, 10, 10, 10]));
    assert!(replies.message().await.unwrap().is_none());
    let mut health = HealthClient::new(channel(&authority, proxy.control).await);
    let status = health.check(HealthCheckRequest::default()).await.unwrap().into_inner().status;
    assert_eq!(status, 1, "it serves");
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_accepts_the_connection() {
    let authority = Authority::new();
    let proxy = proxy(&authority).await;
    let curl = |args: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--max-time", "20", "--cacert", &authority.ca()]).args(args);
        tokio::task::spawn_blocking(move || command.output())
    };
    for version in ["--http1.1", "--http2"] {
        let url = format!("https://localhost:{}/livez", proxy.control.port());
        let resolve = format!("localhost:{}:127.0.0.1", proxy.control.port());
        let args = [version, "--write-out", "%{http_version}", "--resolve", &resolve, &url];
        let Ok(done) = curl(&args).await.unwrap() else { return };
        let output = String::from_utf8(done.stdout).unwrap();
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert_eq!(output, if version == "--http2" { "ok\n2" } else { "ok\n1.1" }, "{stderr}");
    }
}
