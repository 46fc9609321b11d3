// SPDX-License-Identifier: Apache-2.0
//! Who is calling: the labels of turns, sessions that agents name, and exports by class.

use serde_json::{Value, json};
use tempfile::tempdir;
use tokentap::demo::EngineOptions;

use super::chat::{Chat, messages, with_say};
use super::support::binary::output;
use super::support::client::{Answer, get, post, request};
use super::support::demo::Demo;

const ATTRIBUTION: &str = "x-anthropic-billing-header: cc_version=2.1.330.abc; cc_entrypoint=sdk-cli; cch=a1b2c;";

async fn send(chat: &Chat, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    let headers = [&[("content-type", "application/json")], headers].concat();
    let answer = request(chat.demo.proxy.data, "POST", path, &headers, body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

/// A Messages request with this text of the user.
fn message(text: &str) -> Value {
    let body = json!({
        "model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": text}],
        "system": [{"type": "text", "text": ATTRIBUTION}, {"type": "text", "text": "Be brief."}],
        "output_config": {"effort": "high"},
    });
    with_say(&body, "Yes.")
}

fn chat_body(text: &str) -> Value {
    with_say(&json!({"model": "m", "messages": messages(&[("user", text)]), "reasoning_effort": "low"}), "Yes.")
}

/// The labels of the turns of session `s`.
async fn labels(chat: &Chat) -> Vec<Value> {
    chat.turns().await.into_iter().map(|turn| turn["labels"].clone()).collect()
}

#[tokio::test]
async fn messages_of_claude_code_have_its_labels() {
    let chat = Chat::start(&[]).await;
    let headers = [
        ("user-agent", "claude-cli/2.1.330 (external, sdk-cli)"),
        ("x-claude-code-session-id", "5f0c"),
        ("x-claude-code-agent-id", "a1"),
        ("x-claude-code-agent-type", "Explore"),
        ("x-claude-code-request-class", "subagent"),
    ];
    send(&chat, "/sessions/s/v1/messages?beta=true", &headers, &message("Hello")).await;
    let expected = json!({
        "dialect": "messages", "client": "claude-cli/2.1.330", "agent": "a1", "agent_type": "Explore", "thread": "5f0c",
        "request_class": "subagent", "effort": "high", "attribution": "cc_version=2.1.330.abc; cc_entrypoint=sdk-cli",
    });
    assert_eq!(labels(&chat).await, [expected]);
}

#[tokio::test]
async fn chats_of_open_code_have_its_labels() {
    let chat = Chat::start(&[]).await;
    let headers = [
        ("user-agent", "opencode/1.18.33 ai-sdk/provider-utils/3"),
        ("x-session-affinity", "ses_2"),
        ("x-parent-session-id", "ses_1"),
    ];
    send(&chat, "/sessions/s/v1/chat/completions", &headers, &chat_body("Hello")).await;
    let expected = json!({
        "dialect": "chat", "client": "opencode/1.18.33", "parent_agent": "ses_1", "thread": "ses_2",
        "request_class": "subagent", "effort": "low",
    });
    assert_eq!(labels(&chat).await, [expected]);
}

#[tokio::test]
async fn responses_of_codex_have_its_labels() {
    let chat = Chat::start(&[]).await;
    let metadata = json!({"request_kind": "compaction", "agent_name": "root", "thread_id": "th_1"}).to_string();
    let body = json!({
        "model": "m", "input": "Hello", "reasoning": {"effort": "low"},
        "client_metadata": {"x-codex-turn-metadata": metadata},
    });
    let headers = [("user-agent", "codex_exec/0.169.0 (Debian)"), ("originator", "codex_exec")];
    send(&chat, "/sessions/s/v1/responses", &headers, &with_say(&body, "Yes.<|im_end|>")).await;
    let expected = json!({
        "dialect": "responses", "client": "codex_exec/0.169.0", "agent": "root", "thread": "th_1",
        "request_class": "compaction", "effort": "low",
    });
    assert_eq!(labels(&chat).await, [expected]);
}

#[tokio::test]
async fn generate_without_headers_of_agents_has_no_labels() {
    let chat = Chat::start(&[]).await;
    let body = json!({"input_ids": [299, 467], "sampling_params": {"max_new_tokens": 2}});
    let path = "/sessions/s/generate";
    send(&chat, path, &[("user-agent", "curl/8")], &body).await;
    send(&chat, path, &[("user-agent", "curl/8"), ("x-claude-code-agent-id", "a1")], &body).await;
    let labelled = json!({"dialect": "generate", "client": "curl/8", "agent": "a1", "request_class": "subagent"});
    assert_eq!(labels(&chat).await, [Value::Null, labelled]);
}

#[tokio::test]
async fn completions_have_their_dialect_and_client() {
    let chat = Chat::start(&[]).await;
    let completion = json!({"model": "m", "prompt": "The lamp", "max_tokens": 2});
    send(&chat, "/sessions/s/v1/completions", &[("user-agent", "OpenAI/Python 1.99.0")], &completion).await;
    assert_eq!(labels(&chat).await, [json!({"dialect": "completions", "client": "OpenAI/Python 1.99.0"})]);
}

#[tokio::test]
async fn each_source_names_the_session() {
    let chat = Chat::start(&["--session-from", "claude-code,codex,session-affinity,prompt-cache-key"]).await;
    let named = async |path: &str, headers: &[(&str, &str)], body: Value| {
        let answer = send(&chat, path, headers, &body).await;
        answer.header("x-tokentap-session").unwrap().to_owned()
    };
    let (messages, chats) = ("/v1/messages", "/v1/chat/completions");
    assert_eq!(named(messages, &[("x-claude-code-session-id", "claude-1")], message("a")).await, "claude-1");
    let mut in_body = message("a");
    in_body["metadata"] = json!({"user_id": json!({"device_id": "d", "session_id": "claude-2"}).to_string()});
    assert_eq!(named(messages, &[], in_body.clone()).await, "claude-2");
    in_body["metadata"] = json!({"user_id": "user_0123_account__session_claude-3"});
    assert_eq!(named(messages, &[], in_body).await, "claude-3");
    assert_eq!(named(chats, &[("session-id", "codex-1"), ("thread-id", "codex-2")], chat_body("a")).await, "codex-1");
    assert_eq!(named(chats, &[("x-session-affinity", "ses_1")], chat_body("a")).await, "ses_1");
    let mut keyed = chat_body("a");
    keyed["prompt_cache_key"] = json!("key-1");
    assert_eq!(named(chats, &[], keyed).await, "key-1");
}

#[tokio::test]
async fn invalid_names_of_agents_are_ignored_and_counted() {
    let chat = Chat::start(&["--session-from", "claude-code,prompt-cache-key"]).await;
    let mut body = chat_body("a");
    body["prompt_cache_key"] = json!("a key with spaces");
    let answer = send(&chat, "/v1/chat/completions", &[], &body).await;
    assert!(answer.header("x-tokentap-session").is_none_or(|name| name != "a key with spaces"));
    let metrics = get(chat.demo.proxy.control, "/metrics").await.text();
    let line = "tokentap_session_names_ignored_total{field=\"prompt-cache-key\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}

/// A main turn, its compaction, and a call for a title.
async fn record_classes(chat: &Chat) {
    let send = async |class: &str, body: &Value| {
        send(chat, "/sessions/s/v1/messages", &[("x-claude-code-request-class", class)], body).await
    };
    let main = message("Count the lamps.");
    let reply = send("main", &main).await.json();
    let mut compaction = main.clone();
    let history = compaction["messages"].as_array_mut().unwrap();
    history.push(json!({"role": "assistant", "content": reply["content"]}));
    history.push(json!({"role": "user", "content": "Summarise."}));
    send("compaction", &compaction).await;
    send("auxiliary", &message("A title, please.")).await;
}

#[tokio::test]
async fn exports_select_turns_by_class() {
    let chat = Chat::start(&[]).await;
    record_classes(&chat).await;
    let control = chat.demo.proxy.control;
    let export = async |classes: Value| {
        let body = json!({"sessions": ["s"], "format": "jsonl", "classes": classes});
        let answer = post(control, "/v1/samples", body.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let refused: Value = serde_json::from_str(answer.header("tokentap-refused").unwrap()).unwrap();
        let rows: Vec<Value> = answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let trained = |row: &Value| -> Vec<bool> {
            row["turns"].as_array().unwrap().iter().map(|turn| turn["trained"] == true).collect()
        };
        (rows.iter().map(trained).collect::<Vec<_>>(), refused)
    };
    let excluded = json!({"class_auxiliary": 1, "class_compaction": 1});
    assert_eq!(export(json!([])).await, (vec![vec![true]], excluded));
    assert_eq!(export(json!(["all"])).await, (vec![vec![true, true], vec![true]], json!({})));
    assert_eq!(export(json!(["compaction"])).await.0, [[false, true]]);
    let wrong = json!({"sessions": ["s"], "format": "jsonl", "classes": ["title"]});
    let answer = post(control, "/v1/samples", wrong.to_string().as_bytes()).await;
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("classes: \\\"title\\\" is not one of main"), "{}", answer.text());
    // the list of all paths marks what is not exported
    let shown = get(control, "/v1/sessions/s/trajectories").await.json();
    let refused = json!([{"leaf": 1, "reason": "class_compaction"}, {"leaf": 2, "reason": "class_auxiliary"}]);
    assert_eq!((&shown["refused"], shown["trajectories"].as_array().unwrap().len()), (&refused, 3));
    let shown = get(control, "/v1/sessions/s/trajectories?classes=all").await.json();
    assert_eq!(shown["refused"], json!([]));
}

#[tokio::test]
async fn finished_paths_of_other_classes_are_listed_as_refused() {
    let chat = Chat::start(&[]).await;
    record_classes(&chat).await;
    let control = chat.demo.proxy.control;
    post(control, "/v1/sessions/s/freeze", b"").await;
    let read = async |query: &str| -> Vec<Value> {
        let answer = get(control, &format!("/v1/trajectories{query}")).await;
        answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let lines = read("").await;
    let facts: Vec<_> = lines.iter().map(|line| (line["leaf"].clone(), line["refused"].clone())).collect();
    let refused = [(json!(1), json!("class_compaction")), (json!(2), json!("class_auxiliary"))];
    assert_eq!(facts[0], (json!(0), Value::Null));
    assert_eq!(facts[1..], refused);
    assert!(lines.iter().all(|line| line["cursor"].is_string()));
    let all = read("?classes=all").await;
    assert!(all.iter().all(|line| line["refused"].is_null()), "{all:?}");
    assert_eq!(get(control, "/v1/trajectories?classes=title").await.status, 400);
}

#[tokio::test]
async fn command_exports_the_same_classes_from_a_log_and_from_a_running_tokentap() {
    let (dir, out) = (tempdir().unwrap(), tempdir().unwrap());
    let data = dir.path().to_str().unwrap();
    let demo = Demo::start(EngineOptions::default(), &["--data-dir", data, "--fsync", "always"]).await;
    for class in ["main", "auxiliary"] {
        let body = json!({"text": class, "sampling_params": {"max_new_tokens": 2}}).to_string();
        let headers = [("x-claude-code-request-class", class), ("x-claude-code-agent-id", "a1")];
        request(demo.proxy.data, "POST", "/sessions/s/generate", &headers, body.as_bytes()).await;
    }
    let control = format!("http://{}", demo.proxy.control);
    let export = async |source: [&str; 2], more: &[&str], name: &str| {
        let file = out.path().join(name);
        let fixed = ["export", "--format", "jsonl", "--session", "s", "--out", file.to_str().unwrap()];
        let done = output(&[&fixed[..], &source, more].concat()).await;
        let (errors, text) =
            (String::from_utf8(done.stderr).unwrap(), std::fs::read_to_string(&file).unwrap_or_default());
        (text, errors.lines().last().unwrap_or_default().split(" to ").next().unwrap().to_owned())
    };
    let (by_default, summary) = export(["--data-dir", data], &[], "a").await;
    assert!(summary.contains("1 row of 1 session, refused: 1 class_auxiliary"), "{summary}");
    assert_eq!(export(["--control", &control], &[], "b").await.0, by_default);
    let row: Value = serde_json::from_str(by_default.trim()).unwrap();
    assert_eq!(row["turns"][0]["labels"]["request_class"], "main");
    assert_eq!(row["turns"][0]["labels"]["agent"], "a1");
    let (auxiliary, _) = export(["--data-dir", data], &["--classes", "auxiliary"], "c").await;
    assert_eq!(export(["--control", &control], &["--classes", "auxiliary"], "d").await.0, auxiliary);
    assert!(auxiliary.contains("\"request_class\":\"auxiliary\""));
    let (_, summary) = export(["--data-dir", data], &["--classes", "title"], "e").await;
    assert!(summary.contains("--classes: \"title\" is not one of main"), "{summary}");
}
