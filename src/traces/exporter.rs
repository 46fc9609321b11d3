// SPDX-License-Identifier: Apache-2.0
//! Sends the queued spans to the collector.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use opentelemetry::{InstrumentationScope, Key, KeyValue};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, RetryPolicy, WithExportConfig, WithHttpConfig};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter as _;
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

use super::span::EndedSpan;
use crate::metrics::Metrics;
use crate::tls_client;

/// The spans of one request to the collector.
const BATCH: usize = 512;

/// How long a span waits for others of its batch.
const GATHER: Duration = Duration::from_secs(1);

/// The bytes of a collector's reply that are read.
const LARGEST_REPLY: usize = 64 * 1024;

/// The time of a request to the collector: the default of the OTLP specification.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The path of a collector that the URL does not name.
const TRACES_PATH: &str = "/v1/traces";

/// Sends the queued spans in batches.
#[derive(Debug)]
pub(crate) struct Exporter {
    collector: opentelemetry_otlp::SpanExporter,
    answer: Arc<Mutex<Answer>>,
    scope: InstrumentationScope,
    spans: mpsc::Receiver<EndedSpan>,
    metrics: Arc<Metrics>,
    /// The last batch failed: the log has a line for the first failure and for the next success.
    is_failing: bool,
}

impl Exporter {
    pub(super) fn try_new(url: &str, spans: mpsc::Receiver<EndedSpan>, metrics: Arc<Metrics>) -> Result<Self, String> {
        let endpoint = endpoint(url);
        reqwest::Url::parse(&endpoint).map_err(|error| format!("{url}: {error}"))?;
        tls_client::install_provider();
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(REQUEST_TIMEOUT)
            .build()
            .map_err(|error| error.to_string())?;
        let answer = Arc::<Mutex<Answer>>::default();
        let client = CollectorClient { client, answer: Arc::clone(&answer) };
        let mut collector = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpBinary)
            // until the exporter's limit for all tries, OTEL_EXPORTER_OTLP_TIMEOUT, which is ten seconds without it
            .with_retry_policy(RetryPolicy::default().with_max_retries(usize::MAX))
            .with_endpoint(endpoint)
            .build()
            .map_err(|error| error.to_string())?;
        collector.set_resource(&resource());
        let scope =
            InstrumentationScope::builder(env!("CARGO_PKG_NAME")).with_version(env!("CARGO_PKG_VERSION")).build();
        Ok(Self { collector, answer, scope, spans, metrics, is_failing: false })
    }

    /// Sends spans until `stop` is true, and then those that are still queued.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                count = self.spans.recv_many(&mut batch, BATCH) => if count == 0 { return },
            }
            let full = Instant::now() + GATHER;
            while batch.len() < BATCH {
                let room = BATCH - batch.len();
                tokio::select! {
                    _ = stop.wait_for(|stop| *stop) => break,
                    more = timeout_at(full, self.spans.recv_many(&mut batch, room)) => match more {
                        Ok(1..) => {}
                        Ok(0) | Err(_) => break,
                    },
                }
            }
            self.send(&mut batch).await;
        }
        self.spans.close();
        while self.spans.recv_many(&mut batch, BATCH).await > 0 {
            self.send(&mut batch).await;
        }
    }

    /// Sends a batch. Spans that the collector does not take are lost: the next ones arrive meanwhile.
    async fn send(&mut self, batch: &mut Vec<EndedSpan>) {
        let count = batch.len() as u64;
        let spans = batch.drain(..).map(|span| span.data(&self.scope)).collect();
        let sent = self.collector.export(spans).await;
        let Answer { rejected, problem } = std::mem::take(&mut *self.answer.lock());
        let failed = if sent.is_ok() { rejected.min(count) } else { count };
        self.metrics.spans.with_label_values(&["sent"]).inc_by(count - failed);
        self.metrics.spans.with_label_values(&["failed"]).inc_by(failed);
        if failed > 0 && !self.is_failing {
            let error = problem.or_else(|| sent.err().map(|error| error.to_string()));
            tracing::warn!(error, "the collector of --otlp does not take spans");
        } else if failed == 0 && self.is_failing {
            tracing::info!("the collector of --otlp takes spans again");
        }
        self.is_failing = failed > 0;
    }
}

/// The URL of a request: that of the setting, with the standard path if it has none.
fn endpoint(url: &str) -> String {
    let has_path = url.split_once("://").is_some_and(|(_, rest)| rest.trim_end_matches('/').contains('/'));
    if has_path { url.to_owned() } else { format!("{}{TRACES_PATH}", url.trim_end_matches('/')) }
}

/// The process, with what `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` say about it.
fn resource() -> Resource {
    let given = Resource::builder().build();
    let service = Key::from_static_str("service.name");
    // the SDK's default begins with `unknown_service`
    let is_named = given.get(&service).is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let builder = Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if is_named { builder.build() } else { builder.with_service_name(env!("CARGO_PKG_NAME")).build() }
}

/// What the exporter does not report of the answers to a batch.
#[derive(Debug, Default)]
struct Answer {
    /// The spans that the collector rejected from a batch that it took.
    rejected: u64,
    /// The cause of the last failure.
    problem: Option<String>,
}

/// The exporter's HTTP client.
#[derive(Debug)]
struct CollectorClient {
    client: reqwest::Client,
    answer: Arc<Mutex<Answer>>,
}

impl CollectorClient {
    async fn exchange(&self, request: Request<Bytes>) -> Result<Response<Bytes>, reqwest::Error> {
        let request = reqwest::Request::try_from(request)?;
        let mut reply = self.client.execute(request).await?;
        let mut head = Response::new(());
        *head.status_mut() = reply.status();
        *head.headers_mut() = std::mem::take(reply.headers_mut());
        let mut body = BytesMut::new();
        while let Some(piece) = reply.chunk().await?.filter(|_| body.len() < LARGEST_REPLY) {
            body.extend_from_slice(&piece);
        }
        Ok(head.map(|()| body.freeze()))
    }
}

/// The first cause of an error.
fn cause(error: &(dyn Error + 'static)) -> String {
    std::iter::successors(Some(error), |error| (**error).source()).last().unwrap_or(error).to_string()
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let exchanged = self.exchange(request).await;
        *self.answer.lock() = match &exchanged {
            Ok(reply) if reply.status().is_success() => {
                // another body is that of a collector without partial success
                let partial = ExportTraceServiceResponse::decode(reply.body().clone()).unwrap_or_default();
                let partial = partial.partial_success.unwrap_or_default();
                let rejected = partial.rejected_spans.try_into().unwrap_or(0);
                Answer { rejected, problem: (rejected > 0).then_some(partial.error_message) }
            }
            Ok(reply) => Answer { rejected: 0, problem: Some(format!("the collector answered {}", reply.status())) },
            Err(error) => Answer { rejected: 0, problem: Some(cause(error)) },
        };
        Ok(exchanged?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_path_follows_a_url_without_one() {
        for (url, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("https://collector:4318/", "https://collector:4318/v1/traces"),
            ("https://host/otlp/v1/traces", "https://host/otlp/v1/traces"),
        ] {
            assert_eq!(endpoint(url), expected);
        }
    }
}
