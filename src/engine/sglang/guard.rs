// SPDX-License-Identifier: Apache-2.0
//! Refuses requests that are known to crash a server or to receive another request's reply, with a 400 that names the field.
//!
//! Measured on the CPU with real servers. 0.5.23 crashes on `top_logprobs_num` above the vocabulary, on a list of it or of
//! `logprob_start_len` for a single prompt, on a `logprob_start_len` below -1, on empty text, on an empty list of ids in a batch, on ids
//! outside the vocabulary, and on `top_k` beyond 32 bits. 0.5.6 crashes on most of these too, and on NaN, on `logit_bias` beyond float32,
//! on repeated rids, on a list of rids for a single prompt, and on `token_ids_logprob` outside the vocabulary. In 0.5.6 a rid that is
//! already running hangs the earlier request, and any repeated rid hangs sglang-jax.

use crate::engine::plan::{GuardLimits, GuardRefusal};
use crate::engine::sglang::request::{GenerateRequest, IdShape, PerItem, Texts};

fn refuse(rule: &'static str, message: String) -> Result<(), GuardRefusal> {
    Err(GuardRefusal { rule, message })
}

/// Checks a request.
///
/// # Errors
/// [`GuardRefusal`] with the first rule that is broken.
pub(crate) fn check(request: &GenerateRequest, bounds: GuardLimits) -> Result<(), GuardRefusal> {
    if bounds.generates == Some(false) {
        let message =
            "this engine serves an embedding model, which exits when it is asked to generate: use /v1/embeddings";
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

/// The refusal of an id that is already in flight.
#[must_use]
pub(crate) fn rid_in_use(rid: &str) -> GuardRefusal {
    let message = format!("rid: a request {rid:?} is running; use another id, or wait for it");
    GuardRefusal { rule: "rid_live", message }
}

fn non_finite(request: &GenerateRequest) -> Result<(), GuardRefusal> {
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

fn prompt(request: &GenerateRequest, bounds: GuardLimits) -> Result<(), GuardRefusal> {
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

fn top_logprobs(request: &GenerateRequest, bounds: GuardLimits) -> Result<(), GuardRefusal> {
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
        return refuse("top_logprobs_max", format!("top_logprobs_num: {k} is above {most}, the limit of tokentap"));
    }
    Ok(())
}

/// The smallest and the largest number in a field, in any spelling and nesting: 0.5.6 reads `5.0` and `"5"` as 5.
fn extremes(request: &GenerateRequest, field: &str) -> Option<(f64, f64)> {
    let span = request.object.value_span(&request.bytes, field)?;
    let text = std::str::from_utf8(&request.bytes[span]).ok()?;
    let numbers = text.split(|c: char| "[],\" \t\r\n".contains(c)).filter_map(|word| word.parse::<f64>().ok());
    numbers.fold(None, |found, number| {
        let (low, high) = found.unwrap_or((number, number));
        Some((number.min(low), number.max(high)))
    })
}

/// Whether an engine may return logprobs: any value that is not clearly false, because 0.5.6 reads `1` and `"true"` as true.
fn wants_logprobs(request: &GenerateRequest) -> bool {
    match &request.return_logprob {
        PerItem::Absent => false,
        PerItem::One(wanted) => *wanted,
        PerItem::Many(list) => request.batch().is_none() || list.iter().flatten().any(|wanted| *wanted),
        PerItem::Unreadable => true,
    }
}

fn prompt_logprobs(request: &GenerateRequest) -> Result<(), GuardRefusal> {
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

fn sampling(request: &GenerateRequest) -> Result<(), GuardRefusal> {
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

/// 0.5.23 refuses these itself with this message. 0.5.6 crashes on them if logprobs are requested.
fn token_ids(request: &GenerateRequest, bounds: GuardLimits) -> Result<(), GuardRefusal> {
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

fn rids(request: &GenerateRequest) -> Result<(), GuardRefusal> {
    // with n > 1 the engine assigns random ids, so the client's cannot collide
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
            return refuse("rid_repeated", format!("rid: {rid:?} is repeated"));
        }
    }
    Ok(())
}
