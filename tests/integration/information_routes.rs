// SPDX-License-Identifier: Apache-2.0
//! Engines without usable information routes, because a router or another product hides them or the version differs. Unknown properties
//! stay unknown, and every entropy is still correct.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokentap::demo::{Dialect, Engine, EngineOptions, SamplingParams, Streaming, entropy};
use tokentap::engine::capabilities::StreamMode;
use tokentap::serve::connection::Phase;
use tokio::sync::watch;

use crate::support::client::{Answer, get, post};
use crate::support::demo::{ids, numbers};
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, FakeReply, Upstream, UpstreamRequest, json_message, message};

/// The reply to an information route, in place of the engine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answers {
    NotFound,
    Empty,
    Html,
    Other,
}

const ALL: [Answers; 4] = [Answers::NotFound, Answers::Empty, Answers::Html, Answers::Other];
const SERVER_INFO: &[&str] = &["/server_info", "/get_server_info"];
const ALL_INFO: &[&str] = &["/server_info", "/get_server_info", "/model_info", "/get_model_info", "/v1/models"];

impl Answers {
    fn fake_reply(self) -> FakeReply {
        match self {
            Self::NotFound => json_message(404, br#"{"detail":"Not Found"}"#),
            Self::Empty => json_message(200, b"{}"),
            Self::Html => {
                FakeReply::KeepAlive(vec![message(200, &[("content-type", "text/html")], b"<html>welcome</html>")])
            }
            Self::Other => json_message(200, br#"{"router_manager":true,"routers_count":1,"workers_count":2}"#),
        }
    }
}

/// An engine whose information routes return other replies.
struct Hidden {
    engine: Arc<Engine>,
    proxy: Proxy,
    _upstream: Upstream,
    _stop: watch::Sender<Phase>,
}

impl Hidden {
    /// `shows_mode`: the probe may read a stream, which shows its mode.
    async fn start(options: EngineOptions, paths: &'static [&'static str], answers: Answers, shows_mode: bool) -> Self {
        let (stop, stopped) = watch::channel(Phase::Serving);
        let engine = Engine::new(options);
        let (direct, _) = tokentap::cli::demo::engine(Arc::clone(&engine), stopped).await.unwrap();
        let profile = EngineProfile { answers_probe: false, ..EngineProfile::default() };
        let upstream = Upstream::start(profile, move |asked: &UpstreamRequest| {
            let path = asked.path.split('?').next().unwrap();
            match paths.contains(&path) {
                true => answers.fake_reply(),
                // a request of the probe
                false if !shows_mode && asked.is_own() && asked.json()["stream"] == true => json_message(500, b"no"),
                false => FakeReply::Forward(direct),
            }
        })
        .await;
        let proxy = Proxy::start(upstream.addr, &[]).await;
        Self { engine, proxy, _upstream: upstream, _stop: stop }
    }

    async fn probed(
        options: EngineOptions,
        paths: &'static [&'static str],
        answers: Answers,
        shows_mode: bool,
    ) -> Self {
        let hidden = Self::start(options, paths, answers, shows_mode).await;
        hidden.until_probed().await;
        hidden
    }

    async fn until_probed(&self) {
        let probed = self.proxy.until(|found| found.probed && found.original_logprobs.is_some());
        tokio::time::timeout(Duration::from_secs(30), probed).await.expect("the probe is answered");
    }

    async fn generate(&self, prompt: &[u32], sampling: &Value, stream: bool) -> Answer {
        let body = json!({
            "input_ids": prompt, "stream": stream, "sampling_params": sampling, "entropy_options": {"bounds": true},
        });
        let answer = post(self.proxy.data, "/generate", body.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.complete);
        answer
    }

    fn prompt(&self) -> Vec<u32> {
        self.engine.tokenizer().encode("the light of the lamp")
    }

    /// The true entropies of the sampled tokens, nats.
    fn truth(&self, prompt: &[u32], output: &[u32], temperature: f64) -> Vec<f64> {
        let params = SamplingParams { temperature, ..SamplingParams::default() };
        let position = |at| tokentap::demo::Position { prompt, output: &output[..at] };
        (0..output.len()).map(|at| entropy(&self.engine.distribution(position(at), &params, 0))).collect()
    }
}

/// The tokens and the intervals of a stream, joined according to its streaming mode.
fn collect(events: &[Value], streaming: Streaming) -> (Vec<u32>, [Vec<Option<f64>>; 3]) {
    let (mut tokens, mut lists): (Vec<u32>, [Vec<Option<f64>>; 3]) = Default::default();
    for event in events {
        if streaming == Streaming::Cumulative {
            tokens.clear();
            lists.iter_mut().for_each(Vec::clear);
        }
        tokens.extend(ids(event));
        for (list, name) in
            lists.iter_mut().zip(["output_token_entropy", "output_token_entropy_lower", "output_token_entropy_upper"])
        {
            list.extend(numbers(&event["meta_info"][name]));
        }
    }
    (tokens, lists)
}

fn options(streaming: Streaming) -> EngineOptions {
    EngineOptions { streaming, dialect: Dialect::Sglang0523, ..EngineOptions::default() }
}

/// Asserts that a stream has one interval for each token, which contains the true entropy.
async fn assert_intervals(hidden: &Hidden, streaming: Streaming, about: &str) {
    let prompt = hidden.prompt();
    let sampling = json!({"max_new_tokens": 40, "temperature": 0.8, "sampling_seed": 5, "ignore_eos": true});
    let answer = hidden.generate(&prompt, &sampling, true).await;
    let (tokens, [values, lower, upper]) = collect(&answer.events(), streaming);
    assert_eq!(tokens.len(), 40, "{about}");
    let truth = hidden.truth(&prompt, &tokens, 0.8);
    for (name, list) in [("value", &values), ("lower", &lower), ("upper", &upper)] {
        assert_eq!(list.len(), tokens.len(), "{about}: one {name} a token");
        assert!(list.iter().all(Option::is_some), "{about}: no {name} is null in {list:?}");
    }
    for (at, truth) in truth.iter().enumerate() {
        let (lower, upper) = (lower[at].unwrap(), upper[at].unwrap());
        assert!(lower - 1e-4 <= *truth && *truth <= upper + 1e-4, "{about}: token {at}: {truth} in {lower}..{upper}");
    }
}

/// Asserts that a streamed completion has the text of the non-streaming one.
async fn assert_completion(hidden: &Hidden, about: &str) {
    let mut body = json!({"model": "m", "prompt": "the light of the lamp", "max_tokens": 24, "temperature": 0.0});
    let path = "/v1/completions";
    let whole = post(hidden.proxy.data, path, body.to_string().as_bytes()).await;
    assert_eq!(whole.status, 200, "{about}: {}", whole.text());
    body["stream"] = json!(true);
    let stream = post(hidden.proxy.data, path, body.to_string().as_bytes()).await;
    let text: String =
        stream.events().iter().filter_map(|event| event["choices"][0]["text"].as_str().map(str::to_owned)).collect();
    let expected = whole.json()["choices"][0]["text"].as_str().unwrap().to_owned();
    assert!(expected.len() > 20, "{about}: {expected:?} is long enough to detect a loss");
    assert_eq!(text, expected, "{about}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streaming_mode_is_detected_from_a_stream() {
    for (streaming, found) in
        [(Streaming::Incremental, StreamMode::Incremental), (Streaming::Cumulative, StreamMode::Cumulative)]
    {
        for answers in ALL {
            let hidden = Hidden::probed(options(streaming), SERVER_INFO, answers, true).await;
            let upstream = Arc::clone(&hidden.proxy.parts.upstream.borrow());
            assert_eq!(upstream.streaming, Some(found), "{answers:?}");
            let about = format!("{streaming:?}, {answers:?}");
            assert_intervals(&hidden, streaming, &about).await;
            assert_completion(&hidden, &about).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_unknown_mode_have_correct_intervals() {
    for streaming in [Streaming::Incremental, Streaming::Cumulative] {
        for answers in [Answers::NotFound, Answers::Other] {
            let hidden = Hidden::probed(options(streaming), SERVER_INFO, answers, false).await;
            let upstream = Arc::clone(&hidden.proxy.parts.upstream.borrow());
            assert_eq!(upstream.streaming, None, "{answers:?}");
            let about = format!("{streaming:?}, {answers:?}");
            assert_intervals(&hidden, streaming, &about).await;
            assert_completion(&hidden, &about).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_without_information_is_served_with_a_reason() {
    for answers in ALL {
        let hidden = Hidden::start(options(Streaming::Incremental), ALL_INFO, answers, true).await;
        let about = format!("{answers:?}");
        let prompt = hidden.prompt();
        let answered = matches!(answers, Answers::Empty | Answers::Other);
        if answered {
            // JSON without known members: the probe still detects the engine by its generations
            hidden.until_probed().await;
            assert_intervals(&hidden, Streaming::Incremental, &about).await;
        } else {
            let events = hidden.generate(&prompt, &json!({"max_new_tokens": 8}), true).await.events();
            let info = &events.last().unwrap()["meta_info"]["entropy_info"];
            assert_eq!(info["source"], "none", "{about}");
            assert_eq!(info["reason"], "probe_pending", "{about}");
            assert_eq!(info["temperature"], Value::Null, "{about}: engine's defaults are not known: {info}");
        }
        assert_eq!(get(hidden.proxy.control, "/readyz").await.status == 200, answered, "{about}");
        assert_completion(&hidden, &about).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn measured_default_temperature_is_reported() {
    for answers in [Answers::Empty, Answers::Other] {
        let hidden = Hidden::probed(options(Streaming::Incremental), ALL_INFO, answers, true).await;
        let prompt = hidden.prompt();
        let answer = hidden.generate(&prompt, &json!({"max_new_tokens": 3}), false).await.json();
        // the probe has measured that the engine adds no defaults
        assert_eq!(answer["meta_info"]["entropy_info"]["temperature"], 1.0, "{answers:?}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn temperature_is_null_if_the_engine_hides_a_default() {
    for (preferred, expected) in [(json!({"temperature": 0.5}), None), (Value::Null, Some(1.0))] {
        let profile = EngineProfile { hides_preferred: true, preferred, ..EngineProfile::default() };
        let upstream = Upstream::start(profile, crate::support::engine::answer).await;
        let proxy = Proxy::probed(upstream.addr, &[]).await;
        let temperature = async |sampling: Value| {
            let body = json!({"input_ids": [1, 2, 3], "sampling_params": sampling});
            let answer = post(proxy.data, "/generate", body.to_string().as_bytes()).await.json();
            answer["meta_info"]["entropy_info"]["temperature"].as_f64()
        };
        assert_eq!(temperature(json!({})).await, expected, "without a temperature in the request");
        assert_eq!(temperature(json!({"temperature": 0.7})).await, Some(0.7), "the request names one");
    }
}
