// SPDX-License-Identifier: Apache-2.0
//! Several tokentaps that share sessions through a real Valkey. `VALKEY_SERVER` is the path of its server; without it these tests
//! do nothing.

mod check;
mod columns;
mod images;
pub mod import;
mod policy;
mod scores;
pub mod server;

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokentap::demo::{EngineOptions, Streaming};
use tokentap::serve::grpc::pb::{ListRequest, WatchRequest, watch_reply::What};
use tokio::sync::OnceCell;

use super::archive::archived_sessions;
use super::chat::{TOKENIZER, with_say};
use super::grpc::client::trajectories;
use super::openapi::document::Document;
use super::support::binary::output;
use super::support::client::{Answer, get, post, request};
use super::support::demo::Demo;
use super::support::manual_upstream::soon;
use super::support::proxy::Proxy;
use server::Server;

/// A demo engine, and tokentaps before it that share sessions.
struct Fleet {
    server: Server,
    /// The first tokentap and the engine.
    first: Demo,
    /// The other one.
    second: Proxy,
}

impl Fleet {
    /// `None` without a server.
    async fn start(flags: &[&str]) -> Option<Self> {
        let server = Server::start()?;
        let url = server.url();
        let own = ["--ledger", &url, "--ledger-replicas", "0", "--tokenizer", TOKENIZER, "--session-idle", "1h"];
        let flags = [&own[..], flags].concat();
        let options = EngineOptions { streaming: Streaming::Incremental, journal: true, ..EngineOptions::default() };
        let first = Demo::start(options, &flags).await;
        let second = Proxy::probed(first.direct, &flags).await;
        for proxy in [&first.proxy, &second] {
            let mut chats = proxy.parts.chats.clone();
            let is_rendered = |chats: &std::sync::Arc<tokentap::chat::model::Chats>| {
                matches!(&**chats, tokentap::chat::model::Chats::Rendered(_))
            };
            drop(chats.wait_for(is_rendered).await.unwrap());
        }
        Some(Self { server, first, second })
    }

    fn data(&self) -> [SocketAddr; 2] {
        [self.first.proxy.data, self.second.data]
    }

    fn control(&self) -> [SocketAddr; 2] {
        [self.first.proxy.control, self.second.control]
    }
}

async fn generate(data: SocketAddr, session: &str, prompt: &[u32]) -> Vec<u32> {
    let sampling = json!({"max_new_tokens": 4, "temperature": 1.0, "ignore_eos": true});
    let body = json!({"input_ids": prompt, "sampling_params": sampling, "session_id": session});
    let answer = post(data, "/generate", body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    serde_json::from_value(answer.json()["output_ids"].clone()).unwrap()
}

/// Sends a request to a control port. The reply must be one that `/openapi.json` describes.
async fn ask(method: &str, addr: SocketAddr, path: &str, body: &Value) -> Answer {
    static DOCUMENT: OnceCell<Document> = OnceCell::const_new();
    let document = DOCUMENT.get_or_init(|| async { Document::parse(&get(addr, "/openapi.json").await.text()) }).await;
    let answer = request(addr, method, path, &[], body.to_string().as_bytes()).await;
    document.check(document.operation(method, path.split('?').next().unwrap()), &answer);
    answer
}

async fn control(method: &str, addr: SocketAddr, path: &str, body: &Value) -> (u16, Value) {
    let answer = ask(method, addr, path, body).await;
    (answer.status, answer.json())
}

/// The value of a metric without labels.
async fn metric(addr: SocketAddr, name: &str) -> u64 {
    let text = get(addr, "/metrics").await.text();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {text}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn session_that_hops_is_one_path_with_exact_tokens() {
    let Some(fleet) = Fleet::start(&[]).await else { return };
    let mut prompt = vec![1, 2, 3];
    for turn in 0..6 {
        prompt.extend(generate(fleet.data()[turn % 2], "hops", &prompt).await);
        prompt.push(40 + u32::try_from(turn).unwrap());
    }
    prompt.pop();
    let mut exports = Vec::new();
    for addr in fleet.control() {
        let (status, shown) = control("GET", addr, "/v1/sessions/hops/trajectories", &json!({})).await;
        assert_eq!(status, 200, "{shown}");
        let rows = shown["trajectories"].as_array().unwrap();
        assert_eq!((rows.len(), &rows[0]["token_ids"]), (1, &json!(prompt)));
        let body = json!({"sessions": ["hops"], "format": "parquet"}).to_string();
        exports.push(post(addr, "/v1/samples", body.as_bytes()).await.body);
    }
    assert!(exports[0] == exports[1], "exports of both are the same bytes");
    assert_eq!(fleet.server.keys("tt:*:s:*"), 1);
}

/// The names and the next page of a list.
async fn listed(addr: SocketAddr, query: &str) -> (Vec<String>, Value) {
    let (status, page) = control("GET", addr, &format!("/v1/sessions?{query}"), &json!({})).await;
    assert_eq!((status, &page["scope"]), (200, &json!("fleet")), "{page}");
    let names = page["sessions"].as_array().unwrap().iter().map(|row| row["session"].as_str().unwrap().to_owned());
    (names.collect(), page["next"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_all_are_listed_by_each() {
    let Some(fleet) = Fleet::start(&[]).await else { return };
    let names = ["a", "b.1", "c", "d", "e~"];
    for (at, name) in names.iter().enumerate() {
        generate(fleet.data()[at % 2], name, &[1, 2]).await;
        generate(fleet.data()[at % 2], name, &[1, 3]).await;
    }
    for addr in fleet.control() {
        let mut found = Vec::new();
        let mut after = String::new();
        loop {
            let (names, next) = listed(addr, &format!("limit=2{after}")).await;
            found.extend(names);
            let Some(next) = next.as_str() else { break };
            after = format!("&after={next}");
        }
        assert_eq!(found, names);
        assert_eq!(listed(addr, "order=newest&search=b.").await.0, ["b.1"]);
        for after in ["x", "7"] {
            let (status, _) = control("GET", addr, &format!("/v1/sessions?after={after}"), &json!({})).await;
            assert_eq!(status, 400, "{after}");
        }
        assert_eq!(listed(addr, "after=0").await.0, names, "the first page");
    }
    let (_, page) = control("GET", fleet.control()[0], "/v1/sessions?order=newest", &json!({})).await;
    let rows = page["sessions"].as_array().unwrap();
    assert_eq!((&rows[0]["session"], &rows[0]["turns"]), (&json!("e~"), &json!(2)));
    let unread: Vec<&String> = rows[1].as_object().unwrap().keys().collect();
    assert_eq!(unread, ["session", "used_ms"], "the first tokentap has not read d");
    assert_eq!(control("GET", fleet.control()[0], "/v1/sessions/d", &json!({})).await.1["turns"], 2);
    let (_, page) = control("GET", fleet.control()[0], "/v1/sessions?order=newest", &json!({})).await;
    assert_eq!(page["sessions"][1]["turns"], 2);

    let mut client = trajectories(fleet.control()[1]).await;
    let first = client.list(ListRequest { after: 0, limit: Some(3), cursor: None }).await.unwrap().into_inner();
    let second = ListRequest { after: 0, limit: None, cursor: first.cursor };
    let second = client.list(second).await.unwrap().into_inner();
    let all: Vec<_> = first.sessions.iter().chain(&second.sessions).map(|row| (&*row.session, row.unread)).collect();
    assert_eq!(all, [("a", true), ("b.1", false), ("c", true), ("d", false), ("e~", true)]);
    assert!(first.next.is_none() && second.cursor.is_none());

    assert_eq!(control("DELETE", fleet.control()[1], "/v1/sessions/c", &json!({})).await.0, 200);
    assert_eq!(listed(fleet.control()[0], "").await.0, ["a", "b.1", "d", "e~"]);
    let url = format!("http://{}", fleet.control()[1]);
    let exported = output(&["export", "--control", &url, "--format", "jsonl", "--out", "-"]).await;
    assert!(exported.status.success(), "{exported:?}");
    let text = String::from_utf8(exported.stdout).unwrap();
    assert_eq!(text.lines().count(), 8, "two paths of each session: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_continues_on_another_tokentap_without_retokenising() {
    let Some(fleet) = Fleet::start(&[]).await else { return };
    let mut messages = vec![json!({"role": "user", "content": "The lamp"})];
    for turn in 0..4 {
        let body = with_say(&json!({"model": "demo", "messages": messages}), "It burns.");
        let answer = post(fleet.data()[turn % 2], "/sessions/c/v1/chat/completions", body.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        messages.push(answer.json()["choices"][0]["message"].clone());
        messages.push(json!({"role": "user", "content": "And then?"}));
    }
    let (_, shown) = control("GET", fleet.control()[0], "/v1/sessions/c", &json!({})).await;
    let list = shown["list"].as_array().unwrap();
    let causes: Vec<&str> = list.iter().map(|turn| turn["cause"].as_str().unwrap()).collect();
    assert_eq!(causes, ["first", "extends", "extends", "extends"]);
    assert!(list.iter().all(|turn| turn["context_retokenised"] == false), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_response_is_continued_shown_and_deleted_by_another_tokentap() {
    let Some(fleet) = Fleet::start(&[]).await else { return };
    let [first, second] = fleet.data();
    let body = with_say(&json!({"model": "demo", "input": "The lamp"}), "It burns.");
    let one = post(first, "/sessions/r/v1/responses", body.to_string().as_bytes()).await.json();
    let id = one["id"].as_str().unwrap();
    let body = json!({"model": "demo", "input": "And then?", "previous_response_id": id});
    let two = post(second, "/sessions/r/v1/responses", with_say(&body, "It dies.").to_string().as_bytes()).await;
    assert_eq!(two.status, 200, "{}", two.text());
    let path = format!("/sessions/r/v1/responses/{id}");
    assert_eq!(get(second, &path).await.json()["output"], one["output"]);
    assert_eq!(request(second, "DELETE", &path, &[], b"").await.status, 200);
    assert_eq!(get(first, &path).await.status, 404, "the other one knows of the deletion");
}

#[tokio::test(flavor = "multi_thread")]
async fn rewards_freezes_and_deletions_are_decided_on_the_whole_session() {
    let Some(fleet) = Fleet::start(&[]).await else { return };
    let [first, second] = fleet.control();
    generate(fleet.data()[0], "s", &[1, 2]).await;
    generate(fleet.data()[1], "s", &[3, 4]).await;
    let reward = json!({"reward": 0.5, "leaf": 1});
    assert_eq!(control("POST", first, "/v1/sessions/s/reward", &reward).await.0, 200, "a turn of the other one");
    let (status, frozen) = control("POST", second, "/v1/sessions/s/freeze", &json!({})).await;
    assert_eq!((status, &frozen["turns"]), (200, &json!(2)));
    let (status, refused) = control("POST", first, "/v1/sessions/s/reward", &reward).await;
    assert_eq!((status, &refused["error"]["code"]), (409, &json!("frozen")), "{refused}");
    let (status, refused) =
        control("POST", first, "/v1/sessions/s/reward", &json!({"reward": 1, "leaf": 0, "generation": 3})).await;
    assert_eq!((status, &refused["error"]["code"]), (409, &json!("other_generation")), "{refused}");
    assert_eq!(control("DELETE", second, "/v1/sessions/s", &json!({})).await.0, 200);
    for addr in [first, second] {
        assert_eq!(control("GET", addr, "/v1/sessions/s", &json!({})).await.0, 404);
    }
    assert_eq!(control("POST", first, "/v1/sessions/s/freeze", &json!({})).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_paths_of_all_are_read_once_from_either() {
    let Some(fleet) = Fleet::start(&[]).await else { return };
    let names: Vec<String> = (0..12).map(|at| format!("s{at}")).collect();
    for (at, name) in names.iter().enumerate() {
        generate(fleet.data()[at % 2], name, &[1, 2]).await;
        // by the other one
        let (status, _) =
            control("POST", fleet.control()[(at + 1) % 2], &format!("/v1/sessions/{name}/freeze"), &json!({})).await;
        assert_eq!(status, 200);
    }
    let read = async |addr: SocketAddr, query: String| {
        let text = ask("GET", addr, &format!("/v1/trajectories?{query}"), &json!({})).await.text();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines
            .map(|line| (line["session"].as_str().unwrap().to_owned(), line["cursor"].as_str().unwrap().to_owned()))
            .collect::<Vec<_>>()
    };
    // page by page, from one and the other
    let (mut seen, mut since) = (Vec::new(), String::new());
    for page in 0.. {
        let lines = read(fleet.control()[page % 2], format!("limit=5&since={since}")).await;
        let Some((_, last)) = lines.last() else { break };
        since.clone_from(last);
        seen.extend(lines.into_iter().map(|(session, _)| session));
    }
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    assert_eq!(sorted(seen), sorted(names.clone()));
    let mut divided = Vec::new();
    for consumer in 0..3 {
        divided
            .extend(read(fleet.control()[1], format!("partitions={consumer}/3")).await.into_iter().map(|line| line.0));
    }
    assert_eq!(sorted(divided), sorted(names.clone()), "consumers divide the partitions");

    let mut client = trajectories(fleet.control()[1]).await;
    let mut replies = client.watch(WatchRequest::default()).await.unwrap().into_inner();
    let mut watched = Vec::new();
    for _ in &names {
        let reply = soon("a path", replies.message()).await.unwrap().expect("the stream continues");
        let Some(What::Path(path)) = reply.what else { panic!("{reply:?}") };
        watched.push(path.session);
    }
    assert_eq!(sorted(watched), sorted(names));
    let other = ask("GET", fleet.control()[0], "/v1/trajectories?since=0123456789abcdef", &json!({})).await;
    assert_eq!(other.status, 410, "a cursor of another fleet: {}", other.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_on_another_tokentap_supersedes_the_turn_of_its_request_id() {
    let Some(fleet) = Fleet::start(&[]).await else { return };
    let call = async |at: usize, rid: Option<&str>, headers: &[(&str, &str)]| {
        let sampling = json!({"max_new_tokens": 4, "temperature": 1.0, "ignore_eos": true});
        let mut body = json!({"input_ids": [1, 2], "sampling_params": sampling, "session_id": "s"});
        if let Some(rid) = rid {
            body["rid"] = json!(rid);
        }
        let answer = request(fleet.data()[at], "POST", "/generate", headers, body.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    let superseded = async || {
        let body = json!({"sessions": ["s"], "format": "jsonl"});
        let samples = ask("POST", fleet.control()[0], "/v1/samples", &body).await;
        assert_eq!(samples.status, 200, "{}", samples.text());
        let text = samples.text();
        let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        rows.map(|row| row["turns"][0]["supersedes"].clone()).collect::<Vec<_>>()
    };
    call(0, Some("r1"), &[]).await;
    call(1, Some("r1"), &[]).await;
    assert_eq!(superseded().await, [json!([0])], "the first attempt is not exported");
    call(0, Some("r2"), &[]).await;
    assert_eq!(superseded().await, [json!([0]), json!([])], "another request is another sample");
    // the client may have any of the equal replies
    call(1, None, &[("x-stainless-retry-count", "1")]).await;
    assert_eq!(superseded().await, [json!([0]), json!([]), json!([])]);
}

#[tokio::test(flavor = "multi_thread")]
async fn fleet_has_one_archive() {
    let folder = tempfile::tempdir().unwrap();
    let uri = format!("file://{}", folder.path().display());
    let Some(fleet) = Fleet::start(&["--archive", &uri, "--archive-interval", "100ms"]).await else { return };
    let mut names: Vec<String> = (0..12).map(|at| format!("s{at}")).collect();
    for (at, name) in names.iter().enumerate() {
        generate(fleet.data()[at % 2], name, &[1, 2]).await;
        control("POST", fleet.control()[at % 2], &format!("/v1/sessions/{name}/freeze"), &json!({})).await;
    }
    soon("the archive", async {
        loop {
            let listed = String::from_utf8(output(&["archive", "ls", &uri]).await.stdout).unwrap();
            if listed.contains(&format!(", {} rows, ", names.len())) {
                break;
            }
        }
    })
    .await;
    let mut rows = archived_sessions(folder.path());
    rows.sort();
    names.sort();
    assert_eq!(rows, names, "each path once");
    let verified = output(&["archive", "verify", &uri]).await;
    assert_eq!(verified.status.code(), Some(0), "{}", String::from_utf8_lossy(&verified.stdout));
}

#[tokio::test(flavor = "multi_thread")]
async fn ledger_that_fails_costs_no_reply_and_its_turns_are_joined_later() {
    let Some(mut fleet) = Fleet::start(&["--ledger-timeout", "300ms"]).await else { return };
    let first = generate(fleet.data()[0], "s", &[1, 2]).await;
    fleet.server.stop();
    let prompt = [&[1, 2][..], &first, &[5]].concat();
    let second = generate(fleet.data()[0], "s", &prompt).await;
    assert_eq!(metric(fleet.control()[0], "tokentap_ledger_turns_detached_total").await, 1);
    let read = ask("GET", fleet.control()[1], "/v1/sessions/s", &json!({})).await;
    assert_eq!((read.status, &read.json()["error"]["code"]), (503, &json!("ledger_unavailable")));
    let (status, refused) = control("POST", fleet.control()[0], "/v1/sessions/s/reward", &json!({"reward": 1})).await;
    assert_eq!((status, &refused["error"]["code"]), (503, &json!("unconfirmed")));
    // a program gets no part of the sessions that looks like all of them
    let (status, refused) = control("GET", fleet.control()[0], "/v1/sessions", &json!({})).await;
    assert_eq!((status, &refused["error"]["code"]), (503, &json!("ledger_unavailable")));
    let (status, page) = control("GET", fleet.control()[0], "/v1/sessions?order=newest", &json!({})).await;
    assert_eq!((status, &page["scope"], &page["sessions"][0]["session"]), (200, &json!("process"), &json!("s")));

    // it comes back without its data, which both have in memory
    fleet.server.restart();
    let joined = async {
        while metric(fleet.control()[0], "tokentap_ledger_turns_joined_total").await < 2 {
            tokio::task::yield_now().await;
        }
    };
    soon("the turns are appended again", joined).await;
    let reached = async {
        while metric(fleet.control()[1], "tokentap_ledger_down").await == 1 {
            tokio::task::yield_now().await;
        }
    };
    soon("the other one reaches the ledger", reached).await;
    let tokens = [&prompt[..], &second].concat();
    let (status, shown) = control("GET", fleet.control()[1], "/v1/sessions/s/trajectories", &json!({})).await;
    assert_eq!((status, &shown["trajectories"][0]["token_ids"]), (200, &json!(tokens)), "{shown}");
}
