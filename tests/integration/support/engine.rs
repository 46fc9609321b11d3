// SPDX-License-Identifier: Apache-2.0
//! A scripted engine that answers /generate like SGLang, with the requested logprobs only.

use serde_json::{Value, json};

use super::upstream::{FakeReply, UpstreamRequest, json_message, stream};

const TOKENS: usize = 4;

/// A complete reply, or a cumulative stream with one event per token.
pub fn answer(asked: &UpstreamRequest) -> FakeReply {
    let body = asked.json();
    let texts = body["text"].as_array().map(Vec::len);
    let ids = body["input_ids"].as_array().filter(|ids| ids.first().is_some_and(Value::is_array)).map(Vec::len);
    let n = body["sampling_params"]["n"].as_u64().unwrap_or(1) as usize;
    let items = texts.or(ids).unwrap_or(1) * n;
    if body["stream"] == true {
        let mut events = Vec::new();
        for tokens in 1..=TOKENS {
            for index in 0..items {
                let mut event = object(&body, index, n, tokens);
                if items > 1 {
                    event["index"] = json!(index);
                }
                events.push(format!("data: {event}\n\n").into_bytes());
            }
        }
        events.push(b"data: [DONE]\n\n".to_vec());
        return stream(&events.iter().map(Vec::as_slice).collect::<Vec<_>>());
    }
    let objects: Vec<Value> = (0..items).map(|index| object(&body, index, n, TOKENS)).collect();
    let single = texts.or(ids).is_none() && n == 1;
    let reply = if single { objects[0].clone() } else { json!(objects) };
    json_message(200, reply.to_string().as_bytes())
}

/// The value of a field for one item, which a list may set per item.
fn of_item(field: &Value, item: usize) -> &Value {
    if field.is_array() { &field[item] } else { field }
}

/// Each token is half as likely as the one before it, so that every prefix is the top-k of a distribution.
fn logprob(rank: usize) -> f64 {
    -(rank as f64 + 1.0) * std::f64::consts::LN_2
}

fn object(body: &Value, index: usize, n: usize, tokens: usize) -> Value {
    let rid = match &body["rid"] {
        Value::String(rid) => rid.clone(),
        Value::Array(rids) => rids[index].as_str().unwrap().to_owned(),
        _ => format!("engine-{index}"),
    };
    let finish = if tokens == TOKENS { json!({"type": "length", "length": TOKENS}) } else { Value::Null };
    let mut meta = json!({"id": rid, "finish_reason": finish, "prompt_tokens": 3});
    let item = index / n;
    if *of_item(&body["return_logprob"], item) == true {
        let k = of_item(&body["top_logprobs_num"], item).as_u64().unwrap_or(0) as usize;
        let row: Vec<Value> = (0..k).map(|rank| json!([logprob(rank), 10 + rank, null])).collect();
        meta["input_token_logprobs"] = json!([]);
        meta["output_token_logprobs"] = json!(vec![json!([logprob(0), 10, null]); tokens]);
        if k > 0 && body["return_flat_raw_top_logprobs_b64"] == true {
            let values: Vec<u8> =
                (0..tokens).flat_map(|_| (0..k).flat_map(|rank| (logprob(rank) as f32).to_le_bytes())).collect();
            meta["output_top_logprobs_val_flat_b64"] = json!(base64_simd::STANDARD.encode_to_string(values));
            meta["output_top_logprobs_shape"] = json!([tokens, k]);
            meta["output_top_logprobs_null_prefix"] = json!(0);
        } else if k > 0 {
            meta["output_top_logprobs"] = json!(vec![row; tokens]);
        }
    }
    meta["completion_tokens"] = json!(tokens);
    json!({"text": "abcd"[..tokens].to_owned(), "output_ids": vec![10; tokens], "meta_info": meta})
}
