//! The exact numbers of a sequence in replies of the demo engine: the plugin's entropies, and the sampling masks.

use super::item::Item;
use super::logits;
use super::model::entropy;
use super::options::{Dialect, EngineOptions, Plugin};
use super::wire::Mask;

/// One entry a token.
#[derive(Debug, Default)]
pub(super) struct ReplyMembers {
    entropies: Vec<Option<f32>>,
    masks: Vec<Mask>,
}

impl ReplyMembers {
    /// Notes the token `id`, sampled from the logits `adjusted`.
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
            let named = if whole { &ids[..] } else { &[id] };
            let logprobs = named.iter().map(|id| (probabilities[*id as usize] / total).ln()).collect();
            self.masks.push(Mask { ids, logprobs, whole });
        }
    }

    /// What the plugin answers about the tokens from `from` on.
    pub(super) fn entropies(&self, item: &Item, options: &EngineOptions, from: usize) -> Option<&[Option<f32>]> {
        let full = item.params.plugin?;
        let said = &self.entropies[from..];
        match options.plugin {
            _ if options.dialect == Dialect::Sglang056 || self.entropies.is_empty() => None,
            Plugin::Absent => None,
            Plugin::Mute if !full => None,
            Plugin::Short if !full => Some(said.split_last().map_or(said, |(_, rest)| rest)),
            _ => Some(said),
        }
    }

    /// The masks of the tokens from `from` on, where they were asked for.
    pub(super) fn masks(&self, item: &Item, from: usize) -> Option<&[Mask]> {
        item.mask.map(|_| &self.masks[from..])
    }
}
