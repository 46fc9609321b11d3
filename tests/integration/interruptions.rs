//! A trainer that pauses the engine or aborts its generations: `--pause-wait` and `--on-abort`.

use std::net::SocketAddr;
use std::time::Duration;

use base64_simd::STANDARD;
use serde_json::{Value, json};
use tokentap::demo::experts::ExpertRouter;
use tokentap::demo::{EngineOptions, Streaming};
use tokentap::serve::connection::Phase;

use crate::chat::Chat;
use crate::crash::trainers::post_control;
use crate::support::client::{Answer, Connection, get, post, request, written};
use crate::support::demo::Demo;
use crate::support::manual_upstream::{Call, END, ManualUpstream, STREAM, chunk, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::{FakeReply, json_message};

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

#[tokio::test(flavor = "multi_thread")]
async fn chats_and_completions_are_continued() {
    let options = EngineOptions { token_delay: Some(Duration::from_millis(3)), ..EngineOptions::default() };
    let demo = Chat::with(options, &["--on-abort", "resume"]).await.demo;
    let messages = json!([{"role": "user", "content": "How far does the light go?"}]);
    for (path, asked) in
        [("completions", json!({"prompt": [5, 6, 7]})), ("chat/completions", json!({"messages": messages}))]
    {
        for stream in [false, true] {
            let session = format!("{}-{stream}", path.len());
            let mut body = json!({"model": "m", "max_tokens": 60, "ignore_eos": true, "temperature": 0, "stream": stream,
                "stream_options": {"include_usage": true}});
            body.as_object_mut().unwrap().extend(asked.as_object().unwrap().clone());
            let running = call(demo.proxy.data, &format!("/sessions/{session}/v1/{path}"), &body);
            let answer = interrupted(&demo, running, 2).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            let events = if stream { answer.events() } else { vec![answer.json()] };
            let finishes: Vec<&Value> = events
                .iter()
                .flat_map(|event| event["choices"].as_array().unwrap())
                .map(|choice| &choice["finish_reason"])
                .collect();
            assert_eq!(finishes.iter().filter(|finish| !finish.is_null()).collect::<Vec<_>>(), [&&json!("length")]);
            let (_, row) = only_turn(&demo, &session).await;
            let prompt = row["token_ids"].as_array().unwrap().len() - 60;
            let usage = &events.last().unwrap()["usage"];
            assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(prompt), &json!(60)), "{row}");
            assert_eq!(sampled(&row).len(), 60);
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
            let pausing = call(proxy.control, "/pause_generation", &json!({}));
            let paused = upstream.next().await;
            assert_eq!(paused.asked.path, "/pause_generation");
            paused.ok().await;
            assert_eq!(soon("a reply", pausing).await.unwrap().status, 200);
            let rows = json!([[-0.5, 8, null], [-0.5, 9, null]]);
            let meta = json!({
                "id": "r", "finish_reason": {"type": "abort", "message": "Aborted"}, "prompt_tokens": 3, "completion_tokens": 2,
                "output_token_logprobs": rows, "output_top_logprobs": null,
            });
            let aborted = json!({"text": "ab", "output_ids": [8, 9], "meta_info": meta}).to_string();
            if stream {
                generation.send(STREAM).await;
                let events = format!("data: {aborted}\n\ndata: [DONE]\n\n");
                generation.reply(&[chunk(events.as_bytes()), END.to_vec()].concat()).await;
            } else {
                generation.reply(&written_reply(200, aborted.as_bytes())).await;
            }
            soon("it waits", async { while !counts(&proxy, "tokentap_pause_waiting 1").await {} }).await;
            if matches!(rest, Rest::NotAsked) {
                proxy.phase.send_replace(Phase::Draining);
            } else {
                let continuing = call(proxy.control, "/continue_generation", &json!({}));
                let continued = upstream.next().await;
                assert_eq!(continued.asked.path, "/continue_generation");
                continued.ok().await;
                assert_eq!(soon("a reply", continuing).await.unwrap().status, 200);
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
