//! Calls to the upstream, with their metrics.

use tokio::time::Instant;

use super::client::{Call, Client, Failure, Reply};
use super::routes::Route;
use crate::error::Error;
use crate::metrics::Metrics;

/// Sends a call and counts how it went.
///
/// # Errors
/// The answer for the client, where no head of a reply came.
pub async fn send(client: &Client, metrics: &Metrics, route: Route, call: Call) -> Result<Reply, Error> {
    let started = Instant::now();
    let reply = client.send(call).await.map_err(|failure| failed(metrics, failure))?;
    metrics.upstream_ttfb.with_label_values(&[route.endpoint]).observe(started.elapsed().as_secs_f64());
    if reply.status().is_server_error() {
        metrics.upstream_errors.with_label_values(&["5xx"]).inc();
    }
    Ok(reply)
}

/// Counts a failure of the upstream and makes it the client's answer.
pub fn failed(metrics: &Metrics, failure: Failure) -> Error {
    if let Some(kind) = failure.kind() {
        metrics.upstream_errors.with_label_values(&[kind]).inc();
    }
    if matches!(failure, Failure::Unreachable { .. }) {
        metrics.shed.with_label_values(&["breaker"]).inc();
    }
    failure.into()
}
