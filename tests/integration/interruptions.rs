// SPDX-License-Identifier: Apache-2.0
//! A trainer that pauses the engine or aborts its generations: `--pause-wait` and `--on-abort`.

use std::net::SocketAddr;
use std::time::Duration;

use base64_simd::STANDARD;
use serde_json::{Value, json};
use tokentap::chat::model::Chats;
use tokentap::demo::experts::ExpertRouter;
use tokentap::demo::{EngineOptions, Streaming};
use tokentap::serve::connection::Phase;

use crate::chat::{Chat, TOKENIZER};
use crate::crash::trainers::post_control;
use crate::support::client::{Answer, Connection, get, post, request, written};
use crate::support::demo::Demo;
use crate::support::manual_upstream::{Call, END, ManualUpstream, STREAM, chunk, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, FakeReply, json_message};

/// A demo engine that is slow enough for an abort, behind a tokentap with these flags.
async fn slow(streaming: Streaming, flags: &[&str]) -> Demo {
    let delay = Some(Duration::from_millis(4));
    Demo::start(EngineOptions { streaming, token_delay: delay, ..EngineOptions::default() }, flags).await
}

fn body(rid: &str, stream: bool) -> Value {
    // greedy: a sampled token could end within a character
    let sampling = json!({"max_new_tokens": 300, "ignore_eos": true, "temperature": 0});
    json!({"input_ids": [5, 6, 7], "rid": rid, "stream": stream, "sampling_params": sampling})
}

/// Sends a call in the background.
fn call(addr: SocketAddr, path: &str, body: &Value) -> tokio::task::JoinHandle<Answer> {
    let (path, body) = (path.to_owned(), body.to_string());
    tokio::spawn(async move { post(addr, &path, body.as_bytes()).await })
}

async fn counts(proxy: &Proxy, line: &str) -> bool {
    get(proxy.control, "/metrics").await.text().lines().any(|found| found == line)
}

async fn has_metric(demo: &Demo, line: &str) -> bool {
    counts(&demo.proxy, line).await
}

async fn wait_for_metric(demo: &Demo, line: &str) {
    soon(line, async { while !has_metric(demo, line).await {} }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_call_waits_until_the_trainer_continues() {
    let options = EngineOptions { journal: true, ..EngineOptions::default() };
    let demo = Demo::start(options, &["--pause-wait", "60s"]).await;
    let control = demo.proxy.control;
    post_control(control, "/pause_generation", &json!({})).await;
    let probed = demo.engine.journal().len();
    let prompt = json!({"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 3}});
    let waiting = call(demo.proxy.data, "/sessions/s/generate", &prompt);
    let completion = json!({"model": "m", "prompt": [5, 6], "max_tokens": 2});
    let other = call(demo.proxy.data, "/v1/completions", &completion);
    wait_for_metric(&demo, "tokentap_pause_waiting 2").await;
    assert_eq!(demo.engine.journal().len(), probed, "the engine gets no call");
    post_control(control, "/update_weights_from_disk", &json!({"model_path": "m", "weight_version": "v1"})).await;
    assert!(!waiting.is_finished(), "an update does not end the pause");
    post_control(control, "/continue_generation", &json!({})).await;
    assert_eq!(
        (soon("a reply", waiting).await.unwrap().status, soon("a reply", other).await.unwrap().status),
        (200, 200)
    );
    wait_for_metric(&demo, "tokentap_pause_waiting 0").await;
    assert!(has_metric(&demo, "tokentap_pause_waits_total{outcome=\"continued\"} 2").await);
    let rows = get(control, "/v1/sessions/s/trajectories").await.json();
    let policy = &rows["trajectories"][0]["policy"];
    assert_eq!((&policy[0]["weight_version"], &policy[0]["until"]), (&json!("v1"), &Value::Null), "{policy}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_ends_with_the_time_or_with_the_client() {
    let demo = Demo::start(EngineOptions::default(), &["--pause-wait", "300ms"]).await;
    let refused = post(demo.proxy.control, "/pause_generation", br#"{"mode":"wrong"}"#).await;
    assert!(!(200..300).contains(&refused.status));
    let prompt = json!({"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 3}});
    assert_eq!(demo.post("/generate", &prompt).await.status, 200, "a refused pause holds no call");
    post_control(demo.proxy.control, "/pause_generation", &json!({})).await;
    for (path, body) in [("/generate", prompt.clone()), ("/v1/completions", json!({"model": "m", "prompt": [5]}))] {
        let answer = demo.post(path, &body).await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{path}");
        assert!(answer.text().contains("--pause-wait 0.3s"), "{}", answer.text());
    }
    assert!(has_metric(&demo, "tokentap_pause_waits_total{outcome=\"timeout\"} 2").await);
    let mut connection = Connection::open(demo.proxy.data).await;
    connection.send(&written(demo.proxy.data, "POST", "/generate", &[], prompt.to_string().as_bytes())).await;
    wait_for_metric(&demo, "tokentap_pause_waiting 1").await;
    drop(connection);
    wait_for_metric(&demo, "tokentap_pause_waiting 0").await;
    let plain = [("content-type", "text/plain")];
    let refused = request(demo.proxy.control, "POST", "/continue_generation", &plain, b"{}").await;
    assert!((400..500).contains(&refused.status), "{}", refused.status);
    assert_eq!(demo.post("/generate", &prompt).await.status, 503, "a refused call does not end the pause");
    post_control(demo.proxy.control, "/continue_generation", &json!({})).await;
    assert_eq!(demo.post("/generate", &prompt).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_ends_with_tokentap() {
    let demo = Demo::start(EngineOptions::default(), &["--pause-wait", "60s"]).await;
    post_control(demo.proxy.control, "/pause_generation", &json!({})).await;
    let prompt = json!({"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 3}});
    let waiting = call(demo.proxy.data, "/generate", &prompt);
    wait_for_metric(&demo, "tokentap_pause_waiting 1").await;
    demo.proxy.phase.send_replace(Phase::Draining);
    let answer = soon("a reply", waiting).await.unwrap();
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
    assert!(answer.text().contains("tokentap is shutting down"), "{}", answer.text());
}

/// Calls a route again and again until the call has its reply: it may not have reached the engine yet.
async fn interrupt(port: SocketAddr, path: &str, body: &Value, running: tokio::task::JoinHandle<Answer>) -> Answer {
    let body = body.to_string();
    let repeated = async {
        while !running.is_finished() {
            post(port, path, body.as_bytes()).await;
        }
    };
    soon("the call ends", repeated).await;
    running.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_call_is_answered_with_an_error_that_clients_retry() {
    let all = json!({"abort_all": true});
    let completion = json!({"model": "m", "prompt": [5, 6, 7], "max_tokens": 300, "ignore_eos": true});
    let demo = slow(Streaming::Cumulative, &["--on-abort", "retry"]).await;
    let (data, control) = (demo.proxy.data, demo.proxy.control);
    for (path, body) in [("/sessions/s/generate", body("whole", false)), ("/sessions/s/v1/completions", completion)] {
        let answer = interrupt(control, "/abort_request", &all, call(data, path, &body)).await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{path}: {}", answer.text());
        assert!(answer.text().contains("the trainer aborted the generation"), "{path}");
    }
    let update = json!({"model_path": "m", "abort_all_requests": true});
    let answer =
        interrupt(control, "/update_weights_from_disk", &update, call(data, "/generate", &body("u", false))).await;
    assert_eq!(answer.status, 503, "an update that aborts all requests");
    let answer =
        interrupt(control, "/abort_request", &all, call(data, "/sessions/s/generate", &body("stream", true))).await;
    let events = answer.events();
    let last = events.last().unwrap();
    assert!(last["error"]["message"].as_str().is_some_and(|text| text.contains("the trainer aborted")), "{last}");
    assert!(events.iter().all(|event| event["meta_info"]["finish_reason"].is_null()), "no event ends the reply");
    assert!(has_metric(&demo, "tokentap_interrupted_generations_total{outcome=\"retry\"} 4").await);
    let session = get(control, "/v1/sessions/s").await.json();
    let faults = session["list"].as_array().unwrap().iter().map(|turn| turn["fault"].clone());
    assert!(faults.clone().all(|fault| fault == "aborted"), "{session}");
    // a call that was aborted in the queue has no tokens
    assert!(faults.count() >= 1, "what was sampled is recorded");
}

#[tokio::test(flavor = "multi_thread")]
async fn abort_of_a_client_or_of_the_engine_is_passed() {
    let demo = slow(Streaming::Incremental, &["--on-abort", "retry"]).await;
    let (data, control) = (demo.proxy.data, demo.proxy.control);
    for port in [data, demo.direct] {
        let own = json!({"rid": "own"});
        let answer = interrupt(port, "/abort_request", &own, call(data, "/generate", &body("own", false))).await;
        assert_eq!((answer.status, &answer.json()["meta_info"]["finish_reason"]["type"]), (200, &json!("abort")));
    }
    let passing = slow(Streaming::Incremental, &[]).await;
    let running = call(passing.proxy.data, "/generate", &body("passed", false));
    let answer = interrupt(passing.proxy.control, "/abort_request", &json!({"abort_all": true}), running).await;
    assert_eq!((answer.status, &answer.json()["meta_info"]["finish_reason"]["type"]), (200, &json!("abort")));
    assert!(!get(control, "/metrics").await.text().contains("interrupted_generations_total{outcome=\"retry\"} 1"));
}

/// Aborts all requests of the engine a few times while a call runs, and once changes the weights. Returns the reply.
async fn interrupted(demo: &Demo, running: tokio::task::JoinHandle<Answer>, times: usize) -> Answer {
    for time in 0..times {
        let update = json!({"model_path": "m", "weight_version": "v1"});
        abort_all(demo, Some(&update).filter(|_| time == 0)).await;
    }
    soon("a reply", running).await.unwrap()
}

/// Pauses the engine after a few more tokens, which aborts its requests, changes the weights with this update, and continues.
async fn abort_all(demo: &Demo, update: Option<&Value>) {
    let control = demo.proxy.control;
    wait_for_tokens(demo, tokens_of_the_engine(demo) + 7).await;
    post_control(control, "/pause_generation", &json!({"mode": "abort"})).await;
    if let Some(update) = update {
        post_control(control, "/update_weights_from_disk", update).await;
    }
    post_control(control, "/continue_generation", &json!({})).await;
}

async fn wait_for_tokens(demo: &Demo, count: usize) {
    let sampled = async {
        while tokens_of_the_engine(demo) < count {
            tokio::task::yield_now().await;
        }
    };
    soon("the engine samples", sampled).await;
}

fn tokens_of_the_engine(demo: &Demo) -> usize {
    demo.engine.journal().iter().map(|entry| entry.sampled.len()).sum()
}

/// The only turn of a session, which is trained, and the row of it.
async fn only_turn(demo: &Demo, session: &str) -> (Value, Value) {
    let control = demo.proxy.control;
    let list = get(control, &format!("/v1/sessions/{session}")).await.json()["list"].take();
    let [turn] = &list.as_array().unwrap()[..] else { panic!("one turn: {list}") };
    let row = get(control, &format!("/v1/sessions/{session}/trajectories")).await.json()["trajectories"][0].take();
    assert_eq!(turn["fault"], Value::Null, "{turn}");
    (turn.clone(), row)
}

/// The tokens of a row that are sampled, and whether each has a logprob and an entropy.
fn sampled(row: &Value) -> Vec<u64> {
    let at = |name: &str| row[name].as_array().unwrap().clone();
    let (ids, mask, logprobs, entropy) = (at("token_ids"), at("loss_mask"), at("logprobs"), at("entropy"));
    let sampled = (0..ids.len()).filter(|token| mask[*token] == 1);
    let complete = |token: &usize| logprobs[*token].is_number() && entropy[*token].is_number();
    sampled
        .inspect(|token| assert!(complete(token), "token {token}"))
        .map(|token| ids[token].as_u64().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_generation_is_continued_as_one_reply_and_one_turn() {
    for (streaming, stream) in
        [(Streaming::Cumulative, false), (Streaming::Cumulative, true), (Streaming::Incremental, true)]
    {
        let delay = Some(Duration::from_millis(3));
        let options = EngineOptions { streaming, token_delay: delay, journal: true, ..EngineOptions::default() };
        let demo = Demo::start(options, &["--on-abort", "resume"]).await;
        let mut asked = body("mine", stream);
        asked["sampling_params"]["max_new_tokens"] = json!(120);
        asked["return_logprob"] = json!(true);
        let running = call(demo.proxy.data, "/sessions/s/generate", &asked);
        let answer = interrupted(&demo, running, 3).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let events = if stream { answer.events() } else { vec![answer.json()] };
        let last = events.last().unwrap();
        let meta = &last["meta_info"];
        assert_eq!(meta["finish_reason"], json!({"type": "length", "length": 120}), "{streaming:?} {stream}");
        assert_eq!(
            (&meta["completion_tokens"], &meta["prompt_tokens"], &meta["id"]),
            (&json!(120), &json!(3), &json!("mine"))
        );
        assert!(events[..events.len() - 1].iter().all(|event| event["meta_info"]["finish_reason"].is_null()));
        let all = |name: &str, of: fn(&Value) -> &Value| -> Vec<Value> {
            let list = |event: &Value| of(event)[name].as_array().unwrap().clone();
            match streaming {
                Streaming::Incremental => events.iter().flat_map(list).collect(),
                _ => list(last),
            }
        };
        let ids = all("output_ids", |event| event);
        let rows = all("output_token_logprobs", |event| &event["meta_info"]);
        let entropies = all("output_token_entropy", |event| &event["meta_info"]);
        assert_eq!((ids.len(), rows.len(), entropies.len()), (120, 120, 120), "{streaming:?} {stream}");
        let (turn, row) = only_turn(&demo, "s").await;
        assert_eq!((&turn["finish_reason"], &turn["rid"]), (&json!("length"), &json!("mine")), "{turn}");
        assert_eq!(json!(sampled(&row)), json!(ids), "the client has what is recorded");
        let spans = row["policy"].as_array().unwrap();
        let labels: Vec<&Value> = spans.iter().map(|span| &span["weight_version"]).collect();
        assert_eq!(labels, ["default", "v1"], "the spans of both policies: {spans:?}");
        assert_eq!((&spans[0]["start"], &spans[1]["end"]), (&json!(3), &json!(123)));
        assert_eq!(spans[0]["end"], spans[1]["start"]);
        assert_eq!(row["flags"], json!(["crosses_versions"]));
        let text = match streaming {
            Streaming::Incremental => events.iter().map(|event| event["text"].as_str().unwrap()).collect(),
            _ => last["text"].as_str().unwrap().to_owned(),
        };
        let decoded: Vec<u32> = ids.iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(text, demo.engine.tokenizer().decode(&decoded, true), "no character is lost");
        assert!(has_metric(&demo, "tokentap_interrupted_generations_total{outcome=\"resumed\"} 1").await);
        // the rest of each attempt was asked for with the exact tokens
        let attempts: Vec<_> =
            demo.engine.journal().into_iter().filter(|entry| entry.prompt.starts_with(&[5, 6, 7])).collect();
        assert_eq!(attempts.len(), 4, "three aborts");
        let tokens: Vec<u32> = attempts.iter().flat_map(|entry| &entry.sampled).map(|token| token.id).collect();
        assert_eq!(tokens, decoded, "each attempt continues where the last one ended");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_of_a_continued_generation_are_those_of_all_attempts() {
    for stream in [false, true] {
        let options = EngineOptions {
            routed_experts: true,
            token_delay: Some(Duration::from_millis(3)),
            journal: true,
            ..EngineOptions::default()
        };
        let columns = ["--columns", "routed_experts,sampling_mask,top_logprobs", "--moe-shape", "3x2x8"];
        let demo = Demo::start(options, &[&["--on-abort", "resume"], &columns[..]].concat()).await;
        let mut asked = body("mine", stream);
        asked["sampling_params"] = json!({"max_new_tokens": 60, "ignore_eos": true, "top_k": 1});
        let running = call(demo.proxy.data, "/sessions/s/generate", &asked);
        let answer = interrupted(&demo, running, 2).await;
        assert!(!answer.text().contains("routed_experts"), "the client has not asked for it");
        let (_, row) = only_turn(&demo, "s").await;
        let ids: Vec<u32> = serde_json::from_value(row["token_ids"].clone()).unwrap();
        assert_eq!((ids.len(), &row["turns"][0]["missing_columns"]), (63, &Value::Null), "{row}");
        let column =
            |name: &str| row["columns"].as_array().unwrap().iter().find(|column| column["name"] == name).unwrap();
        let data = |name: &str| STANDARD.decode_to_vec(column(name)["data"].as_str().unwrap()).unwrap();
        // the token before the abort is processed with the new weights, as the first of the continuation
        let updated = usize::try_from(row["policy"][1]["start"].as_u64().unwrap()).unwrap() - 1;
        let rows = |weights| {
            let mut router = ExpertRouter::default();
            ids[..62].iter().for_each(|id| router.process(*id, weights));
            router.rows().to_vec()
        };
        let experts: Vec<u8> =
            [&rows(0)[..updated], &rows(1)[updated..]].concat().iter().flatten().map(|expert| *expert as u8).collect();
        assert_eq!(data("routed_experts"), experts, "{stream}");
        let supports: Vec<u8> =
            [&[1; 60], &ids[3..]].concat().iter().flat_map(|number: &u32| number.to_le_bytes()).collect();
        assert_eq!(data("sampling_mask"), supports, "lists of one token, the greedy one");
        assert_eq!(data("top_logprobs").len(), 60 * 20 * 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_aborts_the_attempt_that_runs() {
    for stream in [false, true] {
        let options =
            EngineOptions { token_delay: Some(Duration::from_millis(4)), journal: true, ..EngineOptions::default() };
        let demo = Demo::start(options, &["--on-abort", "resume"]).await;
        let running = call(demo.proxy.data, "/sessions/s/generate", &body("own", stream));
        abort_all(&demo, None).await;
        wait_for_tokens(&demo, tokens_of_the_engine(&demo) + 7).await;
        assert_eq!(post(demo.proxy.data, "/abort_request", br#"{"rid": "own"}"#).await.status, 200);
        let answer = soon("a reply", running).await.unwrap();
        let last = if stream { answer.events().pop().unwrap() } else { answer.json() };
        let meta = &last["meta_info"];
        assert_eq!((&meta["finish_reason"]["type"], &meta["id"]), (&json!("abort"), &json!("own")), "{last}");
        let attempts: Vec<_> =
            demo.engine.journal().into_iter().filter(|entry| entry.prompt.starts_with(&[5, 6, 7])).collect();
        let tokens: usize = attempts.iter().map(|attempt| attempt.sampled.len()).sum();
        assert_eq!((attempts.len(), &meta["completion_tokens"]), (2, &json!(tokens)));
    }
}

/// The data of the events of a stream in any API, without `[DONE]`.
fn stream_data(answer: &Answer) -> Vec<Value> {
    let text = answer.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// The strings at these places of the objects of a reply.
fn strings(objects: &[Value], places: &[&str]) -> Vec<String> {
    let of_object = |object: &Value| -> Vec<String> {
        places.iter().filter_map(|place| object.pointer(place)?.as_str()).map(str::to_owned).collect()
    };
    objects.iter().flat_map(of_object).collect()
}

/// The text of a reply, whole or streamed, in any API.
fn text_of(objects: &[Value]) -> String {
    let completions = ["/choices/0/text", "/choices/0/message/content", "/choices/0/delta/content"];
    let messages = ["/content/0/text", "/delta/text"];
    let responses = ["/output/0/content/0/text", "/delta"];
    strings(objects, &[&completions[..], &messages, &responses].concat()).concat()
}

/// Why a reply ended, in any API: one reason if it is one reply.
fn finishes(objects: &[Value]) -> Vec<String> {
    let responses = ["/incomplete_details/reason", "/response/incomplete_details/reason"];
    let others = ["/choices/0/finish_reason", "/stop_reason", "/delta/stop_reason"];
    strings(objects, &[&others[..], &responses].concat())
}

/// The tokens of the prompt and of the reply, in any API.
fn usage_of(objects: &[Value]) -> (Option<u64>, Option<u64>) {
    let of_object = |object: &Value| {
        let mut found = ["/usage", "/response/usage"].into_iter().filter_map(|place| object.pointer(place));
        found.find(|usage| usage.is_object()).cloned()
    };
    let usage = objects.iter().rev().find_map(of_object).unwrap_or_default();
    let number = |name: &str| usage[name].as_u64();
    // in Messages the cached tokens of the prompt are counted separately
    let input = || Some(number("input_tokens")? + number("cache_read_input_tokens").unwrap_or(0));
    (number("prompt_tokens").or_else(input), number("completion_tokens").or_else(|| number("output_tokens")))
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_of_every_api_are_continued() {
    let options = EngineOptions { token_delay: Some(Duration::from_millis(3)), ..EngineOptions::default() };
    let demo = Chat::with(options, &["--on-abort", "resume"]).await.demo;
    let (messages, usage) =
        (json!([{"role": "user", "content": "How far does the light go?"}]), json!({"include_usage": true}));
    // control tokens are no text, and may begin a thought
    let no_controls: serde_json::Map<String, Value> = (1018..1024).map(|id| (id.to_string(), json!(-100))).collect();
    for (path, finish, asked) in [
        ("completions", "length", json!({"prompt": [5, 6, 7], "max_tokens": 60, "stream_options": usage})),
        ("chat/completions", "length", json!({"messages": messages, "max_tokens": 60, "stream_options": usage})),
        ("messages", "max_tokens", json!({"messages": messages, "max_tokens": 60})),
        ("responses", "max_output_tokens", json!({"input": messages, "max_output_tokens": 60})),
    ] {
        for stream in [false, true] {
            let session = format!("{}-{stream}", path.len());
            let mut body = asked.clone();
            for (name, value) in [
                ("model", json!("m")),
                ("ignore_eos", json!(true)),
                ("temperature", json!(0)),
                ("logit_bias", json!(no_controls)),
                ("stream", json!(stream)),
            ] {
                body[name] = value;
            }
            let running = call(demo.proxy.data, &format!("/sessions/{session}/v1/{path}"), &body);
            let answer = interrupted(&demo, running, 2).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            let objects = if stream { stream_data(&answer) } else { vec![answer.json()] };
            assert_eq!(finishes(&objects), [finish], "{path} {stream}: {}", answer.text());
            let (_, row) = only_turn(&demo, &session).await;
            let prompt = row["token_ids"].as_array().unwrap().len() as u64 - 60;
            assert_eq!(usage_of(&objects), (Some(prompt), Some(60)), "{path} {stream}: {row}");
            let ids: Vec<u32> = sampled(&row).into_iter().map(|id| u32::try_from(id).unwrap()).collect();
            assert_eq!(ids.len(), 60, "{path} {stream}");
            let text = demo.engine.tokenizer().decode(&ids, true);
            assert_eq!(text_of(&objects).trim(), text.trim(), "{path} {stream}: the text is that of the turn");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn generation_that_would_be_sampled_otherwise_is_passed_and_counted() {
    let delay = Some(Duration::from_millis(4));
    let options = EngineOptions { token_delay: delay, journal: true, ..EngineOptions::default() };
    let demo = Demo::start(options, &["--on-abort", "resume"]).await;
    let (data, control) = (demo.proxy.data, demo.proxy.control);
    for (stream, (name, value), reason) in [
        (false, ("sampling_seed", json!(7)), "seed"),
        (true, ("frequency_penalty", json!(0.5)), "penalty"),
        (false, ("min_new_tokens", json!(5)), "min_new_tokens"),
        (true, ("custom_params", json!({"a": 1})), "processor"),
    ] {
        let mut asked = body(reason, stream);
        asked["sampling_params"][name] = value;
        let answer =
            interrupt(control, "/abort_request", &json!({"abort_all": true}), call(data, "/generate", &asked)).await;
        let last = if stream { answer.events().pop().unwrap() } else { answer.json() };
        assert_eq!((answer.status, &last["meta_info"]["finish_reason"]["type"]), (200, &json!("abort")), "{reason}");
        let counted = format!("tokentap_resume_obstacles_total{{reason=\"{reason}\"}} 1");
        assert!(has_metric(&demo, &counted).await, "{reason}");
    }
    // a client's own abort
    let own = json!({"rid": "own"});
    let answer = interrupt(data, "/abort_request", &own, call(data, "/generate", &body("own", true))).await;
    assert_eq!(answer.events().last().unwrap()["meta_info"]["finish_reason"]["type"], "abort");
    // aborts without an end
    let many = call(data, "/generate", &body("many", false));
    for _ in 0..9 {
        abort_all(&demo, None).await;
    }
    let answer = soon("a reply", many).await.unwrap();
    assert_eq!(answer.json()["meta_info"]["finish_reason"]["type"], "abort");
    assert!(has_metric(&demo, "tokentap_resume_obstacles_total{reason=\"attempts\"} 1").await);
    // an abort without a pause
    let all = json!({"abort_all": true});
    let answer = interrupt(control, "/abort_request", &all, call(data, "/generate", &body("bare", false))).await;
    assert_eq!(answer.json()["meta_info"]["finish_reason"]["type"], "abort");
    assert!(has_metric(&demo, "tokentap_resume_obstacles_total{reason=\"no_pause\"} 1").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn continued_reply_has_a_span_of_each_policy_without_labels() {
    let options =
        EngineOptions { token_delay: Some(Duration::from_millis(3)), journal: true, ..EngineOptions::default() };
    let demo = Demo::start(options, &["--on-abort", "resume"]).await;
    for stream in [false, true] {
        let session = format!("s-{stream}");
        let mut asked = body("mine", stream);
        asked["sampling_params"]["max_new_tokens"] = json!(60);
        let running = call(demo.proxy.data, &format!("/sessions/{session}/generate"), &asked);
        abort_all(&demo, Some(&json!({"model_path": "m"}))).await;
        assert_eq!(soon("a reply", running).await.unwrap().status, 200);
        let (_, row) = only_turn(&demo, &session).await;
        let attempts = demo.engine.journal();
        let first = &attempts[attempts.len() - 2];
        let seam = 3 + first.sampled.len();
        let spans: Vec<(Value, Value, bool)> = row["policy"]
            .as_array()
            .unwrap()
            .iter()
            .map(|span| (span["start"].clone(), span["end"].clone(), span["until"].is_null()))
            .collect();
        assert_eq!(spans, [(json!(3), json!(seam), true), (json!(seam), json!(63), true)], "{row}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn continuation_waits_for_the_end_of_the_pause() {
    let options =
        EngineOptions { token_delay: Some(Duration::from_millis(3)), journal: true, ..EngineOptions::default() };
    let demo = Demo::start(options, &["--on-abort", "resume"]).await;
    let control = demo.proxy.control;
    for stream in [false, true] {
        let running = call(demo.proxy.data, "/generate", &body("own", stream));
        wait_for_tokens(&demo, tokens_of_the_engine(&demo) + 7).await;
        post_control(control, "/pause_generation", &json!({"mode": "abort"})).await;
        wait_for_metric(&demo, "tokentap_pause_waiting 1").await;
        let attempts = demo.engine.journal().len();
        assert_eq!(post(demo.proxy.data, "/abort_request", br#"{"rid": "own"}"#).await.status, 200);
        post_control(control, "/continue_generation", &json!({})).await;
        let answer = soon("a reply", running).await.unwrap();
        let last = if stream { answer.events().pop().unwrap() } else { answer.json() };
        assert_eq!(last["meta_info"]["finish_reason"]["type"], "abort", "the client's own abort ends it: {last}");
        assert_eq!(demo.engine.journal().len(), attempts, "nothing is requested for a client that has aborted");
    }
}

/// Sends a call of the trainer, which the engine accepts.
async fn accepted(upstream: &mut ManualUpstream, proxy: &Proxy, path: &str) {
    let calling = call(proxy.control, path, &json!({}));
    let asked = upstream.next().await;
    assert_eq!(asked.asked.path, path);
    asked.ok().await;
    assert_eq!(soon("a reply", calling).await.unwrap().status, 200);
}

/// Waits until a continuation waits for the end of the pause.
async fn waits_for_the_end_of_the_pause(proxy: &Proxy) {
    soon("it waits", async { while !counts(proxy, "tokentap_pause_waiting 1").await {} }).await;
}

/// The finish reason of an abort that was requested.
fn abort() -> Value {
    json!({"type": "abort", "message": "Aborted"})
}

/// An object of the reply to a request, with these tokens.
fn object(asked: &Value, ids: &[u32], finish: &Value) -> Value {
    let rows: Vec<Value> = ids.iter().map(|id| json!([-0.5, id, null])).collect();
    let meta = json!({
        "id": asked["rid"], "finish_reason": finish, "prompt_tokens": asked["input_ids"].as_array().map_or(3, Vec::len),
        "completion_tokens": ids.len(), "output_token_logprobs": rows, "output_top_logprobs": null,
    });
    json!({"text": "ab"[..ids.len()], "output_ids": ids, "meta_info": meta})
}

/// An event of a stream.
fn event(object: &Value) -> Vec<u8> {
    chunk(format!("data: {object}\n\n").as_bytes())
}

/// The last event of a stream, and its end.
fn last_event(object: &Value) -> Vec<u8> {
    [event(object), chunk(b"data: [DONE]\n\n"), END.to_vec()].concat()
}

/// How the engine answers the request for the rest.
#[derive(Debug, Clone, Copy)]
enum Rest {
    /// With a status.
    Status,
    /// With an error in a reply with status 200.
    Error,
    /// With a reply that breaks off.
    Torn,
    /// With a reply that has no counts.
    Unreadable,
    /// tokentap ends before it is asked.
    NotAsked,
}

impl Rest {
    async fn send(self, mut call: Call, stream: bool) {
        let object: &[u8] = match self {
            Self::Status => return call.reply(&written_reply(400, b"{\"error\":{\"message\":\"no\"}}")).await,
            Self::Error => br#"{"error":{"message":"no"}}"#,
            Self::Torn => br#"{"te"#,
            Self::Unreadable => br#"{"text":"","meta_info":{"id":"r"}}"#,
            Self::NotAsked => unreachable!("no request"),
        };
        let is_torn = matches!(self, Self::Torn);
        if stream {
            call.send(STREAM).await;
            let event = if is_torn { object.to_vec() } else { [b"data: ", object, b"\n\n"].concat() };
            call.send(&chunk(&event)).await;
            if matches!(self, Self::Unreadable) {
                // readable again, but its place is unknown
                let later = json!({"text": "z", "output_ids": [4], "meta_info": {"id": "r", "completion_tokens": 9}});
                call.send(&chunk(format!("data: {later}\n\n").as_bytes())).await;
            }
        } else {
            let length = object.len() + usize::from(is_torn);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n");
            call.send(&[head.as_bytes(), object].concat()).await;
        }
        if is_torn {
            return call.finish().await;
        }
        call.reply(if stream { END } else { b"" }).await;
    }
}

fn written_reply(status: u16, body: &[u8]) -> Vec<u8> {
    match json_message(status, body) {
        FakeReply::KeepAlive(reply) => reply.concat(),
        _ => unreachable!("a complete reply"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rest_that_does_not_come_leaves_the_aborted_reply_and_is_counted() {
    for (rest, reason) in [
        (Rest::Status, "refused"),
        (Rest::Error, "refused"),
        (Rest::Torn, "broken"),
        (Rest::Unreadable, "unreadable"),
        (Rest::NotAsked, "paused"),
    ] {
        for stream in [false, true] {
            let mut upstream = ManualUpstream::streaming("cumulative").await;
            let proxy = Proxy::probed(upstream.addr, &["--on-abort", "resume"]).await;
            let running = call(proxy.data, "/sessions/s/generate", &body("r", stream));
            let mut generation = upstream.next().await;
            accepted(&mut upstream, &proxy, "/pause_generation").await;
            let aborted = object(&generation.json(), &[8, 9], &abort());
            if stream {
                generation.send(STREAM).await;
                generation.reply(&last_event(&aborted)).await;
            } else {
                generation.reply(&written_reply(200, aborted.to_string().as_bytes())).await;
            }
            waits_for_the_end_of_the_pause(&proxy).await;
            if matches!(rest, Rest::NotAsked) {
                proxy.phase.send_replace(Phase::Draining);
            } else {
                accepted(&mut upstream, &proxy, "/continue_generation").await;
                let asked = upstream.next().await;
                assert_eq!(asked.json()["input_ids"], json!([5, 6, 7, 8, 9]));
                rest.send(asked, stream).await;
            }
            let answer = soon("a reply", running).await.unwrap();
            let last = if stream { answer.events().pop().unwrap() } else { answer.json() };
            assert_eq!(last["output_ids"], json!([8, 9]), "{rest:?} {stream}: {last}");
            assert_eq!(last["meta_info"]["finish_reason"]["type"], "abort", "{rest:?} {stream}: {last}");
            let counted = proxy.parts.metrics.resume_obstacles.with_label_values(&[reason]).get();
            assert_eq!(counted, 1, "{rest:?} {stream}");
            if matches!(rest, Rest::NotAsked) {
                // the control port has closed
                continue;
            }
            let rows = get(proxy.control, "/v1/sessions/s/trajectories").await.json();
            assert_eq!(rows["trajectories"][0]["token_ids"], json!([5, 6, 7, 8, 9]), "{rest:?} {stream}");
        }
    }
}

/// The client would wait for the end of its stream, or take it for a reply that was cut off.
#[tokio::test(flavor = "multi_thread")]
async fn stream_whose_rest_breaks_off_has_the_end_of_its_api() {
    let (question, usage) = (json!([{"role": "user", "content": "Oslo?"}]), json!({"include_usage": true}));
    for (path, asked) in [
        ("generate", body("r", true)),
        ("v1/completions", json!({"prompt": [5, 6, 7], "stream_options": usage})),
        ("v1/chat/completions", json!({"messages": question, "stream_options": usage})),
        ("v1/messages", json!({"messages": question, "max_tokens": 64})),
        ("v1/responses", json!({"input": question})),
    ] {
        // the reply breaks off within its first event, or has none
        for is_torn in [true, false] {
            let about = format!("{path}, torn {is_torn}");
            let mut upstream = ManualUpstream::start().await;
            let server_info = json!({"sampling_defaults": "openai"});
            upstream.replace(EngineProfile { flat: false, server_info, ..EngineProfile::default() });
            let proxy = Proxy::probed(upstream.addr, &["--on-abort", "resume", "--tokenizer", TOKENIZER]).await;
            let mut chats = proxy.parts.chats.clone();
            drop(chats.wait_for(|chats| matches!(&**chats, Chats::Rendered(_))).await.unwrap());
            let mut asked = asked.clone();
            (asked["model"], asked["stream"]) = (json!("m"), json!(true));
            let running = call(proxy.data, &format!("/sessions/s/{path}"), &asked);
            let mut generation = upstream.next().await;
            let request = generation.json();
            generation.send(&[STREAM, &event(&object(&request, &[8], &Value::Null))].concat()).await;
            accepted(&mut upstream, &proxy, "/pause_generation").await;
            generation.reply(&last_event(&object(&request, &[8, 9], &abort()))).await;
            waits_for_the_end_of_the_pause(&proxy).await;
            accepted(&mut upstream, &proxy, "/continue_generation").await;
            let mut rest = upstream.next().await;
            if is_torn {
                Rest::Torn.send(rest, true).await;
            } else {
                rest.send(STREAM).await;
                rest.reply(END).await;
            }
            let answer = soon("a reply", running).await.unwrap();
            let text = answer.text();
            assert!(answer.status == 200 && answer.complete, "{about}: {text}");
            let events = stream_data(&answer);
            let last = events.last().unwrap();
            match path {
                "generate" => {
                    assert_eq!(last["output_ids"], json!([8, 9]), "{about}: {text}");
                    assert_eq!(last["meta_info"]["finish_reason"]["type"], "abort", "{about}: {text}");
                }
                // these APIs have no such reason
                "v1/messages" => assert_eq!(last["error"]["type"], "overloaded_error", "{about}: {text}"),
                "v1/responses" => {
                    assert_eq!(last["type"], "response.failed", "{about}: {text}");
                    assert_eq!(last["response"]["error"]["code"], "server_error", "{about}: {text}");
                }
                _ => {
                    assert_eq!(finishes(&events), ["abort"], "{about}: {text}");
                    let prompt = request["input_ids"].as_array().unwrap().len() as u64;
                    assert_eq!(usage_of(&events), (Some(prompt), Some(2)), "{about}: {text}");
                    assert_eq!(last["choices"], json!([]), "the usage is the last chunk: {about}: {text}");
                }
            }
            let marks = text.matches("data: [DONE]\n\n").count();
            let has_mark = !matches!(path, "v1/messages" | "v1/responses");
            assert_eq!(
                (marks, text.ends_with("data: [DONE]\n\n")),
                (usize::from(has_mark), has_mark),
                "{about}: {text}"
            );
            let counted = proxy.parts.metrics.resume_obstacles.with_label_values(&["broken"]).get();
            assert_eq!(counted, 1, "{about}");
            let rows = get(proxy.control, "/v1/sessions/s/trajectories").await.json();
            let ids = rows["trajectories"][0]["token_ids"].as_array().unwrap().clone();
            assert_eq!(ids[ids.len() - 2..], [json!(8), json!(9)], "{about}: {rows}");
        }
    }
}

/// The engine has sampled the tokens, and an agent that comes back may continue them.
#[tokio::test(flavor = "multi_thread")]
async fn disconnect_before_the_rest_leaves_the_aborted_turn() {
    for stream in [false, true] {
        // while the engine is paused, and while the rest is requested
        for is_requested in [false, true] {
            let about = format!("stream {stream}, requested {is_requested}");
            let mut upstream = ManualUpstream::streaming("cumulative").await;
            let proxy = Proxy::probed(upstream.addr, &["--on-abort", "resume"]).await;
            let mut client = Connection::open(proxy.data).await;
            let asked = body("r", stream).to_string();
            client.send(&written(proxy.data, "POST", "/sessions/s/generate", &[], asked.as_bytes())).await;
            let mut generation = upstream.next().await;
            let request = generation.json();
            let aborted = object(&request, &[8, 9], &abort());
            if stream {
                generation.send(&[STREAM, &event(&object(&request, &[8], &Value::Null))].concat()).await;
                let is_read = client.read_until(|read| read.ends_with(b"\n\n\r\n"));
                assert!(soon("an event", is_read).await, "{about}");
            }
            accepted(&mut upstream, &proxy, "/pause_generation").await;
            let reply = if stream { last_event(&aborted) } else { written_reply(200, aborted.to_string().as_bytes()) };
            generation.reply(&reply).await;
            waits_for_the_end_of_the_pause(&proxy).await;
            let mut rest = None;
            if is_requested {
                accepted(&mut upstream, &proxy, "/continue_generation").await;
                let asked = upstream.next().await;
                assert_eq!(asked.json()["input_ids"], json!([5, 6, 7, 8, 9]), "{about}");
                rest = Some(asked);
            }
            drop(client);
            soon("nothing waits", async { while !counts(&proxy, "tokentap_pause_waiting 0").await {} }).await;
            let recorded = async {
                loop {
                    let list = get(proxy.control, "/v1/sessions/s").await.json()["list"].take();
                    if list.as_array().is_some_and(|list| !list.is_empty()) {
                        break list;
                    }
                }
            };
            let list = soon("a turn", recorded).await;
            drop(rest);
            let [turn] = &list.as_array().unwrap()[..] else { panic!("{about}: one turn: {list}") };
            // as with `--on-abort pass`
            assert_eq!(
                (&turn["fault"], &turn["finish_reason"], &turn["sampled_tokens"]),
                (&json!("aborted"), &json!("abort"), &json!(2)),
                "{about}: {turn}"
            );
            let rows = get(proxy.control, "/v1/sessions/s/trajectories").await.json();
            let row = &rows["trajectories"][0];
            assert_eq!(row["token_ids"], json!([5, 6, 7, 8, 9]), "{about}: {rows}");
            assert_eq!(row["flags"], json!(["aborted"]), "{about}: the session lacks nothing: {rows}");
        }
    }
}

/// Aborts the generation of a request by a pause, with this text so far. Returns the reasons that are counted for not continuing it.
async fn passed_with(profile: EngineProfile, asked: &Value, text: &str) -> Vec<String> {
    let mut upstream = ManualUpstream::start().await;
    upstream.replace(profile);
    let proxy = Proxy::probed(upstream.addr, &["--on-abort", "resume"]).await;
    let running = call(proxy.data, "/generate", asked);
    let mut generation = upstream.next().await;
    accepted(&mut upstream, &proxy, "/pause_generation").await;
    let mut aborted = object(&generation.json(), &[8, 9], &abort());
    aborted["text"] = json!(text);
    if asked["stream"] == true {
        generation.send(STREAM).await;
        generation.reply(&last_event(&aborted)).await;
    } else {
        let is_batch = asked["input_ids"][0].is_array() || asked["sampling_params"]["n"].is_number();
        let with_id = |at: usize| {
            let mut of_sequence = aborted.clone();
            of_sequence["meta_info"]["id"] = json!(format!("r-{at}"));
            of_sequence
        };
        let reply = if is_batch { (0..2).map(with_id).collect() } else { aborted };
        generation.reply(&written_reply(200, reply.to_string().as_bytes())).await;
    }
    let answer = soon("a reply", running).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.text().contains(r#""type":"abort""#), "{}", answer.text());
    assert!(!upstream.has_more(), "no rest is requested for {asked}");
    let metrics = get(proxy.control, "/metrics").await.text();
    let reasons = metrics.lines().filter_map(|line| line.strip_prefix("tokentap_resume_obstacles_total{reason=\""));
    reasons.filter(|reason| !reason.ends_with(" 0")).map(str::to_owned).collect()
}

/// The obstacles that the engine of the demo does not support, or that depend on the text at the abort.
#[tokio::test(flavor = "multi_thread")]
async fn obstacle_in_the_request_or_at_its_last_token_is_counted_once() {
    let plain = || EngineProfile { flat: false, ..EngineProfile::default() };
    for (stream, (name, value), text, reason) in [
        (false, ("sampling_params.json_schema", json!("{}")), "ab", "grammar"),
        (true, ("sampling_params.regex", json!("a*")), "ab", "grammar"),
        (false, ("sampling_params.ebnf", json!("root ::= \"a\"*")), "ab", "grammar"),
        (true, ("sampling_params.structural_tag", json!("{}")), "ab", "grammar"),
        (false, ("sampling_params.n", json!(2)), "ab", "batch"),
        (false, ("input_ids", json!([[5, 6], [7]])), "ab", "batch"),
        (true, ("text", json!("a")), "ab", "prompt"),
        (true, ("session_params", json!({"id": "e", "rid": null})), "ab", "prompt"),
        (false, ("sampling_params.stop_regex", json!("c+")), "ab", "stop"),
        (false, ("sampling_params.stop", json!(["bc"])), "ab", "stop"),
        (true, ("sampling_params.stop", json!("bc")), "ab", "stop"),
        (true, ("model", json!("m")), "a\u{fffd}", "character"),
        (false, ("custom_logit_processor", json!("p")), "ab", "processor"),
        (true, ("return_hidden_states", json!(true)), "ab", "member"),
    ] {
        let mut asked = body("r", stream);
        if reason == "batch" || name == "text" {
            let members = asked.as_object_mut().unwrap();
            members.remove(if name == "text" { "input_ids" } else { "rid" });
        }
        match name.strip_prefix("sampling_params.") {
            Some(name) => asked["sampling_params"][name] = value,
            None => asked[name] = value,
        }
        assert_eq!(passed_with(plain(), &asked, text).await, [format!("{reason}\"}} 1")], "{name}");
    }
    // what the engine does to each request
    for (profile, stream, reason) in [
        (EngineProfile { preferred: json!({"repetition_penalty": 1.1}), ..plain() }, false, "member"),
        (EngineProfile { preferred: json!({"repetition_penalty": 1.1}), ..plain() }, true, "member"),
        // they are unknown
        (EngineProfile { hides_preferred: true, preferred: json!({"temperature": 0.5}), ..plain() }, true, "member"),
        (EngineProfile { streaming: "ids", ..plain() }, true, "unreadable"),
    ] {
        let about = format!("{profile:?}");
        let reasons = passed_with(profile, &body("r", stream), "ab").await;
        assert_eq!(reasons, [format!("{reason}\"}} 1")], "{about}");
    }
}
