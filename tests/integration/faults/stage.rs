// SPDX-License-Identifier: Apache-2.0
//! Metrics and sessions of a tokentap in front of an engine that the test controls.

use std::net::SocketAddr;

use serde_json::Value;

use crate::support::client::{Connection, get, written};
use crate::support::manual_upstream::{ManualUpstream, soon};
use crate::support::upstream::message;

/// The sum of a metric over all series whose labels contain this text; 0 without such series.
pub async fn metric(control: SocketAddr, name: &str, label: &str) -> f64 {
    let text = get(control, "/metrics").await.text();
    let ours = text.lines().filter(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])) && line.contains(label)
    });
    ours.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// Polls a metric until it has a value.
pub async fn wait_for_metric(control: SocketAddr, name: &str, label: &str, value: f64) {
    let what = format!("{name} {label} is {value}");
    soon(&what, async { while metric(control, name, label).await != value {} }).await;
}

/// Waits until no request is active: every permit is released.
pub async fn wait_until_idle(control: SocketAddr) {
    wait_for_metric(control, "tokentap_http_requests_active", "", 0.0).await;
}

/// The turns of a session: tokens and fault.
pub async fn turns(control: SocketAddr, session: &str) -> Vec<(usize, Option<String>)> {
    let answer = get(control, &format!("/v1/sessions/{session}")).await;
    if answer.status == 404 {
        return Vec::new();
    }
    let shown = answer.json();
    assert_eq!(shown["running"], 0, "{session}: no call is still running: {shown}");
    let turn =
        |turn: &Value| (turn["sampled_tokens"].as_u64().unwrap() as usize, turn["fault"].as_str().map(str::to_owned));
    shown["list"].as_array().unwrap().iter().map(turn).collect()
}

/// The export of a session as text.
pub async fn read(control: SocketAddr, session: &str) -> String {
    get(control, &format!("/v1/sessions/{session}/trajectories")).await.text()
}

/// Asserts that the next request gets its own answer and nothing else has reached the engine.
pub async fn assert_next_request(
    upstream: &mut ManualUpstream,
    client: &mut Connection,
    addr: SocketAddr,
    about: &str,
) {
    client.send(&written(addr, "GET", "/next", &[], b"")).await;
    let call = upstream.next().await;
    assert_eq!(call.asked.path, "/next", "{about}: no request was sent twice or aborted");
    call.reply(&message(200, &[], about.as_bytes())).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.complete, answer.text().as_str()), (200, true, about), "its own answer");
}
