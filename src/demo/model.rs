// SPDX-License-Identifier: Apache-2.0
//! The demo language model: an n-gram model over the tokens of a byte-level BPE, and its tokenizer.

use std::ops::Deref;

use super::grammar::Grammar;
use super::logits;
use super::ngram::{HISTORY, Ngram};
use super::rng::{mix, unit};
use super::sampling::SamplingParams;
use crate::tokenizer::{Folder, Tokenizer};

const TEMPLATE: &str = include_str!("assets/chat_template.jinja");
const TOKENIZER: &[u8] = include_bytes!("assets/tokenizer.json");
/// The ids of `<think>` and `</think>` in the model's tokenizer.
pub const THINK_TOKENS: [u32; 2] = [1020, 1021];
/// The maximum number of thinking tokens before a grammar begins.
const MAX_THINKING_TOKENS: usize = 24;
const CORPUS: &str = include_str!("assets/corpus.txt");

/// A tokenizer whose encoding and decoding never fail.
#[derive(Debug, Clone)]
pub struct Vocabulary(Tokenizer);

impl Vocabulary {
    fn load(bytes: &[u8]) -> Self {
        Self(Tokenizer::from_bytes(bytes).expect("the checked-in tokenizer loads"))
    }

    /// The ids of `text`. The text of an added token becomes its id.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.0.encode(text).expect("a byte-level BPE has an id for every byte")
    }

    /// The text of `ids`, as [`Tokenizer::decode`] returns it.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        self.0.decode(ids, skip_special).expect("a byte-level decoder takes any bytes")
    }
}

impl Deref for Vocabulary {
    type Target = Tokenizer;

    fn deref(&self) -> &Tokenizer {
        &self.0
    }
}

/// The position of the next token in a sequence. Prompt and output are separate, because penalties and `min_new_tokens` count outputs.
#[derive(Debug, Clone, Copy)]
pub struct Position<'a> {
    /// The prompt ids.
    pub prompt: &'a [u32],
    /// The ids generated so far.
    pub output: &'a [u32],
}

impl<'a> From<&'a [u32]> for Position<'a> {
    /// The first position after `prompt`.
    fn from(prompt: &'a [u32]) -> Self {
        Self { prompt, output: &[] }
    }
}

impl Position<'_> {
    fn history(&self) -> Vec<u32> {
        let recent = self.output.len().min(HISTORY);
        let earlier = self.prompt.len().min(HISTORY - recent);
        let prompt = &self.prompt[self.prompt.len() - earlier..];
        [prompt, &self.output[self.output.len() - recent..]].concat()
    }
}

/// A trained model, and the mask that restricts its outputs.
#[derive(Debug)]
pub struct Model {
    ngram: Ngram,
    vocab_size: usize,
    eos: u32,
    /// By token: whether it may be generated; `None` if all tokens may.
    allowed: Option<Vec<bool>>,
    /// The text of each token that may occur in a JSON value; empty for other tokens.
    pieces: Vec<Vec<u8>>,
}

impl Model {
    /// The tokenizer that the model is trained with.
    pub fn tokenizer() -> Vocabulary {
        Vocabulary::load(TOKENIZER)
    }

    /// The tokenizer and the chat template, as tokentap reads them from a model folder.
    pub fn folder() -> Folder {
        Folder::embedded(TOKENIZER, TEMPLATE, "<|im_end|>").expect("the checked-in tokenizer and template load")
    }

    /// Trains on the corpus in the repository. With `allowed`, all other ids are masked at each output position.
    pub fn train(tokenizer: &Vocabulary, allowed: Option<&[u32]>) -> Self {
        let vocab_size = tokenizer.vocab_size();
        let allowed = allowed.map(|ids| {
            let mut mask = vec![false; vocab_size];
            ids.iter().filter(|id| (**id as usize) < vocab_size).for_each(|id| mask[*id as usize] = true);
            mask
        });
        let piece = |id: u32| {
            let text = tokenizer.decode(&[id], false);
            let is_added = text.len() > 1 && text.starts_with('<') && text.ends_with('>');
            if text.is_ascii() && !is_added { text.into_bytes() } else { Vec::new() }
        };
        Self {
            pieces: (0..vocab_size as u32).map(piece).collect(),
            ngram: Ngram::train(&tokenizer.encode(CORPUS), vocab_size),
            vocab_size,
            eos: tokenizer.token_to_id("<|im_end|>").expect("the checked-in tokenizer has an end of turn"),
            allowed,
        }
    }

    /// The vocabulary size, in tokens.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The end-of-turn id, which ends a reply.
    pub fn eos(&self) -> u32 {
        self.eos
    }

    /// The logits after `context`. For version 0 of the weights they are the log-probabilities at temperature 1. Each other version
    /// perturbs them differently.
    pub fn logits(&self, context: &[u32], version: u64) -> Vec<f32> {
        let probabilities = self.ngram.probabilities(context);
        if version == 0 {
            return probabilities.iter().map(|p| p.ln() as f32).collect();
        }
        let last = u64::from(context.last().copied().unwrap_or(0));
        let seed = mix(version << 32 | last);
        let sharpness = 0.8 + 0.5 * unit(mix(version));
        let perturb = |(id, p): (usize, &f64)| {
            let noise = 2.0 * unit(mix(seed ^ mix(id as u64 + 1))) - 1.0;
            (sharpness * p.ln() + 1.5 * noise) as f32
        };
        probabilities.iter().enumerate().map(perturb).collect()
    }

    /// The logits after penalties, masks and bias, before the division by the temperature.
    pub fn adjusted_logits<'a>(&self, at: impl Into<Position<'a>>, params: &SamplingParams, version: u64) -> Vec<f32> {
        let at = at.into();
        let mut logits = self.logits(&at.history(), version);
        logits::penalise(&mut logits, at, params);
        let grammar = params.grammar.as_ref().filter(|_| params.script.is_none());
        if let Some(grammar) = grammar {
            self.constrain(&mut logits, grammar, at.output, params.require_reasoning);
        } else if (at.output.len() as i64) < params.min_new_tokens {
            for id in params.stop_token_ids.iter().chain([&self.eos]) {
                if let Some(logit) = logits.get_mut(*id as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        if let Some(allowed) = &self.allowed {
            let masked = logits.iter_mut().zip(allowed).filter(|(_, allowed)| !**allowed);
            masked.for_each(|(logit, _)| *logit = f32::NEG_INFINITY);
        }
        for &(id, bias) in &params.logit_bias {
            if let Some(logit) = usize::try_from(id).ok().and_then(|id| logits.get_mut(id)) {
                *logit += bias as f32;
            }
        }
        logits
    }

    /// Masks the tokens that the grammar does not allow. If `thinks`, the output begins with at most [`MAX_THINKING_TOKENS`] thinking
    /// tokens, and the grammar begins after the end of the thinking.
    fn constrain(&self, logits: &mut [f32], grammar: &Grammar, output: &[u32], thinks: bool) {
        let [_, thought_end] = THINK_TOKENS;
        let after_thinking = output.iter().position(|id| *id == thought_end).map(|at| &output[at + 1..]);
        let mask = |logit: &mut f32| *logit = f32::NEG_INFINITY;
        let Some(output) = after_thinking.or((!thinks).then_some(output)) else {
            let must_end = output.len() >= MAX_THINKING_TOKENS;
            let masked =
                logits.iter_mut().zip(0_u32..).filter(|(_, id)| *id == self.eos || must_end && *id != thought_end);
            return masked.for_each(|(logit, _)| mask(logit));
        };
        let (allowed, may_end) = grammar.allowed(&self.pieces, output);
        let masked = logits.iter_mut().zip(&allowed).zip(0_u32..);
        let masked = masked.filter(|((_, allowed), id)| !(**allowed || may_end && *id == self.eos));
        masked.for_each(|((logit, _), _)| mask(logit));
    }

    /// The exact distribution from which the returned logprobs are computed: over the whole vocabulary, at the request's temperature (1 if
    /// greedy), before top-k, top-p and min-p.
    pub fn distribution<'a>(&self, at: impl Into<Position<'a>>, params: &SamplingParams, version: u64) -> Vec<f64> {
        let adjusted = self.adjusted_logits(at, params, version);
        logits::softmax(&adjusted, params.described_temperature())
    }

    /// The entropy of [`distribution`](Self::distribution), in nats.
    pub fn entropy<'a>(&self, at: impl Into<Position<'a>>, params: &SamplingParams, version: u64) -> f64 {
        entropy(&self.distribution(at, params, version))
    }
}

/// The entropy of a distribution, in nats.
pub fn entropy(distribution: &[f64]) -> f64 {
    -distribution.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn think_tokens_are_the_ids_of_the_tokenizer() {
        let tokenizer = Model::tokenizer();
        let [start, end] = THINK_TOKENS;
        assert_eq!((tokenizer.encode("<think>"), tokenizer.encode("</think>")), (vec![start], vec![end]));
    }

    #[test]
    fn distribution_sums_to_one_at_any_temperature_and_weight_version() {
        let tokenizer = Model::tokenizer();
        let model = Model::train(&tokenizer, None);
        let prompt = tokenizer.encode("Lamp lit at");
        for version in [0, 1, 2, 99] {
            for temperature in [0.0, 0.05, 0.7, 1.0, 2.0, 100.0] {
                let params = SamplingParams { temperature, ..Default::default() }.normalised();
                let sum: f64 = model.distribution(&prompt[..], &params, version).iter().sum();
                assert!((sum - 1.0).abs() < 1e-9, "T={temperature} v{version}: {sum}");
            }
        }
    }

    #[test]
    fn entropies_range_from_near_zero_to_above_four_nats() {
        let tokenizer = Model::tokenizer();
        let model = Model::train(&tokenizer, None);
        let text = tokenizer.encode(CORPUS);
        let params = SamplingParams::default();
        // half of the contexts are from the corpus, and half are random ids
        let mut entropies: Vec<f64> = (0..1000usize)
            .map(|i| {
                let seen = i * 5;
                let random: Vec<u32> = (0..3).map(|j| (mix((i * 3 + j) as u64) % 1024) as u32).collect();
                let context = if i % 2 == 0 { &text[seen..seen + 3] } else { &random[..] };
                model.entropy(context, &params, 0)
            })
            .collect();
        entropies.sort_by(f64::total_cmp);
        let spread = (entropies[0], entropies[500], entropies[999]);
        eprintln!("entropy over 1000 contexts, nats: min, median, max = {spread:?}");
        assert!(spread.0 < 0.05 && spread.2 > 4.0, "spread {spread:?}");
        let seen: Vec<f64> = (3..1003).map(|at| model.entropy(&text[at - 3..at], &params, 0)).collect();
        let mean = seen.iter().sum::<f64>() / 1000.0;
        eprintln!("mean over the first 1000 positions of the text: {mean}");
    }

    #[test]
    fn decoding_an_encoded_text_returns_the_text() {
        let tokenizer = Model::tokenizer();
        let ids = tokenizer.encode(CORPUS);
        assert_eq!(tokenizer.decode(&ids, false), CORPUS);
        assert_eq!(tokenizer.vocab_size(), 1024);
        assert_eq!(tokenizer.token_to_id("</tool_call>"), Some(1023), "added tokens come last");
    }

    #[test]
    fn model_trains_and_prints_the_duration() {
        let started = std::time::Instant::now();
        let tokenizer = Model::tokenizer();
        let loaded = started.elapsed();
        Model::train(&tokenizer, None);
        eprintln!("tokenizer {loaded:?}, both {:?}", started.elapsed());
    }

    #[test]
    fn new_weight_version_changes_the_distribution_deterministically() {
        let tokenizer = Model::tokenizer();
        let model = Model::train(&tokenizer, None);
        let prompt = tokenizer.encode("The light comes");
        let params = SamplingParams::default();
        let distribution = |version| model.distribution(&prompt[..], &params, version);
        let moved: f64 = distribution(0).iter().zip(distribution(1)).map(|(a, b)| (a - b).abs()).sum();
        assert!(moved > 0.01, "moved by {moved} only");
        assert_eq!(distribution(1), distribution(1), "a version is one set of weights");
    }
}
