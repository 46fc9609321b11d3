//! What a capture measures and counts: the tokens of each object, and each sequence that has come to its end.

use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::Capture;
use crate::engine::response::{Chunk, Numbers};
use crate::entropy::{Estimator, Flags, TopK, whole_entropy};
use crate::generation::enrich::Info;
use crate::generation::forcing::{Exact, Item};
use crate::generation::reason::Reason;
use crate::generation::sequence::{Content, Step};

impl Capture {
    pub(super) fn measure(
        &mut self,
        bytes: &Bytes,
        chunk: &Chunk,
        index: usize,
        item: &Item,
        numbers: &mut Numbers,
    ) -> Step {
        let sequence = &mut self.sequences[index];
        let read = (numbers.chosen.len(), numbers.rows.len());
        let step = sequence.step(bytes, chunk, read, &mut self.content);
        if self.plan.stream && step.content == Content::Full {
            sequence.remember(bytes, chunk);
        }
        if let Some(anomaly) = step.anomaly {
            self.tools.metrics.anomalies.with_label_values(&[anomaly.name()]).inc();
        }
        self.tools.metrics.tokens.with_label_values(&[&self.model, "output"]).inc_by(step.new as u64);
        self.values.clear();
        if !self.plan.entropy_request.wanted {
            return step;
        }
        self.stats.clear();
        // one row a token, in the order of the tokens; where none came the token has no numbers
        numbers.rows.align(step.row_from, step.new);
        let chosen = numbers.chosen.get(step.chosen_from..).unwrap_or_default();
        let batch = TopK { rows: &numbers.rows, chosen, vocab: self.vocab, stats: self.plan.entropy_request.stats };
        self.tools.backend.top_k(&batch, &mut self.stats);
        self.stats.truncate(step.new);
        if let Some(exact) = item.exact {
            self.said(bytes, chunk, index, exact, numbers, step);
        }
        let by_rows = self.by_rows();
        // no distribution has more, but for what float32 costs; what is beyond is no entropy
        let most = self.vocab.map_or(f32::MAX, |vocab| (vocab as f32).ln() + 1e-3);
        let sequence = &mut self.sequences[index];
        for (at, stats) in self.stats.iter_mut().enumerate() {
            let width = numbers.rows.row(at).len();
            sequence.width = sequence.width.max(width);
            let said = self.exact.get(at).copied().filter(|value| (0.0..=most).contains(value));
            let value = match (item.exact, said) {
                (Some(Exact::Support), value) => value.unwrap_or(f32::NAN),
                (Some(Exact::Plugin), Some(value)) => {
                    // what is known exactly has no interval around it
                    (stats.lower, stats.upper) = (value, value);
                    value
                }
                (exact, _) => {
                    let whole = self.vocab.is_some_and(|vocab| width >= vocab as usize) && stats.flags.is_measured();
                    // a null among the engine's own numbers is no number, and makes the others no less exact
                    sequence.exact &= whole || exact.is_some() && width == 0;
                    by_rows.of(stats)
                }
            };
            sequence.inconsistent |= value.is_nan() && stats.flags.contains(Flags::INCONSISTENT);
            sequence.count(value);
            self.values.push(value);
        }
        sequence.lists.begin_event();
        sequence.lists.push(&self.stats, &self.plan.entropy_request, &self.values);
        let new = step.chosen_from..step.chosen_from + step.new;
        let ids = numbers.ids.get(new).filter(|_| chunk.chosen.is_some()).unwrap_or_default();
        self.ticket.append(index, self.values.iter().copied(), ids);
        let estimator = self.estimator(item, index);
        self.tools.observe(&self.model, estimator, item, &self.stats, &self.values);
        step
    }

    /// Reads what the engine itself said of the tokens of a step, into `exact`.
    fn said(&mut self, bytes: &Bytes, chunk: &Chunk, index: usize, exact: Exact, numbers: &mut Numbers, step: Step) {
        let listed = if chunk.chosen.is_some() { numbers.chosen.len() } else { chunk.count_ids(bytes) };
        let said = match exact {
            Exact::Plugin => chunk.exact.is_some().then_some(&numbers.exact[..]),
            Exact::Support => {
                numbers.exact.clear();
                numbers.exact.extend((0..numbers.support.len()).map(|at| whole_entropy(numbers.support.row(at))));
                // read whole, where of `chosen` only what is new may have been
                let known = chunk.chosen.as_ref().is_some_and(|chosen| chosen.known > 0);
                let before = if known { self.sequences[index].tokens - step.new } else { 0 };
                let whole = numbers.exact.len() == before + listed;
                let fitting = if whole { &numbers.exact[before..] } else { &[] };
                chunk.has_support.then_some(fitting)
            }
        };
        self.sequences[index].take_exact(said, listed, &step, &mut self.exact);
    }

    /// The estimator of tokens of which the engine itself says nothing, as far as it can be carried out with what is known.
    fn by_rows(&self) -> Estimator {
        let wished = self.plan.entropy_request.estimator;
        if self.vocab.is_some() { wished } else { wished.without_vocabulary() }
    }

    /// The estimator that the numbers of a sequence are named by: the weakest of them.
    fn estimator(&self, item: &Item, index: usize) -> Estimator {
        let sequence = &self.sequences[index];
        match item.exact {
            Some(Exact::Plugin) if sequence.exact => Estimator::Exact,
            _ => self.by_rows(),
        }
    }

    pub(super) fn info(&self, item: &Item, index: usize) -> Info {
        let sequence = &self.sequences[index];
        let reason = match (sequence.is_measured(), sequence.lost) {
            (true, _) if sequence.contradicted => Some(Reason::StreamContradiction),
            (true, None) => sequence.inconsistent.then_some(Reason::UnusableRows),
            (true, Some(_)) => Some(Reason::MissingValues).filter(|_| sequence.exact),
            (false, _) => item.reason.or_else(|| sequence.lack(item.exact)),
        };
        Info {
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

    pub(super) fn finish(&mut self, chunk: &Chunk, index: usize, item: &Item, kind: &str) {
        let sequence = &mut self.sequences[index];
        if std::mem::replace(&mut sequence.finished, true) {
            return;
        }
        // an abort's reply may lack what the plugin said before: that is SGLang's way, and no fault of the plugin
        if let Some(lost) = sequence.lost_exact(item.exact).filter(|_| kind != "abort") {
            self.tools.metrics.exact_lost.with_label_values(&[lost.name()]).inc();
            if item.exact == Some(Exact::Plugin) {
                let before = self.tools.plugin_failed.swap(true, Ordering::Relaxed);
                if !before {
                    tracing::warn!(
                        lost = lost.name(),
                        "the engine's plugin did not answer as it should; top-k is asked until the next probe"
                    );
                }
            }
        }
        self.ticket.finish(index, kind);
        self.observed.finished += 1;
        self.observed.tokens += sequence.tokens as u64;
        self.observed.prompt_tokens += chunk.prompt_tokens.unwrap_or(0);
        if let Some(mean) = sequence.mean() {
            self.observed.mean = Some(mean);
        }
        if self.plan.entropy_request.wanted && !sequence.is_measured() && sequence.tokens > 0 {
            let reason = item.reason.or_else(|| sequence.lack(item.exact)).unwrap_or(Reason::MissingRows);
            self.observed.missing = Some(reason);
            self.tools.metrics.skipped.with_label_values(&[reason.name()]).inc();
        }
        let tokens = &self.tools.metrics.tokens;
        tokens.with_label_values(&[&self.model, "prompt"]).inc_by(chunk.prompt_tokens.unwrap_or(0));
        if let Some(mean) = sequence.mean() {
            self.tools.metrics.mean_entropy.with_label_values(&[&self.model]).observe(mean);
        }
    }
}
