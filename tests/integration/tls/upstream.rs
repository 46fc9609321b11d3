// SPDX-License-Identifier: Apache-2.0
//! An engine behind TLS and below a path: a gateway with a certificate of the tests' authority in front of the demo engine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::json;
use tokentap::demo::{Engine, EngineOptions};
use tokentap::serve::connection::Phase;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use super::authority::{Authority, CertifiedKey};
use crate::support::client::{Connection, get, post, request, written};
use crate::support::manual_upstream::soon;
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, FakeReply, Upstream, json_message, message};

/// The path below which the gateway serves the engine.
const BASE: &str = "/team-1/engine";

/// The limit of a stream that is ended by its client.
const LONG: u32 = 4000;

/// The first part of the reply to a request that is not below [`BASE`].
const LOST: &str = "the gateway has no such path";

/// A server with TLS that forwards requests below [`BASE`] to a server without it.
struct Gateway {
    addr: SocketAddr,
    log: Arc<GatewayLog>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct GatewayLog {
    handshakes: AtomicUsize,
    /// Path and `Authorization` of every request.
    asked: Mutex<Vec<(String, Option<String>)>>,
}

impl Gateway {
    async fn start(engine: SocketAddr, issued: &CertifiedKey) -> Self {
        let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![issued.der.clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let log: Arc<GatewayLog> = Arc::default();
        let logging = Arc::clone(&log);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, log) = (acceptor.clone(), Arc::clone(&logging));
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    log.handshakes.fetch_add(1, Ordering::Relaxed);
                    let service = service_fn(|request| forward(&log, engine, request));
                    // fails if tokentap has closed the connection
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { addr, log, task }
    }

    fn url(&self) -> String {
        format!("https://localhost:{}{BASE}", self.addr.port())
    }

    fn asked(&self) -> Vec<(String, Option<String>)> {
        self.log.asked.lock().clone()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Forwards a request on a new connection.
async fn forward(
    log: &GatewayLog,
    engine: SocketAddr,
    mut request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, hyper::Error>>, hyper::Error> {
    let key = request.headers().get("authorization").map(|key| key.to_str().unwrap().to_owned());
    let target = request.uri().path_and_query().unwrap().as_str().to_owned();
    log.asked.lock().push((target.clone(), key));
    let Some(target) = target.strip_prefix(BASE).filter(|target| target.starts_with('/')) else {
        let mut lost = Response::new(Empty::new().map_err(|never| match never {}).boxed());
        *lost.status_mut() = StatusCode::NOT_FOUND;
        lost.headers_mut().insert("x-lost", LOST.parse().unwrap());
        return Ok(lost);
    };
    *request.uri_mut() = target.parse().unwrap();
    let stream = TokioIo::new(TcpStream::connect(engine).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?.map(BodyExt::boxed))
}

/// The demo engine's own port.
async fn engine() -> (SocketAddr, watch::Sender<Phase>) {
    let (stop, stopped) = watch::channel(Phase::Serving);
    let (addr, _) = tokentap::cli::demo::engine(Engine::new(EngineOptions::default()), stopped).await.unwrap();
    (addr, stop)
}

async fn probed(url: &str, flags: &[&str]) -> Proxy {
    let proxy = Proxy::at(url, flags).await;
    soon("the probe ends", proxy.until(|found| found.original_logprobs.is_some())).await;
    proxy
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_behind_tls_and_a_base_path_serves_every_call() {
    let (authority, (direct, _stop)) = (Authority::new(), engine().await);
    let gateway = Gateway::start(direct, &authority.issue(2099)).await;
    let proxy = probed(&gateway.url(), &["--upstream-ca", &authority.ca()]).await;
    let body =
        json!({"text": "The lamp", "sampling_params": {"max_new_tokens": 6, "temperature": 0.8, "ignore_eos": true}});
    for _ in 0..20 {
        let reply = post(proxy.data, "/sessions/s/generate", body.to_string().as_bytes()).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.json()["meta_info"]["output_token_entropy"].as_array().unwrap().len(), 6, "{}", reply.text());
    }
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let events = post(proxy.data, "/generate", streamed.to_string().as_bytes()).await.events();
    assert_eq!(events.len(), 6, "{events:?}");
    let text = "The lamp is lit. ".repeat(5_000);
    let large = json!({"text": text}).to_string();
    let ids = post(proxy.data, "/tokenize", json!({"prompt": text}).to_string().as_bytes()).await;
    assert!(ids.status == 200 && ids.body.len() > 50_000, "a large request and a large reply: {}", ids.body.len());
    let refused = post(proxy.data, "/generate", large.as_bytes()).await;
    assert_eq!(refused.status, 400, "longer than the context of the engine: {}", refused.text());
    let own = get(direct, "/model_info").await.text();
    assert_eq!(get(proxy.data, "/model_info?x=%2F").await.text(), own, "another route is forwarded");
    let session = get(proxy.control, "/v1/sessions/s").await.json();
    assert_eq!(session["turns"], 20, "{session}");

    let mut client = Connection::open(proxy.data).await;
    let running = json!({"text": "The", "rid": "running", "stream": true,
        "sampling_params": {"max_new_tokens": LONG, "ignore_eos": true}});
    client.send(&written(proxy.data, "POST", "/generate", &[], running.to_string().as_bytes())).await;
    assert!(client.read_until(|read| read.ends_with(b"\n\n\r\n")).await, "the stream begins");
    drop(client);
    let abort = format!("{BASE}/abort_request");
    soon("the abort goes below the path", async {
        while !gateway.asked().iter().any(|(path, _)| *path == abort) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let asked = gateway.asked();
    assert!(asked.iter().all(|(path, _)| path.starts_with(&format!("{BASE}/"))), "{asked:?}");
    assert!(asked.iter().any(|(path, _)| *path == format!("{BASE}/model_info?x=%2F")), "{asked:?}");
    let handshakes = gateway.log.handshakes.load(Ordering::Relaxed);
    assert!(handshakes * 3 < asked.len(), "connections are used again: {handshakes} for {} requests", asked.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn aborts_reach_engines_behind_tls() {
    let (authority, (direct, _stop)) = (Authority::new(), engine().await);
    let gateway = Gateway::start(direct, &authority.issue(2099)).await;
    let engine = gateway.url();
    let flags = ["--engine", &engine, "--upstream-ca", &authority.ca()];
    let proxy = probed(&format!("http://{direct}"), &flags).await;
    let answer = post(proxy.control, "/abort_request", br#"{"rid":"any"}"#).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(gateway.asked().iter().any(|(path, _)| *path == format!("{BASE}/abort_request")), "{:?}", gateway.asked());
}

/// The error of a request with this `--upstream`.
async fn refusal(upstream: &str, ca: &str) -> String {
    let proxy = Proxy::at(upstream, &["--upstream-ca", ca, "limit:breaker-failures", "0"]).await;
    let answer = get(proxy.data, "/get_load").await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    answer.json()["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn error_of_a_refused_certificate_names_the_cause() {
    let (authority, (direct, _stop)) = (Authority::new(), engine().await);
    let other = Authority::new();
    let cases = [
        (authority.issue(2099), other.ca(), "was not issued by a CA in"),
        (authority.issue(2020), authority.ca(), "certificate expired"),
        (authority.issue_for(&["engine.example"], 2099), authority.ca(), "not valid for name \"localhost\""),
    ];
    for (issued, ca, cause) in cases {
        let gateway = Gateway::start(direct, &issued).await;
        let text = refusal(&gateway.url(), &ca).await;
        assert!(text.contains(&gateway.url()) && text.contains(cause), "{text}");
        assert_eq!(gateway.asked(), [], "no request is sent");
    }
    let text = refusal(&format!("https://{direct}"), &authority.ca()).await;
    assert!(text.contains("does not speak TLS"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn forwarded_upstream_key_is_for_requests_without_a_key() {
    let (authority, (direct, _stop)) = (Authority::new(), engine().await);
    let gateway = Gateway::start(direct, &authority.issue(2099)).await;
    let ca = authority.ca();
    for (flags, expected) in [(&["--forward-upstream-api-key"][..], Some("Bearer engine")), (&[], None)] {
        let flags = [&["--upstream-ca", &ca, "--upstream-api-key", "engine"], flags].concat();
        let proxy = probed(&gateway.url(), &flags).await;
        let before = gateway.asked().len();
        let keys: [&[(&str, &str)]; 3] = [&[], &[("authorization", "Bearer mine")], &[("x-api-key", "mine")]];
        for key in keys {
            for (method, path, body) in [("POST", "/generate", &br#"{"text":"a"}"#[..]), ("GET", "/get_load?mine", b"")]
            {
                request(proxy.data, method, path, key, body).await;
            }
        }
        let own = |path: &str| path.ends_with("/generate") || path.ends_with("?mine");
        let asked = gateway.asked().split_off(before);
        let sent: Vec<_> = asked.iter().filter(|(path, _)| own(path)).map(|(_, key)| key.as_deref()).collect();
        let mine = Some("Bearer mine");
        assert_eq!(sent, [expected, expected, mine, mine, mine, mine], "{flags:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_a_router_may_have_tls() {
    let (authority, (direct, _stop)) = (Authority::new(), engine().await);
    let gateway = Gateway::start(direct, &authority.issue(2099)).await;
    let worker = gateway.url();
    let profile = EngineProfile { answers_probe: false, ..EngineProfile::default() };
    let router = Upstream::start(profile, move |asked| {
        let listed = json!({"workers": [{"url": worker, "is_healthy": true}], "total": 1});
        match asked.path.as_str() {
            "/workers" => json_message(200, listed.to_string().as_bytes()),
            _ => FakeReply::Forward(direct),
        }
    })
    .await;
    let proxy = probed(&format!("http://{}", router.addr), &["--upstream-ca", &authority.ca()]).await;
    let answer = post(proxy.control, "/abort_request", br#"{"rid":"any"}"#).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(gateway.asked().iter().any(|(path, _)| *path == format!("{BASE}/abort_request")), "{:?}", gateway.asked());
}

#[tokio::test]
async fn redirect_of_an_engine_below_a_path_leads_to_tokentap() {
    let profile = EngineProfile { answers_probe: false, ..EngineProfile::default() };
    let upstream = Upstream::start(profile, |asked| {
        // an engine that knows its path, and one behind a proxy that removes it
        let below = if asked.path.contains("knows") { BASE } else { "" };
        let target = asked.path.strip_prefix(BASE).unwrap().trim_end_matches('/').to_owned();
        let location = format!("http://{}{below}{target}", asked.header("host").unwrap());
        FakeReply::KeepAlive(vec![message(307, &[("location", &location)], b"")])
    })
    .await;
    let proxy = Proxy::at(&format!("http://{}{BASE}/", upstream.addr), &[]).await;
    for path in ["/knows", "/other", "/sessions/run-1/knows"] {
        let reply = post(proxy.data, &format!("{path}/"), b"{}").await;
        assert_eq!((reply.status, reply.header("location")), (307, Some(path)));
    }
}
