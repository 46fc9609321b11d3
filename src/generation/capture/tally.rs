//! What a capture measures and counts: the tokens of each object, and each sequence that has come to its end.

use bytes::Bytes;

use super::Capture;
use crate::entropy::{Estimator, TopK};
use crate::generation::enrich::Info;
use crate::generation::forcing::Item;
use crate::generation::reason::Reason;
use crate::generation::sequence::{Content, Step};
use crate::sglang::response::{Chunk, Numbers};

impl Capture {
    pub(super) fn measure(
        &mut self,
        bytes: &Bytes,
        chunk: &Chunk,
        index: usize,
        item: &Item,
        numbers: &mut Numbers,
    ) -> Step {
        let estimator = self.estimator();
        let sequence = &mut self.sequences[index];
        let read = (numbers.chosen.len(), numbers.rows.len());
        let step = sequence.step(bytes, chunk, read, &mut self.content);
        if self.plan.stream && step.content == Content::Full {
            sequence.remember(bytes, chunk);
        }
        self.tools.metrics.tokens.with_label_values(&[&self.model, "output"]).inc_by(step.new as u64);
        self.values.clear();
        if !self.plan.wish.wanted {
            return step;
        }
        self.stats.clear();
        // one row a token, in the order of the tokens; where none came the token has no numbers
        numbers.rows.align(step.row_from, step.new);
        let chosen = numbers.chosen.get(step.chosen_from..).unwrap_or_default();
        let batch = TopK { rows: &numbers.rows, chosen, vocab: self.vocab, stats: self.plan.wish.stats };
        self.tools.backend.top_k(&batch, &mut self.stats);
        self.stats.truncate(step.new);
        for (at, stats) in self.stats.iter().enumerate() {
            let width = numbers.rows.row(at).len();
            sequence.width = sequence.width.max(width);
            sequence.exact &= self.vocab.is_some_and(|vocab| width >= vocab as usize);
            sequence.count(stats, estimator);
        }
        sequence.lists.begin_event();
        sequence.lists.push(&self.stats, &self.plan.wish, estimator);
        self.values.extend(self.stats.iter().map(|stats| estimator.of(stats)));
        self.ticket.append(index, self.values.iter().copied());
        self.tools.observe(&self.model, estimator, item, &self.stats);
        step
    }

    /// The estimator that can be carried out with what is known.
    fn estimator(&self) -> Estimator {
        let wished = self.plan.wish.estimator;
        if self.vocab.is_some() { wished } else { wished.without_vocabulary() }
    }

    pub(super) fn info(&self, item: &Item, index: usize) -> Info {
        let sequence = &self.sequences[index];
        let reason = if sequence.is_measured() { None } else { item.reason.or_else(|| sequence.lack()) };
        Info {
            measured: sequence.is_measured(),
            exact: sequence.exact,
            estimator: self.estimator(),
            temperature: item.temperature.ok(),
            width: sequence.width,
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
        self.ticket.finish(index, kind);
        self.observed.finished += 1;
        self.observed.tokens += sequence.tokens as u64;
        self.observed.prompt_tokens += chunk.prompt_tokens.unwrap_or(0);
        if let Some(mean) = sequence.mean() {
            self.observed.mean = Some(mean);
        }
        if self.plan.wish.wanted && !sequence.is_measured() && sequence.tokens > 0 {
            let reason = item.reason.or_else(|| sequence.lack()).unwrap_or(Reason::MissingRows);
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
