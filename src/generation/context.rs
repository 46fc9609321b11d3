// SPDX-License-Identifier: Apache-2.0
//! State that the running generations share.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::watch;

use super::entropy_store::EntropyStore;
use super::in_flight::InFlightIds;
use super::interruptions::Interruptions;
use super::log_wait::{LogWait, MAX_WAIT};
use super::settings::GenerationSettings;
use crate::budget::Budget;
use crate::engine::engines::Engines;
use crate::engine::plan::ItemPlan;
use crate::entropy::{Cpu, Estimator, Flags, TokenStats};
use crate::metrics::{Metrics, ModelMetrics};
use crate::traces::Traces;

/// State that the running generations share.
#[derive(Debug)]
pub struct GenerationContext {
    /// The settings.
    pub settings: GenerationSettings,
    /// The engines, for aborts and for the ids of text prompts.
    pub engines: Engines,
    /// Computes entropies.
    pub cpu: Cpu,
    /// Entropies by request id, readable while a request runs.
    pub entropies: EntropyStore,
    /// All metrics.
    pub metrics: Arc<Metrics>,
    /// The spans of generations; `None` without `--otlp`.
    pub(crate) traces: Option<Arc<Traces>>,
    /// The byte budget for buffered requests and replies.
    pub budget: Budget,
    /// The wait of replies for the log.
    pub log_wait: Arc<LogWait>,
    /// The request ids in flight.
    pub flights: InFlightIds,
    /// The calls of trainers that may abort generations.
    pub interruptions: Interruptions,
    /// The number of generations that are being aborted.
    pub aborting: watch::Sender<usize>,
    /// The missing abort route of the upstream has been logged.
    pub abort_unsupported: AtomicBool,
    /// The engine's plugin returned a wrong answer. It is not asked again before the next probe.
    pub plugin_failed: AtomicBool,
}

impl GenerationContext {
    /// No generation runs yet.
    #[must_use]
    pub fn new(
        settings: GenerationSettings,
        engines: Engines,
        entropies: EntropyStore,
        metrics: Arc<Metrics>,
        budget: Budget,
    ) -> Self {
        // a shared ledger has its own time limit, after which it gives up on a turn
        let longest = settings.ledger_timeout.map_or(MAX_WAIT, |timeout| timeout + MAX_WAIT);
        let log_wait = LogWait::new(Arc::clone(&metrics), longest, settings.is_ledger_strict);
        Self {
            settings,
            engines,
            cpu: Cpu::new(),
            entropies,
            metrics,
            traces: None,
            budget,
            log_wait: Arc::new(log_wait),
            flights: InFlightIds::default(),
            interruptions: Interruptions::default(),
            aborting: watch::Sender::new(0),
            abort_unsupported: AtomicBool::new(false),
            plugin_failed: AtomicBool::new(false),
        }
    }

    /// The same with spans for its generations.
    #[must_use]
    pub(crate) fn with_traces(self, traces: Option<Arc<Traces>>) -> Self {
        Self { traces, ..self }
    }

    /// Adds newly measured tokens to the histograms, in one batch.
    pub(super) fn observe(
        &self,
        model: &ModelMetrics,
        estimator: Estimator,
        item: &ItemPlan,
        tokens: &[TokenStats],
        values: &[f32],
    ) {
        if tokens.is_empty() {
            return;
        }
        model.token_entropy(estimator.name()).observe(values.iter().copied());
        model.topk_mass().observe(tokens.iter().map(|token| 1.0 - token.tail_mass));
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
