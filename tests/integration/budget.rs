// SPDX-License-Identifier: Apache-2.0
//! The byte budget of all requests and replies: requests over it are shed, replies over it pass without entropies.

use serde_json::{Value, json};

use crate::chat::{Chat, with_say};
use crate::oversize::reply;
use crate::support::client::{Connection, get, post, written};
use crate::support::manual_upstream::{END, ManualUpstream, STREAM, chunk, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::message;

/// Leaves 768 KiB for requests.
const FLAGS: [&str; 4] = ["--max-bytes-in-flight", "1MiB", "--max-request-bytes", "256KiB"];
const HELD: &str = "tokentap_bytes_in_flight";
const SHED: &str = "tokentap_shed_total{reason=\"max_bytes\"}";
const SKIPPED: &str = "tokentap_entropy_skipped_total{reason=\"no_room\"}";
const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

/// A request whose prompt is counted only with its body.
fn prompt(size: usize) -> Vec<u8> {
    format!("{{\"input_ids\":[{}7]}}", "7,".repeat(size / 2)).into_bytes()
}

async fn wait_until_released(proxy: &Proxy) {
    soon("all bytes are released", async { while proxy.metric(HELD).await != 0.0 {} }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_three_quarters_of_the_budget_are_shed() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &FLAGS).await;
    let (mut clients, mut calls) = (Vec::new(), Vec::new());
    let refused = loop {
        let addr = proxy.data;
        let mut client = tokio::spawn(async move { post(addr, "/generate", &prompt(100_000)).await });
        tokio::select! {
            call = upstream.next() => calls.push(call),
            answer = &mut client => break answer.unwrap(),
        }
        clients.push(client);
        assert!(clients.len() < 8, "more requests than the budget holds");
    };
    assert!(calls.len() >= 2, "{}", calls.len());
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{}", refused.text());
    assert!(refused.text().contains("--max-bytes-in-flight"), "{}", refused.text());
    let held = proxy.metric(HELD).await;
    assert!(held >= calls.len() as f64 * 100_000.0, "{held}");
    assert_eq!(proxy.metric(SHED).await, 1.0);
    // a finished request makes room; the shed request never reached the engine
    calls.pop().expect("there are two").reply(&message(200, &JSON, &reply(1000))).await;
    assert_eq!(clients.pop().expect("there are two").await.unwrap().status, 200);
    let small = tokio::spawn(post(proxy.data, "/generate", b"{\"text\":\"a\"}"));
    upstream.next().await.reply(&message(200, &JSON, &reply(1000))).await;
    assert!(small.await.unwrap().text().contains("output_token_entropy"));
    for call in calls {
        call.reply(&message(200, &JSON, &reply(1000))).await;
    }
    for client in clients {
        let answer = client.await.unwrap();
        assert!(answer.text().contains("output_token_entropy"), "{}", answer.text());
    }
    wait_until_released(&proxy).await;
    let again = tokio::spawn(async move { post(proxy.data, "/generate", &prompt(100_000)).await });
    upstream.next().await.reply(&message(200, &JSON, &reply(1000))).await;
    assert_eq!(again.await.unwrap().status, 200);
}

/// The path of each API, and a request with a prompt of this text. Streams have no echo of the prompt, so that its ids are asked for.
fn requests(text: &str) -> [(&'static str, Value); 7] {
    let chat = json!({"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": text}]});
    let input = json!({"model": "m", "max_output_tokens": 20, "input": text});
    [
        ("/v1/chat/completions", chat.clone()),
        ("/v1/messages", chat.clone()),
        ("/v1/messages/count_tokens", chat),
        ("/v1/responses", input.clone()),
        ("/v1/responses/input_tokens", input),
        ("/v1/completions", json!({"model": "m", "max_tokens": 4, "prompt": text, "stream": true})),
        ("/generate", json!({"text": text, "sampling_params": {"max_new_tokens": 4}, "stream": true})),
    ]
}

/// A request whose body has room, but the work on it has none while other requests use all but 60 KiB.
async fn assert_no_room(chat: &Chat, path: &str, body: &Value) {
    let proxy = &chat.demo.proxy;
    let mut others = proxy.parts.budget.request();
    others.grow((768 - 60) << 10).unwrap();
    let before = proxy.metric(SHED).await;
    let refused = chat.demo.post(path, body).await;
    let text = refused.text();
    // Anthropic's status of an overload
    let status = if path.contains("/messages") { 529 } else { 503 };
    assert_eq!((refused.status, refused.header("retry-after")), (status, Some("1")), "{path}: {text}");
    assert!(text.contains("--max-bytes-in-flight") && text.contains("MiB more"), "{path}: {text}");
    assert_eq!(proxy.metric(SHED).await, before + 1.0, "{path}");
}

/// A request whose body has room, but the work on it never has.
async fn assert_too_large(chat: &Chat, path: &str, body: &Value) {
    let before = chat.demo.proxy.metric(SHED).await;
    let refused = chat.demo.post(path, body).await;
    let text = refused.text();
    // OpenAI's clients look for the words of a conversation that is too long
    let (status, words) = match path {
        "/v1/messages" | "/v1/messages/count_tokens" => (413, "request_too_large"),
        "/generate" => (413, "send less text"),
        _ => (400, "maximum context length"),
    };
    assert_eq!((refused.status, refused.header("retry-after")), (status, None), "{path}: {text}");
    let names_limit = text.contains("--max-bytes-in-flight") && text.contains("786432");
    assert!(names_limit && text.contains("send less text") && text.contains(words), "{path}: {text}");
    assert_eq!(chat.demo.proxy.metric(SHED).await, before, "{path}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_work_on_a_request_is_counted_before_it_begins() {
    let chat = Chat::start(&FLAGS).await;
    let (fits, large) = ("some words ".repeat(2_000), "some words ".repeat(12_000));
    for ((path, small), (_, large)) in requests(&fits).into_iter().zip(requests(&large)) {
        // only the record needs the ids of a text that the engine renders
        if !["/v1/completions", "/generate"].contains(&path) {
            assert_too_large(&chat, path, &large).await;
        }
        assert_no_room(&chat, path, &small).await;
        let answer = chat.demo.post(path, &small).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    wait_until_released(&chat.demo.proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_whose_ids_never_have_room_is_generated_with_an_unknown_prompt() {
    let chat = Chat::start(&FLAGS).await;
    for (session, length, is_known) in [("short", 2_000, true), ("long", 12_000, false)] {
        for (path, body) in requests(&"some words ".repeat(length)).into_iter().skip(5) {
            let path = format!("/sessions/{session}{path}");
            let answer = chat.demo.post(&path, &body).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        }
        let shown = get(chat.demo.proxy.control, &format!("/v1/sessions/{session}")).await.json();
        let faults = if is_known { json!({}) } else { json!({"prompt_unknown": 2}) };
        assert_eq!((&shown["turns"], &shown["faults"]), (&json!(2), &faults), "{session}");
    }
    wait_until_released(&chat.demo.proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_responses_that_never_has_room_fails_with_the_code_of_a_prompt_that_is_too_long() {
    let chat = Chat::start(&FLAGS).await;
    let (path, mut body) = requests(&"some words ".repeat(12_000))[3].clone();
    body["stream"] = json!(true);
    let answer = chat.demo.post(path, &body).await;
    let text = answer.text();
    let last: Value = serde_json::from_str(text.rsplit("data: ").next().unwrap()).unwrap();
    let error = &last["response"]["error"];
    assert_eq!(
        (answer.status, &last["type"], &error["code"]),
        (200, &json!("response.failed"), &json!("context_length_exceeded"))
    );
    assert!(error["message"].as_str().unwrap().contains("--max-bytes-in-flight"), "{error}");
    wait_until_released(&chat.demo.proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_body_for_the_engine_counts_with_its_ids_and_its_capacity() {
    const PATH: &str = "/v1/chat/completions";
    let chat = Chat::start(&FLAGS).await;
    // each byte is a token, so that the ids and their text take more than the rendering, but less than the limit without the engine's copy
    let (_, body) = requests(&"日".repeat(18_500))[0].clone();
    assert_too_large(&chat, PATH, &body).await;
    wait_until_released(&chat.demo.proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_of_the_template_are_counted_before_they_are_rendered() {
    const PATH: &str = "/v1/chat/completions";
    let chat = Chat::start(&FLAGS).await;
    // a prompt that the client has rendered
    let request = |variable: &str| {
        let variables = json!({"notes": [variable]});
        let messages = [json!({"role": "user", "content": "a"})];
        json!({"model": "m", "max_tokens": 4, "input_ids": [1, 2, 3], "messages": messages, "chat_template_kwargs": variables})
    };
    let small = chat.demo.post(PATH, &request("a note")).await;
    assert_eq!(small.status, 200, "{}", small.text());
    assert_too_large(&chat, PATH, &request(&"some words ".repeat(12_000))).await;
    assert_no_room(&chat, PATH, &request(&"some words ".repeat(2_000))).await;
    wait_until_released(&chat.demo.proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grammars_are_built_after_the_prompt_has_its_memory() {
    let chat = Chat::start(&FLAGS).await;
    let (text, schema) = ("some words ".repeat(12_000), json!({"type": "object"}));
    let mut messages = requests(&text)[1].1.clone();
    messages["output_config"] = json!({"format": {"type": "json_schema", "schema": schema}});
    messages["tools"] = json!([{"name": "f", "input_schema": schema}]);
    messages["tool_choice"] = json!({"type": "any"});
    let mut responses = requests(&text)[3].1.clone();
    responses["text"] = json!({"format": {"type": "json_schema", "name": "a", "schema": schema}});
    responses["tools"] = json!([{"type": "function", "name": "f", "parameters": schema}]);
    responses["tool_choice"] = json!("required");
    // two grammars are an error, which is found later
    for (path, body) in [("/v1/messages", messages), ("/v1/responses", responses)] {
        assert_too_large(&chat, path, &body).await;
    }
    wait_until_released(&chat.demo.proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn items_are_counted_as_often_as_they_are_referenced() {
    const PATH: &str = "/sessions/s/v1/responses";
    let chat = Chat::start(&FLAGS).await;
    let said = format!("{}<|im_end|>", "some words ".repeat(100));
    let first = chat.demo.post(PATH, &with_say(&json!({"model": "m", "input": "a"}), &said)).await.json();
    let referenced = |count: usize| {
        let item = json!({"type": "item_reference", "id": first["output"][0]["id"]});
        json!({"model": "m", "max_output_tokens": 20, "input": vec![item; count]})
    };
    let few = chat.demo.post(PATH, &referenced(5)).await;
    assert_eq!(few.status, 200, "{}", few.text());
    assert_no_room(&chat, PATH, &referenced(50)).await;
    let many = referenced(1_000);
    assert!(many.to_string().len() < 100_000, "the body alone has room");
    assert_too_large(&chat, PATH, &many).await;
    wait_until_released(&chat.demo.proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_beyond_the_context_are_refused_without_encoding_them_whole() {
    let chat = Chat::start(&[]).await;
    // no token has more than twelve bytes, and the context has 65,536 tokens
    let text = "some words ".repeat(100_000);
    for (path, body) in requests(&text).into_iter().filter(|(path, _)| !path.ends_with("_tokens")).take(3) {
        let answer = chat.demo.post(path, &body).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        let message = answer.json()["error"]["message"].as_str().map(str::to_owned);
        let message = message.unwrap_or_else(|| answer.json()["message"].as_str().unwrap().to_owned());
        let expected = if path == "/v1/messages" { "prompt is too long: " } else { "maximum context length" };
        assert!(message.contains(expected) && message.contains("65536"), "{path}: {message}");
    }
    assert!(chat.journal().is_empty(), "the engine was not asked");
    let counted = chat.demo.post("/v1/messages/count_tokens", &requests(&text)[2].1).await;
    assert!(counted.json()["input_tokens"].as_u64().unwrap() > 131_072, "{}", counted.text());
    wait_until_released(&chat.demo.proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_beyond_the_context_are_not_too_large() {
    // a word of 1 MiB has more tokens than the context, and less than twice as many; encoding it takes 96 MiB
    let chat = Chat::start(&["--max-bytes-in-flight", "64MiB", "--max-request-bytes", "4MiB"]).await;
    let word = "a".repeat(1 << 20);
    let body = |messages: Value| json!({"model": "m", "max_tokens": 4, "messages": messages});
    for messages in [
        json!([{"role": "user", "content": word}]),
        json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": word}]),
    ] {
        let answer = chat.demo.post("/v1/messages", &body(messages)).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains("prompt is too long: "), "{}", answer.text());
    }
    let shorter = body(json!([{"role": "user", "content": word[..600_000]}]));
    let answer = chat.demo.post("/v1/messages", &shorter).await;
    assert_eq!(answer.status, 413, "it may fit the context: {}", answer.text());
    wait_until_released(&chat.demo.proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_upload_releases_its_bytes() {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &FLAGS).await;
    let body = prompt(100_000);
    let whole = written(proxy.data, "POST", "/generate", &[], &body);
    let mut client = Connection::open(proxy.data).await;
    client.send(&whole[..whole.len() - 10]).await;
    soon("it is counted", async { while proxy.metric(HELD).await < 99_000.0 {} }).await;
    drop(client);
    wait_until_released(&proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_kept_for_a_retry_are_released_without_another_call() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[&FLAGS[..], &["--session-idle", "1s"]].concat()).await;
    let mut client = Connection::open(proxy.data).await;
    client.send(&written(proxy.data, "POST", "/generate", &[("x-session-id", "s")], &prompt(100_000))).await;
    let call = upstream.next().await;
    assert!(proxy.metric(HELD).await >= 100_000.0);
    drop(client);
    call.closed().await;
    wait_until_released(&proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reply_over_budget_passes_unchanged() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &FLAGS).await;
    let large = reply(2 << 20);
    let client = tokio::spawn(post(proxy.data, "/generate", b"{\"text\":\"a\"}"));
    upstream.next().await.reply(&message(200, &JSON, &large)).await;
    let answer = client.await.unwrap();
    assert!(answer.complete && answer.body == large, "with a length");
    let client = tokio::spawn(post(proxy.data, "/generate", b"{\"text\":\"a\"}"));
    let mut call = upstream.next().await;
    call.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").await;
    for piece in large.chunks(10_000) {
        call.send(&chunk(piece)).await;
    }
    call.reply(END).await;
    let answer = client.await.unwrap();
    assert!(answer.complete && answer.body == large, "without one");
    let client =
        tokio::spawn(post(proxy.data, "/generate", b"{\"text\":\"a\",\"stream\":true,\"return_entropy\":true}"));
    let mut call = upstream.next().await;
    call.send(STREAM).await;
    let event = [b"data: ", &large[..], b"\n\ndata: [DONE]\n\n"].concat();
    for piece in event.chunks(10_000) {
        call.send(&chunk(piece)).await;
    }
    // the stream continues, and none of it is buffered
    wait_until_released(&proxy).await;
    call.reply(END).await;
    let answer = client.await.unwrap();
    assert!(answer.complete && answer.body == event, "an event");
    assert_eq!(proxy.metric(SKIPPED).await, 3.0);
    wait_until_released(&proxy).await;
    // a reply within the budget has its entropies
    let client = tokio::spawn(post(proxy.data, "/generate", b"{\"text\":\"a\"}"));
    upstream.next().await.reply(&message(200, &JSON, &reply(100_000))).await;
    assert!(client.await.unwrap().text().contains("output_token_entropy"));
    wait_until_released(&proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_mode_rejects_a_reply_over_budget() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[&FLAGS[..], &["--strict"]].concat()).await;
    let client = tokio::spawn(post(proxy.data, "/generate", b"{\"text\":\"a\"}"));
    upstream.next().await.reply(&message(200, &JSON, &reply(2 << 20))).await;
    let answer = client.await.unwrap();
    assert_eq!(answer.status, 502);
    assert!(answer.text().contains("no_room"), "{}", answer.text());
    wait_until_released(&proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_kept_for_retries_use_a_bounded_share_of_the_budget() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &FLAGS).await;
    // undelivered replies and their requests are kept for retries
    for at in 0..20 {
        let mut client = Connection::open(proxy.data).await;
        let path = format!("/sessions/s{at}/generate");
        client.send(&written(proxy.data, "POST", &path, &[], &prompt(100_000))).await;
        let call = upstream.next().await;
        drop(client);
        call.closed().await;
        // its abort request
        upstream.next().await.ok().await;
    }
    soon("the kept bytes are bounded", async { while proxy.metric(HELD).await > 131_072.0 {} }).await;
    assert_eq!(proxy.metric(SHED).await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn request_bytes_are_counted_once() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &["--entropy", "off", "--record", "false"]).await;
    let body = format!("{{\"rid\":\"r\",\"text\":\"{}\"}}", "a".repeat(100_000)).into_bytes();
    let sent = body.clone();
    let client = tokio::spawn(async move { post(proxy.data, "/generate", &sent).await });
    let call = upstream.next().await;
    assert_eq!(call.asked.body.len(), body.len(), "nothing is changed");
    let held = proxy.parts.budget.taken();
    assert!(held <= body.len() as u64, "{held}");
    call.reply(&message(200, &JSON, b"{}")).await;
    assert_eq!(client.await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn full_request_budget_does_not_block_the_control_port() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &FLAGS).await;
    let mut taken = proxy.parts.budget.request();
    while taken.grow(1000).is_ok() {}
    assert_eq!(post(proxy.data, "/generate", &prompt(1000)).await.status, 503);
    let policy = post(proxy.control, "/v1/policy", b"{\"version\":\"next\"}").await;
    assert_eq!(policy.status, 200, "{}", policy.text());
    let rest = proxy.parts.budget.hold(vec![0; 1 << 20]);
    let policy = post(proxy.control, "/v1/policy", b"{\"version\":\"next\"}").await;
    assert_eq!((policy.status, policy.header("retry-after")), (503, Some("1")), "{}", policy.text());
    drop((taken, rest));
    let client = tokio::spawn(async move { post(proxy.data, "/generate", &prompt(1000)).await });
    upstream.next().await.reply(&message(200, &JSON, &reply(1000))).await;
    assert_eq!(client.await.unwrap().status, 200);
}
