//! Requests known to kill a server, or to steal another request's reply, get a 400 that names the field.
//!
//! Measured on the CPU, on real servers. 0.5.23 dies of `top_logprobs_num` above the vocabulary, of a list of it or of
//! `logprob_start_len` for a single prompt, of a `logprob_start_len` below -1, of empty text, of an empty list of ids in a batch, of
//! ids outside the vocabulary, of `top_k` beyond 32 bits. 0.5.6 dies of most of these too, and of NaN, of `logit_bias` beyond
//! float32, of repeated rids, of a list of rids for a single prompt and of `token_ids_logprob` outside the vocabulary; a rid that is
//! running already hangs its first owner there, and any repeated rid hangs sglang-jax.

use crate::json::Cursor;
use crate::sglang::request::{GenerateRequest, IdShape, PerItem, Texts};

/// What the guard knows besides the request.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
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

/// Checks a request; `is_live` says whether a request with this id is running.
///
/// # Errors
/// [`Refusal`] with the first rule that is broken.
pub fn check(request: &GenerateRequest, bounds: Bounds, is_live: impl Fn(&str) -> bool) -> Result<(), Refusal> {
    non_finite(request)?;
    prompt(request, bounds)?;
    top_logprobs(request, bounds)?;
    prompt_logprobs(request)?;
    token_ids(request, bounds)?;
    sampling(request)?;
    rids(request, is_live)
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
    let values: Vec<i64> = match &request.top_logprobs_num {
        PerItem::One(k) => vec![*k],
        PerItem::Many(list) => {
            if request.batch().is_none() {
                let message = "top_logprobs_num: is a list, but there is a single prompt; send a number";
                return refuse("top_logprobs_list", message.into());
            }
            list.iter().flatten().copied().collect()
        }
        PerItem::Absent | PerItem::Unreadable => return Ok(()),
    };
    let Some(k) = values.into_iter().max() else { return Ok(()) };
    if let Some(vocab) = bounds.vocab_size.filter(|vocab| k > i64::from(*vocab)) {
        return refuse("top_logprobs_vocab", format!("top_logprobs_num: {k} is above the vocabulary size {vocab}"));
    }
    if k > i64::from(bounds.max_top_logprobs) {
        let most = bounds.max_top_logprobs;
        return refuse(
            "top_logprobs_max",
            format!("top_logprobs_num: {k} is above {most}; see --max-top-logprobs of tokentap"),
        );
    }
    Ok(())
}

fn prompt_logprobs(request: &GenerateRequest) -> Result<(), Refusal> {
    let prompts = request.batch().unwrap_or(1);
    let starts = &request.logprob_start_len;
    if starts.list_len().is_some() && request.batch().is_none() {
        let message = "logprob_start_len: is a list, but there is a single prompt; send a number";
        return refuse("start_len_list", message.into());
    }
    let asked = (0..prompts).filter(|at| request.return_logprob.get(*at) == Some(&true));
    match asked.filter_map(|at| starts.get(at)).find(|start| **start < -1) {
        Some(start) => refuse("start_len_below", format!("logprob_start_len: {start} is below -1")),
        None => Ok(()),
    }
}

fn sampling(request: &GenerateRequest) -> Result<(), Refusal> {
    let items = (0..request.batch().unwrap_or(1)).filter_map(|at| request.sampling.get(at));
    for item in items {
        if let Some(k) = item.top_k.filter(|k| *k > i64::from(i32::MAX)) {
            return refuse("top_k_overflow", format!("sampling_params.top_k: {k} is above {}", i32::MAX));
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
    let Some(vocab) = bounds.vocab_size else { return Ok(()) };
    for at in 0..request.batch().unwrap_or(1) {
        let Some(span) = request.token_ids_logprob.get(at).filter(|_| request.return_logprob.get(at) == Some(&true))
        else {
            continue;
        };
        let mut cursor = Cursor::at(&request.bytes, span.start + 1);
        while cursor.position() < span.end {
            let Ok(id) = cursor.skip() else { break };
            let text = String::from_utf8_lossy(&request.bytes[id]);
            if text.parse::<i64>().is_ok_and(|id| id < 0 || id >= i64::from(vocab)) {
                let message = format!(
                    "token_ids_logprob contains out-of-vocabulary token id {text}; valid range is [0, {vocab})."
                );
                return refuse("token_ids_outside", message);
            }
            if !cursor.take(b',') {
                break;
            }
        }
    }
    Ok(())
}

fn rids(request: &GenerateRequest, is_live: impl Fn(&str) -> bool) -> Result<(), Refusal> {
    // samples beyond the first get ids of their own, so the client's collides with nothing
    if request.n() > 1 {
        return Ok(());
    }
    if request.rid.list_len().is_some() && request.batch().is_none() {
        return refuse("rid_list", "rid: is a list, but there is a single prompt; send a string".into());
    }
    let ids: Vec<String> = match (&request.rid, request.batch()) {
        (PerItem::One(rid), None) => vec![rid.clone()],
        (PerItem::One(rid), Some(count)) => (0..count).map(|at| format!("{rid}_{at}")).collect(),
        (PerItem::Many(rids), _) => rids.iter().flatten().cloned().collect(),
        _ => return Ok(()),
    };
    let mut seen = std::collections::HashSet::new();
    for rid in &ids {
        if !seen.insert(rid) {
            return refuse("rid_repeated", format!("rid: {rid:?} is there twice"));
        }
        if is_live(rid) {
            return refuse("rid_live", format!("rid: a request {rid:?} is running; use another id, or wait for it"));
        }
    }
    Ok(())
}
