// SPDX-License-Identifier: Apache-2.0
//! `check` and `demo` as processes, and HTTP/2 without an upgrade.

use std::net::SocketAddr;

use serde_json::json;

use crate::support::binary::{Printing, output};
use crate::support::client::{Connection, get, post};
use crate::support::engine;
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, FakeReply, Upstream, json_message};

async fn check(upstream: SocketAddr, flags: &[&str]) -> (Option<i32>, String) {
    let url = format!("http://{upstream}");
    let args: Vec<&str> = ["check", "--upstream", &url].into_iter().chain(flags.iter().copied()).collect();
    let done = output(&args).await;
    (done.status.code(), String::from_utf8(done.stdout).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn check_reports_findings_and_fixes() {
    let cases = [
        (
            EngineProfile { streaming: "incremental", ..EngineProfile::default() },
            0,
            vec!["ok    streams      incremental", "151936 entries, as reported by the engine", "flat base64"],
        ),
        (EngineProfile::default(), 0, vec!["warn  streams", "--incremental-streaming-output"]),
        (EngineProfile { vocab: None, ..EngineProfile::default() }, 0, vec!["warn  vocabulary", "--vocab-size"]),
        (EngineProfile { flat: false, ..EngineProfile::default() }, 0, vec!["warn  top-k form"]),
        (
            EngineProfile { original: true, ..EngineProfile::default() },
            0,
            vec!["warn  temperature", "SGLANG_RETURN_ORIGINAL_LOGPROB"],
        ),
        (
            EngineProfile { jax: true, flat: false, ..EngineProfile::default() },
            0,
            vec!["is sglang-jax", "--entropy always", "sglang-jax supports no plugin"],
        ),
        (
            EngineProfile { server_info: json!({"version": "0.5.6.post2"}), ..EngineProfile::default() },
            0,
            vec!["estimates from top-k: SGLang 0.5.6.post2 supports no plugin"],
        ),
        (
            EngineProfile { server_info: json!({"version": "0.5.12"}), ..EngineProfile::default() },
            0,
            vec!["estimates from top-k: SGLang 0.5.12 supports no plugin"],
        ),
        (
            EngineProfile { plugin: true, ..EngineProfile::default() },
            0,
            vec!["ok    exact        tokentap-sglang measures"],
        ),
        (
            EngineProfile { server_info: json!({"speculative_algorithm": "EAGLE"}), ..EngineProfile::default() },
            0,
            vec!["warn  speculation  EAGLE", "SGLang loads no observer with speculative decoding"],
        ),
        (
            EngineProfile { server_info: json!({"speculative_algorithm": "DFLASH"}), ..EngineProfile::default() },
            1,
            vec!["FAIL  speculation  DFLASH refuses"],
        ),
        (
            EngineProfile { server_info: json!({"disaggregation_mode": "prefill"}), ..EngineProfile::default() },
            0,
            vec!["warn  prefill"],
        ),
    ];
    for (profile, code, lines) in cases {
        let upstream = Upstream::start(profile, engine::answer).await;
        let (found, text) = check(upstream.addr, &[]).await;
        assert_eq!(found, Some(code), "{text}");
        for line in lines {
            assert!(text.contains(line), "{line:?} in {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_compares_the_tokens_of_teachers() {
    let engine = |vocab, ids: Option<&'static str>| {
        let profile = EngineProfile { vocab, tokenizes: ids.is_some(), ..EngineProfile::default() };
        Upstream::start(profile, move |asked| match (&*asked.path, ids) {
            ("/tokenize", Some(ids)) => json_message(200, format!(r#"{{"tokens":{ids}}}"#).as_bytes()),
            _ => engine::answer(asked),
        })
    };
    let student = engine(Some(151_936), Some("[1,2]")).await;
    let padded = engine(Some(152_064), Some("[1,2]")).await;
    let another = engine(Some(151_936), Some("[1,3]")).await;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let [same, unknown, other] =
        [engine(Some(151_936), None).await, engine(None, None).await, engine(Some(32_000), None).await];
    let cases = [
        (padded.addr, 0, "ok    teacher      big at URL: the same ids of a sample text"),
        (another.addr, 1, "FAIL  teacher      big at URL: another tokenizer: a sample text has other ids"),
        (same.addr, 0, "warn  teacher      big at URL: a vocabulary of the same size; its tokenizer is not compared"),
        (unknown.addr, 0, "warn  teacher      big at URL: its tokens are not compared"),
        (other.addr, 1, "FAIL  teacher      big at URL: another vocabulary: 32000 entries, and the student"),
        (closed, 1, "FAIL  teacher      big at URL: "),
    ];
    for (teacher, code, line) in cases {
        let url = format!("http://{teacher}");
        let (found, text) = check(student.addr, &["--teacher", &format!("big={url}")]).await;
        assert_eq!(found, Some(code), "{text}");
        let line = line.replace("URL", &url);
        assert!(text.contains(&line), "{line:?} in {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_fails_without_a_generating_engine() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, text) = check(closed, &[]).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.starts_with("FAIL  upstream") && text.contains(&closed.to_string()), "{text}");
    let silent = || EngineProfile { answers_probe: false, ..EngineProfile::default() };
    let embeddings = Upstream::start(silent(), |asked| -> FakeReply {
        match asked.path.as_str() {
            "/model_info" => json_message(200, br#"{"model_path":"/m","is_generation":false}"#),
            _ => json_message(404, b"{}"),
        }
    })
    .await;
    let (code, text) = check(embeddings.addr, &[]).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("does not generate"), "{text}");
    let locked = Upstream::start(silent(), |_| json_message(401, br#"{"error":"Unauthorized"}"#)).await;
    let (code, text) = check(locked.addr, &[]).await;
    assert!(code == Some(1) && text.contains("--upstream-api-key"), "{text}");
}

/// Parses a printed curl line into its address, path and body.
fn parse_curl(line: &str) -> (SocketAddr, String, Option<String>) {
    let start = line.find("http://").unwrap() + "http://".len();
    let (authority, rest) = line[start..].split_once('/').unwrap();
    let path = format!("/{}", rest.split([' ', '\'']).next().unwrap());
    let body = line.split_once("-d '").map(|(_, body)| body.trim_end().trim_end_matches('\'').to_owned());
    (authority.parse().unwrap(), path, body)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_printed_by_demo_work() {
    let mut demo = Printing::start(&["demo", "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"]);
    let (data, path, body) = parse_curl(&demo.line("curl").await);
    let chat = post(data, &path, body.unwrap().as_bytes()).await.json();
    assert_eq!(chat["choices"][0]["message"]["content"], "Eighteen miles, if the night is clear.", "{chat}");
    let (control, path, body) = parse_curl(&demo.line("curl").await);
    let row = post(control, &path, body.unwrap().as_bytes()).await.json();
    assert_eq!((&row["session"], row["turns"].as_array().map(Vec::len)), (&json!("visit"), Some(1)), "{row}");
    assert!(row.to_string().contains("Eighteen miles"), "the export has the text: {row}");
    let (data, path, body) = parse_curl(&demo.line("curl").await);
    let reply = post(data, &path, body.unwrap().as_bytes()).await.json();
    let meta = &reply["meta_info"];
    assert_eq!(meta["output_token_entropy"].as_array().unwrap().len(), 8, "{reply}");
    assert_eq!(meta["entropy_info"]["source"], "top_k", "{reply}");
    let (data, path, body) = parse_curl(&demo.line("curl").await);
    let events = post(data, &path, body.unwrap().as_bytes()).await.events();
    assert!(
        events.len() == 4 && events.iter().all(|event| event["meta_info"]["output_token_entropy_upper"][0].is_number())
    );
    let (control, path, _) = parse_curl(&demo.line("curl").await);
    let live = get(control, &path).await.json();
    assert_eq!(
        live["entropy"].as_array().unwrap()[..],
        meta["output_token_entropy"].as_array().unwrap()[4..],
        "{live}"
    );
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_is_served_without_an_upgrade() {
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let body = br#"{"text":"a"}"#;
    // header fields by the static table: POST, http, then path and authority as literals
    let named = |index: u8, value: &str| [&[index, u8::try_from(value.len()).unwrap()], value.as_bytes()].concat();
    let fields = [vec![0x83, 0x86], named(0x04, "/generate"), named(0x01, "agent")].concat();
    let sent = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, b""),
        frame(1, 4, 1, &fields),
        frame(0, 1, 1, body),
    ];
    let mut client = Connection::open(proxy.data).await;
    client.send(&sent.concat()).await;
    let found = client.read_until(|read| memchr::memmem::find(read, b"output_token_entropy").is_some()).await;
    assert!(found, "the reply came: {:?}", String::from_utf8_lossy(client.seen()));
}
