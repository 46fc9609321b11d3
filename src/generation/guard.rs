//! Requests known to kill a server, or to steal another request's reply, get a 400 that names the field.
//!
//! Measured on the CPU, on real servers. 0.5.23 dies of `top_logprobs_num` above the vocabulary, of a list of it or of
//! `logprob_start_len` for a single prompt, of a `logprob_start_len` below -1, of empty text, of an empty list of ids in a batch, of
//! ids outside the vocabulary, of `top_k` beyond 32 bits. 0.5.6 dies of most of these too, and of NaN, of `logit_bias` beyond
//! float32, of repeated rids, of a list of rids for a single prompt and of `token_ids_logprob` outside the vocabulary; a rid that is
//! running already hangs its first owner there, and any repeated rid hangs sglang-jax.

use crate::engine::request::{GenerateRequest, IdShape, PerItem, Texts};
use crate::generation::in_flight::Live;

/// What the guard knows besides the request.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Whether the engine generates, where it is known; one that serves an embedding model ends.
    pub generates: Option<bool>,
    /// Vocabulary size, where it is known.
    pub vocab_size: Option<u32>,
    /// `--max-top-logprobs`, or 128 under prefill/decode disaggregation.
    pub max_top_logprobs: u32,
}

/// A refusal.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The metric's label.
    pub rule: &'static str,
    /// What the client is told.
    pub message: String,
}

fn refuse(rule: &'static str, message: String) -> Result<(), Refusal> {
    Err(Refusal { rule, message })
}

/// Checks a request.
///
/// # Errors
/// [`Refusal`] with the first rule that is broken.
pub fn check(request: &GenerateRequest, bounds: Bounds) -> Result<(), Refusal> {
    if bounds.generates == Some(false) {
        let message =
            "this engine serves an embedding model, which ends when it is asked to generate: use /v1/embeddings";
        return refuse("embedding_model", message.into());
    }
    if request.wide {
        return refuse("encoding", "the body must be UTF-8".into());
    }
    non_finite(request)?;
    prompt(request, bounds)?;
    top_logprobs(request, bounds)?;
    prompt_logprobs(request)?;
    token_ids(request, bounds)?;
    sampling(request)?;
    rids(request)
}

/// The refusal of an id that is running.
#[must_use]
pub fn live(rid: &Live) -> Refusal {
    let message = format!("rid: a request {:?} is running; use another id, or wait for it", rid.0);
    Refusal { rule: "rid_live", message }
}

fn non_finite(request: &GenerateRequest) -> Result<(), Refusal> {
    let Some(at) = request.non_finite else { return Ok(()) };
    let member = request.object.members.iter().find(|member| member.value.contains(&at));
    let field = member.map_or("body".into(), |member| request.object.key(&request.bytes, member).decode());
    let end = request.bytes[at..]
        .iter()
        .position(|byte| b",]} \n\r\t".contains(byte))
        .map_or(request.bytes.len(), |len| at + len);
    let number = String::from_utf8_lossy(&request.bytes[at..end.min(at + 40)]);
    refuse("non_finite", format!("{field}: {number} at byte {at} is not a finite number"))
}

fn prompt(request: &GenerateRequest, bounds: Bounds) -> Result<(), Refusal> {
    match &request.text {
        Texts::One { empty: true } => return refuse("empty_text", "text: must not be empty".into()),
        Texts::Many { empty: Some(at), .. } => return refuse("empty_text", format!("text[{at}]: must not be empty")),
        _ => {}
    }
    if let Some(at) = request.ids.empty {
        return refuse("empty_ids", format!("input_ids[{at}]: must not be empty"));
    }
    if request.ids.shape == IdShape::TooDeep {
        return refuse("ids_too_deep", "input_ids: a list of ids, or a list of such lists, but no deeper".into());
    }
    let Some((low, high)) = request.ids.extremes else { return Ok(()) };
    if low < 0 {
        return refuse("ids_outside", format!("input_ids: {low} is negative"));
    }
    match bounds.vocab_size {
        Some(vocab) if high >= i64::from(vocab) => {
            refuse("ids_outside", format!("input_ids: {high} is outside the vocabulary [0, {vocab})"))
        }
        _ => Ok(()),
    }
}

fn top_logprobs(request: &GenerateRequest, bounds: Bounds) -> Result<(), Refusal> {
    if request.top_logprobs_num.list_len().is_some() && request.batch().is_none() {
        let message = "top_logprobs_num: is a list, but there is a single prompt; send a number";
        return refuse("top_logprobs_list", message.into());
    }
    let Some((_, k)) = extremes(request, "top_logprobs_num") else { return Ok(()) };
    if let Some(vocab) = bounds.vocab_size.filter(|vocab| k > f64::from(*vocab)) {
        return refuse("top_logprobs_vocab", format!("top_logprobs_num: {k} is above the vocabulary size {vocab}"));
    }
    if k > f64::from(bounds.max_top_logprobs) {
        let most = bounds.max_top_logprobs;
        return refuse(
            "top_logprobs_max",
            format!("top_logprobs_num: {k} is above {most}; see --max-top-logprobs of tokentap"),
        );
    }
    Ok(())
}

/// The smallest and the largest number in a field, however it is spelled and nested: 0.5.6 takes `5.0` and `"5"` for 5.
fn extremes(request: &GenerateRequest, field: &str) -> Option<(f64, f64)> {
    let span = request.object.value_span(&request.bytes, field)?;
    let text = std::str::from_utf8(&request.bytes[span]).ok()?;
    let numbers = text.split(|c: char| "[],\" \t\r\n".contains(c)).filter_map(|word| word.parse::<f64>().ok());
    numbers.fold(None, |found, number| {
        let (low, high) = found.unwrap_or((number, number));
        Some((number.min(low), number.max(high)))
    })
}

/// Whether an engine would give logprobs: everything but what is plainly off, because 0.5.6 takes `1` and `"true"` for true.
fn wants_logprobs(request: &GenerateRequest) -> bool {
    match &request.return_logprob {
        PerItem::Absent => false,
        PerItem::One(wanted) => *wanted,
        PerItem::Many(list) => request.batch().is_none() || list.iter().flatten().any(|wanted| *wanted),
        PerItem::Unreadable => true,
    }
}

fn prompt_logprobs(request: &GenerateRequest) -> Result<(), Refusal> {
    if request.logprob_start_len.list_len().is_some() && request.batch().is_none() {
        let message = "logprob_start_len: is a list, but there is a single prompt; send a number";
        return refuse("start_len_list", message.into());
    }
    match extremes(request, "logprob_start_len").filter(|_| wants_logprobs(request)) {
        Some((start, _)) if start < -1.0 => {
            refuse("start_len_below", format!("logprob_start_len: {start} is below -1"))
        }
        _ => Ok(()),
    }
}

fn sampling(request: &GenerateRequest) -> Result<(), Refusal> {
    let items = (0..request.batch().unwrap_or(1)).filter_map(|at| request.sampling.get(at));
    for item in items {
        if item.top_k_overflows {
            return refuse("top_k_overflow", format!("sampling_params.top_k: is above {}", i32::MAX));
        }
        if item.bias_overflows {
            let message = "sampling_params.logit_bias: a value is beyond the range of float32";
            return refuse("logit_bias_overflow", message.into());
        }
    }
    Ok(())
}

/// 0.5.23 refuses these itself, in these words; 0.5.6 dies of them, but only where logprobs are on.
fn token_ids(request: &GenerateRequest, bounds: Bounds) -> Result<(), Refusal> {
    let found = extremes(request, "token_ids_logprob").filter(|_| wants_logprobs(request));
    let (Some(vocab), Some((low, high))) = (bounds.vocab_size, found) else { return Ok(()) };
    let id = if low < 0.0 { low } else { high };
    if low < 0.0 || high >= f64::from(vocab) {
        let message =
            format!("token_ids_logprob contains out-of-vocabulary token id {id}; valid range is [0, {vocab}).");
        return refuse("token_ids_outside", message);
    }
    Ok(())
}

fn rids(request: &GenerateRequest) -> Result<(), Refusal> {
    // samples beyond the first get ids of their own, so the client's collides with nothing
    if request.n() > 1 {
        return Ok(());
    }
    if request.rid.list_len().is_some() && request.batch().is_none() {
        return refuse("rid_list", "rid: is a list, but there is a single prompt; send a string".into());
    }
    let ids = request.rids();
    let mut seen = std::collections::HashSet::new();
    for rid in &ids {
        if !seen.insert(rid) {
            return refuse("rid_repeated", format!("rid: {rid:?} is there twice"));
        }
    }
    Ok(())
}
