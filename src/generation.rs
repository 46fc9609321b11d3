//! The generation pipeline: checks and plans a request through the product of its engine, sends it, measures and records the reply, and
//! removes what the request did not ask for.

pub(crate) mod active;
pub(crate) mod buffered;
pub(crate) mod capture;
pub(crate) mod enrich;
pub(crate) mod entropy_request;
pub(crate) mod entropy_store;
pub mod event;
pub(crate) mod events;
pub(crate) mod generator;
pub(crate) mod in_flight;
pub mod log_wait;
pub(crate) mod measure;
pub(crate) mod recorder;
pub(crate) mod request;
pub(crate) mod retries;
pub(crate) mod sequence;
pub(crate) mod session_limits;
pub mod settings;
pub(crate) mod stream;
pub(crate) mod uncaptured;
pub mod update;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::engine::plan::ItemPlan;
use crate::engine::reason::Reason;
use crate::entropy::{Backend, Estimator, Flags, TokenStats};
use crate::generation::entropy_store::EntropyStore;
use crate::metrics::{Metrics, ModelMetrics};
use in_flight::InFlightIds;

/// The shared state that every capture uses.
#[derive(Debug)]
pub struct CaptureTools {
    /// Computes entropies.
    pub backend: Arc<dyn Backend>,
    /// Entropies by request id, readable while a request runs.
    pub store: EntropyStore,
    /// The request ids in flight.
    pub flights: InFlightIds,
    /// Every metric.
    pub metrics: Arc<Metrics>,
    /// The engine's plugin returned a wrong answer. It is not asked again before the next probe.
    pub plugin_failed: AtomicBool,
    /// Histograms by model and estimator. The lock is held for one lookup.
    models: Mutex<HashMap<(Arc<str>, &'static str), ModelMetrics>>,
}

/// Statistics of a reply, for its access log line.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ReplyStats {
    /// Sequences that have finished.
    pub finished: u64,
    /// Output tokens.
    pub tokens: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Mean entropy of the last sequence, in nats.
    pub mean: Option<f64>,
    /// Why entropies are missing.
    pub missing: Option<Reason>,
    /// Time that tokentap itself spent on the reply.
    pub overhead: Duration,
}

impl CaptureTools {
    /// Creates the shared state around a backend.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, store: EntropyStore, metrics: Arc<Metrics>) -> Self {
        Self {
            backend,
            store,
            flights: InFlightIds::default(),
            metrics,
            plugin_failed: AtomicBool::new(false),
            models: Mutex::default(),
        }
    }

    fn model(&self, name: &Arc<str>, estimator: Estimator) -> ModelMetrics {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (Arc::clone(name), estimator.name());
        models.entry(key).or_insert_with(|| self.metrics.model(name, estimator.name())).clone()
    }

    /// Adds newly measured tokens to the histograms, in one batch.
    fn observe(&self, model: &Arc<str>, estimator: Estimator, item: &ItemPlan, tokens: &[TokenStats], values: &[f32]) {
        if tokens.is_empty() {
            return;
        }
        let model = self.model(model, estimator);
        model.token_entropy.observe(values.iter().copied());
        model.topk_mass.observe(tokens.iter().map(|token| 1.0 - token.tail_mass));
        let anomaly = |kind: &str, count: usize| {
            if count > 0 {
                self.metrics.anomalies.with_label_values(&[kind]).inc_by(count as u64);
            }
        };
        let mut odd = [0_usize; 3];
        for token in tokens {
            for (count, flag) in odd.iter_mut().zip([Flags::NAN, Flags::MISSING, Flags::INCONSISTENT]) {
                *count += usize::from(token.flags.contains(flag));
            }
        }
        anomaly("nan", odd[0]);
        if item.k > 0 {
            anomaly("missing", odd[1]);
        }
        anomaly("inconsistent", odd[2]);
    }
}
