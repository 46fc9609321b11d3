//! Collects the logprobs of the prompt or the output of a sequence.

use super::item::LogprobRequest;
use super::logits;
use super::model::Model;
use super::wire::{Form, LogprobRow, LogprobTable, SideLogprobs};

/// The rows of the prompt or the output; [`SideLogprobs`] borrows them.
#[derive(Debug, Default)]
pub(super) struct LogprobRows {
    /// Positions at the start without top logprobs.
    null_prefix: usize,
    /// One row for each token.
    tokens: Vec<LogprobRow>,
    /// `top_logprobs_num` rows for each position.
    top: Vec<LogprobRow>,
    /// One row for each position and id of `token_ids_logprob`.
    ids: Vec<LogprobRow>,
}

impl LogprobRows {
    /// Computes the logprobs of a prompt from `request.start` on, without temperature, penalties or masks. The first position has no
    /// logprob.
    pub(super) fn of_prompt(prompt: &[u32], request: &LogprobRequest, model: &Model, version: u64) -> Self {
        let mut rows = Self::default();
        for (at, &id) in prompt.iter().enumerate().skip(request.start) {
            if at == request.start {
                rows.null_prefix = 1;
                rows.tokens.push(LogprobRow { logprob: None, id });
            } else {
                let logits = model.logits(&prompt[..at], version);
                rows.push(request, &logits::logprobs(&logits, 1.0, true), Some(id));
            }
        }
        rows
    }

    /// Adds a position: the requested rows of `logprobs`, and the sampled token, if any.
    pub(super) fn push(&mut self, request: &LogprobRequest, logprobs: &[f32], id: Option<u32>) {
        let row = |id: u32| LogprobRow { logprob: Some(logprobs[id as usize]), id };
        self.tokens.extend(id.map(row));
        self.top.extend(logits::top(logprobs, request.top).into_iter().map(row));
        self.ids.extend(request.ids.iter().copied().map(row));
    }

    /// The number of tokens with a row.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The rows from token `from` on.
    pub(super) fn side(&self, request: &LogprobRequest, from: usize, form: Form) -> SideLogprobs<'_> {
        SideLogprobs {
            tokens: &self.tokens[from..],
            top: self.table(&self.top, request.top, from),
            form,
            ids: self.table(&self.ids, request.ids.len(), from),
        }
    }

    fn table<'a>(&self, rows: &'a [LogprobRow], width: usize, from: usize) -> Option<LogprobTable<'a>> {
        let rows = rows.get(from * width..).unwrap_or_default();
        (width > 0).then_some(LogprobTable { null_prefix: self.null_prefix, width, rows })
    }
}
