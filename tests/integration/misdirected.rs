// SPDX-License-Identifier: Apache-2.0
//! Errors for requests to the wrong port or path name the right URL.

use serde_json::json;

use crate::support::client::{get, post, request};
use crate::support::demo::Demo;
use crate::support::engine::answer;
use crate::support::proxy::{self, Proxy};
use crate::support::upstream::{EngineProfile, Upstream, json_message};
use tokentap::app::App;
use tokentap::demo::EngineOptions;
use tokentap::serve::connection::Phase;
use tokio::sync::watch;

const CHAT: &[u8] = br#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#;

#[tokio::test]
async fn unknown_engine_path_names_the_right_url() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let data = demo.proxy.data;
    for (path, meant) in [
        ("/chat/completions", format!("http://{data}/v1")),
        ("/v1/v1/chat/completions", format!("http://{data}/v1")),
        ("/sessions/run-1/chat/completions", format!("http://{data}/sessions/run-1/v1")),
        ("/v1/responses", "Chat Completions".to_owned()),
        ("/v1/messages", "Chat Completions".to_owned()),
        ("/v1/messages/count_tokens", "Chat Completions".to_owned()),
        ("/v1/sessions", "--control-listen".to_owned()),
        ("/v1/sessions/run-1/trajectories", "--control-listen".to_owned()),
    ] {
        let reply = post(data, path, CHAT).await;
        let body = reply.json();
        let message = body["message"].as_str().unwrap_or_default();
        assert_eq!((reply.status, body["code"].as_u64()), (404, Some(404)), "{path}: {body}");
        assert!(message.contains(&meant) && message.contains("POST"), "{path}: {message}");
    }
    let unknown = get(data, "/no/such/path").await;
    assert_eq!((unknown.status, unknown.json()), (404, json!({"detail": "Not Found"})), "the engine's own answer");
}

#[tokio::test]
async fn paths_of_other_apis_name_both_base_urls() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let data = demo.proxy.data;
    for (method, path, api) in [
        ("POST", "/v1beta/models/gemini-3-pro:generateContent", "Gemini"),
        ("POST", "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse", "Gemini"),
        ("GET", "/v1beta/models", "Gemini"),
        ("POST", "/v1/models/gemini-3-pro:generateContent", "Gemini"),
        ("POST", "/v1/api/chat", "Ollama"),
        ("POST", "/v1/model/anthropic.claude-5/converse", "Bedrock"),
        ("POST", "/v1/projects/p/locations/l/publishers/google/models/gemini-3-pro:countTokens", "Gemini"),
        ("POST", "/v1/projects/p/locations/l/publishers/anthropic/models/claude:streamRawPredict", "Vertex AI"),
        ("POST", "/api/chat", "Ollama"),
        ("POST", "/api/generate", "Ollama"),
        ("GET", "/api/tags", "Ollama"),
        ("POST", "/model/anthropic.claude-5%3A0/invoke", "Bedrock"),
        ("POST", "/model/anthropic.claude-5/invoke-with-response-stream", "Bedrock"),
        ("POST", "/model/arn:aws:bedrock:eu-central-1:1:inference-profile/eu.meta.llama/converse", "Bedrock"),
    ] {
        for session in ["", "/sessions/run-1"] {
            let reply = request(data, method, &format!("{session}{path}"), &[], b"{}").await;
            let message = reply.json()["message"].as_str().unwrap_or_default().to_owned();
            assert_eq!(reply.status, 404, "{path}: {}", reply.text());
            assert!(message.contains(api), "{path}: {message}");
            let client =
                |kind: &str, url: &str| format!("the base URL of {kind} client is http://{data}{session}{url}");
            assert!(message.contains(&client("an OpenAI", "/v1,")), "{path}: {message}");
            assert!(message.ends_with(&client("a Messages", "")), "{path}: {message}");
        }
    }
}

#[tokio::test]
async fn routes_of_session_servers_name_the_session_and_the_export() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let data = demo.proxy.data;
    for (method, path, server, session, format) in [
        ("POST", "/sessions", "miles", "NAME", "miles"),
        ("GET", "/sessions/run-1", "rLLM", "NAME", "miles"),
        ("DELETE", "/sessions/run-1", "miles", "NAME", "miles"),
        ("POST", "/sessions/run-1/samples", "miles", "run-1", "miles"),
        ("GET", "/sessions/run-1/traces", "rLLM", "run-1", "rllm"),
        ("GET", "/traces/t-1", "rLLM", "NAME", "rllm"),
        ("POST", "/traces/query", "rLLM", "NAME", "rllm"),
    ] {
        let reply = request(data, method, path, &[], b"{}").await;
        let message = reply.json()["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(reply.status, 404, "{method} {path}: {}", reply.text());
        let url = format!("http://{data}/sessions/{session}/v1");
        let call = format!(r#"POST /v1/samples with {{"sessions":["{session}"],"format":"{format}"}}"#);
        assert!(message.contains(server) && message.contains(&url) && message.ends_with(&call), "{path}: {message}");
    }
}

#[tokio::test]
async fn paths_below_a_wrong_base_url_and_misspelt_paths_name_the_url() {
    let chat = super::chat::Chat::start(&[]).await;
    let data = chat.demo.proxy.data;
    for (path, meant, base) in [
        ("/v1/openai/deployments/gpt-6/chat/completions", "/v1/chat/completions", "an OpenAI client is {}/v1"),
        (
            "/openai/deployments/gpt-6/chat/completions?api-version=2026-02-01",
            "/v1/chat/completions",
            "an OpenAI client is {}/v1",
        ),
        ("/deployments/gpt-6/chat/completions", "/v1/chat/completions", "an OpenAI client is {}/v1"),
        ("/openai/v1/responses", "/v1/responses", "an OpenAI client is {}/v1"),
        ("/api/v1/chat/completions", "/v1/chat/completions", "an OpenAI client is {}/v1"),
        ("/v2/completions", "/v1/completions", "an OpenAI client is {}/v1"),
        ("/v1/chat/completion", "/v1/chat/completions", "an OpenAI client is {}/v1"),
        ("/v1/Chat/Completions", "/v1/chat/completions", "an OpenAI client is {}/v1"),
        ("/v1/response", "/v1/responses", "an OpenAI client is {}/v1"),
        ("/v1/responses/input_token", "/v1/responses/input_tokens", "an OpenAI client is {}/v1"),
        ("/v1/embedding", "/v1/embeddings", "an OpenAI client is {}/v1"),
        ("/v1/message", "/v1/messages", "a Messages client is {}"),
        ("/v1/v1/messages", "/v1/messages", "a Messages client is {}"),
        ("/messages/count_tokens", "/v1/messages/count_tokens", "a Messages client is {}"),
        ("/v1/messages/", "/v1/messages", "a Messages client is {}"),
    ] {
        for session in ["", "/sessions/run-1"] {
            let reply = post(data, &format!("{session}{path}"), b"{}").await;
            let message = reply.json()["message"].as_str().unwrap_or_default().to_owned();
            let url = format!("http://{data}{session}");
            let hint = format!("the right URL is {url}{meant}, and the base URL of {}", base.replace("{}", &url));
            assert_eq!(reply.status, 404, "{path}: {}", reply.text());
            assert!(message.ends_with(&hint), "{path}: {message}");
        }
    }
    let (_phase, watched) = watch::channel(Phase::Serving);
    let app = App::bind(proxy::config(data, &[]), watched).await.unwrap();
    for path in app.api_paths() {
        let path = path.replace("{id}", "resp_1");
        let message = post(data, &format!("/base{path}"), b"{}").await.json()["message"].to_string();
        assert!(message.contains(&format!("the right URL is http://{data}{path}")), "{path}: {message}");
    }
}

#[tokio::test]
async fn get_of_a_route_that_takes_post_says_so() {
    let chat = super::chat::Chat::start(&[]).await;
    let data = chat.demo.proxy.data;
    for path in
        ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/responses/", "/v1/messages", "/message"]
    {
        let reply = get(data, &format!("/sessions/run-1{path}")).await;
        let message = reply.json()["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(reply.status, 404, "{path}: {}", reply.text());
        assert!(message.contains("send POST") && !message.contains("--tokenizer"), "{path}: {message}");
        let stored = format!("http://{data}/sessions/run-1/v1/responses/ID");
        assert_eq!(message.contains(&stored), path.starts_with("/v1/responses"), "{path}: {message}");
    }
    let message = get(data, "/v1/responses").await.json()["message"].as_str().unwrap_or_default().to_owned();
    let stored = format!("http://{data}/sessions/NAME/v1/responses/ID");
    assert!(message.contains(&stored), "responses are stored in sessions: {message}");
}

#[tokio::test]
async fn engine_redirect_leads_to_tokentap() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    for (path, location) in [
        ("/generate/", "/generate"),
        ("/sessions/run-1/generate/", "/sessions/run-1/generate"),
        ("/tokenize/", "/tokenize"),
    ] {
        let reply = post(demo.proxy.data, path, b"{}").await;
        assert_eq!(reply.status, 307, "{path}");
        let led = reply.header("location").unwrap();
        assert_eq!(led, location, "{path}");
    }
}

#[tokio::test]
async fn data_path_on_the_control_port_names_the_data_port() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    for (method, path) in [
        ("POST", "/generate"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/sessions/run-1/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/tokentap-demo"),
        ("POST", "/openai/deployments/gpt-6/chat/completions"),
        ("GET", "/health"),
    ] {
        let reply = request(demo.proxy.control, method, path, &[], b"{}").await;
        assert_eq!(reply.status, 404, "{path}");
        let message = reply.json()["message"].as_str().unwrap().to_owned();
        let port = format!("data port (--listen, {})", demo.proxy.data);
        assert!(message.contains(&port) && message.contains(path), "{path}: {message}");
    }
    let unknown = get(demo.proxy.control, "/no/such/path").await;
    assert_eq!(unknown.json()["error"]["code"], "not_found");
}

#[tokio::test]
async fn engine_routes_are_forwarded_unchanged() {
    // an engine that serves all of these, as SGLang serves the Responses API
    let upstream = Upstream::start(EngineProfile::default(), |asked| match asked.path.as_str() {
        "/generate" => answer(asked),
        _ => json_message(200, br#"{"served":true}"#),
    })
    .await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    for path in ["/v1/responses", "/v1/messages", "/chat/completions", "/v1/models/m", "/v1/sessions"] {
        let reply = post(proxy.data, path, b"{}").await;
        assert_eq!((reply.status, reply.json()), (200, json!({"served": true})), "{path}");
    }
}

#[tokio::test]
async fn engine_404_of_an_existing_route_is_unchanged() {
    let missing =
        r#"{"error":{"message":"Response with id 'resp_1' not found.","type":"invalid_request_error","code":404}}"#;
    let detail = r#"{"detail":"Response 'resp_1' not found."}"#;
    let fastapi = r#"{"detail":"Not Found"}"#;
    for (body, is_missing_route) in [(missing, false), (detail, false), ("\n", false), (fastapi, true), ("", true)] {
        let upstream = Upstream::start(EngineProfile::default(), move |_| json_message(404, body.as_bytes())).await;
        let proxy = Proxy::probed(upstream.addr, &[]).await;
        let reply = post(proxy.data, "/v1/responses", br#"{"previous_response_id":"resp_1","input":"a"}"#).await;
        let text = reply.text();
        assert_eq!(reply.status, 404, "{text}");
        if is_missing_route {
            assert!(text.contains("Chat Completions"), "{text}");
        } else {
            assert_eq!(text, body);
        }
    }
}

#[tokio::test]
async fn model_is_found_by_name() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let listed = get(demo.proxy.data, "/v1/models").await.json()["data"][0].clone();
    let name = listed["id"].as_str().unwrap();
    assert_eq!(get(demo.proxy.data, &format!("/v1/models/{name}")).await.json(), listed);
    let other = get(demo.proxy.data, "/v1/models/other").await;
    assert_eq!((other.status, other.json()["error"]["code"].clone()), (404, json!("model_not_found")));
}

#[tokio::test]
async fn demo_engine_names_unsupported_routes() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    for (body, named) in [
        (json!({"text": "a", "image_data": "x"}), "image_data"),
        (json!({"text": "a", "sampling_params": {"regex": "a+"}}), "regex"),
        (json!({"text": "a", "sampling_params": {"stop_regex": "a+"}}), "stop_regex"),
        (
            json!({"text": "a", "sampling_params": {"json_schema": "{\"type\":\"string\",\"pattern\":\"a\"}"}}),
            "pattern",
        ),
    ] {
        let reply = demo.post("/generate", &body).await;
        let message = reply.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(reply.status, 400, "{body}");
        assert!(message.contains(named) && message.ends_with("not supported by the demo engine"), "{message}");
    }
    let embeddings = demo.post("/v1/embeddings", &json!({"input": "a"})).await;
    let detail = json!({"detail": "/v1/embeddings is not supported by the demo engine"});
    assert_eq!((embeddings.status, embeddings.json()), (404, detail));
}
