// SPDX-License-Identifier: Apache-2.0
//! The data of the tokens of a sequence for its reply: logprobs, the plugin's entropies, and sampling masks.

use super::item::{Item, LogprobRequest};
use super::logits;
use super::model::{Model, entropy};
use super::options::{Dialect, EngineOptions, Plugin};
use super::wire::{Form, LogprobRow, LogprobTable, Mask, SideLogprobs};

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
    pub(super) fn from_prompt(prompt: &[u32], request: &LogprobRequest, model: &Model, version: u64) -> Self {
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

/// Entropies and sampling masks, one entry for each token. A list is empty if the request does not ask for it.
#[derive(Debug, Default)]
pub(super) struct TokenMembers {
    entropies: Vec<Option<f32>>,
    masks: Vec<Mask>,
}

impl TokenMembers {
    /// Adds the entries of token `id`, which was sampled from the logits `adjusted`.
    pub(super) fn push(&mut self, adjusted: &[f32], id: u32, item: &Item, options: &EngineOptions) {
        let params = &item.params;
        if let Some(full) = params.plugin {
            let temperature = if options.original_logprob { 1.0 } else { params.temperature };
            let of = |logits: &[f32]| Some(entropy(&logits::softmax(logits, temperature)) as f32);
            self.entropies.push(match options.plugin {
                Plugin::TopK(_) if full => None,
                Plugin::TopK(k) => {
                    let largest: Vec<f32> = logits::top(adjusted, k).iter().map(|id| adjusted[*id as usize]).collect();
                    of(&largest)
                }
                _ => of(adjusted),
            });
        }
        if let Some(whole) = item.mask {
            let probabilities = logits::softmax_f32(adjusted, params.temperature as f32);
            let ids = if params.is_greedy() { vec![id] } else { logits::support(&probabilities, params) };
            let total: f32 = ids.iter().map(|id| probabilities[*id as usize]).sum();
            let reported = if whole { &ids[..] } else { &[id] };
            let logprobs = reported.iter().map(|id| (probabilities[*id as usize] / total).ln()).collect();
            self.masks.push(Mask { ids, logprobs, whole });
        }
    }

    /// The entropies that the plugin returns for the tokens from `from` on; `None` if it returns none.
    pub(super) fn entropies(&self, item: &Item, options: &EngineOptions, from: usize) -> Option<&[Option<f32>]> {
        let full = item.params.plugin?;
        let entropies = &self.entropies[from..];
        match options.plugin {
            _ if options.dialect == Dialect::Sglang056 || self.entropies.is_empty() => None,
            Plugin::Absent => None,
            Plugin::Mute if !full => None,
            Plugin::Short if !full => Some(entropies.split_last().map_or(entropies, |(_, rest)| rest)),
            _ => Some(entropies),
        }
    }

    /// The sampling masks of the tokens from `from` on; `None` if the request does not ask for them.
    pub(super) fn masks(&self, item: &Item, from: usize) -> Option<&[Mask]> {
        item.mask.map(|_| &self.masks[from..])
    }
}
