// SPDX-License-Identifier: Apache-2.0
//! Sends calls to the upstream and counts them in metrics.

use tokio::time::Instant;

use super::transport::client::{Client, Reply, UpstreamCall};
use super::transport::failure::Failure;
use crate::engine::sglang::routes::Route;
use crate::error::Error;
use crate::metrics::Metrics;

/// Sends a call and counts its outcome. `now` is the time, which the caller knows.
///
/// # Errors
/// The answer for the client, when no reply head arrived.
pub(crate) async fn send(
    client: &Client,
    metrics: &Metrics,
    route: Route,
    call: UpstreamCall,
    now: Instant,
) -> Result<Reply, Error> {
    let reply = client.send(call).await.map_err(|failure| failed(metrics, failure))?;
    metrics.endpoint(route.endpoint).upstream_ttfb().observe(now.elapsed().as_secs_f64());
    if reply.status().is_server_error() {
        metrics.upstream_errors.with_label_values(&["5xx"]).inc();
    }
    Ok(reply)
}

/// Counts an upstream failure and converts it to the client's answer.
pub(crate) fn failed(metrics: &Metrics, failure: Failure) -> Error {
    if let Some(kind) = failure.kind() {
        metrics.upstream_errors.with_label_values(&[kind]).inc();
    }
    if matches!(failure, Failure::Unreachable { .. }) {
        metrics.shed.with_label_values(&["breaker"]).inc();
    }
    failure.into()
}
