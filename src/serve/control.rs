//! The control port: probes, metrics, the page, live entropy, the `/v1` routes, and SGLang's own control routes for proxy.

pub mod openapi;
pub mod page;
pub(crate) mod v1;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use serde_json::json;

use crate::engine::sglang::routes::{self, Route, RouteKind};
use crate::generation::entropy_lists::number;
use crate::json::percent_decode;
use crate::metrics::Metrics;
use crate::serve::access_log::AccessRecord;
use crate::serve::body::Body;
use crate::serve::control_route::{self, ENTROPY, PROBES, rid_of_entropy};
use crate::serve::data::forward::forward;
use crate::serve::misdirected;
use crate::serve::proxy::Proxy;
use crate::serve::reply::{error_reply, json_reply, problem, text};
use crate::serve::request_info::{Access, Port, Protocol, RequestInfo};
use crate::session::LedgerStatus;
use crate::session::ledger::{Health, RecordLogStats};

/// The names that the query of [`ENTROPY`] may have.
const ENTROPY_QUERY: [&str; 2] = ["since", "index"];

/// Classifies a request to the control port.
pub fn classify<B>(request: &Request<B>) -> RequestInfo {
    let path = request.uri().path();
    let open = |endpoint| RequestInfo::open(Port::Control, Protocol::Http, endpoint);
    let probe = if path == "/metrics/" { "/metrics" } else { path };
    if let Some((endpoint, access)) = PROBES.into_iter().find(|(path, _)| *path == probe) {
        return RequestInfo { access, is_probe: true, ..open(endpoint) };
    }
    if path == openapi::PATH {
        return RequestInfo { access: Access::Page, is_probe: true, ..open(openapi::PATH) };
    }
    // the page needs no token: it asks the user for the token that its data needs
    if page::asset(path).is_some() {
        return RequestInfo { access: Access::Page, is_probe: true, ..open("/page") };
    }
    let forwarded = routes::route(path);
    let route = if forwarded.kind == RouteKind::Control || forwarded.endpoint == "/detokenize" {
        forwarded
    } else {
        let endpoint = rid_of_entropy(path).map(|_| ENTROPY).or_else(|| Some(control_route::below_v1(path)?.pattern));
        Route { endpoint: endpoint.unwrap_or("other"), kind: RouteKind::Other }
    };
    RequestInfo { route, access: Access::Control, needs_sessions: true, ..open(route.endpoint) }
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// Serves a request that passed the layers.
pub async fn answer(proxy: &Arc<Proxy>, request: Request<Incoming>) -> Response<Body> {
    let record = AccessRecord::of(request.extensions());
    route(proxy, request).await.map(|body| body.with_record(record))
}

async fn route(proxy: &Arc<Proxy>, mut request: Request<Incoming>) -> Response<Body> {
    let route = RequestInfo::of(&request).route;
    if PROBES.iter().any(|(path, _)| *path == route.endpoint) && !is_read(request.method()) {
        return v1::not_allowed(&[Method::GET]);
    }
    match route.endpoint {
        "/livez" => return text(StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => return proxy.readiness(),
        "/metrics" => return metrics(proxy),
        _ => {}
    }
    if route.endpoint == openapi::PATH {
        return openapi::serve(&request);
    }
    if let Some(reply) = page::serve(&request) {
        return reply;
    }
    if route.kind == RouteKind::Control || route.endpoint == "/detokenize" {
        if proxy.config.keys.control_token().is_some() {
            // the token of this port is not the engine's key; /detokenize is for the page, which shows the text of ids
            match route.kind {
                RouteKind::Control => proxy.client.sign(request.headers_mut()),
                _ => proxy.client.sign_generation(request.headers_mut()),
            }
        }
        return forward(proxy, route, request, None).await.unwrap_or_else(|error| error_reply(&error));
    }
    let path = request.uri().path().to_owned();
    if let Some(rid) = rid_of_entropy(&path) {
        let is_read = is_read(request.method());
        return if is_read { entropy(proxy, &request, rid) } else { v1::not_allowed(&[Method::GET]) };
    }
    let method = request.method().clone();
    let reply = match v1::serve(proxy, request).await {
        None => misdirected::on_control(proxy, &method, &path, routes::route(&path)),
        reply => reply,
    };
    reply.unwrap_or_else(|| problem(StatusCode::NOT_FOUND, "not_found", "there is no such route on the control port"))
}

fn metrics(proxy: &Proxy) -> Response<Body> {
    proxy.metrics.breaker_open.set(i64::from(proxy.client.is_cut_off()));
    proxy.metrics.bytes_in_flight.set(i64::try_from(proxy.budget.taken()).unwrap_or(i64::MAX));
    proxy.metrics.raise(&proxy.metrics.shed.with_label_values(&["max_bytes"]), proxy.budget.shed());
    let (entries, bytes) = proxy.generator.context.entropies.size();
    proxy.metrics.store_entries.set(i64::try_from(entries).unwrap_or(i64::MAX));
    proxy.metrics.store_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    let (sessions, bytes) = proxy.sessions.size();
    proxy.metrics.sessions.set(i64::try_from(sessions).unwrap_or(i64::MAX));
    proxy.metrics.sessions_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    if let Some((health, stats)) = proxy.sessions.log_status() {
        update_log_metrics(&proxy.metrics, &health, stats);
    }
    if let Some(status) = proxy.sessions.ledger_status() {
        update_ledger_metrics(&proxy.metrics, status);
    }
    match proxy.metrics.render() {
        Ok(body) => {
            let mut reply = text(StatusCode::OK, String::from_utf8_lossy(&body).into_owned());
            let version = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            reply.headers_mut().insert(header::CONTENT_TYPE, version);
            reply
        }
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, "internal", &error.to_string()),
    }
}

/// Updates the metrics of the log.
fn update_log_metrics(metrics: &Metrics, health: &Health, stats: RecordLogStats) {
    metrics.log_degraded.set(i64::from(*health != Health::Ok));
    metrics.log_bytes.set(i64::try_from(stats.bytes).unwrap_or(i64::MAX));
    metrics.raise(&metrics.log_records, stats.records);
    metrics.raise(&metrics.log_lost, stats.lost);
}

/// Updates the metrics of the shared ledger.
fn update_ledger_metrics(metrics: &Metrics, status: LedgerStatus<'_>) {
    let LedgerStatus { counts, is_down, detached_bytes } = status;
    let ledger = &metrics.ledger;
    ledger.down.set(i64::from(is_down));
    ledger.detached_bytes.set(i64::try_from(detached_bytes).unwrap_or(i64::MAX));
    for (counter, count) in [
        (&ledger.confirmed, &counts.confirmed),
        (&ledger.detached, &counts.detached),
        (&ledger.joined, &counts.joined),
        (&ledger.spilled, &counts.spilled),
        (&ledger.left_out, &counts.left_out),
        (&ledger.behind, &counts.behind),
        (&ledger.healed, &counts.healed),
        (&ledger.unhealed, &counts.unhealed),
        (&ledger.failures, &counts.failures),
    ] {
        metrics.raise(counter, count.load(Ordering::Relaxed));
    }
}

/// Replies `{rid, index, entropy, token_ids?, next, finished, finish_reason}` from token `since` on. Ids are only there while the sequence
/// runs.
fn entropy(state: &Proxy, request: &Request<Incoming>, rid: &str) -> Response<Body> {
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
                    &format!("{name}: must be a number, not {value:?}"),
                );
            }
            _ => {
                return problem(
                    StatusCode::BAD_REQUEST,
                    "bad_request",
                    &format!("unknown query member {name:?}; the members are {}", ENTROPY_QUERY.join(" and ")),
                );
            }
        }
    }
    let rid = percent_decode(rid);
    let Some((index, progress)) = state.generator.context.entropies.read(&rid, index, since) else {
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
