//! `tokentap config`: every setting with its value and its origin, and no secret.

use crate::support::binary::{Binary, output_with};
use crate::support::client::request;
use crate::support::hand::Hand;

/// What it prints, with these flags and variables.
async fn config(flags: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let done = output_with(&[&["config"], flags].concat(), environment).await;
    (done.status.code(), String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap())
}

fn has(text: &str, line: &str) {
    assert!(text.lines().any(|found| found == line), "{line:?} is not in\n{text}");
}

#[tokio::test]
async fn each_setting_says_where_it_comes_from() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokentap.toml");
    std::fs::write(&file, "top-logprobs = 7\nstrict = true\nreply_budget = \"1MiB\"\n").unwrap();
    let file = file.to_str().unwrap();
    let environment = [("TOKENTAP_CONTROL_TOKEN", "hush-1"), ("TOKENTAP_MAX_REQUESTS", "9"), ("TOKENTAP_TOP", "1")];
    let flags = ["--config", file, "--agent-token", "hush-2", "--reply-budget", "2MiB", "--control-host", "a,b"];
    let (code, out, err) = config(&flags, &environment).await;
    assert_eq!(code, Some(0), "{err}");
    has(&out, &format!("top-logprobs = 7 # from the file {file}"));
    has(&out, &format!("strict = true # from the file {file}"));
    has(&out, "reply-budget = \"2MiB\" # from the command line");
    has(&out, "max-requests = 9 # from the environment, TOKENTAP_MAX_REQUESTS");
    has(&out, "control-host = \"a,b\" # from the command line");
    has(&out, "listen = \"127.0.0.1:30001\" # from its default");
    has(&out, "# data-dir is not set");
    has(&out, "# control-token is set, and not shown; from the environment, TOKENTAP_CONTROL_TOKEN");
    has(&out, "# agent-token is set, and not shown; from the command line");
    has(&out, "# Limits");
    assert!(err.contains("TOKENTAP_TOP") && !err.contains("TOKENTAP_MAX"), "{err}");
    assert!(!format!("{out}{err}").contains("hush"), "{out}{err}");
}

#[tokio::test]
async fn a_key_of_the_file_is_in_no_help_and_gives_way_to_one_that_is_given_as_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (file, token) = (path("tokentap.toml"), path("token"));
    std::fs::write(&file, "control-token = \"hush-old\"\nagent_token = \"hush\"\nmax-requests = 9\n").unwrap();
    std::fs::write(&token, "hush-new\n").unwrap();
    let flags = ["--config", &file, "--control-token-file", &token];
    let (code, out, err) = config(&flags, &[]).await;
    assert_eq!(code, Some(0), "{err}");
    has(&out, &format!("# control-token from the file {file} gives way to control-token-file"));
    has(&out, &format!("control-token-file = \"{token}\" # from the command line"));
    has(&out, &format!("# agent-token is set, and not shown; from the file {file}"));
    let (_, out, _) = config(&["--config", &file], &[("TOKENTAP_CONTROL_TOKEN_FILE", &token)]).await;
    has(&out, &format!("# control-token from the file {file} gives way to control-token-file"));
    std::fs::write(
        path("both.toml"),
        format!("control-token = \"hush\"\nagent-token-file = \"{token}\"\ncontrol-token-file = \"x\"\n"),
    )
    .unwrap();
    let (_, out, _) = config(&["--config", &path("both.toml")], &[("TOKENTAP_AGENT_TOKEN", "hush")]).await;
    has(&out, &format!("# control-token-file from the file {} gives way to control-token", path("both.toml")));
    has(&out, &format!("# agent-token-file from the file {} gives way to agent-token", path("both.toml")));
    has(&out, "# agent-token is set, and not shown; from the environment, TOKENTAP_AGENT_TOKEN");
    for command in ["serve", "demo", "check", "config"] {
        let help = output_with(&[command, "--config", &file, "--help"], &[]).await;
        let help = String::from_utf8([help.stdout, help.stderr].concat()).unwrap();
        assert!(help.contains("[default: 9]") && !help.contains("hush"), "{help}");
    }
    let hand = Hand::start().await;
    let binary = Binary::with_flags(hand.addr, &flags).await;
    for (token, status) in [("hush-new", 200), ("hush-old", 401)] {
        let authorization = format!("Bearer {token}");
        let headers = [("authorization", &*authorization)];
        assert_eq!(request(binary.control, "GET", "/v1/sessions", &headers, b"").await.status, status, "{token}");
    }
}

#[tokio::test]
async fn what_it_prints_is_a_configuration_file() {
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
async fn what_serve_would_refuse_is_refused() {
    for (flags, named) in [
        (&["--top-logprobs", "many"][..], "--top-logprobs"),
        (&["--control-listen", "0.0.0.0:1"], "--control-token"),
        (&["--max-bytes-in-flight", "1MiB"], "--max-request-bytes"),
        (&["--client-idle-timeout", "0"], "--client-idle-timeout"),
    ] {
        let (code, out, err) = config(flags, &[]).await;
        assert_eq!((code, &*out), (Some(64), ""), "{err}");
        assert!(err.contains(named) && err.lines().count() == 1, "{err}");
    }
}
