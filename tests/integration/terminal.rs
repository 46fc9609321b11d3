// SPDX-License-Identifier: Apache-2.0
//! `top`, `show` and `check --json` as processes, without and with a terminal.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::{Value, json};
use tokentap::demo::{EngineOptions, Streaming};
use tokio::sync::mpsc;
use tokio::time::Duration;

use crate::support::binary::{Binary, output};
use crate::support::client::{Connection, get, post, written};
use crate::support::demo::{Demo, numbers};
use crate::support::engine;
use crate::support::manual_upstream::soon;
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, Upstream, json_message};

/// A shell command in a terminal of 100 columns and 24 rows, from the util-linux command `script`. It is killed on drop.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    pieces: mpsc::UnboundedReceiver<Vec<u8>>,
    shown: String,
}

impl Terminal {
    fn start(command: &str) -> Self {
        let command = format!("stty cols 100 rows 24; {command}");
        let mut child = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .env("TERM", "xterm-256color")
            .env("COLORTERM", "truecolor")
            .env_remove("NO_COLOR")
            .env_remove("COLORFGBG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (keys, mut out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, pieces) = mpsc::unbounded_channel();
        // this thread ends with the process
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = out.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { child, keys, pieces, shown: String::new() }
    }

    /// Waits until the terminal has shown this text.
    async fn shows(&mut self, text: &str) {
        let what = format!("the terminal shows {text:?}");
        soon(&what, async {
            while !self.shown.contains(text) {
                let piece = self.pieces.recv().await.unwrap_or_else(|| panic!("it ended without: {}", self.shown));
                self.shown.push_str(&String::from_utf8_lossy(&piece));
            }
        })
        .await;
    }

    fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).and_then(|()| self.keys.flush()).unwrap();
    }

    /// Everything that it showed until its command ended.
    async fn end(mut self) -> String {
        let rest = async {
            while let Some(piece) = self.pieces.recv().await {
                self.shown.push_str(&String::from_utf8_lossy(&piece));
            }
        };
        soon("the command ends", rest).await;
        std::mem::take(&mut self.shown)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // both fail if the process has ended
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn run(args: &[&str], control: SocketAddr) -> (Option<i32>, String, String) {
    let url = format!("http://{control}");
    let done = output(&[args, &["--control", &url]].concat()).await;
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (done.status.code(), text(done.stdout), text(done.stderr))
}

/// A demo, and a stream of it that runs until it is dropped.
async fn slow_generation() -> (Demo, Connection) {
    let delay = Some(Duration::from_millis(20));
    let streaming = Streaming::Incremental;
    let options = EngineOptions { streaming, token_delay: delay, context_length: 100_000, ..EngineOptions::default() };
    let demo = Demo::start(options, &[]).await;
    let body = json!({"text": "The lamp", "rid": "job", "stream": true,
                      "sampling_params": {"max_new_tokens": 50_000, "ignore_eos": true}});
    let mut stream = Connection::open(demo.proxy.data).await;
    stream.send(&written(demo.proxy.data, "POST", "/sessions/live/generate", &[], body.to_string().as_bytes())).await;
    assert!(stream.read_until(|read| memchr::memmem::find(read, b"output_token_entropy").is_some()).await);
    (demo, stream)
}

#[tokio::test(flavor = "multi_thread")]
async fn top_prints_running_sequences_with_the_entropies_of_the_server() {
    let (demo, _stream) = slow_generation().await;
    let (code, text, error) = run(&["top", "--once"], demo.proxy.control).await;
    assert_eq!((code, &*error), (Some(0), ""), "{text}");
    assert!(text.contains(": ready\n1 running, \u{2013} tokens/s") && text.contains("policy epoch 0"), "{text}");
    let row: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
    assert_eq!((row[0], row[1], row[3], row[7]), ("live", "job", "\u{2013}", "0"), "{text}");
    let tokens: usize = row[2].parse().unwrap();
    let entropy = numbers(&get(demo.proxy.control, "/v1/requests/job/entropy").await.json()["entropy"]);
    let newest = entropy[tokens - 1].unwrap();
    assert_eq!(row[4], format!("{newest:.3}"), "{text}");
    assert_eq!(row[6].chars().count(), tokens.min(24), "{text}");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, _, error) = run(&["top"], closed).await;
    assert!(code == Some(1) && error.contains("cannot connect to the tokentap at"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn top_restores_the_terminal_after_q_ctrl_c_and_sigterm() {
    let (demo, _stream) = slow_generation().await;
    let (program, control) = (env!("CARGO_BIN_EXE_tokentap"), demo.proxy.control);
    for way in ["q", "\x03", "TERM"] {
        let command = format!(
            "stty -g; {program} top --control http://{control} & pid=$!; echo pid=$pid.; fg >/dev/null; echo code=$?; stty -g"
        );
        let command = format!("set -m; {command}");
        let mut terminal = Terminal::start(&command);
        // the second poll has measured a speed
        terminal.shows("live ").await;
        terminal.shows(" tokens/s, mean entropy").await;
        match way {
            "TERM" => {
                let pid = terminal.shown.split("pid=").nth(1).unwrap().split('.').next().unwrap().to_owned();
                assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
            }
            keys => terminal.press(keys.as_bytes()),
        }
        let shown = terminal.end().await;
        assert!(
            shown.contains("\x1b[?1049h") && shown.contains("\x1b[?1049l") && shown.contains("\x1b[?25h"),
            "{shown}"
        );
        let lines: Vec<&str> = shown.lines().collect();
        assert!(shown.contains("code=0"), "{way:?}: {shown}");
        assert_eq!(lines.first(), lines.last(), "{way:?}: the modes of the terminal are those of before: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn top_keeps_the_table_and_retries_while_the_server_is_gone() {
    let (demo, stream) = slow_generation().await;
    let program = env!("CARGO_BIN_EXE_tokentap");
    let binary = Binary::with_flags(demo.direct, &[]).await;
    let control = binary.control;
    let mut terminal = Terminal::start(&format!("{program} top --control http://{control}"));
    terminal.shows("0 running").await;
    binary.kill();
    terminal.shows("retrying: cannot connect").await;
    terminal.press(b"q");
    terminal.end().await;
    drop((demo, stream));
}

#[tokio::test(flavor = "multi_thread")]
async fn show_prints_the_text_of_the_generation() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let body = json!({"text": "The lamp", "sampling_params": {"max_new_tokens": 60, "ignore_eos": true}});
    let reply = post(demo.proxy.data, "/sessions/run-1/generate", body.to_string().as_bytes()).await.json();
    let text = reply["text"].as_str().unwrap();
    let (code, shown, error) = run(&["show", "run-1"], demo.proxy.control).await;
    assert_eq!((code, &*error), (Some(0), ""), "{shown}");
    assert!(
        shown.contains("response, 60 tokens") && shown.contains(&format!(" nats\n{text}\n\u{2500}\u{2500}\n")),
        "{text:?} in {shown}"
    );
    assert!(shown.contains("prompt, ") && shown.contains("The lamp\n") && !shown.contains('\x1b'), "{shown}");
    let mean = reply["meta_info"]["entropy_info"]["mean"].as_f64().unwrap();
    assert!(shown.contains(&format!("60 sampled, mean entropy {mean:.3} nats")), "{shown}");
    let (_, part, _) = run(&["show", "run-1", "--leaf", "0", "--from", "3", "--limit", "4"], demo.proxy.control).await;
    assert!(part.contains("tokens 3 to 6 of the path") && part.contains(": 4 of "), "{part}");
    for (args, expected) in
        [(&["show", "nobody"][..], "there is no session \"nobody\""), (&["show", "run-1", "--leaf", "7"], "404")]
    {
        let (code, shown, error) = run(args, demo.proxy.control).await;
        assert!((code, &*shown) == (Some(1), "") && error.contains(expected), "{error}");
    }
}

/// The colours of the backgrounds in a line, in order.
fn backgrounds(line: &str) -> Vec<String> {
    let codes = line
        .match_indices("48;2;")
        .map(|(at, _)| line[at + "48;2;".len()..].splitn(4, ';').take(3).collect::<Vec<_>>());
    codes.map(|parts| parts.join(",")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn show_colours_tokens_by_the_steps_of_the_page() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let body =
        json!({"text": "The lamp", "sampling_params": {"max_new_tokens": 60, "ignore_eos": true, "temperature": 1.5}});
    post(demo.proxy.data, "/sessions/run-1/generate", body.to_string().as_bytes()).await;
    let command = format!("{} show run-1 --control http://{}", env!("CARGO_BIN_EXE_tokentap"), demo.proxy.control);
    let shown = Terminal::start(&command).end().await;
    let legend = shown.lines().find(|line| line.starts_with("entropy 0 ")).unwrap();
    let steps = backgrounds(legend);
    assert_eq!(steps.len(), 24, "{legend}");
    let response = shown.split("response, 60 tokens").nth(1).unwrap().split("\u{2500}\u{2500}").next().unwrap();
    let found: Vec<usize> =
        backgrounds(response).iter().map(|colour| steps.iter().position(|step| step == colour).unwrap()).collect();
    let path = get(demo.proxy.control, "/v1/sessions/run-1/paths/0?from=0").await.json();
    let entropy = numbers(&path["entropy"]);
    let sampled = &entropy[entropy.len() - 60..];
    // the formula of scale.js
    let expected: Vec<usize> =
        sampled.iter().map(|nats| ((nats.unwrap().min(4.0) / 4.0).sqrt() * 23.0 + 0.5).floor() as usize).collect();
    assert!(expected.iter().any(|step| *step > 5), "some tokens have colours: {expected:?}");
    assert_eq!(found, expected, "{shown:?}");
    let plain = Terminal::start(&format!("NO_COLOR=1 {command}")).end().await;
    assert!(!plain.contains('\x1b'), "{plain}");
}

#[tokio::test(flavor = "multi_thread")]
async fn export_shows_a_progress_bar_on_a_terminal_and_removes_it() {
    let demo = Demo::start(EngineOptions::default(), &[]).await;
    let body = json!({"text": "The lamp", "sampling_params": {"max_new_tokens": 60, "ignore_eos": true}});
    post(demo.proxy.data, "/sessions/run-1/generate", body.to_string().as_bytes()).await;
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("rows.jsonl");
    let (control, out) = (format!("http://{}", demo.proxy.control), out.to_str().unwrap());
    let args = ["export", "--format", "jsonl", "--out", out, "--control", &control];
    let shown = Terminal::start(&format!("{} {}", env!("CARGO_BIN_EXE_tokentap"), args.join(" "))).end().await;
    let (bar, summary) = shown.split_once("tokentap: ").unwrap_or_else(|| panic!("no summary: {shown:?}"));
    assert!(
        bar.contains("writing") && bar.ends_with("\r\x1b[2K"),
        "the bar is drawn, and its line is cleared: {shown:?}"
    );
    assert!(summary.starts_with("1 row of 1 session, ") && summary.trim_end().ends_with(out), "{shown:?}");
    let done = output(&args).await;
    let error = String::from_utf8(done.stderr).unwrap();
    assert!(
        error.starts_with("tokentap: 1 row of 1 session, ") && !error.contains('\x1b'),
        "no bar without a terminal: {error:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_cannot_send_escape_sequences_to_the_terminal() {
    let hostile = "\u{1b}]0;owned\u{7}\u{9b}2J\r\u{202e}";
    let upstream = Upstream::start(EngineProfile::default(), move |asked| match asked.path.as_str() {
        "/detokenize" => {
            let count = asked.json()["tokens"].as_array().map_or(0, Vec::len);
            json_message(200, json!({"text": vec![hostile; count]}).to_string().as_bytes())
        }
        _ => engine::answer(asked),
    })
    .await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let body = json!({"input_ids": [1, 2], "rid": "\u{1b}[2J", "sampling_params": {"max_new_tokens": 3}});
    post(proxy.data, "/sessions/run-1/generate", body.to_string().as_bytes()).await;
    let (code, shown, error) = run(&["show", "run-1"], proxy.control).await;
    assert_eq!(code, Some(0), "{error}");
    assert!(shown.contains("<U+001B>]0;owned<U+0007><U+009B>2J<U+000D><U+202E>"), "{shown}");
    assert!(!shown.chars().any(|character| character.is_control() && character != '\n'), "{shown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn show_keeps_the_spaces_of_a_tokenizer_that_drops_leading_ones() {
    let upstream = Upstream::start(EngineProfile::default(), |asked| match asked.path.as_str() {
        "/detokenize" => {
            let lists = asked.json()["tokens"].as_array().unwrap().clone();
            let text = |list: &Value| {
                let words = list.as_array().unwrap().iter().map(|id| match id.as_u64().unwrap() {
                    // the lowest ids of such a vocabulary have no space
                    id @ ..8 => format!("<{id}>"),
                    id => format!(" w{id}"),
                });
                words.collect::<String>().trim_start().to_owned()
            };
            json_message(200, json!({"text": lists.iter().map(text).collect::<Vec<_>>()}).to_string().as_bytes())
        }
        _ => engine::answer(asked),
    })
    .await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let body = json!({"input_ids": [1, 2, 3, 4, 5, 6, 7, 2, 17, 42, 18], "sampling_params": {"max_new_tokens": 3}});
    post(proxy.data, "/sessions/run-1/generate", body.to_string().as_bytes()).await;
    let (code, shown, error) = run(&["show", "run-1"], proxy.control).await;
    assert!(code == Some(0) && error.is_empty(), "{error}");
    assert!(shown.contains("<1><2><3><4><5><6><7><2> w17 w42 w18\n"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn show_prints_ids_if_the_engine_cannot_decode_them() {
    let upstream = Upstream::start(EngineProfile::default(), |asked| match asked.path.as_str() {
        "/detokenize" => json_message(404, br#"{"detail":"Not Found"}"#),
        _ => engine::answer(asked),
    })
    .await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let body = json!({"input_ids": [17, 42], "sampling_params": {"max_new_tokens": 3}});
    post(proxy.data, "/sessions/run-1/generate", body.to_string().as_bytes()).await;
    let (code, shown, error) = run(&["show", "run-1"], proxy.control).await;
    assert!(code == Some(0) && error.contains("/detokenize failed"), "{error}");
    assert!(shown.contains("prompt, 2 tokens\n17 42 \n"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_json_has_the_lines_of_the_table() {
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    let url = format!("http://{}", upstream.addr);
    let text = String::from_utf8(output(&["check", "--upstream", &url]).await.stdout).unwrap();
    let done = output(&["check", "--upstream", &url, "--json"]).await;
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((done.status.code(), &report["verdict"]), (Some(0), &json!("warn")), "{report}");
    let mark = |line: &Value| match line["verdict"].as_str().unwrap() {
        "fail" => "FAIL".to_owned(),
        verdict => format!("{verdict:<4}"),
    };
    let line = |line: &Value| {
        format!("{}  {:<12} {}", mark(line), line["name"].as_str().unwrap(), line["text"].as_str().unwrap())
    };
    let lines: Vec<String> = report["lines"].as_array().unwrap().iter().map(line).collect();
    assert_eq!(lines, text.lines().collect::<Vec<_>>());
    let command = format!("{} check --upstream {url}", env!("CARGO_BIN_EXE_tokentap"));
    let shown = Terminal::start(&command).end().await;
    assert!(shown.contains("\x1b[33mwarn\x1b[0m") && shown.contains("\x1b[32mok  \x1b[0m"), "{shown}");
    let plain = shown.replace("\x1b[33m", "").replace("\x1b[32m", "").replace("\x1b[0m", "");
    assert!(plain.lines().all(|line| line.chars().count() <= 100), "wrapped to the terminal: {plain}");
}
