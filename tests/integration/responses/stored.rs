// SPDX-License-Identifier: Apache-2.0
//! Stored responses: they are continued by their ids, retrieved, listed and deleted.

use serde_json::{Value, json};

use super::super::chat::{Chat, TOKENIZER, with_say};
use super::super::crash::StandaloneEngine;
use super::super::support::client::{Answer, Connection, get, post, request as send};
use super::super::support::manual_upstream::soon;
use super::{PATH, call, events, function, items, message, of_type, output, request, start};

/// Asks for something at a path below that of Responses.
async fn ask(chat: &Chat, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    send(chat.demo.proxy.data, method, path, headers, b"").await
}

/// The stored response with this id.
async fn stored(chat: &Chat, id: &Value) -> Value {
    let answer = ask(chat, "GET", &format!("{PATH}/{}", id.as_str().unwrap()), &[]).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// The items of the input of a stored response, the first one first.
async fn input(chat: &Chat, id: &Value) -> Vec<Value> {
    let answer =
        ask(chat, "GET", &format!("{PATH}/{}/input_items?order=asc&limit=100", id.as_str().unwrap()), &[]).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let list = answer.json();
    assert_eq!((&list["object"], &list["has_more"]), (&json!("list"), &json!(false)));
    list["data"].as_array().unwrap().clone()
}

fn continued(previous: &Value, input: impl Into<Value>) -> Value {
    let mut body = request(input);
    body["previous_response_id"] = previous["id"].clone();
    body
}

/// A response without the number of reasoning tokens, which turns do not record.
fn comparable(response: &Value) -> Value {
    let mut response = response.clone();
    response["usage"]["output_tokens_details"]["reasoning_tokens"] = json!(0);
    response
}

#[tokio::test]
async fn conversation_continues_by_the_ids_of_its_responses() {
    let chat = start().await;
    let mut first = request("Oslo?");
    first["tools"] = json!([function("weather"), {"type": "custom", "name": "patch"}]);
    first["metadata"] = json!({"run": "1"});
    let says = |text: &str| format!("<think>\nLook first.\n</think>\n\n{text}<|im_end|>");
    let one = chat.say(&first, &says(&call("weather", r#"{"city": "Oslo"}"#))).await;
    assert_eq!(one["store"], true);
    let mut second = continued(&one, json!([output(&of_type(&one, "function_call")[0], "rain")]));
    second["tools"] = first["tools"].clone();
    let two = chat.say(&second, &says(&call("patch", r#"{"input": "é"}"#))).await;
    assert_eq!(two["previous_response_id"], one["id"]);
    let mut third = continued(&two, json!([output(&of_type(&two, "custom_tool_call")[0], "done")]));
    third["tools"] = first["tools"].clone();
    let streamed = events(&chat, &third, &says("It rains.")).await;
    let three = &streamed[streamed.len() - 1]["response"];
    assert!(streamed.iter().filter_map(|event| event.get("response")).all(|response| response["id"] == three["id"]));

    let turns = chat.turns().await;
    let causes: Vec<&Value> = turns.iter().map(|turn| &turn["cause"]).collect();
    assert_eq!(causes, ["first", "extends", "extends"]);
    assert!(turns.iter().all(|turn| turn["context_retokenised"] == false && turn["foreign_assistant_text"] == false));
    for response in [&one, &two, three] {
        assert_eq!(stored(&chat, &response["id"]).await, comparable(response));
    }
    let listed = input(&chat, &three["id"]).await;
    let types: Vec<&str> = listed.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(
        types,
        [
            "message",
            "reasoning",
            "function_call",
            "function_call_output",
            "reasoning",
            "custom_tool_call",
            "custom_tool_call_output"
        ]
    );
    assert_eq!(listed[0]["content"], json!([{"type": "input_text", "text": "Oslo?"}]));
    assert_eq!(listed[1..3], items(&one)[..]);
    assert!(listed.iter().all(|item| item["id"].is_string()));
    assert_eq!(input(&chat, &one["id"]).await.len(), 1);
}

#[tokio::test]
async fn instructions_and_tools_are_those_of_each_request() {
    let chat = start().await;
    let mut body = request("Oslo?");
    body["instructions"] = json!("Be brief.");
    let one = chat.say(&body, "Rain.<|im_end|>").await;
    let two = chat.say(&continued(&one, "And Bergen?"), "Rain too.<|im_end|>").await;
    let turns = chat.turns().await;
    assert_eq!(turns[1]["cause"], "system_changed", "the instructions of a response do not apply to the next");
    assert_eq!(turns[1]["context_retokenised"], false, "the sampled tokens stay in the prompt");
    assert!(!chat.decode(&chat.last().prompt).contains("Be brief."));
    assert_eq!(stored(&chat, &one["id"]).await["instructions"], "Be brief.");
    assert_eq!(stored(&chat, &two["id"]).await["instructions"], Value::Null);
}

#[tokio::test]
async fn stateless_clients_share_items_with_the_responses_they_repeat() {
    let chat = start().await;
    let mut body = request(json!([message("user", "Oslo?")]));
    body["instructions"] = json!("x".repeat(10_000));
    let mut sizes = Vec::new();
    let mut last = Value::Null;
    for turn in 0..6 {
        last = chat.say(&body, "Rain.<|im_end|>").await;
        super::append(&mut body, items(&last));
        super::append(&mut body, [message("user", "And now?")]);
        let session = chat.demo.proxy.parts.sessions.session("s").unwrap();
        let chat = session.turn(turn).unwrap().about.chat.clone().unwrap();
        sizes.push(chat.stored.unwrap().bytes());
    }
    assert!(sizes[0] > 10_000 && sizes[1..].iter().all(|size| *size < 1_500), "{sizes:?}");
    assert_eq!(input(&chat, &last["id"]).await.len(), 11);
    assert_eq!(stored(&chat, &last["id"]).await, comparable(&last));
    assert!(chat.turns().await[1..].iter().all(|turn| turn["cause"] == "extends"));
}

#[tokio::test]
async fn items_may_be_named_in_place_of_sent() {
    let chat = start().await;
    let one = chat.say(&request("Oslo?"), "<think>\nHm.\n</think>\n\nRain.<|im_end|>").await;
    let named = items(&one).into_iter().map(|item| json!({"type": "item_reference", "id": item["id"]}));
    let mut sent = vec![message("user", "Oslo?")];
    sent.extend(named);
    sent.push(message("user", "And Bergen?"));
    chat.say(&request(sent), "Rain too.<|im_end|>").await;
    assert_eq!(chat.turns().await[1]["cause"], "extends");
    for id in ["msg_1", "msg_000000000000000000000000"] {
        let answer = chat.post(&request(json!([{"id": id}]))).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains(id), "{}", answer.text());
    }
}

#[tokio::test]
async fn responses_belong_to_their_session_and_to_the_key_of_their_caller() {
    let chat = start().await;
    let key = [("authorization", "Bearer one"), ("content-type", "application/json")];
    let body = with_say(&request("Oslo?"), "Rain.<|im_end|>").to_string();
    let one = send(chat.demo.proxy.data, "POST", PATH, &key, body.as_bytes()).await.json();
    let path = format!("{PATH}/{}", one["id"].as_str().unwrap());
    assert_eq!(ask(&chat, "GET", &path, &key[..1]).await.status, 200);
    let elsewhere = path.replace("/s/", "/other/");
    for (path, headers) in [
        (&path, &[][..]),
        (&path, &[("authorization", "Bearer two")]),
        (&elsewhere, &key[..1]),
        (&path.replace("/sessions/s", ""), &key[..1]),
        (&format!("{PATH}/resp_00000000000000000000"), &key[..1]),
    ] {
        for (method, path) in [("GET", path.clone()), ("GET", format!("{path}/input_items")), ("DELETE", path.clone())]
        {
            let answer = ask(&chat, method, &path, headers).await;
            assert_eq!(answer.status, 404, "{method} {path} {headers:?}: {}", answer.text());
            assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
        }
    }
    // the caller without the key cannot continue it either
    let answer = chat.post(&continued(&one, "And Bergen?")).await;
    let error = answer.json()["error"].clone();
    assert_eq!((answer.status, &error["code"]), (400, &json!("previous_response_not_found")), "{error}");
}

#[tokio::test]
async fn deleted_response_is_gone_and_its_turn_stays() {
    let chat = start().await;
    let one = chat.say(&request("Oslo?"), "Rain.<|im_end|>").await;
    let two = chat.say(&continued(&one, "And Bergen?"), "Rain too.<|im_end|>").await;
    let path = format!("{PATH}/{}", one["id"].as_str().unwrap());
    let answer = ask(&chat, "DELETE", &path, &[]).await;
    assert_eq!(answer.json(), json!({"id": one["id"], "object": "response", "deleted": true}));
    assert_eq!(ask(&chat, "GET", &path, &[]).await.status, 404);
    assert_eq!(ask(&chat, "DELETE", &path, &[]).await.status, 404);
    assert_eq!(chat.post(&continued(&one, "x")).await.status, 400);
    // later responses still have their whole input
    assert_eq!(input(&chat, &two["id"]).await.len(), 3);
    chat.say(&continued(&two, "And now?"), "Sun.<|im_end|>").await;
    assert_eq!(
        chat.turns().await.iter().map(|turn| &turn["cause"]).collect::<Vec<_>>(),
        ["first", "extends", "extends"]
    );
}

#[tokio::test]
async fn responses_that_are_not_stored_say_so() {
    let mut chat = start().await;
    let mut body = request("Oslo?");
    body["store"] = json!(false);
    let one = chat.say(&body, "Rain.<|im_end|>").await;
    assert_eq!(one["store"], false);
    let answer = ask(&chat, "GET", &format!("{PATH}/{}", one["id"].as_str().unwrap()), &[]).await;
    assert_eq!(answer.status, 404);
    chat.path = "/v1/responses".to_owned();
    let unnamed = chat.say(&request("Oslo?"), "Rain.<|im_end|>").await;
    assert_eq!(unnamed["store"], false, "a call without a session stores nothing");
    let answer = chat.post(&continued(&unnamed, "x")).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.text().contains("/sessions/ID/v1"), "{}", answer.text());
}

#[tokio::test]
async fn retried_request_gets_the_id_that_is_stored() {
    let chat = start().await;
    let body = with_say(&request("Oslo?"), "Rain.<|im_end|>").to_string();
    let retry = [("content-type", "application/json"), ("x-stainless-retry-count", "1")];
    let first = send(chat.demo.proxy.data, "POST", PATH, &retry[..1], body.as_bytes()).await.json();
    let second = send(chat.demo.proxy.data, "POST", PATH, &retry, body.as_bytes()).await.json();
    for response in [&first, &second] {
        assert_eq!(stored(&chat, &response["id"]).await["id"], response["id"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_responses_and_deletions_survive_a_restart() {
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let flags = ["--tokenizer", TOKENIZER];
    // the tokenizer is loaded after the ports are open
    let rendered = async |control| while !get(control, "/readyz").await.text().contains("tokens") {};
    let mut binary = alone.start_binary(&dir, &flags).await;
    soon("conversations are rendered", rendered(binary.control)).await;
    let ask = |body: Value| {
        let data = binary.data;
        async move { post(data, PATH, body.to_string().as_bytes()).await }
    };
    let mut body = request("Oslo?");
    body["max_output_tokens"] = json!(8);
    let one = ask(body.clone()).await.json();
    body["max_output_tokens"] = json!(9);
    let two = ask(body).await.json();
    let path = |response: &Value| format!("{PATH}/{}", response["id"].as_str().unwrap());
    assert_eq!(send(binary.data, "DELETE", &path(&two), &[], b"").await.status, 200);
    binary.terminate();
    assert_eq!(binary.code().await, Some(0));
    let binary = alone.start_binary(&dir, &flags).await;
    soon("conversations are rendered", rendered(binary.control)).await;
    assert_eq!(send(binary.data, "GET", &path(&two), &[], b"").await.status, 404);
    let found = send(binary.data, "GET", &path(&one), &[], b"").await;
    assert_eq!((found.status, comparable(&found.json())), (200, comparable(&one)), "{}", found.text());
    let mut next = continued(&one, "And now?");
    next["max_output_tokens"] = json!(8);
    let next = post(binary.data, PATH, next.to_string().as_bytes()).await;
    assert_eq!(next.status, 200, "{}", next.text());
}

#[tokio::test]
async fn request_id_of_the_client_stores_nothing() {
    let chat = start().await;
    let mut body = request("Oslo?");
    body["rid"] = json!("chosen");
    for _ in 0..2 {
        let reply = chat.say(&body, "Rain.<|im_end|>").await;
        assert_eq!(reply["store"], false, "another caller could guess the id");
        let answer = ask(&chat, "GET", &format!("{PATH}/{}", reply["id"].as_str().unwrap()), &[]).await;
        assert_eq!(answer.status, 404);
    }
}

#[tokio::test]
async fn generation_that_was_cut_off_is_a_failed_response() {
    let chat = start().await;
    let mut body = with_say(&request("Oslo?"), &"It rains and rains. ".repeat(500));
    body["stream"] = json!(true);
    let text = body.to_string();
    let mut connection = Connection::open(chat.demo.proxy.data).await;
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", text.len());
    connection.send(format!("{head}{text}").as_bytes()).await;
    let has_text = |seen: &[u8]| String::from_utf8_lossy(seen).matches("output_text.delta").count() > 2;
    assert!(connection.read_until(has_text).await);
    let seen = String::from_utf8_lossy(connection.seen()).into_owned();
    let id = seen.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    drop(connection);
    let path = format!("{PATH}/{id}");
    let found = async {
        loop {
            let answer = ask(&chat, "GET", &path, &[]).await;
            if answer.status == 200 {
                return answer.json();
            }
        }
    };
    let response = soon("the turn is recorded", found).await;
    assert_eq!((&response["status"], &response["output"]), (&json!("failed"), &json!([])), "{response}");
}

#[tokio::test]
async fn bytes_that_are_not_utf_8_are_stored_as_the_prompt_shows_them() {
    let chat = start().await;
    let body =
        with_say(&json!({"model": "m", "input": [message("user", "caf?")], "instructions": "be ?"}), "Yes.<|im_end|>");
    let bytes: Vec<u8> = body.to_string().bytes().map(|byte| if byte == b'?' { 0xe9 } else { byte }).collect();
    let reply = post(chat.demo.proxy.data, PATH, &bytes).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let reply = reply.json();
    assert_eq!(stored(&chat, &reply["id"]).await["instructions"], "be \u{fffd}");
    assert_eq!(input(&chat, &reply["id"]).await[0]["content"][0]["text"], "caf\u{fffd}");
    let mut next = continued(&reply, "And now?");
    next["instructions"] = json!("be \u{fffd}");
    chat.say(&next, "No.<|im_end|>").await;
    assert_eq!(chat.turns().await[1]["cause"], "extends");
}

#[tokio::test]
async fn tools_of_the_history_may_be_chosen() {
    let chat = start().await;
    let added = json!({"type": "additional_tools", "role": "developer", "tools": [function("weather")]});
    let one = chat.say(&request(json!([message("user", "Oslo?"), added])), "Rain.<|im_end|>").await;
    let mut body = continued(&one, "And Bergen?");
    body["tool_choice"] = json!({"type": "function", "name": "weather"});
    let answer = chat.post(&body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(of_type(&answer.json(), "function_call")[0]["name"], "weather");
    body["tool_choice"] = json!({"type": "function", "name": "other"});
    assert_eq!(chat.post(&body).await.status, 400);
}

#[tokio::test]
async fn request_that_refers_to_the_session_is_not_sent_to_the_engine() {
    let chat = start().await;
    let one = chat.say(&request("Oslo?"), "Rain.<|im_end|>").await;
    let file = json!([{"role": "user", "content": [{"type": "input_file", "file_data": "x"}]}]);
    let answer = chat.post(&continued(&one, file)).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.text().contains("send the whole conversation"), "{}", answer.text());
}
