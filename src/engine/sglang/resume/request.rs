// SPDX-License-Identifier: Apache-2.0
//! The requests that can be continued, and the request for the rest of an aborted one.

use std::sync::Arc;

use bytes::Bytes;

use super::ResumeObstacle;
use crate::engine::sglang::request::{GenerateRequest, PerItem, SESSION_TAGS};
use crate::json::{Cursor, Edit, Object, Splice, write_ids};

/// The engine's `max_new_tokens` if a request sets none.
const DEFAULT_TOKENS: u64 = 128;

/// The first token whose routed experts are returned.
const EXPERTS_START: &str = "routed_experts_start_len";

/// Members that a continuation repeats unchanged, or that it replaces.
const REPEATED: [&str; 33] = [
    "input_ids",
    "sampling_params",
    "rid",
    "stream",
    "return_logprob",
    "top_logprobs_num",
    "token_ids_logprob",
    "logprob_start_len",
    "return_text_in_logprobs",
    "return_flat_raw_output_top_logprobs",
    "return_flat_raw_top_logprobs",
    "return_flat_raw_top_logprobs_b64",
    "return_sampling_mask",
    "sampling_logprobs_mode",
    "return_routed_experts",
    EXPERTS_START,
    "return_prompt_token_ids",
    "lora_path",
    "extra_key",
    "cache_salt",
    "priority",
    "data_parallel_rank",
    "routed_dp_rank",
    "require_reasoning",
    "session_id",
    "_proxy_session_id",
    SESSION_TAGS,
    "metadata",
    "user",
    "model",
    "return_entropy",
    "entropy_options",
    "log_metrics",
];

/// Sampling parameters that do not depend on the tokens sampled so far.
pub(crate) const STATELESS: [&str; 11] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "no_stop_trim",
    "logit_bias",
    "stream_interval",
];

/// Sampling parameters that do, with the value that switches each off besides null, and why they prevent a continuation otherwise.
const STATEFUL: [(&str, &str, ResumeObstacle); 14] = [
    ("n", "1", ResumeObstacle::Batch),
    ("beam_width", "1", ResumeObstacle::Batch),
    ("frequency_penalty", "0", ResumeObstacle::Penalty),
    ("presence_penalty", "0", ResumeObstacle::Penalty),
    ("repetition_penalty", "1", ResumeObstacle::Penalty),
    ("min_new_tokens", "0", ResumeObstacle::MinNewTokens),
    ("sampling_seed", "null", ResumeObstacle::Seed),
    ("json_schema", "null", ResumeObstacle::Grammar),
    ("regex", "null", ResumeObstacle::Grammar),
    ("ebnf", "null", ResumeObstacle::Grammar),
    ("structural_tag", "null", ResumeObstacle::Grammar),
    ("stop_regex", "[]", ResumeObstacle::Stop),
    ("custom_params", "{}", ResumeObstacle::Processor),
    ("custom_logit_processor", "null", ResumeObstacle::Processor),
];

/// A request whose generation can be continued after an abort.
#[derive(Debug)]
pub(crate) struct ResumableRequest {
    prompt: Arc<[u32]>,
    /// The body that the engine got.
    body: Bytes,
    /// `max_new_tokens`; `None` for as many as the context holds.
    max_new_tokens: Option<u64>,
    /// `stop`.
    pub(super) stops: Vec<String>,
    /// `require_reasoning`: the engine counts tokens as reasoning until the output ends it.
    pub(super) requires_reasoning: bool,
}

impl ResumableRequest {
    /// The request whose body, with what tokentap asks for, is `body`.
    ///
    /// # Errors
    /// Why a continuation of it may be sampled otherwise.
    pub(crate) fn try_new(request: &GenerateRequest, body: Bytes) -> Result<Self, ResumeObstacle> {
        if request.batch().is_some() || request.n() > 1 {
            return Err(ResumeObstacle::Batch);
        }
        let prompt = request.prompt_ids(0).filter(|_| request.session_params.is_none() && request.text_span.is_none());
        let prompt = prompt.ok_or(ResumeObstacle::Prompt)?;
        if request.custom_processor {
            return Err(ResumeObstacle::Processor);
        }
        let object = Object::parse(&body).map_err(|_| ResumeObstacle::Unreadable)?;
        for member in &object.members {
            let (key, value) = (object.key(&body, member).decode(), &body[member.value.clone()]);
            // switched off
            let is_off = matches!(value, b"null" | b"false");
            if !is_off && !REPEATED.contains(&&*key) {
                return Err(ResumeObstacle::Member);
            }
        }
        let (max_new_tokens, stops) = match &request.sampling {
            PerItem::Absent => (Some(DEFAULT_TOKENS), Vec::new()),
            PerItem::One(_) => sampling(object.get(&body, "sampling_params").unwrap_or(b"{}"))?,
            PerItem::Many(_) | PerItem::Unreadable => return Err(ResumeObstacle::Batch),
        };
        let requires_reasoning = object.get(&body, "require_reasoning") == Some(b"true");
        Ok(Self { prompt, body, max_new_tokens, stops, requires_reasoning })
    }

    /// The number of tokens of the prompt.
    pub(super) fn prompt_len(&self) -> usize {
        self.prompt.len()
    }

    /// The first token whose routed experts the first request asked for.
    pub(super) fn experts_start(&self) -> usize {
        let start = |object: Object| {
            let start = object.get(&self.body, EXPERTS_START)?;
            std::str::from_utf8(start).ok()?.parse().ok()
        };
        Object::parse(&self.body).ok().and_then(start).unwrap_or(0)
    }

    /// The request for the rest after the tokens `sampled`, with the id `rid`. Attempts with the first `with_experts` of them have returned
    /// routed experts, which exclude those of the last token; `None` if no attempt has.
    pub(super) fn continued(
        &self,
        sampled: &[u32],
        with_experts: Option<usize>,
        rid: &str,
    ) -> Result<Vec<u8>, ResumeObstacle> {
        let body = &self.body;
        let unreadable = |_| ResumeObstacle::Unreadable;
        let object = Object::parse(body).map_err(unreadable)?;
        let (mut splice, mut edit) = (Splice::default(), Edit::new(body, &object));
        let mut ids = vec![b'['];
        write_ids(&mut ids, &self.prompt);
        if !sampled.is_empty() {
            ids.push(b',');
            write_ids(&mut ids, sampled);
        }
        ids.push(b']');
        edit.set("input_ids", &ids);
        edit.set("rid", format!("\"{rid}\"").as_bytes());
        if let Some(known) = with_experts {
            let start = (self.prompt.len() + known).saturating_sub(1).max(self.experts_start());
            edit.set(EXPERTS_START, start.to_string().as_bytes());
        }
        if let Some(most) = self.max_new_tokens {
            let left = most.saturating_sub(sampled.len() as u64);
            if left == 0 {
                return Err(ResumeObstacle::Unreadable);
            }
            let sampling = object.get(body, "sampling_params").filter(|text| *text != b"null").unwrap_or(b"{}");
            let members = Object::parse(sampling).map_err(unreadable)?;
            let (mut inner, mut changed) = (Splice::default(), Edit::new(sampling, &members));
            let sampling = if members.members.is_empty() {
                format!("{{\"max_new_tokens\":{left}}}").into_bytes()
            } else {
                changed.set("max_new_tokens", left.to_string().as_bytes());
                changed.finish(&mut inner);
                inner.apply(sampling)
            };
            edit.set("sampling_params", &sampling);
        }
        edit.finish(&mut splice);
        Ok(splice.apply(body))
    }
}

/// `max_new_tokens` and `stop` of sampling parameters.
fn sampling(text: &[u8]) -> Result<(Option<u64>, Vec<String>), ResumeObstacle> {
    let object = Object::parse(text).map_err(|_| ResumeObstacle::Unreadable)?;
    let (mut most, mut stops) = (Some(DEFAULT_TOKENS), Vec::new());
    for member in &object.members {
        let key = object.key(text, member).decode();
        let value = std::str::from_utf8(&text[member.value.clone()]).map_err(|_| ResumeObstacle::Unreadable)?;
        match &*key {
            "max_new_tokens" if value == "null" => most = None,
            "max_new_tokens" => most = Some(value.parse().map_err(|_| ResumeObstacle::Unreadable)?),
            "stop" => stops = strings(value).ok_or(ResumeObstacle::Stop)?,
            key if STATELESS.contains(&key) || value == "null" => {}
            key => match STATEFUL.iter().find(|(name, ..)| *name == key) {
                Some((_, off, _)) if is_same(value, off) => {}
                Some((_, _, obstacle)) => return Err(*obstacle),
                None => return Err(ResumeObstacle::Member),
            },
        }
    }
    Ok((most, stops))
}

/// Whether a value is written as `off`, or is an equal number.
fn is_same(value: &str, off: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().ok();
    value == off || number(value).is_some() && number(value) == number(off)
}

/// The strings of `stop`; `None` for another value.
fn strings(value: &str) -> Option<Vec<String>> {
    let mut strings: Vec<String> = match Cursor::new(value.as_bytes()).peek()? {
        b'"' => vec![serde_json::from_str(value).ok()?],
        b'[' => serde_json::from_str(value).ok()?,
        _ => return (value == "null").then(Vec::new),
    };
    strings.retain(|stop| !stop.is_empty());
    Some(strings)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn tried(body: &Value) -> Result<ResumableRequest, ResumeObstacle> {
        let bytes = Bytes::from(body.to_string());
        ResumableRequest::try_new(&GenerateRequest::parse(bytes.clone()).unwrap(), bytes)
    }

    fn with(sampling: Value) -> Value {
        json!({"input_ids": [1, 2, 3], "sampling_params": sampling, "return_logprob": true, "stream": false})
    }

    #[test]
    fn request_whose_rest_would_be_sampled_otherwise_is_not_continued() {
        use ResumeObstacle::{Batch, Grammar, Member, MinNewTokens, Penalty, Processor, Prompt, Seed, Stop};
        for (sampling, obstacle) in [
            (json!({"n": 2}), Batch),
            (json!({"beam_width": 4}), Batch),
            (json!({"frequency_penalty": 0.1}), Penalty),
            (json!({"presence_penalty": -0.5}), Penalty),
            (json!({"repetition_penalty": 1.1}), Penalty),
            (json!({"min_new_tokens": 4}), MinNewTokens),
            (json!({"sampling_seed": 0}), Seed),
            (json!({"json_schema": "{}"}), Grammar),
            (json!({"regex": "a*"}), Grammar),
            (json!({"ebnf": "root ::= x"}), Grammar),
            (json!({"structural_tag": "{}"}), Grammar),
            (json!({"stop_regex": "a+"}), Stop),
            (json!({"stop": 7}), Stop),
            (json!({"custom_params": {"a": 1}}), Processor),
            (json!({"thinking_budget": 9}), Member),
        ] {
            assert_eq!(tried(&with(sampling.clone())).err(), Some(obstacle), "{sampling}");
        }
        for (body, obstacle) in [
            (json!({"text": "a", "sampling_params": {}}), Prompt),
            (json!({"input_ids": [[1], [2]]}), Batch),
            (json!({"text": ["a", "b"]}), Batch),
            (json!({"input_ids": [1], "session_params": {"id": "s", "rid": "r"}}), Prompt),
            (json!({"input_ids": [1], "custom_logit_processor": "x"}), Processor),
            (json!({"input_ids": [1], "return_hidden_states": true}), Member),
            (json!({"input_ids": [1], "return_indexer_topk": true}), Member),
            (json!({"input_ids": [1], "image_data": "x"}), Member),
            (json!({"input_ids": [1], "sampling_params": [{}]}), Batch),
        ] {
            assert_eq!(tried(&body).err(), Some(obstacle), "{body}");
        }
    }

    #[test]
    fn members_that_are_switched_off_prevent_nothing() {
        let sampling = json!({
            "n": 1, "frequency_penalty": 0.0, "presence_penalty": 0, "repetition_penalty": 1.0, "min_new_tokens": 0,
            "sampling_seed": null, "json_schema": null, "stop": [], "stop_regex": null, "custom_params": null,
            "temperature": 0.7, "top_p": 0.9, "top_k": -1, "min_p": 0, "logit_bias": {"3": -1}, "stop_token_ids": [7],
            "ignore_eos": true, "skip_special_tokens": false,
        });
        let mut body = with(sampling);
        body["return_hidden_states"] = json!(false);
        body["image_data"] = Value::Null;
        assert!(tried(&body).is_ok(), "{:?}", tried(&body).err());
    }

    #[test]
    fn continuation_has_the_routed_experts_from_the_last_token_on() {
        let start = |body: Value, sampled: &[u32], known| {
            let continued = tried(&body).unwrap().continued(sampled, known, "new").unwrap();
            serde_json::from_slice::<Value>(&continued).unwrap()["routed_experts_start_len"].take()
        };
        let body = |from: Value| json!({"input_ids": [1, 2, 3], "return_routed_experts": true, "routed_experts_start_len": from});
        assert_eq!(start(body(json!(2)), &[8, 9], Some(2)), 4);
        assert_eq!(start(body(Value::Null), &[8], Some(1)), 3);
        assert_eq!(start(body(json!(3)), &[], Some(0)), 3, "a start at the end of the prompt stays");
        assert_eq!(start(body(json!(2)), &[8, 9], Some(1)), 3, "the last attempt returned none");
        assert_eq!(start(body(json!(2)), &[], None), 2, "nothing was returned yet");
    }

    #[test]
    fn continuation_has_the_sampled_tokens_and_the_rest_of_the_length() {
        let continued = |body: &Value| -> Value {
            let request = tried(body).unwrap();
            serde_json::from_slice(&request.continued(&[8, 9], None, "new").unwrap()).unwrap()
        };
        let mut body = with(json!({"max_new_tokens": 10, "temperature": 0.5}));
        (body["rid"], body["logprob_start_len"]) = (json!("old"), json!(-1));
        let mut expected = body.clone();
        (expected["rid"], expected["input_ids"]) = (json!("new"), json!([1, 2, 3, 8, 9]));
        expected["sampling_params"]["max_new_tokens"] = json!(8);
        assert_eq!(continued(&body), expected);
        for (sampling, left) in [(json!({}), json!(126)), (json!({"max_new_tokens": null}), Value::Null)] {
            assert_eq!(continued(&with(sampling))["sampling_params"]["max_new_tokens"], left);
        }
        let bare = continued(&json!({"input_ids": [1]}));
        assert_eq!(bare, json!({"input_ids": [1, 8, 9], "rid": "new", "sampling_params": {"max_new_tokens": 126}}));
        assert!(tried(&with(json!({"max_new_tokens": 2}))).unwrap().continued(&[8, 9], None, "7").is_err());
    }
}
