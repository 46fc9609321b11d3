//! The plugin's entropies and the sampling masks of a sequence, for the reply.

use super::item::Item;
use super::logits;
use super::model::entropy;
use super::options::{Dialect, EngineOptions, Plugin};
use super::wire::Mask;

/// Entropies and sampling masks, one entry for each token. A list is empty if the request does not ask for it.
#[derive(Debug, Default)]
pub(super) struct ReplyMembers {
    entropies: Vec<Option<f32>>,
    masks: Vec<Mask>,
}

impl ReplyMembers {
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
