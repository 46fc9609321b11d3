// SPDX-License-Identifier: Apache-2.0
//! Information routes: the model, the server, tokenize and detokenize.

use bytes::Bytes;
use http::{Response, StatusCode};
use serde::Deserialize;
use serde_json::Value;

use super::engine::Engine;
use super::item::RESERVED;
use super::options::{Dialect, Streaming};
use super::refusal::Refusal;
use super::routes::{ReplyBody, default_true, json, parse, respond};
use super::wire::quoted;
use crate::json::percent_decode;

pub(super) fn model_info(engine: &Engine) -> Response<ReplyBody> {
    let weights = engine.weights();
    let (path, name, label) = (quoted(&weights.path), quoted(&weights.name), quoted(&weights.reported_label));
    let newer = engine.options().dialect == Dialect::Sglang0523;
    let served = if newer { format!(r#""served_model_name":{name},"#) } else { String::new() };
    let more = if newer {
        r#""load_format":"auto","reasoning_parser":null,"tool_call_parser":null,"disaggregation_mode":"null","#
    } else {
        ""
    };
    let body = format!(
        r#"{{"model_path":{path},{served}"tokenizer_path":"tokentap-demo","is_generation":true,"preferred_sampling_params":null,"weight_version":{label},{more}"has_image_understanding":false,"has_audio_understanding":false,"model_type":"ngram","architectures":["NgramForCausalLM"]}}"#
    );
    json(StatusCode::OK, body)
}

pub(super) fn server_info(engine: &Engine) -> Response<ReplyBody> {
    let options = engine.options();
    let weights = engine.weights();
    let (path, name, label) = (quoted(&weights.path), quoted(&weights.name), quoted(&weights.reported_label));
    let streaming = match options.dialect {
        Dialect::Sglang0523 => {
            format!(r#""incremental_streaming_output":{}"#, options.streaming == Streaming::Incremental)
        }
        Dialect::Sglang056 => r#""stream_output":false"#.to_owned(),
    };
    let (context, metrics, experts) = (options.context_length, options.metrics, options.routed_experts);
    let most = context.saturating_sub(RESERVED);
    let body = format!(
        r#"{{"model_path":{path},"tokenizer_path":"tokentap-demo","tokenizer_mode":"auto","skip_tokenizer_init":false,"context_length":{context},"served_model_name":{name},"weight_version":{label},{streaming},"stream_interval":1,"enable_metrics":{metrics},"enable_return_routed_experts":{experts},"reasoning_parser":null,"tool_call_parser":null,"chat_template":null,"tp_size":1,"dp_size":1,"speculative_algorithm":null,"disaggregation_mode":"null","grammar_backend":"demo","sampling_defaults":"openai","preferred_sampling_params":null,"rl_on_policy_target":null,"enable_deterministic_inference":false,"status":"ready","max_total_num_tokens":65536,"max_req_input_len":{most},"internal_states":[{{}}],"version":"demo"}}"#
    );
    json(StatusCode::OK, body)
}

pub(super) fn models(engine: &Engine) -> Response<ReplyBody> {
    json(StatusCode::OK, format!(r#"{{"object":"list","data":[{}]}}"#, model_card(engine)))
}

/// Returns the model with this percent-encoded name.
pub(super) fn model(engine: &Engine, name: &str) -> Result<Response<ReplyBody>, Refusal> {
    let name = percent_decode(name);
    if name != engine.weights().name {
        return Err(Refusal::Model { name: name.into_owned() });
    }
    Ok(json(StatusCode::OK, model_card(engine)))
}

fn model_card(engine: &Engine) -> String {
    let name = quoted(&engine.weights().name);
    let context = engine.options().context_length;
    format!(
        r#"{{"id":{name},"object":"model","created":0,"owned_by":"sglang","root":{name},"parent":null,"max_model_len":{context}}}"#
    )
}

pub(super) fn metrics(engine: &Engine) -> Response<ReplyBody> {
    let name = engine.weights().name;
    let body = format!(
        "# HELP sglang:max_total_num_tokens Maximum total number of tokens in the KV cache pool.\n\
         # TYPE sglang:max_total_num_tokens gauge\n\
         sglang:max_total_num_tokens{{model_name=\"{name}\"}} 65536.0\n"
    );
    respond(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", body)
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMore<T> {
    More(Vec<T>),
    One(T),
}

#[derive(Debug, Deserialize)]
struct TokenizeMessage {
    role: String,
    content: String,
}

#[derive(Debug, Deserialize)]
struct TokenizeRequest {
    prompt: Option<OneOrMore<String>>,
    messages: Option<Vec<TokenizeMessage>>,
    #[serde(default = "default_true")]
    add_generation_prompt: bool,
}

#[derive(Debug, Deserialize)]
struct DetokenizeRequest {
    tokens: Value,
    #[serde(default = "default_true")]
    skip_special_tokens: bool,
}

/// Returns the ids of a prompt, of a list of prompts, or of messages in plain ChatML.
pub(super) fn tokenize(engine: &Engine, body: &Bytes) -> Result<Response<ReplyBody>, Refusal> {
    let request: TokenizeRequest = parse(body)?;
    let encode = |text: &String| engine.tokenizer().encode(text);
    let (tokens, count) = match (request.prompt, request.messages) {
        (Some(OneOrMore::One(text)), None) => {
            let ids = encode(&text);
            (serde_json::json!(ids), serde_json::json!(ids.len()))
        }
        (Some(OneOrMore::More(texts)), None) => {
            let ids: Vec<Vec<u32>> = texts.iter().map(encode).collect();
            let counts: Vec<usize> = ids.iter().map(Vec::len).collect();
            (serde_json::json!(ids), serde_json::json!(counts))
        }
        (None, Some(messages)) => {
            let turn = |TokenizeMessage { role, content }: &TokenizeMessage| {
                format!("<|im_start|>{role}\n{content}<|im_end|>\n")
            };
            let mut text: String = messages.iter().map(turn).collect();
            if request.add_generation_prompt {
                text.push_str("<|im_start|>assistant\n");
            }
            let ids = encode(&text);
            (serde_json::json!(ids), serde_json::json!(ids.len()))
        }
        _ => {
            return Err(Refusal::Types("Exactly one of 'prompt' or 'messages' must be provided.".into()));
        }
    };
    let context = engine.options().context_length;
    let body = format!(r#"{{"tokens":{tokens},"count":{count},"max_model_len":{context}}}"#);
    Ok(json(StatusCode::OK, body))
}

pub(super) fn detokenize(engine: &Engine, body: &Bytes) -> Result<Response<ReplyBody>, Refusal> {
    let request: DetokenizeRequest = parse(body)?;
    let decode = |ids: &[u32]| Value::from(engine.tokenizer().decode(ids, request.skip_special_tokens));
    let text = match serde_json::from_value(request.tokens) {
        Ok(OneOrMore::<Vec<u32>>::One(ids)) => decode(&ids),
        Ok(OneOrMore::More(lists)) => lists.iter().map(|ids| decode(ids)).collect(),
        Err(_) => return Err(Refusal::field("tokens", "list")),
    };
    Ok(json(StatusCode::OK, format!(r#"{{"text":{text}}}"#)))
}
