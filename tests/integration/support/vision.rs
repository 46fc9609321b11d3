// SPDX-License-Identifier: Apache-2.0
//! A fake engine with a vision model: it replaces the placeholder of each picture by a run whose length follows from the picture's bytes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokentap::chat::model::{ChatModel, Chats};
use tokentap::tokenizer::Renderer;

use super::super::chat::TOKENIZER;
use super::manual_upstream::soon;
use super::proxy::Proxy;
use super::upstream::{EngineProfile, FakeReply, Upstream, UpstreamRequest, json_message, stream};

/// The placeholder, and the tokens before and after it: those of [`folder`].
pub const START: u32 = 1024;
pub const PAD: u32 = 1025;
pub const END: u32 = 1026;

/// The tokens that it samples for sample `at` of any prompt.
pub fn sampled(at: usize) -> [u32; 2] {
    [10 + at as u32, 11]
}

/// How it expands the pictures of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expansion {
    /// Each placeholder becomes a run; all else stays.
    Exact,
    /// It tokenises the text of the prompt anew, which gives another first token.
    Retokenises,
    /// It ignores the pictures.
    Ignores,
    /// It does not echo the prompt.
    Silent,
    /// It counts other tokens of the pictures than the prompt has.
    Miscounts,
    /// It refuses requests for logprobs.
    RefusesLogprobs,
    /// It refuses ids with pictures.
    Refuses,
    /// It refuses pictures, also in its chat endpoint.
    RefusesEverywhere,
    /// It never answers a request with pictures; to one that streams it sends the head of the reply.
    Hangs,
}

/// The folder of its tokenizer: that of the demo, with tokens for pictures.
pub fn folder() -> PathBuf {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("vision-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::copy(Path::new(TOKENIZER).join("tokenizer.json"), path.join("tokenizer.json")).unwrap();
        let token = |text: &str| json!({"content": text, "special": true});
        let added =
            json!({"1024": token("<|vision_start|>"), "1025": token("<|image_pad|>"), "1026": token("<|vision_end|>")});
        let config = json!({"eos_token": "<|im_end|>", "added_tokens_decoder": added});
        std::fs::write(path.join("tokenizer_config.json"), config.to_string()).unwrap();
        std::fs::write(path.join("config.json"), json!({"image_token_id": PAD}).to_string()).unwrap();
        std::fs::write(path.join("chat_template.jinja"), TEMPLATE).unwrap();
        path
    });
    FOLDER.clone()
}

/// A template that shows pictures.
const TEMPLATE: &str = "{%- for message in messages -%}\
    {{- '<|im_start|>' + message.role + '\\n' -}}\
    {%- if message.content is string -%}{{- message.content -}}\
    {%- else -%}{%- for part in message.content -%}\
    {%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}{%- else -%}{{- part.text -}}{%- endif -%}\
    {%- endfor -%}{%- endif -%}\
    {{- '<|im_end|>\\n' -}}\
    {%- endfor -%}\
    {%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

/// The text of the tokens that it samples first.
pub fn sampled_text() -> String {
    Renderer::open(&folder()).unwrap().tokenizer().decode(&sampled(0), true).unwrap()
}

/// A tokentap before the fake engine.
pub struct Vision {
    pub proxy: Proxy,
    pub engine: Upstream,
    expansion: Arc<Mutex<Expansion>>,
}

/// The number of tokens of a picture.
pub fn tokens_of(picture: &str) -> usize {
    2 + picture.len() % 7
}

/// A picture as a data URI. `content` is its content after the signature of a PNG.
pub fn data_uri(content: &str) -> String {
    format!("data:image/png;base64,{}", base64_simd::STANDARD.encode_to_string(png(content)))
}

/// The bytes of that picture.
pub fn png(content: &str) -> Vec<u8> {
    [b"\x89PNG\r\n\x1a\n", content.as_bytes()].concat()
}

/// The ids of a prompt after the engine has expanded these pictures.
pub fn expanded(ids: &[u32], pictures: &[String]) -> Vec<u32> {
    let mut pictures = pictures.iter();
    let expand = |id: &u32| match *id {
        PAD => vec![PAD; pictures.next().map_or(1, |picture| tokens_of(picture))],
        id => vec![id],
    };
    ids.iter().flat_map(expand).collect()
}

impl Vision {
    pub async fn start(profile: EngineProfile, flags: &[&str]) -> Self {
        Self::start_as(profile, Expansion::Exact, flags).await
    }

    async fn start_as(profile: EngineProfile, expansion: Expansion, flags: &[&str]) -> Self {
        let of_probes = expansion;
        let expansion = Arc::new(Mutex::new(expansion));
        let shared = Arc::clone(&expansion);
        let incremental = profile.streaming == "incremental";
        // its chat endpoint reports ids on request
        let mut server_info =
            json!({"sampling_defaults": "openai", "return_input_ids": false, "return_output_ids": false});
        server_info.as_object_mut().unwrap().extend(profile.server_info.as_object().cloned().unwrap_or_default());
        let engine = Upstream::start(EngineProfile { echoes_prompt: true, server_info, ..profile }, move |asked| {
            let expansion = if is_probe(&asked.json()) { of_probes } else { *shared.lock() };
            reply(asked, expansion, incremental)
        })
        .await;
        Self { proxy: Proxy::probed(engine.addr, flags).await, engine, expansion }
    }

    /// A tokentap that renders chats with the tokenizer of [`folder`].
    pub async fn rendering(profile: EngineProfile, flags: &[&str]) -> Self {
        Self::rendering_as(profile, Expansion::Exact, flags).await
    }

    /// The same with an engine that expands pictures so from the beginning.
    pub async fn rendering_as(profile: EngineProfile, expansion: Expansion, flags: &[&str]) -> Self {
        let folder = folder();
        let flags = [&["--tokenizer", folder.to_str().unwrap()], flags].concat();
        let vision = Self::start_as(profile, expansion, &flags).await;
        let mut chats = vision.proxy.parts.chats.clone();
        let rendered = chats.wait_for(|chats| matches!(&**chats, Chats::Rendered(_)));
        drop(soon("chats are rendered", rendered).await.unwrap());
        soon("the engine is asked with a picture", vision.model().images.wait()).await;
        vision
    }

    /// The requests for generations but those of probes.
    pub fn generations(&self) -> Vec<Value> {
        self.engine.generations().into_iter().filter(|sent| !is_probe(sent)).collect()
    }

    /// The paths of the requests but those of probes.
    pub fn paths(&self) -> Vec<String> {
        self.engine.asked().into_iter().filter(|asked| !is_probe(&asked.json())).map(|asked| asked.path).collect()
    }

    /// The model with which it renders chats.
    pub fn model(&self) -> Arc<ChatModel> {
        match &**self.proxy.parts.chats.borrow() {
            Chats::Rendered(model) => Arc::clone(model),
            Chats::Forwarded(reason) => panic!("{reason}"),
        }
    }

    /// Changes how it expands pictures, but for probes.
    pub fn set(&self, expansion: Expansion) {
        *self.expansion.lock() = expansion;
    }
}

/// Whether a request asks whether the engine takes pictures with ids.
fn is_probe(body: &Value) -> bool {
    body["sampling_params"] == json!({"max_new_tokens": 1, "temperature": 0.0})
}

/// The reply to a request, with the shapes of `image_data` that SGLang 0.5.23 accepts.
fn reply(asked: &UpstreamRequest, expansion: Expansion, incremental: bool) -> FakeReply {
    let body = asked.json();
    if asked.path == "/v1/chat/completions" {
        return chat_reply(&body, expansion);
    }
    if asked.path != "/generate" {
        return json_message(200, br#"{"success":true}"#);
    }
    if expansion == Expansion::Hangs && !body["image_data"].is_null() {
        return match body["stream"] == true {
            true => FakeReply::Head(super::manual_upstream::STREAM),
            false => FakeReply::Silence,
        };
    }
    let refuses = matches!(expansion, Expansion::Refuses | Expansion::RefusesEverywhere);
    if refuses && !body["image_data"].is_null() {
        return refusal(body["stream"] == true);
    }
    if expansion == Expansion::RefusesLogprobs && body["return_logprob"] == true {
        return json_message(400, br#"{"error":{"message":"no logprobs"}}"#);
    }
    let n = body["sampling_params"]["n"].as_u64().unwrap_or(1) as usize;
    let (prompts, is_batch): (Vec<Vec<u32>>, bool) = match &body["input_ids"] {
        Value::Array(ids) if ids.first().is_some_and(Value::is_array) => {
            (serde_json::from_value(body["input_ids"].clone()).unwrap(), true)
        }
        Value::Array(_) => (vec![serde_json::from_value(body["input_ids"].clone()).unwrap()], n > 1),
        // the tokens of a text are its bytes
        _ => (vec![body["text"].as_str().unwrap().bytes().map(u32::from).collect()], n > 1),
    };
    let texts = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|item| item.as_str().unwrap_or_default().to_owned()).collect()
    };
    let pictures: Vec<Vec<String>> = match &body["image_data"] {
        Value::Null => vec![Vec::new(); prompts.len()],
        Value::String(one) => vec![vec![one.clone()]; prompts.len()],
        Value::Array(list) if is_batch && list.len() != prompts.len() => {
            let refusal = json!({"error": {"message": "The length of image_data should be equal to the batch size."}});
            return json_message(400, refusal.to_string().as_bytes());
        }
        Value::Array(list) if is_batch => {
            let of_prompt = |item: &Value| match item {
                Value::Array(_) => texts(item),
                Value::Null => Vec::new(),
                one => vec![one.as_str().unwrap().to_owned()],
            };
            list.iter().map(of_prompt).collect()
        }
        list => vec![texts(list)],
    };
    let object = |at: usize, sample: usize, tokens: usize, finished: bool| {
        let mut prompt = match expansion {
            Expansion::Ignores => prompts[at].clone(),
            _ => expanded(&prompts[at], &pictures[at]),
        };
        if expansion == Expansion::Retokenises {
            prompt[0] += 1;
        }
        let ids = sampled(sample);
        let from = if incremental { tokens - 1 } else { 0 };
        let rows: Vec<Value> = ids[from..tokens].iter().map(|id| json!([-0.5, id, null])).collect();
        let finish = finished.then(|| json!({"type": "stop"}));
        let rid = body["rid"].as_str().unwrap_or("engine");
        let rid = if prompts.len() * n > 1 { format!("{rid}_{at}_{sample}") } else { rid.to_owned() };
        let mut reply = json!({"text": "", "index": at * n + sample, "output_ids": ids[from..tokens], "meta_info": {
            "id": rid, "finish_reason": finish, "prompt_tokens": prompt.len(), "completion_tokens": tokens,
            "output_token_logprobs": rows}});
        let image_tokens = pictures[at].iter().map(|picture| tokens_of(picture)).sum::<usize>();
        if image_tokens > 0 {
            let miscounts = usize::from(expansion == Expansion::Miscounts);
            reply["meta_info"]["image_tokens"] = json!(image_tokens + miscounts);
        }
        if body["return_prompt_token_ids"] == true && expansion != Expansion::Silent {
            reply["prompt_token_ids"] = json!(prompt);
        }
        reply
    };
    let all = || (0..prompts.len()).flat_map(|at| (0..n).map(move |sample| (at, sample)));
    if body["stream"] == true {
        let event = |(at, sample), tokens| format!("data: {}\n\n", object(at, sample, tokens, tokens == 2));
        let mut events: Vec<String> = all().map(|place| event(place, 1)).collect();
        events.extend(all().map(|place| event(place, 2)));
        events.push("data: [DONE]\n\n".to_owned());
        return stream(&events.iter().map(String::as_bytes).collect::<Vec<_>>());
    }
    let objects: Vec<Value> = all().map(|(at, sample)| object(at, sample, 2, true)).collect();
    let reply = if is_batch { json!(objects) } else { objects[0].clone() };
    json_message(200, reply.to_string().as_bytes())
}

/// The refusal of a picture. A stream has it as an event.
fn refusal(streams: bool) -> FakeReply {
    let error = json!({"error": {"message": "cannot identify the picture", "code": 400}}).to_string();
    if !streams {
        return json_message(400, error.as_bytes());
    }
    stream(&[format!("data: {error}\n\n").as_bytes(), b"data: [DONE]\n\n"])
}

/// The reply of its chat endpoint, which renders prompts itself.
fn chat_reply(body: &Value, expansion: Expansion) -> FakeReply {
    if expansion == Expansion::RefusesEverywhere {
        return refusal(false);
    }
    let ids = json!({"input_ids": [1, 2, PAD, PAD, 3], "output_ids": [sampled(0)]});
    let message = json!({"role": "assistant", "content": sampled_text()});
    let choice = json!({"index": 0, "finish_reason": "stop", "matched_stop": null, "message": message});
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7});
    let mut reply = json!({"id": "r", "object": "chat.completion", "model": "tiny", "choices": [choice], "usage": usage, "sglext": ids});
    if !body["rid"].is_null() {
        reply["id"] = body["rid"].clone();
    }
    if body["stream"] != true {
        return json_message(200, reply.to_string().as_bytes());
    }
    let delta = json!({"role": "assistant", "content": sampled_text()});
    let choice = json!({"index": 0, "delta": delta, "finish_reason": "stop", "matched_stop": null});
    reply["object"] = json!("chat.completion.chunk");
    reply["choices"] = json!([choice]);
    stream(&[format!("data: {reply}\n\n").as_bytes(), b"data: [DONE]\n\n"])
}
