// SPDX-License-Identifier: Apache-2.0
//! Probes and metrics: `/livez`, `/readyz` and `/metrics`.

use std::sync::atomic::Ordering;

use http::{Method, Request, Response, StatusCode};

use crate::metrics::Metrics;
use crate::serve::body::Body;
use crate::serve::connection::Phase;
use crate::serve::problem::{ErrorCode, Problem, method_not_allowed};
use crate::serve::proxy::Proxy;
use crate::serve::response::{response, text_response};
use crate::session::LedgerStatus;
use crate::session::ledger::{Health, RecordLogStats};

/// Serves the probe at `endpoint`; `None` if no probe is there.
pub(super) fn handle<B>(proxy: &Proxy, endpoint: &str, request: &Request<B>) -> Option<Response<Body>> {
    let probe = match endpoint {
        "/livez" => |_: &Proxy| text_response(StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => readiness,
        "/metrics" => metrics,
        _ => return None,
    };
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    Some(if is_read { probe(proxy) } else { method_not_allowed(&[Method::GET]) })
}

fn readiness(proxy: &Proxy) -> Response<Body> {
    let unavailable = |text| text_response(StatusCode::SERVICE_UNAVAILABLE, text);
    if *proxy.phase.borrow() != Phase::Serving {
        return unavailable("draining\n".to_owned());
    }
    if let Some(progress) = proxy.sessions.restoration().progress() {
        let (sessions, _) = proxy.sessions.size();
        return unavailable(format!("restoring: {} of {} bytes, {sessions} sessions\n", progress.read, progress.total));
    }
    let upstream = proxy.client.upstream();
    if proxy.upstream.borrow().generates == Some(false) {
        return unavailable(format!("the engine at {upstream} serves an embedding model and does not generate\n"));
    }
    if !*proxy.ready.borrow() {
        return unavailable(format!("waiting for the SGLang server at {upstream}\n"));
    }
    text_response(StatusCode::OK, format!("ok\nchat completions {}\n", proxy.chats.borrow().describe()))
}

fn metrics(proxy: &Proxy) -> Response<Body> {
    let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let metrics = &proxy.metrics;
    metrics.breaker_open.set(i64::from(proxy.client.is_cut_off()));
    metrics.bytes_in_flight.set(gauge(proxy.budget.taken()));
    metrics.raise(&metrics.shed.with_label_values(&["max_bytes"]), proxy.budget.shed());
    let (entries, bytes) = proxy.generator.context.entropies.size();
    metrics.store_entries.set(gauge(entries as u64));
    metrics.store_bytes.set(gauge(bytes));
    let (sessions, bytes) = proxy.sessions.size();
    metrics.sessions.set(gauge(sessions as u64));
    metrics.sessions_bytes.set(gauge(bytes));
    if let Some((health, RecordLogStats { bytes, records, lost, .. })) = proxy.sessions.log_status() {
        metrics.log_degraded.set(i64::from(health != Health::Ok));
        metrics.log_bytes.set(gauge(bytes));
        metrics.raise(&metrics.log_records, records);
        metrics.raise(&metrics.log_lost, lost);
    }
    if let Some(status) = proxy.sessions.ledger_status() {
        update_ledger_metrics(metrics, status);
    }
    match metrics.render() {
        Ok(text) => response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", Body::full(text)),
        Err(error) => Problem::new(ErrorCode::INTERNAL, error.to_string()).into_response(),
    }
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
    for (outcome, count) in [
        ("stored", &counts.images_stored),
        ("refused", &counts.images_refused),
        ("failed", &counts.images_failed),
        ("read", &counts.images_read),
        ("absent", &counts.images_absent),
    ] {
        metrics.raise(&ledger.images.with_label_values(&[outcome]), count.load(Ordering::Relaxed));
    }
}
