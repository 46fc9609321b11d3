// SPDX-License-Identifier: Apache-2.0
//! An item of a batch: one sequence to generate, with checked parameters and a tokenised prompt.

use std::collections::BTreeSet;

use super::engine::Engine;
use super::options::Dialect;
use super::refusal::Refusal;
use super::request::{BatchValue, GenerateBody, ReplyFormat, RequestPrompt};
use super::rng::Rng;
use super::sampling::{ParamsVerifier, SamplingParams};

/// Tokens at the end of the context that SGLang reserves.
pub(super) const RESERVED: usize = 6;

/// The default of SGLang's `--sampling-mask-max-tokens`.
const MAX_MASK_TOKENS: usize = 4096;

/// The logprobs that a request asks for.
#[derive(Debug, Clone)]
pub(super) struct LogprobRequest {
    /// The first prompt position with logprobs.
    pub(super) start: usize,
    /// `top_logprobs_num`.
    pub(super) top: usize,
    /// `token_ids_logprob`.
    pub(super) ids: Vec<u32>,
}

/// One sequence to generate: a prompt of a request, or one of its `n` samples.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) rid: String,
    pub(super) prompt: Vec<u32>,
    pub(super) params: SamplingParams,
    /// The maximum number of output tokens.
    pub(super) limit: usize,
    pub(super) logprobs: Option<LogprobRequest>,
    /// Whether the reply has the sampling mask of each token; `Some(true)`: with the logprobs of the whole support.
    pub(super) mask: Option<bool>,
    /// The first token with routed experts; `None` if the reply has none.
    pub(super) experts_from: Option<usize>,
    pub(super) format: ReplyFormat,
    pub(super) rng: Rng,
}

impl Item {
    /// Expands a request into its sequences: `n` samples of the first prompt, then of the next.
    pub(super) fn expand(request: &GenerateBody, engine: &Engine) -> Result<Vec<Self>, Refusal> {
        if let Some(refusal) = &request.value_error {
            return Err(refusal.clone());
        }
        let mut samples = Vec::new();
        for at in 0..request.prompts.len() {
            samples.push(request.params.item((!request.single).then_some(at))?.n);
        }
        let n = samples.first().copied().unwrap_or(1);
        if samples.iter().any(|other| *other != n) {
            return Err(Refusal::value("The parallel_sample_num should be the same for all samples in sample params."));
        }
        if n > 1 && matches!(request.return_logprob, BatchValue::PerItem(_)) {
            return Err(Refusal::value("Cannot use list return_logprob with parallel_sample_num > 1"));
        }
        let rids = rids(request, n, engine)?;
        let mut items = Vec::with_capacity(rids.len());
        for (at, rid) in rids.into_iter().enumerate() {
            items.push(Self::check(request, at / n, rid, engine, at % n)?);
        }
        Ok(items)
    }

    fn check(request: &GenerateBody, at: usize, rid: String, engine: &Engine, sample: usize) -> Result<Self, Refusal> {
        let each = (!request.single).then_some(at);
        let options = engine.options();
        let older = options.dialect == Dialect::Sglang056;
        let verifier =
            ParamsVerifier { vocab_size: engine.model().vocab_size(), hide_vocab: options.hide_vocab, older };
        let params = request.params.item(each)?;
        let prompt = prompt(&request.prompts[at], &verifier, engine)?;
        let fitting = max_output_tokens(prompt.len(), params, options.context_length, older)?;
        let params = params.clone().normalised();
        verifier.verify(&params)?;
        let logprobs = match request.return_logprob.item(each)? {
            true => Some(logprob_request(request, each, &verifier, prompt.len())?),
            false => None,
        };
        let mask = (!older && *request.return_sampling_mask.item(each)?).then_some(request.whole_support);
        if mask.is_some() && params.top_k.is_none_or(|k| k > MAX_MASK_TOKENS) {
            let top_k = params.top_k.unwrap_or(1 << 30);
            return Err(Refusal::Value(format!(
                "return_sampling_mask requires top_k=1 for greedy sampling or finite 1 < top_k <= {MAX_MASK_TOKENS}; got \
                 top_k={top_k}. Lower top_k or increase --sampling-mask-max-tokens."
            )));
        }
        let experts_from = match request.experts_from.filter(|_| options.routed_experts && !older) {
            Some(_) if options.ignores_experts_start => Some(0),
            Some(start) => {
                Some(usize::try_from(start).ok().filter(|start| *start <= prompt.len()).ok_or_else(|| {
                    Refusal::Value(format!("routed_experts_start_len must be in [0, {}]; got {start}.", prompt.len()))
                })?)
            }
            None => None,
        };
        let limit =
            params.max_new_tokens.and_then(|most| usize::try_from(most).ok()).map_or(fitting, |most| most.min(fitting));
        // the seed depends on the sample's number, so that n > 1 with a seed gives n different samples
        let seed = params.sampling_seed.map(|seed| (seed as u64).wrapping_add((sample as u64) << 48));
        let rng = Rng::new(seed.unwrap_or_else(|| engine.next_seed()));
        Ok(Self { rid, prompt, params, limit, logprobs, mask, experts_from, format: request.format, rng })
    }
}

/// Returns the ids of a prompt. A prompt that crashes SGLang (an id outside the vocabulary, an empty text) is an internal error here.
fn prompt(prompt: &RequestPrompt, verifier: &ParamsVerifier, engine: &Engine) -> Result<Vec<u32>, Refusal> {
    let ids = match prompt {
        RequestPrompt::Text(text) if text.is_empty() && verifier.older => {
            return Err(Refusal::value("texts cannot be empty and tokenizer must be initialized"));
        }
        RequestPrompt::Text(text) => engine.tokenizer().encode(text),
        RequestPrompt::Ids(ids) if ids.iter().any(|id| !verifier.in_vocab(*id)) => {
            return Err(Refusal::Internal);
        }
        RequestPrompt::Ids(ids) => ids.iter().map(|id| *id as u32).collect(),
    };
    if ids.is_empty() { Err(Refusal::Internal) } else { Ok(ids) }
}

/// Returns the maximum number of output tokens that fit the context after the prompt.
fn max_output_tokens(prompt: usize, params: &SamplingParams, context: usize, older: bool) -> Result<usize, Refusal> {
    if prompt >= context {
        return Err(Refusal::Value(format!(
            "The input ({prompt} tokens) is longer than the model's context length ({context} tokens)."
        )));
    }
    if let Some(new) = params.max_new_tokens.and_then(|most| usize::try_from(most).ok()) {
        let total = prompt.saturating_add(new);
        if total > context || (older && total == context) {
            return Err(Refusal::Value(format!(
                "Requested token count exceeds the model's maximum context length of {context} tokens. You requested \
                 a total of {total} tokens: {prompt} tokens from the input messages and {new} tokens for the \
                 completion. Please reduce the number of tokens in the input messages or the completion to fit \
                 within the limit."
            )));
        }
    }
    let most = context.saturating_sub(RESERVED);
    if prompt >= most {
        return Err(Refusal::Value(format!(
            "Input length ({prompt} tokens) exceeds the maximum allowed length ({most} tokens). Use a shorter input \
             or enable --allow-auto-truncate."
        )));
    }
    // SGLang's scheduler clamps it to two tokens less than the context
    Ok(context - 2 - prompt)
}

fn logprob_request(
    request: &GenerateBody,
    each: Option<usize>,
    verifier: &ParamsVerifier,
    prompt: usize,
) -> Result<LogprobRequest, Refusal> {
    let start = *request.logprob_start_len.item(each)?;
    let top = usize::try_from(*request.top_logprobs_num.item(each)?).unwrap_or(0);
    let ids = request.token_ids_logprob.item(each)?;
    verifier.verify_ids(ids)?;
    let last = if verifier.older { prompt - 1 } else { prompt };
    let from = usize::try_from(start).unwrap_or(last);
    if from > last {
        return Err(Refusal::Value(format!(
            "req.logprob_start_len={start} is higher than the number of input tokens len(req.origin_input_ids)={prompt}. \
             Please use a smaller logprob_start_len."
        )));
    }
    if top > verifier.vocab_size {
        // SGLang crashes here
        return Err(Refusal::Internal);
    }
    Ok(LogprobRequest { start: from, top, ids: ids.iter().map(|id| *id as u32).collect() })
}

/// Returns the ids of all sequences: those of the request for one sample per prompt, random ids for more.
fn rids(request: &GenerateBody, n: usize, engine: &Engine) -> Result<Vec<String>, Refusal> {
    let prompts = request.prompts.len();
    let rids = match &request.rid {
        Some(BatchValue::PerItem(_)) if request.single => {
            return Err(Refusal::value("rid should be a string for a single request."));
        }
        Some(BatchValue::PerItem(rids)) if rids.len() != prompts => {
            return Err(Refusal::value("The specified rids length mismatch with the batch_size for batch processing."));
        }
        Some(BatchValue::Same(rid)) if request.single && n == 1 => vec![rid.clone()],
        Some(BatchValue::Same(rid)) if n == 1 => (0..prompts).map(|at| format!("{rid}_{at}")).collect(),
        Some(BatchValue::PerItem(rids)) if n == 1 => rids.clone(),
        _ => (0..prompts * n).map(|_| engine.random_rid()).collect(),
    };
    let mut seen = BTreeSet::new();
    let duplicates: BTreeSet<&String> = rids.iter().filter(|rid| !seen.insert(*rid)).collect();
    if duplicates.is_empty() {
        return Ok(rids);
    }
    let duplicates: Vec<String> = duplicates.into_iter().map(|rid| format!("'{rid}'")).collect();
    Err(Refusal::Value(format!("Duplicate request IDs detected within the request: [{}]", duplicates.join(", "))))
}
