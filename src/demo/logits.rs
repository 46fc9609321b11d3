// SPDX-License-Identifier: Apache-2.0
//! Arithmetic on one row of logits: penalties, softmax, logprobs, top-k.

use super::model::Position;
use super::sampling::SamplingParams;

/// Subtracts the frequency and presence penalties and scales by the repetition penalty. SGLang's overlap scheduler applies penalties one
/// step late: at output t it counts the last prompt token and the outputs 0..t-2.
pub(super) fn penalise(logits: &mut [f32], at: Position<'_>, params: &SamplingParams) {
    let Some(late) = at.output.len().checked_sub(1) else {
        return;
    };
    if params.frequency_penalty == 0.0 && params.presence_penalty == 0.0 && params.repetition_penalty == 1.0 {
        return;
    }
    let mut counts = std::collections::BTreeMap::<u32, f32>::new();
    for id in at.prompt.last().into_iter().chain(&at.output[..late]) {
        *counts.entry(*id).or_default() += 1.0;
    }
    for (id, count) in counts {
        let logit = &mut logits[id as usize];
        *logit -= params.frequency_penalty as f32 * count + params.presence_penalty as f32;
        let repetition = params.repetition_penalty as f32;
        *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
    }
}

/// softmax(logits / temperature) in float64, except that the division is float32 as in the engine: its rounding is part of the policy.
pub(super) fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let scaled = logits.iter().map(|logit| f64::from(logit / temperature as f32));
    let scaled: Vec<f64> = scaled.collect();
    let most = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scaled.iter().map(|logit| (logit - most).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// softmax(logits / temperature) in float32, from which tokens are sampled.
pub(super) fn softmax_f32(logits: &[f32], temperature: f32) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) / temperature;
    let weights: Vec<f32> = logits.iter().map(|logit| (logit / temperature - most).exp()).collect();
    // a float64 sum models the tree reduction of a GPU, which has a smaller rounding error than a sequential float32 sum
    let total = weights.iter().map(|weight| f64::from(*weight)).sum::<f64>() as f32;
    weights.iter().map(|weight| weight / total).collect()
}

/// Logprobs as SGLang returns them: log_softmax of the unscaled logits if `greedy`, else the logarithm of float32 probabilities. A
/// probability that underflows to 0 has the logprob `f32::MIN`.
pub(super) fn logprobs(logits: &[f32], temperature: f32, greedy: bool) -> Vec<f32> {
    let clamp = |logprob: f32| logprob.max(f32::MIN);
    if greedy {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
        let total = total.ln() as f32;
        return logits.iter().map(|logit| clamp(logit - most - total)).collect();
    }
    softmax_f32(logits, temperature).iter().map(|p| clamp(p.ln())).collect()
}

/// The ids of the `k` largest values, in descending order. Equal values are ordered by id.
pub(super) fn top(values: &[f32], k: usize) -> Vec<u32> {
    let order = |a: &u32, b: &u32| values[*b as usize].total_cmp(&values[*a as usize]).then(a.cmp(b));
    let mut ids: Vec<u32> = (0..values.len() as u32).collect();
    let k = k.min(ids.len());
    if k > 0 && k < ids.len() {
        ids.select_nth_unstable_by(k - 1, order);
    }
    ids.truncate(k);
    ids.sort_unstable_by(order);
    ids
}

/// The ids that top-k, top-p and min-p keep, in descending order of probability; at least one.
pub(super) fn support(probabilities: &[f32], params: &SamplingParams) -> Vec<u32> {
    let order = top(probabilities, params.top_k.unwrap_or(probabilities.len()));
    let probability = |id: &u32| f64::from(probabilities[*id as usize]);
    let least = probability(&order[0]) * params.min_p;
    let mut before = 0.0;
    let kept = order
        .iter()
        .take_while(|id| {
            // as usual in nucleus sampling, the token that crosses `top_p` is kept
            let keep = before < params.top_p && probability(id) >= least && probability(id) > 0.0;
            before += probability(id);
            keep
        })
        .count();
    order[..kept.max(1)].to_vec()
}

/// Samples an id from `probabilities` after top-k, top-p and min-p. `u` is in [0, 1).
pub(super) fn sample(probabilities: &[f32], params: &SamplingParams, u: f64) -> u32 {
    let kept = support(probabilities, params);
    let probability = |id: &u32| f64::from(probabilities[*id as usize]);
    let mut left = u * kept.iter().map(probability).sum::<f64>();
    for id in &kept {
        left -= probability(id);
        if left < 0.0 {
            return *id;
        }
    }
    kept[kept.len() - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_ids_are_in_descending_order_and_equal_values_are_ordered_by_id() {
        let values = [1.0, 3.0, 2.0, 3.0, f32::MIN];
        assert_eq!(top(&values, 3), [1, 3, 2]);
        assert_eq!(top(&values, 9), [1, 3, 2, 0, 4]);
        assert_eq!(top(&values, 0), [0u32; 0]);
    }

    #[test]
    fn masked_ids_have_the_lowest_float32_logprob_and_are_never_sampled() {
        let logits = [0.0, f32::NEG_INFINITY, -1.0];
        for greedy in [true, false] {
            assert_eq!(logprobs(&logits, 1.0, greedy)[1], f32::MIN, "greedy {greedy}");
        }
        let probabilities = softmax_f32(&logits, 1.0);
        let params = SamplingParams::default();
        for i in 0..100 {
            assert_ne!(sample(&probabilities, &params, f64::from(i) / 100.0), 1);
        }
    }

    #[test]
    fn top_k_top_p_and_min_p_filter_tokens() {
        let probabilities = [0.5, 0.3, 0.15, 0.05];
        let sampled = |params: &SamplingParams| {
            let mut ids: Vec<u32> = (0..1000).map(|i| sample(&probabilities, params, f64::from(i) / 1000.0)).collect();
            ids.dedup();
            ids
        };
        let base = SamplingParams::default();
        assert_eq!(sampled(&base), [0, 1, 2, 3]);
        assert_eq!(sampled(&SamplingParams { top_k: Some(2), ..base.clone() }), [0, 1]);
        assert_eq!(sampled(&SamplingParams { top_p: 0.6, ..base.clone() }), [0, 1]);
        assert_eq!(sampled(&SamplingParams { min_p: 0.25, ..base }), [0, 1, 2]);
    }

    #[test]
    fn penalties_are_applied_one_step_late() {
        let params = SamplingParams { frequency_penalty: 1.0, ..Default::default() };
        let penalised = |output: &[u32]| {
            let mut logits = vec![0.0; 4];
            penalise(&mut logits, Position { prompt: &[0, 3], output }, &params);
            logits
        };
        assert_eq!(penalised(&[]), [0.0, 0.0, 0.0, 0.0]);
        assert_eq!(penalised(&[1]), [0.0, 0.0, 0.0, -1.0]);
        assert_eq!(penalised(&[1, 1, 2]), [0.0, -2.0, 0.0, -1.0]);
    }
}
