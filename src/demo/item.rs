//! One sequence to generate, checked and tokenised.

use std::collections::BTreeSet;

use super::engine::Engine;
use super::options::Dialect;
use super::refusal::Refusal;
use super::request::{Each, GenerateRequest, ReplyShape, RequestPrompt};
use super::rng::Rng;
use super::sampling::SamplingParams;
use super::verify::Limits;

/// Tokens that SGLang keeps free at the end of the context.
pub(super) const RESERVED: usize = 6;

/// The default of SGLang's `--sampling-mask-max-tokens`.
const MASK_LIMIT: usize = 4096;

/// What was asked about logprobs.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    /// First prompt position that is reported.
    pub(super) start: usize,
    pub(super) top: usize,
    pub(super) ids: Vec<u32>,
}

/// One sequence to generate.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) rid: String,
    pub(super) prompt: Vec<u32>,
    pub(super) params: SamplingParams,
    /// Output tokens at most.
    pub(super) limit: usize,
    pub(super) logprobs: Option<Ask>,
    /// The support of each token is named; `true`: with all its logprobs.
    pub(super) mask: Option<bool>,
    pub(super) shape: ReplyShape,
    pub(super) rng: Rng,
}

impl Item {
    /// The sequences of a request: prompt by prompt, `n` samples each.
    pub(super) fn expand(request: &GenerateRequest, engine: &Engine) -> Result<Vec<Self>, Refusal> {
        if let Some(refusal) = &request.refused {
            return Err(refusal.clone());
        }
        let mut samples = Vec::new();
        for at in 0..request.prompts.len() {
            samples.push(request.params.of((!request.single).then_some(at))?.n);
        }
        let n = samples.first().copied().unwrap_or(1);
        if samples.iter().any(|other| *other != n) {
            return Err(Refusal::value("The parallel_sample_num should be the same for all samples in sample params."));
        }
        if n > 1 && matches!(request.return_logprob, Each::Listed(_)) {
            return Err(Refusal::value("Cannot use list return_logprob with parallel_sample_num > 1"));
        }
        let rids = rids(request, n, engine)?;
        let mut items = Vec::with_capacity(rids.len());
        for (at, rid) in rids.into_iter().enumerate() {
            items.push(Self::check(request, at / n, rid, engine, at % n)?);
        }
        Ok(items)
    }

    fn check(
        request: &GenerateRequest,
        at: usize,
        rid: String,
        engine: &Engine,
        sample: usize,
    ) -> Result<Self, Refusal> {
        let each = (!request.single).then_some(at);
        let options = engine.options();
        let older = options.dialect == Dialect::Sglang056;
        let limits = Limits { vocab_size: engine.model().vocab_size(), hide_vocab: options.hide_vocab, older };
        let params = request.params.of(each)?;
        let prompt = prompt(&request.prompts[at], &limits, engine)?;
        let room = room(prompt.len(), params, options.context_length, older)?;
        let params = params.clone().normalised();
        limits.verify(&params)?;
        let logprobs = match request.return_logprob.of(each)? {
            true => Some(ask(request, each, &limits, prompt.len())?),
            false => None,
        };
        let mask = (!older && *request.return_sampling_mask.of(each)?).then_some(request.whole_support);
        if mask.is_some() && params.top_k.is_none_or(|k| k > MASK_LIMIT) {
            let top_k = params.top_k.unwrap_or(1 << 30);
            return Err(Refusal::Value(format!(
                "return_sampling_mask requires top_k=1 for greedy sampling or finite 1 < top_k <= {MASK_LIMIT}; got \
                 top_k={top_k}. Lower top_k or increase --sampling-mask-max-tokens."
            )));
        }
        let limit =
            params.max_new_tokens.and_then(|most| usize::try_from(most).ok()).map_or(room, |most| most.min(room));
        // The sample is mixed in so that n > 1 with a seed gives n different samples.
        let seed = params.sampling_seed.map(|seed| (seed as u64).wrapping_add((sample as u64) << 48));
        let rng = Rng::new(seed.unwrap_or_else(|| engine.next_seed()));
        Ok(Self { rid, prompt, params, limit, logprobs, mask, shape: request.shape, rng })
    }
}

/// The ids of a prompt. Those which would make the real engine crash (an id
/// outside the vocabulary, an empty text) are an exception here.
fn prompt(prompt: &RequestPrompt, limits: &Limits, engine: &Engine) -> Result<Vec<u32>, Refusal> {
    let ids = match prompt {
        RequestPrompt::Text(text) if text.is_empty() && limits.older => {
            return Err(Refusal::value("texts cannot be empty and tokenizer must be initialized"));
        }
        RequestPrompt::Text(text) => engine.tokenizer().encode(text),
        RequestPrompt::Ids(ids) if ids.iter().any(|id| !limits.in_vocab(*id)) => {
            return Err(Refusal::Internal);
        }
        RequestPrompt::Ids(ids) => ids.iter().map(|id| *id as u32).collect(),
    };
    if ids.is_empty() { Err(Refusal::Internal) } else { Ok(ids) }
}

/// Output tokens for which there is room after the prompt.
fn room(prompt: usize, params: &SamplingParams, context: usize, older: bool) -> Result<usize, Refusal> {
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
    // As the scheduler clamps it: two short of the context.
    Ok(context - 2 - prompt)
}

fn ask(request: &GenerateRequest, each: Option<usize>, limits: &Limits, prompt: usize) -> Result<Ask, Refusal> {
    let start = *request.logprob_start_len.of(each)?;
    let top = usize::try_from(*request.top_logprobs_num.of(each)?).unwrap_or(0);
    let ids = request.token_ids_logprob.of(each)?;
    limits.verify_ids(ids)?;
    let last = if limits.older { prompt - 1 } else { prompt };
    let from = usize::try_from(start).unwrap_or(last);
    if from > last {
        return Err(Refusal::Value(format!(
            "req.logprob_start_len={start} is higher than the number of input tokens len(req.origin_input_ids)={prompt}. \
             Please use a smaller logprob_start_len."
        )));
    }
    if top > limits.vocab_size {
        // This one kills a real engine.
        return Err(Refusal::Internal);
    }
    Ok(Ask { start: from, top, ids: ids.iter().map(|id| *id as u32).collect() })
}

/// The ids of all sequences: as given for one sample a prompt, random for more.
fn rids(request: &GenerateRequest, n: usize, engine: &Engine) -> Result<Vec<String>, Refusal> {
    let prompts = request.prompts.len();
    let rids = match &request.rid {
        Some(Each::Listed(_)) if request.single => {
            return Err(Refusal::value("rid should be a string for a single request."));
        }
        Some(Each::Listed(rids)) if rids.len() != prompts => {
            return Err(Refusal::value("The specified rids length mismatch with the batch_size for batch processing."));
        }
        Some(Each::All(rid)) if request.single && n == 1 => vec![rid.clone()],
        Some(Each::All(rid)) if n == 1 => (0..prompts).map(|at| format!("{rid}_{at}")).collect(),
        Some(Each::Listed(rids)) if n == 1 => rids.clone(),
        _ => (0..prompts * n).map(|_| engine.random_rid()).collect(),
    };
    let mut seen = BTreeSet::new();
    let twice: BTreeSet<&String> = rids.iter().filter(|rid| !seen.insert(*rid)).collect();
    if twice.is_empty() {
        return Ok(rids);
    }
    let twice: Vec<String> = twice.into_iter().map(|rid| format!("'{rid}'")).collect();
    Err(Refusal::Value(format!("Duplicate request IDs detected within the request: [{}]", twice.join(", "))))
}
