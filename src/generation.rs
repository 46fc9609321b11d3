//! The pipeline: what was asked, what must be asked, what comes of it, and what is taken away again.

pub mod active;
pub mod buffered;
pub mod capture;
pub mod enrich;
pub mod entropy_request;
pub mod entropy_store;
pub mod event;
pub mod events;
pub mod forcing;
pub mod generator;
pub mod guard;
pub mod in_flight;
pub mod log_wait;
pub mod measure;
pub mod plan;
pub mod reason;
pub mod record;
pub mod request;
pub mod retries;
pub mod rewrite;
pub mod rid;
pub mod sequence;
pub mod session_limits;
pub mod stream;
pub mod text_prompt;
pub mod trim;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::entropy::{Backend, Estimator, Flags, TokenStats};
use crate::generation::entropy_store::EntropyStore;
use crate::metrics::{Metrics, ModelMetrics};
use forcing::Item;
use in_flight::InFlightIds;
use reason::Reason;

/// What every capture works with.
#[derive(Debug)]
pub struct Tools {
    /// Computes entropies.
    pub backend: Arc<dyn Backend>,
    /// Where a running request's entropies can be read.
    pub store: EntropyStore,
    /// The ids in flight.
    pub flights: InFlightIds,
    /// Every metric.
    pub metrics: Arc<Metrics>,
    /// The engine's plugin was asked and did not answer as it should; until the next probe it is not asked.
    pub plugin_failed: AtomicBool,
    /// Histograms by model, looked up by name once; held for a lookup only.
    models: Mutex<HashMap<(Arc<str>, &'static str), ModelMetrics>>,
}

/// What was seen of a reply, for its log line.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Observed {
    /// Sequences that came to their end.
    pub finished: u64,
    /// Output tokens.
    pub tokens: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Mean entropy of the last sequence, in nats.
    pub mean: Option<f64>,
    /// Why entropies are missing.
    pub missing: Option<Reason>,
    /// Own work.
    pub overhead: Duration,
}

impl Tools {
    /// Tools around a backend.
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

    /// Counts newly measured tokens; the histograms take them all at once.
    fn observe(&self, model: &Arc<str>, estimator: Estimator, item: &Item, tokens: &[TokenStats], values: &[f32]) {
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
