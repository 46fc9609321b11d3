// SPDX-License-Identifier: Apache-2.0
//! What `tokentap check` reports of a ledger, and what `serve` does with one that it cannot use.

use serde_json::json;

use super::server::Server;
use crate::crash::StandaloneEngine;
use crate::crash::trainers::generate_turn;
use crate::support::binary::{Binary, arguments, output};

/// The exit code, and the lines on the ledger.
async fn check(alone: &StandaloneEngine, flags: &[&str]) -> (Option<i32>, Vec<String>) {
    let upstream = format!("http://{}", alone.addr);
    let done = output(&[&["check", "--upstream", &upstream][..], flags].concat()).await;
    let text = String::from_utf8(done.stdout).unwrap();
    let lines = text.lines().filter(|line| line.get(6..).is_some_and(|rest| rest.starts_with("ledger ")));
    (done.status.code(), lines.map(str::to_owned).collect())
}

fn has(lines: &[String], verdict: &str, text: &str) {
    assert!(
        lines.iter().any(|line| line.starts_with(verdict) && line.contains(text)),
        "{verdict} {text:?} in {lines:#?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn check_reports_the_settings_of_the_ledger() {
    let Some(server) = Server::start() else { return };
    let (alone, url) = (StandaloneEngine::start().await, server.url());
    let (code, lines) = check(&alone, &["--ledger", &url, "--ledger-replicas", "0"]).await;
    assert_eq!(code, Some(0), "{lines:#?}");
    has(&lines, "ok  ", "no tokentap has used it yet");
    has(&lines, "warn", "appendonly is no");
    has(&lines, "ok  ", "maxmemory is 0");
    has(&lines, "warn", "--ledger-replicas is 0");
    assert_eq!(server.keys("*"), 0, "it leaves no key");

    let (code, lines) = check(&alone, &["--ledger", &url]).await;
    assert_eq!(code, Some(1), "{lines:#?}");
    has(&lines, "FAIL", "0 replicas are connected, and --ledger-replicas is 1");

    let wrong = url.replace("redis://", "redis://tokentap:wrong@");
    let (code, lines) = check(&alone, &["--ledger", &wrong]).await;
    assert_eq!((code, lines.len()), (Some(1), 1), "{lines:#?}");
    has(&lines, "FAIL", "authentication failed");
    assert!(!lines[0].contains("wrong"), "{}", lines[0]);

    server.ask(&["ACL", "SETUSER", "limited", "on", ">secret", "~tt:*", "+@all", "-xadd", "-config"]);
    let limited = url.replace("redis://", "redis://limited:secret@");
    let (code, lines) = check(&alone, &["--ledger", &limited, "--ledger-replicas", "0"]).await;
    assert_eq!(code, Some(1), "{lines:#?}");
    has(&lines, "FAIL", "the user may not run XADD");

    server.ask(&["HSET", "tt:meta", "fleet", "0123456789abcdef", "schema", "9", "partitions", "64"]);
    let (code, lines) = check(&alone, &["--ledger", &url, "--ledger-replicas", "0"]).await;
    assert_eq!(code, Some(1), "{lines:#?}");
    has(&lines, "FAIL", "the schema 9");
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_logs_a_ledger_that_evicts_as_an_error_and_answers() {
    let options = ["--maxmemory-policy", "allkeys-lru"];
    let Some(server) = Server::start_with("VALKEY_SERVER", &options) else { return };
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let ledger = ["--ledger", &server.url()];
    let log = ["--data-dir", dir.path().to_str().unwrap()];
    let ends = "the ledger lacks turns, which end with this process, because it has no --data-dir";
    let stays = "the ledger lacks turns; a start with this --data-dir appends them";
    for (flags, level, end) in [(&[][..], "ERROR", ends), (&log, "WARN", stays)] {
        let mut binary = Binary::with_flags(alone.addr, &[&ledger, flags].concat()).await;
        let line = binary
            .logged("partitions of the shared ledger fail: their turns are not shared until it works again")
            .await;
        assert_eq!(line["level"], json!("ERROR"));
        assert!(line["error"].as_str().unwrap().contains("maxmemory-policy \"allkeys-lru\""), "{line}");
        generate_turn(binary.data, "s", &[1, 2, 3], "").await;
        assert_eq!(server.keys("*"), 0, "nothing is written to it");
        binary.terminate();
        let line = binary.logged(end).await;
        assert_eq!(line["level"], json!(level), "{line}");
        assert_eq!(line["sessions"], 1, "{line}");
        assert_eq!(binary.code().await, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ledger_of_another_schema_is_refused_at_start_and_stays_as_it_is() {
    let Some(server) = Server::start_with("VALKEY_SERVER", &["--enable-debug-command", "yes"]) else { return };
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    server.ask(&["HSET", "tt:meta", "fleet", "0123456789abcdef", "schema", "1", "partitions", "64"]);
    server.ask(&["RPUSH", "tt:{5}:s:old", "an entry of that schema"]);
    let before = server.ask(&["DEBUG", "DIGEST"]);
    let args = arguments(alone.addr, &["--ledger", &server.url(), "--data-dir", dir.path().to_str().unwrap()]);
    let done = output(&args.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let text = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{text}");
    let line = "tokentap: --ledger: the key tt:meta has the schema 1, and this build reads and writes the schema 8: export the sessions \
                with the build that wrote them, and give this one another ledger";
    assert_eq!(text.lines().last(), Some(line), "{text}");
    assert_eq!(server.ask(&["DEBUG", "DIGEST"]), before, "nothing is written to it");
}

#[tokio::test(flavor = "multi_thread")]
async fn client_certificate_is_presented() {
    let authority = crate::tls::authority::Authority::new();
    let ([cert, key], ca) = (authority.write("valkey", &authority.issue(2099)), authority.ca());
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let port_text = port.to_string();
    let options =
        ["--tls-port", &port_text, "--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    let Some(_server) = Server::start_with("VALKEY_TLS_SERVER", &options) else { return };
    let (alone, url) = (StandaloneEngine::start().await, format!("rediss://127.0.0.1:{port}"));
    let [own, own_key] = authority.write("tokentap", &authority.issue(2099));
    let flags = ["--ledger", &url, "--ledger-replicas", "0", "--ledger-ca", &ca];
    let (code, lines) = check(&alone, &[&flags[..], &["--ledger-cert", &own, "--ledger-key", &own_key]].concat()).await;
    assert_eq!(code, Some(0), "{lines:#?}");
    let (code, lines) = check(&alone, &flags).await;
    assert_eq!(code, Some(1), "without one it is refused: {lines:#?}");
}
