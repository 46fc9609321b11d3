// SPDX-License-Identifier: Apache-2.0
//! Errors in OpenAI's format, and requests that only the engine's own endpoint can serve.

use serde_json::{Value, json};
use tokentap::demo::{EngineOptions, Streaming};

use super::super::support::client::{get, post};
use super::super::support::demo::Demo;
use super::{Chat, messages, with_say};

#[tokio::test]
async fn invalid_request_returns_400_with_the_cause() {
    let chat = Chat::start(&[]).await;
    let user = messages(&[("user", "x")]);
    for (body, expected) in [
        ("{".to_owned(), "not JSON"),
        ("[]".to_owned(), "not JSON"),
        (json!({}).to_string(), "messages must be a list"),
        (json!({"messages": []}).to_string(), "Messages cannot be empty."),
        (json!({"messages": ["x"]}).to_string(), "messages[0] must be an object"),
        (json!({"messages": [{"content": "x"}]}).to_string(), "messages[0].role must be a string"),
        (json!({"messages": [{"role": "user", "content": 5}]}).to_string(), "messages[0].content must be"),
        (json!({"messages": [{"role": "user"}]}).to_string(), "messages[0].content is required"),
        (json!({"messages": [{"role": "user", "content": null}]}).to_string(), "messages[0].content is required"),
        (
            json!({"messages": [{"role": "USER", "content": "x"}]}).to_string(),
            "messages[0].role \"USER\" is not one of",
        ),
        (
            json!({"messages": [{"role": "human", "content": "x"}]}).to_string(),
            "messages[0].role \"human\" is not one of",
        ),
        (
            json!({"messages": [{"role": "tool", "content": "x", "tool_call_id": 5}]}).to_string(),
            "messages[0].tool_call_id must be a string",
        ),
        (json!({"messages": user, "n": 0}).to_string(), "n must be a whole number of at least 1"),
        (json!({"messages": user, "n": -1}).to_string(), "n must be a whole number of at least 1"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}).to_string(),
            "messages[0].content has a part",
        ),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{}]}]}).to_string(),
            "messages[0].tool_calls has a call",
        ),
        (json!({"messages": user, "tools": {}}).to_string(), "tools must be a list"),
        (json!({"messages": user, "stream": "yes"}).to_string(), "stream must be true or false"),
        (json!({"messages": user, "tool_choice": "some"}).to_string(), "tool_choice \"some\" is not one of"),
        (json!({"messages": user, "tool_choice": "required"}).to_string(), "Tools cannot be empty if"),
        (
            json!({"messages": user, "tool_choice": {"function": {"name": "f"}}, "tools": super::tools()}).to_string(),
            "Tool 'f' not found",
        ),
        (json!({"messages": user, "tools": [{}]}).to_string(), "tools[0].function.name must be"),
        (
            json!({"messages": user, "tools": [{"type": "web_search"}]}).to_string(),
            "tools[0].type \"web_search\" is not supported; send a function or a custom tool",
        ),
        (json!({"messages": user, "response_format": {"type": "xml"}}).to_string(), "response_format.type must be"),
        (json!({"messages": user, "chat_template_kwargs": []}).to_string(), "chat_template_kwargs must be an object"),
        (
            json!({"messages": user, "chat_template_kwargs": {"tools": 1}}).to_string(),
            "chat_template_kwargs.tools is not",
        ),
        (
            json!({"messages": user, "chat_template_kwargs": {"eos_token": "x"}}).to_string(),
            "chat_template_kwargs.eos_token is not",
        ),
        (json!({"messages": user, "input_ids": "x"}).to_string(), "input_ids must be a list of ids"),
        (json!({"messages": user, "temperature": "warm"}).to_string(), ""),
    ] {
        let answer = post(chat.demo.proxy.data, &chat.path, body.as_bytes()).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        let error = answer.json();
        assert_eq!((&error["object"], &error["code"]), (&json!("error"), &json!(400)), "{error}");
        // SGLang's members, and the same in OpenAI's `error`, without which openai for JavaScript shows no message
        let mut members = error.clone();
        members.as_object_mut().unwrap().remove("error");
        assert_eq!(error["error"], members);
        assert!(error["message"].as_str().unwrap().contains(expected), "{body}: {error}");
    }
    let shown = get(chat.demo.proxy.control, "/v1/sessions/s").await;
    assert_eq!(shown.status, 404, "rejected requests leave no session");
}

#[tokio::test]
async fn too_long_conversation_is_an_error_that_names_the_context_length() {
    let chat = Chat::start(&[]).await;
    let long = "word ".repeat(25_000);
    for stream in [false, true] {
        let body = json!({"messages": messages(&[("user", &long)]), "stream": stream});
        let answer = chat.post(&body).await;
        let text = answer.text();
        let error: Value = if stream && answer.status == 200 {
            answer.events().remove(0)["error"].clone()
        } else {
            assert_eq!(answer.status, 400, "{text}");
            answer.json()
        };
        assert!(error["message"].as_str().unwrap().contains("maximum context length"), "{text}");
    }
}

#[tokio::test]
async fn image_chat_is_forwarded_to_the_engine() {
    let chat = Chat::start(&[]).await;
    chat.say(&json!({"messages": messages(&[("user", "x")])}), "y<|im_end|>").await;
    for (url, reason) in [
        ("data:,", "a picture that is not in the request as base64"),
        ("data:image/png;base64,iVBORw0KGgo=", "the config.json of the model names no token for pictures"),
    ] {
        let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]);
        // the demo engine has no chat endpoint
        let reply = chat.post(&json!({"messages": image})).await;
        let message = format!(
            "tokentap cannot serve this request ({reason}), and the engine does not have the route /v1/chat/completions"
        );
        assert_eq!((reply.status, &reply.json()["error"]["message"]), (404, &json!(message)));
    }
}

#[tokio::test]
async fn without_a_tokenizer_chats_are_forwarded_and_readyz_reports_why() {
    let options = || EngineOptions { streaming: Streaming::Incremental, ..EngineOptions::default() };
    for (flags, cause) in [
        (&[][..], "cannot be read from here; give --tokenizer"),
        (&["--tokenizer", super::TOKENIZER, "--chat", "passthrough"][..], "--chat passthrough"),
        (&["--tokenizer", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")][..], "not a tokenizer.json"),
        (&["--tokenizer", super::TOKENIZER, "--tool-call-parser", "morse"][..], "morse"),
    ] {
        let demo = Demo::start(options(), flags).await;
        let mut chats = demo.proxy.parts.chats.clone();
        let matches_cause = |text: &str| text.contains(cause);
        chats
            .wait_for(
                |chats| matches!(&**chats, tokentap::chat::model::Chats::Forwarded(reason) if matches_cause(reason)),
            )
            .await
            .unwrap();
        assert_eq!(demo.post("/v1/chat/completions", &json!({"messages": []})).await.status, 404, "{flags:?}");
        let ready = get(demo.proxy.control, "/readyz").await.text();
        assert!(ready.starts_with("ok\n") && ready.contains(cause), "{ready}");
    }
}

#[tokio::test]
async fn failing_stream_reports_an_error() {
    let chat = Chat::start(&[]).await;
    let mut body = with_say(&json!({"messages": messages(&[("user", "x")]), "stream": true}), "y");
    body["stop"] = json!([5]);
    let answer = chat.post(&body).await;
    assert!(answer.status == 400 || answer.text().contains("\"error\""), "{}", answer.text());
}

#[tokio::test]
async fn explicit_default_values_do_not_forward_the_chat() {
    let chat = Chat::start(&[]).await;
    let body = json!({"messages": messages(&[("user", "x")]), "return_hidden_states": false, "functions": [],
        "modalities": ["text"], "audio": null, "function_call": "none"});
    assert_eq!(chat.say(&body, "y<|im_end|>").await["choices"][0]["message"]["content"], "y");
    let body = json!({"prompt": "x", "suffix": "", "max_tokens": 2});
    assert_eq!(chat.demo.post("/v1/completions", &body).await.status, 200);
}

#[tokio::test]
async fn stream_error_precedes_the_done_event() {
    let chat = Chat::start(&["--sse-keepalive", "10s"]).await;
    let long = "word ".repeat(25_000);
    let text = chat.post(&json!({"messages": messages(&[("user", &long)]), "stream": true})).await.text();
    let (error, done) = (text.find("\"error\"").unwrap(), text.find("[DONE]").unwrap());
    assert!(error < done && text.contains("maximum context length"), "{text}");
}

#[tokio::test]
async fn template_that_does_not_end_is_a_400_and_holds_neither_tokentap_nor_the_engine() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        std::fs::copy(std::path::Path::new(super::TOKENIZER).join(file), folder.path().join(file)).unwrap();
    }
    let template = folder.path().join("chat_template.jinja");
    let usual = std::fs::read_to_string(&template).unwrap();
    let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}";
    std::fs::write(&template, format!("{{% if messages[0].content == 'loop' %}}{endless}{{% endif %}}{usual}"))
        .unwrap();
    let options = EngineOptions { streaming: Streaming::Incremental, journal: true, ..EngineOptions::default() };
    let demo = Demo::start(options, &["--tokenizer", folder.path().to_str().unwrap()]).await;
    let chat = Chat { demo, path: "/v1/chat/completions".into() };
    chat.say(&json!({"messages": messages(&[("user", "x")])}), "Yes.<|im_end|>").await;
    let before = chat.demo.engine.journal().len();
    let answer = chat.post(&json!({"messages": messages(&[("user", "loop")])})).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.text().contains("as if it looped for ever"), "{}", answer.text());
    assert_eq!(chat.demo.engine.journal().len(), before, "the engine gets nothing");
}
