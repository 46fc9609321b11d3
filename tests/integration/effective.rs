// SPDX-License-Identifier: Apache-2.0
//! `tokentap config`: every setting with its value and its origin, and no secret.

use crate::support::binary::{Binary, output_with};
use crate::support::client::request;
use crate::support::manual_upstream::ManualUpstream;

/// Runs `tokentap config` with these flags and variables; returns its exit code, standard output and standard error.
async fn config(flags: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let done = output_with(&[&["config"], flags].concat(), environment).await;
    (done.status.code(), String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap())
}

fn assert_line(text: &str, line: &str) {
    assert!(text.lines().any(|found| found == line), "{line:?} is not in\n{text}");
}

#[tokio::test]
async fn each_setting_names_its_origin() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokentap.toml");
    std::fs::write(&file, "top-logprobs = 7\nstrict = \"entropy,parts\"\nsession_bytes = \"1MiB\"\n").unwrap();
    let file = file.to_str().unwrap();
    let environment = [("TOKENTAP_CONTROL_TOKEN", "hush-1"), ("TOKENTAP_MAX_REQUESTS", "9")];
    let flags = ["--config", file, "--agent-token", "hush-2", "--session-bytes", "2MiB", "--control-host", "a,b"];
    let (code, out, err) = config(&flags, &environment).await;
    assert_eq!(code, Some(0), "{err}");
    assert_line(&out, &format!("top-logprobs = 7 # from the file {file}"));
    assert_line(&out, &format!("strict = \"entropy,parts\" # from the file {file}"));
    assert_line(&out, "session-bytes = \"2MiB\" # from the command line");
    assert_line(&out, "max-requests = 9 # from the environment, TOKENTAP_MAX_REQUESTS");
    assert_line(&out, "control-host = \"a,b\" # from the command line");
    assert_line(&out, "listen = \"127.0.0.1:30001\" # from its default");
    assert_line(&out, "# data-dir is not set");
    assert_line(&out, "# control-token is set, and not shown; from the environment, TOKENTAP_CONTROL_TOKEN");
    assert_line(&out, "# agent-token is set, and not shown; from the command line");
    assert_line(&out, "# Limits");
    assert_eq!(out.lines().filter(|line| *line == "# Main options").count(), 1, "each group is printed once");
    assert!(!format!("{out}{err}").contains("hush"), "{out}{err}");
}

#[tokio::test]
async fn keys_are_hidden_and_read_from_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (file, token) = (path("tokentap.toml"), path("token"));
    std::fs::write(&file, "control-token = \"hush-old\"\nagent_token = \"hush\"\nmax-requests = 9\n").unwrap();
    std::fs::write(&token, "hush-new\n").unwrap();
    let key = format!("@{token}");
    let (code, out, err) = config(&["--config", &file, "--control-token", &key], &[]).await;
    assert_eq!(code, Some(0), "{err}");
    assert_line(&out, "# control-token is set, and not shown; from the command line");
    assert_line(&out, &format!("# agent-token is set, and not shown; from the file {file}"));
    let (_, out, _) = config(&["--config", &file], &[("TOKENTAP_CONTROL_TOKEN", &key)]).await;
    assert_line(&out, "# control-token is set, and not shown; from the environment, TOKENTAP_CONTROL_TOKEN");
    let (code, _, err) = config(&["--config", &file], &[("TOKENTAP_CONTROL_TOKEN_FILE", &token)]).await;
    assert_eq!(code, Some(64), "{err}");
    assert!(err.contains("TOKENTAP_CONTROL_TOKEN_FILE in ") && err.contains("TOKENTAP_CONTROL_TOKEN\n"), "{err}");
    for command in ["serve", "demo", "check", "config"] {
        let help = output_with(&[command, "--config", &file, "--help"], &[]).await;
        let help = String::from_utf8([help.stdout, help.stderr].concat()).unwrap();
        assert!(help.contains("[default: 9]") && !help.contains("hush"), "{help}");
    }
    let upstream = ManualUpstream::start().await;
    let binary = Binary::with_flags(upstream.addr, &["--config", &file, "--control-token", &key]).await;
    for (token, status) in [("hush-new", 200), ("hush-old", 401)] {
        let authorization = format!("Bearer {token}");
        let headers = [("authorization", &*authorization)];
        assert_eq!(request(binary.control, "GET", "/v1/sessions", &headers, b"").await.status, status, "{token}");
    }
}

#[tokio::test]
async fn open_control_port_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokentap.toml");
    std::fs::write(&file, "control-listen = \"0.0.0.0:1\"\ncontrol-token = \"none\"\n").unwrap();
    let file = file.to_str().unwrap();
    let (code, out, err) = config(&["--config", file, "--agent-token", "none"], &[]).await;
    assert_eq!(code, Some(0), "{err}");
    assert_line(&out, &format!("control-token = \"none\" # from the file {file}"));
    assert_line(&out, "# agent-token is set, and not shown; from the command line");
}

#[tokio::test]
async fn unknown_settings_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokentap.toml");
    let file = file.to_str().unwrap();
    std::fs::write(file, "control-open = true\n").unwrap();
    let (code, _, err) = config(&["--config", file], &[]).await;
    assert_eq!(code, Some(64), "{err}");
    let line = "control-open in FILE: there is no such setting; a similar one is control-token".replace("FILE", file);
    assert_eq!(err, format!("tokentap: {line}\n"));
    for flags in [&["config"][..], &["serve"], &["demo"], &["entropy", "x"], &["archive", "ls", "file:///x"]] {
        let done = output_with(flags, &[("TOKENTAP_LISTENS", "x")]).await;
        let err = String::from_utf8(done.stderr).unwrap();
        let line = "TOKENTAP_LISTENS in the environment: there is no such setting; a similar one is TOKENTAP_LISTEN";
        assert_eq!((done.status.code(), err), (Some(64), format!("tokentap: {line}\n")), "{flags:?}");
    }
}

#[tokio::test]
async fn variables_of_a_kubernetes_service_are_ignored() {
    let service = [
        ("TOKENTAP_SERVICE_HOST", "10.0.0.1"),
        ("TOKENTAP_SERVICE_PORT", "30001"),
        ("TOKENTAP_SERVICE_PORT_HTTP", "30001"),
        ("TOKENTAP_PORT", "tcp://10.0.0.1:30001"),
        ("TOKENTAP_PORT_30001_TCP", "tcp://10.0.0.1:30001"),
        ("TOKENTAP_PORT_30001_TCP_ADDR", "10.0.0.1"),
        ("TOKENTAP_CONTROL_SERVICE_HOST", "10.0.0.2"),
        ("TOKENTAP_CONTROL_SERVICE_PORT", "30002"),
        ("TOKENTAP_CONTROL_PORT", "tcp://10.0.0.2:30002"),
    ];
    let (code, out, err) = config(&[], &service).await;
    assert_eq!((code, &*err), (Some(0), ""), "{out}");
    let (code, _, err) = config(&[], &service[3..4]).await;
    assert!(code == Some(64) && err.contains("TOKENTAP_PORT in the environment"), "{err}");
}

#[tokio::test]
async fn output_is_a_configuration_file() {
    let flags = ["--top-logprobs", "3", "--strict", "--control-host", "a,b", "--drain-timeout", "5m", "--log", "debug"];
    let (_, first, _) = config(&flags, &[]).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("printed.toml");
    std::fs::write(&file, &first).unwrap();
    let (code, second, err) = config(&["--config", file.to_str().unwrap()], &[]).await;
    assert_eq!(code, Some(0), "{err}");
    let values = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split(" # from ").next().unwrap().to_owned()).collect()
    };
    assert_eq!(values(&first), values(&second));
    assert!(values(&second).len() > 50, "{second}");
}

#[tokio::test]
async fn settings_that_serve_rejects_are_rejected() {
    for (flags, named) in [
        (&["--top-logprobs", "many"][..], "--top-logprobs"),
        (&["--control-listen", "0.0.0.0:1"], "--control-token"),
        (&["--control-listen", "0.0.0.0:1", "--control-token", "None"], "none cannot be a token"),
        (&["--control-open", "true"], "--control-open"),
        (&["--max-bytes-in-flight", "1MiB"], "--max-request-bytes"),
        (&["--client-idle-timeout", "90s"], "--client-idle-timeout"),
    ] {
        let (code, out, err) = config(flags, &[]).await;
        assert_eq!((code, &*out), (Some(64), ""), "{err}");
        assert!(err.contains(named) && err.lines().count() == 1, "{err}");
    }
}
