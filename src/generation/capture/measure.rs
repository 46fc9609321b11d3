// SPDX-License-Identifier: Apache-2.0
//! Measures and counts the tokens of each object and each finished sequence.

use std::borrow::Cow;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::Capture;
use super::buffers::Buffers;
use crate::engine::events::Chunk;
use crate::engine::plan::{ExactSource, ItemPlan};
use crate::engine::reason::Reason;
use crate::entropy::{Estimator, Flags, TopK, whole_entropy};
use crate::generation::enrich::EntropyInfo;
use crate::generation::entropy_lists::ListContent;
use crate::generation::sequence::EventStep;
use crate::traces::Failure;

impl Capture {
    pub(super) fn measure(
        &mut self,
        bytes: &Bytes,
        chunk: &Chunk,
        index: usize,
        item: &ItemPlan,
        buffers: &mut Buffers,
    ) -> EventStep {
        let numbers = &mut buffers.numbers;
        let sequence = &mut self.sequences[index];
        let step = sequence.step(bytes, chunk, numbers.chosen.len(), numbers.rows.len(), &mut self.content);
        if self.plan.stream && step.content == ListContent::Full {
            sequence.remember(bytes, chunk);
        }
        if let Some(anomaly) = step.anomaly {
            self.context.metrics.anomalies.with_label_values(&[anomaly.name()]).inc();
        }
        self.model.output_tokens().inc_by(step.new as u64);
        buffers.values.clear();
        let is_wanted = self.plan.entropy_request.wanted;
        if is_wanted || self.plan.keeps_top {
            // one row per token, in token order; a token without a row has no numbers
            numbers.rows.align(step.row_from, step.new);
        }
        if !is_wanted {
            return step;
        }
        buffers.stats.clear();
        let chosen = numbers.chosen.get(step.chosen_from..).unwrap_or_default();
        let batch = TopK { rows: &numbers.rows, chosen, vocab: self.vocab, stats: self.plan.entropy_request.stats };
        self.context.cpu.top_k(&batch, &mut buffers.stats);
        buffers.stats.truncate(step.new);
        if let Some(exact) = item.exact {
            self.read_exact(bytes, chunk, index, exact, buffers, step);
        }
        match item.exact {
            None => self.choose_by_rows(index, buffers),
            Some(exact) => self.choose_exact(index, exact, buffers),
        }
        let sequence = &mut self.sequences[index];
        for (stats, value) in buffers.stats.iter().zip(&buffers.values) {
            sequence.inconsistent |= value.is_nan() && stats.flags.contains(Flags::INCONSISTENT);
            sequence.count(*value);
        }
        sequence.lists.begin_event();
        sequence.lists.push(&buffers.stats, &self.plan.entropy_request, &buffers.values);
        let new = step.chosen_from..step.chosen_from + step.new;
        // the store keeps the ids of sequences that run
        let runs = chunk.chosen.is_some() && chunk.finish.is_none();
        let ids = buffers.numbers.ids.get(new).filter(|_| runs).unwrap_or_default();
        self.entropy_writer.append(index, buffers.values.iter().copied(), ids);
        let estimator = self.estimator(item, index);
        self.context.observe(&self.model, estimator, item, &buffers.stats, &buffers.values);
        step
    }

    /// Fills `values` from the statistics of the rows.
    fn choose_by_rows(&mut self, index: usize, buffers: &mut Buffers) {
        let Buffers { numbers, stats, values, .. } = buffers;
        let by_rows = self.by_rows();
        let sequence = &mut self.sequences[index];
        let vocab = self.vocab.map_or(usize::MAX, |vocab| vocab as usize);
        let (mut start, mut least) = (0, usize::MAX);
        for &end in numbers.rows.ends().iter().take(stats.len()) {
            sequence.width = sequence.width.max(end - start);
            least = least.min(end - start);
            start = end;
        }
        sequence.exact &= least >= vocab && stats.iter().all(|stats| stats.flags.is_measured());
        match by_rows {
            // the usual one, in a loop without other cases
            Estimator::Estimate => values.extend(stats.iter().map(|stats| stats.estimate)),
            other => values.extend(stats.iter().map(|stats| other.value(stats))),
        }
    }

    /// Fills `values` from the engine's exact values, and from the rows where the plugin reported none.
    fn choose_exact(&mut self, index: usize, exact: ExactSource, buffers: &mut Buffers) {
        let Buffers { numbers, stats, values, exact: reported } = buffers;
        let by_rows = self.by_rows();
        // the largest entropy of any distribution, plus float32 error; a larger value is not an entropy
        let most = self.vocab.map_or(f32::MAX, |vocab| (vocab as f32).ln() + 1e-3);
        let sequence = &mut self.sequences[index];
        for (at, stats) in stats.iter_mut().enumerate() {
            let width = numbers.rows.row(at).len();
            sequence.width = sequence.width.max(width);
            let exact_value = reported.get(at).copied().filter(|value| (0.0..=most).contains(value));
            values.push(match (exact, exact_value) {
                (ExactSource::Support, value) => value.unwrap_or(f32::NAN),
                (ExactSource::Plugin, Some(value)) => {
                    // an exact value has no interval
                    (stats.lower, stats.upper) = (value, value);
                    value
                }
                (ExactSource::Plugin, None) => {
                    let whole = self.vocab.is_some_and(|vocab| width >= vocab as usize) && stats.flags.is_measured();
                    // a null among the engine's exact values does not make the others less exact
                    sequence.exact &= whole || width == 0;
                    by_rows.value(stats)
                }
            });
        }
    }

    /// Reads the engine's exact values for the tokens of a step into `exact`.
    fn read_exact(
        &mut self,
        bytes: &Bytes,
        chunk: &Chunk,
        index: usize,
        exact: ExactSource,
        buffers: &mut Buffers,
        step: EventStep,
    ) {
        let numbers = &mut buffers.numbers;
        let listed = if chunk.chosen.is_some() { numbers.chosen.len() } else { chunk.count_ids(bytes) };
        let values = match exact {
            ExactSource::Plugin => chunk.exact.is_some().then_some(&numbers.exact[..]),
            ExactSource::Support => {
                numbers.exact.clear();
                numbers.exact.extend((0..numbers.support.len()).map(|at| whole_entropy(numbers.support.row(at))));
                // this list was read completely, `chosen` perhaps only after its known prefix
                let known = chunk.chosen.as_ref().is_some_and(|chosen| chosen.known > 0);
                let before = if known { self.sequences[index].tokens - step.new } else { 0 };
                let whole = numbers.exact.len() == before + listed;
                let fitting = if whole { &numbers.exact[before..] } else { &[] };
                chunk.has_support.then_some(fitting)
            }
        };
        self.sequences[index].take_exact(values, listed, &step, &mut buffers.exact);
    }

    /// The estimator for tokens without an exact value: the requested one, or its substitute if the vocabulary size is unknown.
    fn by_rows(&self) -> Estimator {
        let requested = self.plan.entropy_request.estimator;
        if self.vocab.is_some() { requested } else { requested.without_vocabulary() }
    }

    /// The estimator that is published for a sequence: the weakest that any of its numbers used.
    fn estimator(&self, item: &ItemPlan, index: usize) -> Estimator {
        let sequence = &self.sequences[index];
        match item.exact {
            Some(ExactSource::Plugin) if sequence.exact => Estimator::Exact,
            _ => self.by_rows(),
        }
    }

    pub(super) fn info(&self, item: &ItemPlan, index: usize) -> EntropyInfo {
        let sequence = &self.sequences[index];
        let reason = match (sequence.is_measured(), sequence.exact_failure) {
            (true, _) if sequence.contradicted => Some(Reason::StreamContradiction),
            (true, None) => sequence.inconsistent.then_some(Reason::UnusableRows),
            (true, Some(_)) => Some(Reason::MissingValues).filter(|_| sequence.exact),
            (false, _) => item.reason.or_else(|| sequence.missing_reason(item.exact)),
        };
        EntropyInfo {
            measured: sequence.is_measured(),
            exact: sequence.exact,
            estimator: self.estimator(item, index),
            temperature: item.temperature.ok(),
            width: sequence.width,
            lowered_from: item.lowered_from.filter(|_| sequence.is_measured() && sequence.width > 0),
            vocab: self.vocab,
            mean: sequence.mean(),
            reason: reason.or(item.temperature.err()),
        }
    }

    pub(super) fn finish(&mut self, chunk: &Chunk, index: usize, item: &ItemPlan, kind: Cow<'static, str>) {
        let sequence = &mut self.sequences[index];
        if std::mem::replace(&mut sequence.finished, true) {
            return;
        }
        // an abort's reply may lack the plugin's earlier values; SGLang drops them, so the plugin is not at fault
        if let Some(failure) = sequence.exact_failure(item.exact).filter(|_| kind != "abort") {
            self.context.metrics.exact_lost.with_label_values(&[failure.name()]).inc();
            if item.exact == Some(ExactSource::Plugin) {
                let before = self.context.plugin_failed.swap(true, Ordering::Relaxed);
                if !before {
                    tracing::warn!(
                        failure = failure.name(),
                        "the engine's plugin returned a wrong answer; top-k is requested instead until the next probe"
                    );
                }
            }
        }
        if let Some(span) = &mut self.span {
            span.finish(kind.clone(), self.now);
        }
        let failed = chunk.finish.as_ref().and_then(|finish| finish.status_code);
        if let (Some(span), Some(status)) = (&self.span, failed) {
            span.failure().set(Failure::of_code(Some(status.into())));
        }
        let has_failed = failed.is_some();
        self.observed.is_aborted |= kind == "abort" && !has_failed;
        self.entropy_writer.finish(index, kind);
        self.observed.finished += 1;
        self.observed.tokens += sequence.tokens as u64;
        self.observed.prompt_tokens += chunk.prompt_tokens.unwrap_or(0);
        if let Some(mean) = sequence.mean() {
            self.observed.mean = Some(mean);
        }
        if self.plan.entropy_request.wanted && !sequence.is_measured() && sequence.tokens > 0 {
            let reason = item.reason.or_else(|| sequence.missing_reason(item.exact)).unwrap_or(Reason::MissingRows);
            self.observed.missing = Some(reason);
            self.context.metrics.skipped.with_label_values(&[reason.name()]).inc();
        }
        self.model.prompt_tokens().inc_by(chunk.prompt_tokens.unwrap_or(0));
        if let Some(mean) = sequence.mean() {
            self.model.mean_entropy().observe(mean);
        }
    }
}
