//! The control port: probes, metrics, the page, live entropy, and SGLang's own control routes, which is where trainers send them.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use serde_json::json;
use tower::Service;

use crate::generation::measure::number;
use crate::http::access::{self, Denied};
use crate::http::body::Body;
use crate::http::data::{self, Answer};
use crate::http::forward::forward;
use crate::http::{Parts, error_reply, json_reply, misdirected, page, sound, v1};
use crate::metrics::Metrics;
use crate::server::Phase;
use crate::sglang::routes::{self, Kind};
use crate::trajectory::log::{Health, Log};

/// The service of the control port.
#[derive(Debug, Clone)]
pub struct Control(pub Arc<Parts>);

impl Service<Request<Incoming>> for Control {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Answer {
        let parts = Arc::clone(&self.0);
        Box::pin(async move { Ok(answer(&parts, request).await) })
    }
}

async fn answer(parts: &Arc<Parts>, mut request: Request<Incoming>) -> Response<Body> {
    if let Err(error) = sound::check(&request) {
        let mut reply = error_reply(&error);
        if request.version() < http::Version::HTTP_2 {
            reply.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        return reply;
    }
    let path = request.uri().path().to_owned();
    let path = path.as_str();
    let read = matches!(*request.method(), Method::GET | Method::HEAD);
    match path {
        "/livez" if read => return text(StatusCode::OK, "ok\n".to_owned()),
        "/readyz" if read => return readyz(parts),
        "/metrics" | "/metrics/" if read => return metrics(parts, &request),
        _ => {}
    }
    if let Err(denied) = access::place(&parts.config, request.uri(), request.headers()) {
        return refuse(denied);
    }
    // what the page shows needs the token, the page itself is how it is asked for
    if let Some(reply) = page::serve(&request) {
        return reply;
    }
    if let Err(denied) = access::token(parts.config.keys.control_token.as_ref(), request.headers()) {
        return refuse(denied);
    }
    if let Err(error) = data::is_restored(parts) {
        return error_reply(&error);
    }
    let route = routes::route(path);
    if route.kind == Kind::Control {
        if parts.config.keys.control_token.is_some() {
            // the token opens this port and is nobody else's to know
            parts.client.sign(request.headers_mut());
        }
        return forward(parts, route, request, None).await.unwrap_or_else(|error| error_reply(&error));
    }
    if route.endpoint == "/detokenize" {
        // the page has ids and wants to show their text
        if parts.config.keys.control_token.is_some() {
            parts.client.sign_generation(request.headers_mut());
        }
        return forward(parts, route, request, None).await.unwrap_or_else(|error| error_reply(&error));
    }
    if let Some(rid) = path.strip_prefix("/v1/requests/").and_then(|rest| rest.strip_suffix("/entropy")) {
        return if read { entropy(parts, &request, rid) } else { v1::not_allowed(&[Method::GET]) };
    }
    let method = request.method().clone();
    let reply = match v1::serve(parts, request).await {
        None => misdirected::on_control(parts, &method, path, route),
        reply => reply,
    };
    reply.unwrap_or_else(|| problem(StatusCode::NOT_FOUND, "not_found", "there is no such route on the control port"))
}

fn text(status: StatusCode, body: String) -> Response<Body> {
    let mut reply = Response::new(Body::full(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    reply
}

fn problem(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    json_reply(status, json!({"error": {"code": code, "message": message}}).to_string().into_bytes())
}

fn refuse(denied: Denied) -> Response<Body> {
    let mut reply = problem(denied.status(), "denied", denied.message());
    if denied.status() == StatusCode::UNAUTHORIZED {
        reply.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    reply
}

fn readyz(parts: &Parts) -> Response<Body> {
    if *parts.phase.borrow() != Phase::Serving {
        return text(StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned());
    }
    if let Some(progress) = parts.sessions.restore_progress() {
        let (sessions, _) = parts.sessions.size();
        let body = format!("restoring: {} of {} bytes, {sessions} sessions\n", progress.read, progress.total);
        return text(StatusCode::SERVICE_UNAVAILABLE, body);
    }
    if parts.upstream.borrow().generates == Some(false) {
        let reason =
            format!("the engine at {} serves an embedding model and does not generate\n", parts.client.upstream());
        return text(StatusCode::SERVICE_UNAVAILABLE, reason);
    }
    if *parts.ready.borrow() {
        let chat = parts.chats.borrow().describe();
        text(StatusCode::OK, format!("ok\nchat completions {chat}\n"))
    } else {
        let waiting = format!("waiting for the SGLang server at {}\n", parts.client.upstream());
        text(StatusCode::SERVICE_UNAVAILABLE, waiting)
    }
}

fn metrics(parts: &Parts, request: &Request<Incoming>) -> Response<Body> {
    if let Err(denied) = access::token(parts.config.keys.metrics_token.as_ref(), request.headers()) {
        return refuse(denied);
    }
    parts.metrics.breaker_open.set(i64::from(parts.client.is_cut_off()));
    parts.metrics.bytes_in_flight.set(i64::try_from(parts.budget.taken()).unwrap_or(i64::MAX));
    parts.metrics.raise(&parts.metrics.shed.with_label_values(&["max_bytes"]), parts.budget.shed());
    let (entries, bytes) = parts.tools.store.size();
    parts.metrics.store_entries.set(i64::try_from(entries).unwrap_or(i64::MAX));
    parts.metrics.store_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    let (sessions, bytes) = parts.sessions.size();
    parts.metrics.sessions.set(i64::try_from(sessions).unwrap_or(i64::MAX));
    parts.metrics.sessions_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    if let Some(log) = parts.sessions.log() {
        watch(&parts.metrics, log);
    }
    match parts.metrics.render() {
        Ok(body) => {
            let mut reply = text(StatusCode::OK, String::from_utf8_lossy(&body).into_owned());
            let version = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            reply.headers_mut().insert(header::CONTENT_TYPE, version);
            reply
        }
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, "internal", &error.to_string()),
    }
}

/// How the log is doing.
fn watch(metrics: &Metrics, log: &Log) {
    let stats = log.stats();
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    metrics.log_degraded.set(i64::from(log.health() != Health::Ok));
    metrics.log_bytes.set(i64::try_from(of(&stats.bytes_on_disk)).unwrap_or(i64::MAX));
    metrics.raise(&metrics.log_records, of(&stats.records));
    metrics.raise(&metrics.log_lost, of(&stats.failed) + of(&stats.dropped_queue_full));
}

/// `{rid, index, entropy, token_ids?, next, finished, finish_reason}` from token `since` on; ids while the sequence runs.
fn entropy(parts: &Parts, request: &Request<Incoming>, rid: &str) -> Response<Body> {
    let (mut since, mut index) = (0, None);
    for pair in request.uri().query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let number = value.parse::<usize>();
        match (name, number) {
            ("since", Ok(number)) => since = number,
            ("index", Ok(number)) => index = Some(number),
            ("since" | "index", Err(_)) => {
                return problem(
                    StatusCode::BAD_REQUEST,
                    "bad_request",
                    &format!("{name}: a number of tokens or of a sequence, not {value:?}"),
                );
            }
            _ => {
                return problem(
                    StatusCode::BAD_REQUEST,
                    "bad_request",
                    &format!("{name:?} is neither since nor index"),
                );
            }
        }
    }
    let rid = routes::decode(rid);
    let Some((index, progress)) = parts.tools.store.read(&rid, index, since) else {
        return v1::Problem::no_entropies().reply();
    };
    let next = progress.next;
    let mut list = Vec::new();
    progress.entropy.iter().for_each(|value| number(&mut list, *value));
    let ids = if progress.ids.is_empty() { String::new() } else { format!("\"token_ids\":{},", json!(progress.ids)) };
    let body = format!(
        "{{\"rid\":{},\"index\":{index},\"entropy\":[{}],{ids}\"next\":{next},\"finished\":{},\"finish_reason\":{}}}",
        json!(rid),
        String::from_utf8_lossy(&list),
        progress.finished,
        json!(progress.finish_reason),
    );
    json_reply(StatusCode::OK, body.into_bytes())
}
