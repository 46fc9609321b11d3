//! The logprob rows of one side of a sequence, collected.

use super::item::Ask;
use super::logits;
use super::model::Model;
use super::wire::{Form, LogprobRow, LogprobTable, SideLogprobs};

/// Rows as [`SideLogprobs`] borrows them.
#[derive(Debug, Default)]
pub(super) struct TopRows {
    null_prefix: usize,
    tokens: Vec<LogprobRow>,
    top: Vec<LogprobRow>,
    ids: Vec<LogprobRow>,
}

impl TopRows {
    /// Scores a prompt from `ask.start` on, by the model as it is: no
    /// temperature, penalties or masks. Its first position has no logprob.
    pub(super) fn of_prompt(prompt: &[u32], ask: &Ask, model: &Model, version: u64) -> Self {
        let mut rows = Self::default();
        for (at, &id) in prompt.iter().enumerate().skip(ask.start) {
            if at == ask.start {
                rows.null_prefix = 1;
                rows.tokens.push(LogprobRow { logprob: None, id });
            } else {
                let logits = model.logits(&prompt[..at], version);
                rows.push(ask, &logits::logprobs(&logits, 1.0, true), Some(id));
            }
        }
        rows
    }

    /// Adds a position: what was asked for of `logprobs`, and the token that came, if one did.
    pub(super) fn push(&mut self, ask: &Ask, logprobs: &[f32], id: Option<u32>) {
        let row = |id: u32| LogprobRow { logprob: Some(logprobs[id as usize]), id };
        self.tokens.extend(id.map(row));
        self.top.extend(logits::top(logprobs, ask.top).into_iter().map(row));
        self.ids.extend(ask.ids.iter().copied().map(row));
    }

    /// Tokens with a row.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The rows from token `from` on.
    pub(super) fn side(&self, ask: &Ask, from: usize, form: Form) -> SideLogprobs<'_> {
        SideLogprobs {
            tokens: &self.tokens[from..],
            top: self.table(&self.top, ask.top, from),
            form,
            ids: self.table(&self.ids, ask.ids.len(), from),
        }
    }

    fn table<'a>(&self, rows: &'a [LogprobRow], width: usize, from: usize) -> Option<LogprobTable<'a>> {
        let rows = rows.get(from * width..).unwrap_or_default();
        (width > 0).then_some(LogprobTable { null_prefix: self.null_prefix, width, rows })
    }
}
