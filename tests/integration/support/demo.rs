// SPDX-License-Identifier: Apache-2.0
//! A demo engine with a tokentap in front of it. The engine knows its full distribution, so that tests can compare the numbers of tokentap
//! with the truth.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokentap::demo::{Engine, EngineOptions, Position, SamplingParams};
use tokentap::serve::connection::Phase;
use tokio::sync::watch;

use super::client::{Answer, post};
use super::proxy::Proxy;

/// The engine and the tokentap; both end on drop.
pub struct Demo {
    pub engine: Arc<Engine>,
    /// The engine's own port.
    pub direct: SocketAddr,
    pub proxy: Proxy,
    _stop: watch::Sender<Phase>,
}

impl Demo {
    /// Starts both and waits until tokentap has probed the engine.
    pub async fn start(options: EngineOptions, flags: &[&str]) -> Self {
        let (stop, stopped) = watch::channel(Phase::Serving);
        let engine = Engine::new(options);
        let (direct, _) = tokentap::cli::demo::engine(Arc::clone(&engine), stopped).await.unwrap();
        let proxy = Proxy::probed(direct, flags).await;
        Self { engine, direct, proxy, _stop: stop }
    }

    /// A reply through tokentap.
    pub async fn ask(&self, body: &Value) -> Value {
        succeeded(self.post("/generate", body).await, body).json()
    }

    /// The events of a stream through tokentap.
    pub async fn stream(&self, body: &Value) -> Vec<Value> {
        let mut body = body.clone();
        body["stream"] = json!(true);
        succeeded(self.post("/generate", &body).await, &body).events()
    }

    /// A reply of the data port with any status.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        post(self.proxy.data, path, body.to_string().as_bytes()).await
    }

    /// The distribution that the logprobs of output token `at` describe.
    pub fn distribution(&self, prompt: &[u32], output: &[u32], at: usize, params: &SamplingParams) -> Vec<f64> {
        self.engine.distribution(Position { prompt, output: &output[..at] }, params, 0)
    }

    /// The true entropy at each output token, nats.
    pub fn entropies(&self, prompt: &[u32], output: &[u32], params: &SamplingParams) -> Vec<f64> {
        (0..output.len()).map(|at| tokentap::demo::entropy(&self.distribution(prompt, output, at, params))).collect()
    }

    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.engine.tokenizer().encode(text)
    }
}

/// The first distinct ids of `text`, and the end-of-turn id if `eos`: a mask so small that the top 20 contain every allowed token, which
/// makes every entropy exact.
pub fn few_ids(text: &str, eos: bool) -> Vec<u32> {
    let tokenizer = tokentap::demo::Model::tokenizer();
    let mut ids = Vec::new();
    for id in tokenizer.encode(text) {
        if !ids.contains(&id) && ids.len() < 18 {
            ids.push(id);
        }
    }
    ids.extend(eos.then(|| tokenizer.token_to_id("<|im_end|>").unwrap()));
    ids
}

fn succeeded(answer: Answer, body: &Value) -> Answer {
    assert_eq!(answer.status, 200, "{body} was answered {}", answer.text());
    assert!(answer.complete, "the reply to {body} is complete");
    answer
}

/// `sampling_params` as a client writes them, without default values.
pub fn sampling(params: &SamplingParams) -> Value {
    let plain = SamplingParams::default();
    let mut object = Map::new();
    let mut set = |name: &str, differs: bool, value: Value| {
        if differs {
            object.insert(name.into(), value);
        }
    };
    set("max_new_tokens", true, json!(params.max_new_tokens));
    set("min_new_tokens", params.min_new_tokens != plain.min_new_tokens, json!(params.min_new_tokens));
    set("temperature", params.temperature != plain.temperature, json!(params.temperature));
    set("top_p", params.top_p != plain.top_p, json!(params.top_p));
    set("top_k", params.top_k.is_some(), json!(params.top_k));
    set("min_p", params.min_p != plain.min_p, json!(params.min_p));
    set("frequency_penalty", params.frequency_penalty != 0.0, json!(params.frequency_penalty));
    set("presence_penalty", params.presence_penalty != 0.0, json!(params.presence_penalty));
    set("repetition_penalty", params.repetition_penalty != 1.0, json!(params.repetition_penalty));
    set("stop", !params.stop.is_empty(), json!(params.stop));
    set("stop_token_ids", !params.stop_token_ids.is_empty(), json!(params.stop_token_ids));
    set("ignore_eos", params.ignore_eos, json!(true));
    set("no_stop_trim", params.no_stop_trim, json!(true));
    set("n", params.n != 1, json!(params.n));
    let bias = params.logit_bias.iter().map(|(id, bias)| (id.to_string(), json!(bias)));
    set("logit_bias", !params.logit_bias.is_empty(), Value::Object(bias.collect()));
    set("sampling_seed", params.sampling_seed.is_some(), json!(params.sampling_seed));
    set("stream_interval", params.stream_interval.is_some(), json!(params.stream_interval));
    Value::Object(object)
}

/// A list of numbers, null for missing ones.
pub fn numbers(value: &Value) -> Vec<Option<f64>> {
    value.as_array().unwrap_or_else(|| panic!("{value} is a list")).iter().map(Value::as_f64).collect()
}

/// A list of numbers without a null.
pub fn all_numbers(value: &Value) -> Vec<f64> {
    numbers(value).into_iter().map(|number| number.unwrap_or_else(|| panic!("nothing is missing in {value}"))).collect()
}

pub fn ids(object: &Value) -> Vec<u32> {
    serde_json::from_value(object["output_ids"].clone()).unwrap()
}

/// Asserts that two lists agree within `tolerance`, entry by entry.
pub fn assert_close(got: &[f64], truth: &[f64], tolerance: f64, about: &str) {
    assert_eq!(got.len(), truth.len(), "{about}: the number of values");
    for (at, (got, truth)) in got.iter().zip(truth).enumerate() {
        assert!((got - truth).abs() <= tolerance, "{about}: token {at}: got {got}, the truth is {truth}");
    }
}
