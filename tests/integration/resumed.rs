// SPDX-License-Identifier: Apache-2.0
//! `train_resumed`: which turns that were cut off an export trains.

use serde_json::{Value, json};

use crate::support::client::{get, post};
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, FakeReply, Upstream, UpstreamRequest, json_message, torn_stream};

/// The sampled ids of the turn that is cut off, and of the turn that resumes it.
const CUT: [u32; 2] = [5, 7];
const RESUMED: [u32; 2] = [8, 9];

/// A reply with these ids in its logprobs, if it has them, and in `output_ids`. Without a finish reason the stream breaks off after it.
fn reply(prompt: usize, (ids, listed): (Option<[u32; 2]>, [u32; 2]), last: Value, finish: Option<&str>) -> FakeReply {
    let finish_reason = finish.map(|kind| json!({"type": kind}));
    let mut meta = json!({"id": "r", "finish_reason": finish_reason, "prompt_tokens": prompt, "completion_tokens": 2});
    if let Some([first, second]) = ids {
        meta["output_token_logprobs"] = json!([[-0.5, first, null], [last, second, null]]);
    }
    let object = json!({"text": "ab", "output_ids": listed, "meta_info": meta}).to_string();
    match finish {
        Some(_) => json_message(200, object.as_bytes()),
        None => torn_stream(&[format!("data: {object}\n\n").as_bytes()]),
    }
}

/// A session whose first turn was cut off as `cut` says, and whose second turn resumes it.
async fn resumed(
    jax: bool,
    streamed: bool,
    cut: impl Fn(usize) -> FakeReply + Send + Sync + 'static,
) -> (Upstream, Proxy) {
    let script = move |asked: &UpstreamRequest| {
        let prompt = asked.json()["input_ids"].as_array().unwrap().len();
        match prompt {
            3 => cut(prompt),
            _ => reply(prompt, (Some(RESUMED), RESUMED), json!(-0.5), Some("length")),
        }
    };
    let upstream = Upstream::start(EngineProfile { jax, flat: false, ..EngineProfile::default() }, script).await;
    let proxy = Proxy::probed(upstream.addr, &["--entropy", "off"]).await;
    let prompt = [1, 2, 3];
    let first = json!({"input_ids": prompt, "return_logprob": !jax, "stream": streamed});
    let whole = [&prompt[..], &CUT].concat();
    let second = json!({"input_ids": whole, "return_logprob": true});
    for body in [first, second] {
        post(proxy.data, "/sessions/s/generate", body.to_string().as_bytes()).await;
    }
    (upstream, proxy)
}

/// The export of the session in `format`, with the turns that were resumed.
async fn export(proxy: &Proxy, format: &str) -> Value {
    let body = json!({"sessions": ["s"], "format": format, "train_resumed": true});
    let answer = post(proxy.control, "/v1/samples", body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    serde_json::from_slice(answer.body.trim_ascii_end()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn turn_with_unverified_ids_is_not_trained_though_it_was_cut_off_and_resumed() {
    for finish in [Some("abort"), None] {
        for (jax, ids, listed, fault) in [
            (true, None, CUT, Some("ids_unverified")),
            (false, Some(CUT), [5, 6], Some("ids_mismatch")),
            (false, Some(CUT), CUT, None),
        ] {
            let cut = move |prompt| reply(prompt, (ids, listed), json!(-0.5), finish);
            let (_upstream, proxy) = resumed(jax, finish.is_none(), cut).await;
            let cut_off = if finish.is_some() { "aborted" } else { "broken" };
            let shown = get(proxy.control, "/v1/sessions/s").await.json();
            let turns = &shown["list"];
            assert_eq!(turns[0]["fault"], fault.unwrap_or(cut_off), "{finish:?}: {turns}");
            assert_eq!(turns[1]["cause"], "resumes", "{finish:?}: {turns}");
            let row = export(&proxy, "jsonl").await;
            let mask = u32::from(fault.is_none());
            assert_eq!(row["loss_mask"], json!([0, 0, 0, mask, mask, 1, 1]), "{finish:?} {fault:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn resumed_turn_without_a_logprob_is_context_where_the_format_needs_logprobs() {
    let cut = |prompt| reply(prompt, (Some(CUT), CUT), Value::Null, Some("abort"));
    let (_upstream, proxy) = resumed(false, false, cut).await;
    let row = export(&proxy, "jsonl").await;
    assert_eq!(row["loss_mask"], json!([0, 0, 0, 1, 1, 1, 1]), "jsonl needs no logprobs: {row}");
    let exported = export(&proxy, "slime").await;
    let [sample] = &exported["samples"].as_array().unwrap()[..] else { panic!("one row: {exported}") };
    assert_eq!(sample["loss_mask"], json!([0, 0, 1, 1]), "{sample}");
}
