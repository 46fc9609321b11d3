// SPDX-License-Identifier: Apache-2.0
//! Which session a call belongs to, and which of its names are forwarded upstream.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use tokentap::chat::model::Chats;
use tokentap::demo::EngineOptions;

use crate::support::client::{get, request};
use crate::support::demo::Demo;
use crate::support::engine;
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, Upstream};

struct Case {
    path: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    more: Value,
    session: &'static str,
}

async fn start() -> (Upstream, Proxy) {
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    (upstream, proxy)
}

fn body(more: &Value) -> Value {
    let mut body = json!({"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 4}});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn session_name_comes_from_path_header_query_or_body() {
    let (upstream, proxy) = start().await;
    let all = json!({"session_id": "body", "metadata": {"session_id": "meta"}, "_proxy_session_id": "proxied",
        "session_tags": {"step": 1}});
    let case = |path, headers: &[_], more: Value, session| Case { path, headers: headers.to_vec(), more, session };
    let cases = [
        case("/sessions/path/generate?session_id=query", &[("x-session-id", "header")], all.clone(), "path"),
        case("/generate?session_id=query", &[("X-Session-Id", "header")], all.clone(), "header"),
        case("/generate?session_id=query", &[("proxy-x-session-id", "second")], all.clone(), "second"),
        case("/generate?a=b&session_id=query", &[], all.clone(), "query"),
        case("/generate", &[], all, "body"),
        case("/generate", &[], json!({"metadata": {"session_id": "meta"}, "_proxy_session_id": "proxied"}), "meta"),
        case("/generate", &[], json!({"_proxy_session_id": "proxied"}), "proxied"),
        case("/generate", &[("x-session-id", "")], json!({"session_id": "other"}), "other"),
    ];
    for case in &cases {
        let text = body(&case.more).to_string();
        let answer = request(proxy.data, "POST", case.path, &case.headers, text.as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.header("x-tokentap-session"), Some(case.session), "{}", case.path);
        let session = get(proxy.control, &format!("/v1/sessions/{}", case.session)).await.json();
        assert_eq!(session["turns"], 1, "{session}");
        let asked = upstream.asked().pop().unwrap();
        let rest = case.path.strip_prefix("/sessions/path").unwrap_or(case.path);
        assert_eq!(asked.path, rest, "the session prefix is not forwarded");
        let sent = asked.json();
        assert!(sent["_proxy_session_id"].is_null(), "_proxy_session_id is not forwarded: {sent}");
        assert!(sent["session_tags"].is_null(), "session_tags are not forwarded: {sent}");
        assert_eq!(
            session["tags"],
            case.more["session_tags"]["step"].as_u64().map_or(Value::Null, |_| json!({"step": "1"}))
        );
        assert_eq!(sent["input_ids"], json!([1, 2, 3]));
        let kept = ["session_id", "metadata"].iter().all(|name| sent[name] == case.more[name]);
        assert!(kept, "members that SGLang may use are forwarded: {sent}");
    }
    let (mut listed, mut after) = (Vec::new(), Some("0".to_owned()));
    while let Some(from) = after {
        let page = get(proxy.control, &format!("/v1/sessions?limit=3&after={from}")).await.json();
        listed.extend(page["sessions"].as_array().unwrap().iter().map(|session| session["session"].clone()));
        after = page["next"].as_str().map(str::to_owned);
    }
    let named: Vec<&str> = cases.iter().map(|case| case.session).collect();
    assert_eq!(listed, named, "in the order of creation, page by page");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_without_a_name_get_separate_sessions() {
    let (upstream, proxy) = start().await;
    let text = body(&json!({})).to_string();
    let answer = request(proxy.data, "PUT", "/sessions/put/generate", &[], text.as_bytes()).await;
    assert_eq!(answer.header("x-tokentap-session"), Some("put"), "the engine knows both methods");
    let mut names = BTreeSet::new();
    for headers in [&[][..], &[("authorization", "Bearer agent")], &[("x-smg-routing-key", "node")]] {
        let answer = request(proxy.data, "POST", "/generate", headers, text.as_bytes()).await;
        names.insert(answer.header("x-tokentap-session").unwrap().to_owned());
    }
    assert_eq!(names.len(), 3, "neither a key nor a routing key is a name unless configured");
    for name in &names {
        let session = get(proxy.control, &format!("/v1/sessions/{name}")).await.json();
        assert_eq!((&session["turns"], &session["list"][0]["cause"]), (&json!(1), &json!("first")));
    }
    assert_eq!(upstream.generations().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_path_or_body_leaves_no_session() {
    let (upstream, proxy) = start().await;
    for path in ["/sessions/a%20b/generate", "/sessions//generate"] {
        let answer = request(proxy.data, "POST", path, &[], body(&json!({})).to_string().as_bytes()).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
    }
    let huge = json!({"top_logprobs_num": 4096, "return_logprob": true});
    let text = body(&huge).to_string();
    let answer = request(proxy.data, "POST", "/sessions/refused/generate", &[], text.as_bytes()).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(upstream.generations().is_empty(), "no rejected request reached the engine");
    assert_eq!(get(proxy.control, "/v1/sessions").await.json()["sessions"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_session_name_returns_400_with_the_rule_and_its_source() {
    let (upstream, proxy) = start().await;
    let names = ["run:7", "a@b", "a/b", "a+b", "a=b", "a b", "\u{fc}ber", ".", &"x".repeat(129)];
    for name in names {
        let query =
            format!("/generate?session_id={}", name.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>());
        let path = query.replace("/generate?session_id=", "/sessions/") + "/generate";
        let member = |member: &str| body(&json!({member: name})).to_string();
        let plain = body(&json!({"session_id": "valid"})).to_string();
        let valid = "/generate";
        for (target, headers, text, source) in [
            (valid, vec![("x-session-id", name)], &plain, "the header x-session-id"),
            (valid, vec![("proxy-x-session-id", name)], &plain, "the header proxy-x-session-id"),
            (&query, vec![], &plain, "the query member session_id"),
            (&path, vec![], &plain, "the path"),
            (valid, vec![], &member("session_id"), "the body member session_id"),
            (valid, vec![], &member("_proxy_session_id"), "the body member _proxy_session_id"),
        ] {
            let answer = request(proxy.data, "POST", target, &headers, text.as_bytes()).await;
            assert_eq!(answer.status, 400, "{name} in {source}: {}", answer.text());
            for part in ["[A-Za-z0-9._~-]{1,128}", source] {
                assert!(answer.text().contains(part), "{part} of {name}: {}", answer.text());
            }
        }
    }
    for value in [json!(7), json!(true), json!(["run"])] {
        let text = body(&json!({"session_id": value})).to_string();
        let answer = request(proxy.data, "POST", "/generate", &[], text.as_bytes()).await;
        assert_eq!(answer.status, 400, "{value} is no string: {}", answer.text());
    }
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "x"}], "session_id": "run:7"}).to_string();
    for (path, text) in [("/v1/chat/completions", &chat), ("/v1/completions", &member_of("prompt", "x"))] {
        let answer = request(proxy.data, "POST", path, &[("x-session-id", "run:7")], text.as_bytes()).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        assert!(answer.json()["message"].as_str().unwrap().contains("[A-Za-z0-9._~-]{1,128}"), "{}", answer.text());
    }
    assert!(upstream.generations().is_empty(), "no refused call reached the engine");
    assert_eq!(get(proxy.control, "/v1/sessions").await.json()["sessions"], json!([]));
}

fn member_of(name: &str, value: &str) -> String {
    json!({name: value, "max_tokens": 1}).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn field_with_other_uses_is_ignored_and_counted() {
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    let proxy = Proxy::probed(upstream.addr, &["--session-from", "key,user"]).await;
    for (headers, more) in [
        (vec![], json!({"metadata": {"session_id": "run:7"}})),
        (vec![], json!({"user": "me@example.org"})),
        (vec![("authorization", "Bearer a/b+c=")], json!({})),
        (vec![], json!({"metadata": {"session_id": "run:7"}, "_proxy_session_id": "valid"})),
    ] {
        let text = body(&more).to_string();
        let answer = request(proxy.data, "POST", "/generate", &headers, text.as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(get(proxy.control, "/v1/sessions/valid").await.json()["turns"], 1);
    let ignored = |field: &str| format!("tokentap_session_names_ignored_total{{field=\"{field}\"}}");
    let mut counts = Vec::new();
    for field in ["metadata", "user", "key"] {
        counts.push(proxy.metric(&ignored(field)).await);
    }
    assert_eq!(counts, [1.0, 1.0, 1.0], "only calls that were left without a name count");
}

#[tokio::test(flavor = "multi_thread")]
async fn field_with_other_uses_is_counted_for_each_api() {
    let demo = Demo::start(EngineOptions::default(), &["--tokenizer", crate::chat::TOKENIZER]).await;
    let mut chats = demo.proxy.parts.chats.clone();
    drop(chats.wait_for(|chats| matches!(&**chats, Chats::Rendered(_))).await.unwrap());
    let mut counted = Vec::new();
    for (path, mut call) in [
        ("/generate", json!({"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 1}})),
        ("/v1/completions", json!({"model": "m", "prompt": "x", "max_tokens": 1})),
        (
            "/v1/chat/completions",
            json!({"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
        ),
    ] {
        call["metadata"] = json!({"session_id": "run:7"});
        let answer = request(demo.proxy.data, "POST", path, &[], call.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        counted.push(demo.proxy.metric("tokentap_session_names_ignored_total{field=\"metadata\"}").await);
    }
    assert_eq!(counted, [1.0, 2.0, 3.0], "/generate, completions, chat");
}

#[tokio::test(flavor = "multi_thread")]
async fn session_names_are_not_checked_where_nothing_is_recorded() {
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    let proxy = Proxy::probed(upstream.addr, &["--record", "false"]).await;
    let text = body(&json!({})).to_string();
    let answer = request(proxy.data, "POST", "/generate", &[("x-session-id", "run:7")], text.as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}
