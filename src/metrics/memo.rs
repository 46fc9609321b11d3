// SPDX-License-Identifier: Apache-2.0
//! Series that are resolved at their first use: a lookup by labels hashes their text, and a request changes about ten series.
//!
//! A series exists from its first use on, as without this module.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use foldhash::quality::RandomState;
use parking_lot::RwLock;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::{Tallies, Tally};

/// Handles by the values of a label that has few values.
#[derive(Debug)]
pub struct Memo<K, M>(RwLock<Vec<(K, M)>>);

impl<K, M> Default for Memo<K, M> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<K: Clone + PartialEq, M: Clone> Memo<K, M> {
    /// The handle of `key`, which `resolve` returns at the first use.
    pub fn get(&self, key: &K, resolve: impl FnOnce() -> M) -> M {
        let find = |known: &[(K, M)]| known.iter().find(|(known, _)| known == key).map(|(_, handle)| handle.clone());
        if let Some(handle) = find(&self.0.read()) {
            return handle;
        }
        let mut known = self.0.write();
        find(&known).unwrap_or_else(|| {
            let handle = resolve();
            known.push((key.clone(), handle.clone()));
            handle
        })
    }
}

/// The series of one endpoint.
#[derive(Debug)]
pub struct EndpointMetrics {
    endpoint: &'static str,
    metrics: EndpointVectors,
    active: OnceLock<IntGauge>,
    requests: Memo<(&'static str, u16), IntCounter>,
    durations: [OnceLock<Histogram>; 2],
    overhead: OnceLock<Histogram>,
    upstream_ttfb: OnceLock<Histogram>,
}

/// The metrics with the label `endpoint`.
#[derive(Debug, Clone)]
pub(super) struct EndpointVectors {
    pub active: IntGaugeVec,
    pub requests: IntCounterVec,
    pub duration: HistogramVec,
    pub overhead: HistogramVec,
    pub upstream_ttfb: HistogramVec,
}

impl EndpointMetrics {
    fn new(endpoint: &'static str, metrics: EndpointVectors) -> Self {
        Self {
            endpoint,
            metrics,
            active: OnceLock::new(),
            requests: Memo::default(),
            durations: [OnceLock::new(), OnceLock::new()],
            overhead: OnceLock::new(),
            upstream_ttfb: OnceLock::new(),
        }
    }

    /// The name of the endpoint.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.endpoint
    }

    /// Requests being served.
    pub fn active(&self) -> &IntGauge {
        self.active.get_or_init(|| self.metrics.active.with_label_values(&[self.endpoint]))
    }

    /// Requests with this method and status.
    #[must_use]
    pub fn requests(&self, method: &'static str, status: u16) -> IntCounter {
        self.requests.get(&(method, status), || {
            let status = itoa::Buffer::new().format(status).to_owned();
            self.metrics.requests.with_label_values(&[self.endpoint, method, &status])
        })
    }

    /// Time from the request's head to the reply's last byte.
    pub fn duration(&self, is_streaming: bool) -> &Histogram {
        self.durations[usize::from(is_streaming)].get_or_init(|| {
            let is_streaming = if is_streaming { "true" } else { "false" };
            self.metrics.duration.with_label_values(&[self.endpoint, is_streaming])
        })
    }

    /// Time that tokentap itself spent on a reply.
    pub fn overhead(&self) -> &Histogram {
        self.overhead.get_or_init(|| self.metrics.overhead.with_label_values(&[self.endpoint]))
    }

    /// Time from sending a request to the upstream's reply headers.
    pub fn upstream_ttfb(&self) -> &Histogram {
        self.upstream_ttfb.get_or_init(|| self.metrics.upstream_ttfb.with_label_values(&[self.endpoint]))
    }
}

/// The series of all endpoints.
#[derive(Debug)]
pub(super) struct Endpoints {
    vectors: EndpointVectors,
    // locked for one lookup
    known: RwLock<HashMap<&'static str, Arc<EndpointMetrics>, RandomState>>,
}

impl Endpoints {
    pub(super) fn new(vectors: EndpointVectors) -> Self {
        Self { vectors, known: RwLock::default() }
    }

    pub(super) fn get(&self, endpoint: &'static str) -> Arc<EndpointMetrics> {
        if let Some(known) = self.known.read().get(endpoint) {
            return Arc::clone(known);
        }
        let new = || Arc::new(EndpointMetrics::new(endpoint, self.vectors.clone()));
        Arc::clone(self.known.write().entry(endpoint).or_insert_with(new))
    }
}

/// The series of one model's tokens.
#[derive(Debug)]
pub struct ModelMetrics {
    model: Arc<str>,
    metrics: ModelVectors,
    output_tokens: OnceLock<IntCounter>,
    prompt_tokens: OnceLock<IntCounter>,
    mean_entropy: OnceLock<Histogram>,
    topk_mass: OnceLock<Arc<Tally>>,
    token_entropy: Memo<&'static str, Arc<Tally>>,
}

/// The metrics with the label `model_name`.
#[derive(Debug, Clone)]
pub(super) struct ModelVectors {
    pub tokens: IntCounterVec,
    pub mean_entropy: HistogramVec,
    pub topk_mass: Tallies,
    pub token_entropy: Tallies,
}

impl ModelMetrics {
    /// The served model.
    pub(crate) fn model(&self) -> &Arc<str> {
        &self.model
    }

    pub(super) fn new(model: Arc<str>, metrics: ModelVectors) -> Self {
        Self {
            model,
            metrics,
            output_tokens: OnceLock::new(),
            prompt_tokens: OnceLock::new(),
            mean_entropy: OnceLock::new(),
            topk_mass: OnceLock::new(),
            token_entropy: Memo::default(),
        }
    }

    /// Output tokens in the engine's replies.
    pub fn output_tokens(&self) -> &IntCounter {
        self.output_tokens.get_or_init(|| self.metrics.tokens.with_label_values(&[&*self.model, "output"]))
    }

    /// Prompt tokens in the engine's replies.
    pub fn prompt_tokens(&self) -> &IntCounter {
        self.prompt_tokens.get_or_init(|| self.metrics.tokens.with_label_values(&[&*self.model, "prompt"]))
    }

    /// Mean entropy of each sequence.
    pub fn mean_entropy(&self) -> &Histogram {
        self.mean_entropy.get_or_init(|| self.metrics.mean_entropy.with_label_values(&[&*self.model]))
    }

    /// Probability mass of the reported top-k.
    pub fn topk_mass(&self) -> &Tally {
        self.topk_mass.get_or_init(|| self.metrics.topk_mass.with(&[&self.model]))
    }

    /// Entropies, in nats.
    #[must_use]
    pub fn token_entropy(&self, estimator: &'static str) -> Arc<Tally> {
        self.token_entropy.get(&estimator, || self.metrics.token_entropy.with(&[&self.model, estimator]))
    }
}

#[cfg(test)]
mod tests {
    use crate::metrics::Metrics;

    #[test]
    fn series_exists_from_its_first_use_on() {
        let metrics = Metrics::new("cpu");
        let text = || String::from_utf8(metrics.render().unwrap()).unwrap();
        let endpoint = metrics.endpoint("/generate");
        let model = metrics.model(&"m".into());
        assert!(!text().contains("/generate") && !text().contains("model_name"));
        for _ in 0..2 {
            metrics.endpoint("/generate").requests("POST", 200).inc();
            metrics.model(&"m".into()).token_entropy("estimate").observe([0.5].into_iter());
        }
        endpoint.duration(true).observe(0.1);
        model.prompt_tokens().inc_by(3);
        for line in [
            "tokentap_http_requests_total{endpoint=\"/generate\",method=\"POST\",status_code=\"200\"} 2",
            "tokentap_request_duration_seconds_count{endpoint=\"/generate\",is_streaming=\"true\"} 1",
            "tokentap_token_entropy_nats_count{model_name=\"m\",estimator=\"estimate\"} 2",
            "tokentap_tokens_observed_total{kind=\"prompt\",model_name=\"m\"} 3",
        ] {
            assert!(text().contains(line), "{line} in {}", text());
        }
        assert!(!text().contains("is_streaming=\"false\"") && !text().contains("kind=\"output\""));
    }
}
