// SPDX-License-Identifier: Apache-2.0
//! Replies that the engine aborts or breaks off, and its errors in place of a reply, in every API.

use serde_json::{Value, json};
use tokentap::chat::model::Chats;
use tokentap::demo::Model;
use tokentap::tokenizer::Renderer;

use super::chat::TOKENIZER;
use super::support::client::{Answer, get, post};
use super::support::proxy::Proxy;
use super::support::upstream::{EngineProfile, FakeReply, Upstream, UpstreamRequest, json_message, stream};

/// The APIs, by the ends of their paths.
const APIS: [&str; 4] = ["chat/completions", "completions", "messages", "responses"];

/// The finish reason of an abort that was requested.
fn abort() -> Value {
    json!({"type": "abort", "message": "Aborted", "status_code": null, "err_type": null})
}

/// The finish reason of an engine that failed.
fn failure() -> Value {
    json!({"type": "abort", "message": "out of memory", "status_code": 503, "err_type": "OOM"})
}

/// How the engine's stream ends after its tokens.
fn ends() -> [(&'static str, Value); 5] {
    [
        ("an abort", json!({"finish": abort()})),
        ("a failure", json!({"finish": failure()})),
        ("an error event", json!({"error": {"message": "out of memory", "code": 503}})),
        ("[DONE] without a finish reason", json!({})),
        ("no end mark", json!({"ends": "without [DONE]"})),
    ]
}

/// The engine: `custom_params` has the text that it samples in `say`, and how its reply ends.
fn engine(asked: &UpstreamRequest, renderer: &Renderer) -> FakeReply {
    let body = asked.json();
    let script = &body["sampling_params"]["custom_params"];
    let ids = renderer.tokenizer().encode_rendered(script["say"].as_str().unwrap_or_default()).unwrap();
    let object = |listed: &[u32], count: usize, finish: &Value| {
        let rows: Vec<Value> = listed.iter().map(|id| json!([-0.5, id, null])).collect();
        json!({"text": "", "output_ids": listed, "meta_info": {"id": body["rid"], "finish_reason": finish,
            "completion_tokens": count, "prompt_tokens": body["input_ids"].as_array().map_or(0, Vec::len), "output_token_logprobs": rows}})
    };
    if body["stream"] != true {
        let reply = match script.get("reply") {
            Some(reply) => reply.clone(),
            None => object(&ids, ids.len(), &script["finish"]),
        };
        return json_message(200, reply.to_string().as_bytes());
    }
    let mut events: Vec<Value> = (0..ids.len()).map(|at| object(&ids[at..=at], at + 1, &Value::Null)).collect();
    events.extend(script.get("finish").map(|finish| object(&[], ids.len(), finish)));
    events.extend(script.get("error").map(|error| json!({ "error": error })));
    let mut pieces: Vec<Vec<u8>> = events.iter().map(|event| format!("data: {event}\n\n").into_bytes()).collect();
    if script.get("ends").is_none() {
        pieces.push(b"data: [DONE]\n\n".to_vec());
    }
    stream(&pieces.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

struct Tap {
    proxy: Proxy,
    _engine: Upstream,
}

impl Tap {
    async fn start() -> Self {
        let renderer = Renderer::new(Model::folder());
        let profile = EngineProfile {
            streaming: "incremental",
            server_info: json!({"sampling_defaults": "openai"}),
            ..EngineProfile::default()
        };
        let upstream = Upstream::start(profile, move |asked| engine(asked, &renderer)).await;
        let proxy = Proxy::probed(upstream.addr, &["--tokenizer", TOKENIZER, "--separate-reasoning", "always"]).await;
        let mut chats = proxy.parts.chats.clone();
        drop(chats.wait_for(|chats| matches!(&**chats, Chats::Rendered(_))).await.unwrap());
        Self { proxy, _engine: upstream }
    }

    /// Asks an API for a reply of the engine with this script.
    async fn ask(&self, api: &str, script: &Value, stream: bool) -> Answer {
        let question = json!([{"role": "user", "content": "Oslo?"}]);
        let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        let tool = json!({"name": "weather", "description": "The weather", "parameters": schema});
        let mut body = match api {
            "chat/completions" => json!({"messages": question, "tools": [{"type": "function", "function": tool}]}),
            "completions" => json!({"prompt": [5, 6, 7]}),
            "messages" => json!({"messages": question, "max_tokens": 64,
                "tools": [{"name": "weather", "description": "The weather", "input_schema": schema}]}),
            _ => {
                let mut tool = tool;
                tool["type"] = json!("function");
                json!({"input": question, "tools": [tool]})
            }
        };
        body["model"] = json!("m");
        body["stream"] = json!(stream);
        body["custom_params"] = script.clone();
        post(self.proxy.data, &format!("/sessions/s/v1/{api}"), body.to_string().as_bytes()).await
    }
}

/// The data of all events of a stream, with the names that some APIs give them.
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.complete, "{}", answer.text());
    let data = answer.text();
    let lines = data.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    lines.map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// The message of the error with which a stream ends; `None` if it ends without one. `[DONE]` and usage may follow it.
fn error_of(events: &[Value]) -> Option<String> {
    let last = events.iter().rfind(|event| event["choices"] != json!([]))?;
    let error = [&last["error"], &last["response"]["error"]].into_iter().find(|error| error.is_object())?;
    Some(error["message"].as_str().unwrap().to_owned())
}

/// The status of an error that replaces a reply.
async fn status(tap: &Tap, api: &str, script: &Value) -> u16 {
    tap.ask(api, script, false).await.status
}

#[tokio::test]
async fn abort_is_an_error_that_clients_try_again() {
    let tap = Tap::start().await;
    let script = json!({"say": "It rains", "finish": abort()});
    let answer = tap.ask("messages", &script, false).await;
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (529, &json!("overloaded_error")));
    let answer = tap.ask("responses", &script, false).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &json!("server_error")));
    let events = events(&tap.ask("messages", &script, true).await);
    assert_eq!(events[events.len() - 1]["error"]["type"], "overloaded_error", "{events:?}");
    // as in SGLang, these APIs show the abort in the reply
    for (api, text) in [("chat/completions", json!("It rains")), ("completions", Value::Null)] {
        let reply = tap.ask(api, &script, false).await.json();
        assert_eq!(reply["choices"][0]["finish_reason"], "abort", "{api}: {reply}");
        assert_eq!(reply["choices"][0]["message"]["content"], text, "{api}: {reply}");
        let answer = tap.ask(api, &script, true).await;
        assert!(answer.text().contains(r#""finish_reason":"abort""#), "{api}: {}", answer.text());
    }
}

#[tokio::test]
async fn failed_engine_is_an_error_with_its_status_and_message() {
    let tap = Tap::start().await;
    let script = json!({"say": "It rains", "finish": failure()});
    for (api, expected) in [("chat/completions", 503), ("completions", 503), ("messages", 529), ("responses", 503)] {
        let answer = tap.ask(api, &script, false).await;
        assert_eq!(answer.status, expected, "{api}: {}", answer.text());
        assert!(answer.text().contains("out of memory"), "{api}: {}", answer.text());
        let answer = tap.ask(api, &script, true).await;
        assert_eq!(error_of(&events(&answer)).as_deref(), Some("out of memory"), "{api}: {}", answer.text());
        assert!(!answer.text().contains(r#""finish_reason":"abort""#), "{api}: {}", answer.text());
    }
}

#[tokio::test]
async fn stream_that_fails_ends_with_an_error() {
    let tap = Tap::start().await;
    for (end, script) in &ends()[1..] {
        for say in ["It rains", ""] {
            let mut script = script.clone();
            script["say"] = json!(say);
            for api in APIS {
                let answer = tap.ask(api, &script, true).await;
                let failed = match answer.status {
                    // nothing was sent before the error
                    502 | 503 | 529 if say.is_empty() => true,
                    _ => error_of(&events(&answer)).is_some(),
                };
                assert!(failed, "{api}, {end}, {say:?}: {}", answer.text());
                assert_eq!(answer.text().matches("\"error\":{").count().max(1), 1, "{api}, {end}: {}", answer.text());
            }
        }
    }
    let list = get(tap.proxy.control, "/v1/sessions/s").await.json()["list"].take();
    let faults: Vec<&Value> = list.as_array().unwrap().iter().map(|turn| &turn["fault"]).collect();
    assert!(!faults.is_empty() && faults.iter().all(|fault| fault.is_string()), "nothing is trained: {list}");
}

#[tokio::test]
async fn call_that_is_cut_off_is_never_done() {
    let tap = Tap::start().await;
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Os";
    for (end, script) in ends() {
        // before and after the name of the tool is known
        for say in [format!("I look.\n{call}"), "I look.\n<tool_call>\n{\"name\": \"wea".to_owned()] {
            let mut script = script.clone();
            script["say"] = json!(say);
            let cut = |event: &Value| event.to_string().contains("tool_call>");
            let chat = events(&tap.ask("chat/completions", &script, true).await);
            assert!(!chat.iter().any(cut), "{end}: {chat:?}");
            assert_eq!(error_of(&chat).is_some(), end != "an abort", "{end}: {chat:?}");

            let messages = events(&tap.ask("messages", &script, true).await);
            assert!(!messages.iter().any(cut), "{end}: {messages:?}");
            let of_type = |kind: &str| messages.iter().filter(|event| event["type"] == kind).count();
            let blocks = of_type("content_block_start");
            assert_eq!(blocks, if say.contains("arguments") { 2 } else { 1 }, "{end}: {messages:?}");
            // the text before a call ends where the call begins
            assert_eq!(of_type("content_block_stop"), blocks - 1, "{end}: {messages:?}");
            assert_eq!(messages[messages.len() - 1]["type"], "error", "{end}: {messages:?}");

            let responses = events(&tap.ask("responses", &script, true).await);
            assert!(!responses.iter().any(cut), "{end}: {responses:?}");
            let done = |event: &&Value| event["type"].as_str().unwrap().ends_with(".done");
            let items: Vec<&Value> = responses.iter().filter(done).filter_map(|event| event.get("item")).collect();
            assert!(items.iter().all(|item| item["type"] == "message"), "{end}: {items:?}");
            assert_eq!(items.len(), blocks - 1, "{end}: {items:?}");
            assert!(!responses.iter().any(|event| event["type"] == "response.function_call_arguments.done"), "{end}");
            let last = &responses[responses.len() - 1];
            assert_eq!(last["type"], "response.failed", "{end}: {last}");
            assert_eq!(last["response"]["output"], json!(items), "{end}: the items that are done");
        }
    }
}

#[tokio::test]
async fn whole_and_streamed_chat_that_is_aborted_agree() {
    let tap = Tap::start().await;
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";
    let say = format!("<think>\nHm.\n</think>\n\nI look.\n{call}\nAnd now <tool_call>\n{{\"name\": \"weather\", ");
    for end in (0..say.len()).filter(|at| say.is_char_boundary(*at)) {
        let script = json!({"say": &say[..end], "finish": abort()});
        let whole = tap.ask("chat/completions", &script, false).await.json()["choices"][0]["message"].take();
        let (mut content, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
        for event in events(&tap.ask("chat/completions", &script, true).await) {
            let delta = &event["choices"][0]["delta"];
            content += delta["content"].as_str().unwrap_or_default();
            thought += delta["reasoning_content"].as_str().unwrap_or_default();
            for call in delta["tool_calls"].as_array().into_iter().flatten() {
                if call["function"]["name"].is_string() {
                    calls.push(String::new());
                }
                *calls.last_mut().unwrap() += call["function"]["arguments"].as_str().unwrap();
            }
        }
        let of_whole = |call: &Value| call["function"]["arguments"].as_str().unwrap().to_owned();
        let whole_calls: Vec<String> = whole["tool_calls"].as_array().into_iter().flatten().map(of_whole).collect();
        assert_eq!(whole["content"].as_str().unwrap_or_default(), content, "{}", &say[..end]);
        assert_eq!(whole["reasoning_content"].as_str().unwrap_or_default(), thought, "{}", &say[..end]);
        assert_eq!(whole_calls, calls, "{}", &say[..end]);
        assert!(!content.contains("<tool_call>"), "{content}");
    }
}

#[tokio::test]
async fn error_that_the_engine_replies_with_200_is_an_error() {
    let tap = Tap::start().await;
    let with = |reply: Value| json!({ "reply": reply });
    for api in APIS {
        let overloaded = if api == "messages" { 529 } else { 503 };
        for (reply, expected, words) in [
            (json!({"error": {"message": "no room", "code": 503}}), overloaded, "no room"),
            (json!({"error": {"message": "no such thing"}}), 400, "no such thing"),
            (json!({"error": "no idea"}), 500, "no idea"),
            (json!({"detail": "gone"}), 502, "meta_info"),
            (
                json!({"text": "", "output_ids": [5], "meta_info": {"id": "r", "finish_reason": null}}),
                502,
                "finish reason",
            ),
        ] {
            let answer = tap.ask(api, &with(reply.clone()), false).await;
            assert_eq!(answer.status, expected, "{api}, {reply}: {}", answer.text());
            assert!(answer.text().contains(words), "{api}, {reply}: {}", answer.text());
        }
    }
    assert_eq!(status(&tap, "responses", &json!({"say": "Rain.", "finish": {"type": "stop"}})).await, 200);
}
