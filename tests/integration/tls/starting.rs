// SPDX-License-Identifier: Apache-2.0
//! Invalid TLS files are one error line, and tokentap does not start.

use super::authority::{Authority, borrowed};
use crate::support::binary::{Binary, arguments, output};
use crate::support::manual_upstream::ManualUpstream;

/// Exit code and standard error of a `serve` that does not start.
async fn refused(flags: &[&str]) -> (Option<i32>, String) {
    let args = arguments("127.0.0.1:1".parse().unwrap(), flags);
    let done = output(&borrowed(&args)).await;
    let line = String::from_utf8(done.stderr).unwrap();
    assert_eq!(line.matches('\n').count(), 1, "{flags:?}: {line}");
    (done.status.code(), line)
}

#[tokio::test(flavor = "multi_thread")]
async fn certificate_without_a_key_is_a_configuration_error() {
    for (flags, words) in [
        (["--tls-cert", "x"], "--tls-cert is of no use without --tls-key"),
        (["--tls-key", "x"], "--tls-key is of no use without --tls-cert"),
        (["--control-tls-cert", "x"], "--control-tls-cert is of no use without --control-tls-key"),
    ] {
        let (code, line) = refused(&flags).await;
        assert_eq!(code, Some(64), "{line}");
        assert!(line.starts_with(&format!("tokentap: {words}")), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_file_is_one_error_line_with_its_name() {
    let authority = Authority::new();
    let (one, other) = (authority.issue(2099), authority.issue(2099));
    let [cert, key] = authority.write("one", &one);
    let [_, foreign] = authority.write("other", &other);
    let file = |name: &str, content: &str| {
        let path = authority.path(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let empty = file("empty", "");
    let half = file("half", &one.cert[..one.cert.len() / 2]);
    let half_key = file("half.key", &one.key[..one.key.len() / 2]);
    let noise = file("noise", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let odd_key = file("odd.key", "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n");
    let locked = file("locked", &one.key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY"));
    let missing = authority.path("missing").to_str().unwrap().to_owned();
    for (used, flag, path, words) in [
        ([&missing, &key], "--tls-cert", &missing, "No such file"),
        ([&cert, &missing], "--tls-key", &missing, "No such file"),
        ([&empty, &key], "--tls-cert", &empty, "holds no certificate"),
        ([&key, &key], "--tls-cert", &key, "holds no certificate"),
        ([&half, &key], "--tls-cert", &half, "is no PEM, or is cut short"),
        ([&noise, &key], "--tls-cert", &noise, "the first certificate"),
        ([&cert, &empty], "--tls-key", &empty, "holds no private key"),
        ([&cert, &locked], "--tls-key", &locked, "encrypted"),
        ([&cert, &half_key], "--tls-key", &half_key, "is no PEM, or is cut short"),
        ([&cert, &odd_key], "--tls-key", &odd_key, "that can be used"),
        ([&cert, &foreign], "--tls-key", &foreign, "is not the key of the certificate in"),
    ] {
        let (code, line) = refused(&["--tls-cert", used[0], "--tls-key", used[1]]).await;
        assert_eq!(code, Some(1), "{line}");
        assert!(line.starts_with(&format!("tokentap: {flag} {path}: ")) && line.contains(words), "{words}: {line}");
        assert!(!line.contains("c2VjcmV0") && !line.contains("BEGIN"), "no contents of the file: {line}");
    }
    let (_, line) = refused(&["--control-tls-cert", &cert, "--control-tls-key", &foreign]).await;
    assert!(line.starts_with("tokentap: --control-tls-key "), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn log_names_addresses_and_a_certificate_without_key() {
    let authority = Authority::new();
    let expired = authority.issue(2020);
    let [cert, key] = authority.write("old", &expired);
    let flags = ["--tls-cert", &cert, "--tls-key", &key];
    let upstream = ManualUpstream::start().await;
    let mut binary = Binary::with_flags(upstream.addr, &flags).await;
    let warned = binary
        .skipped_lines
        .iter()
        .filter(|line| line["message"] == "the certificate has expired: clients will refuse it");
    assert_eq!(warned.count(), 2, "one per port: {:?}", binary.skipped_lines);
    let good = authority.issue(2099);
    std::fs::write(&key, &good.key).unwrap();
    let line = binary.logged("the certificate stays as it was").await;
    let error = line["error"].as_str().unwrap();
    assert!(error.starts_with(&format!("--tls-key {key}: is not the key")), "{error}");
    std::fs::write(&cert, &good.cert).unwrap();
    binary.logged("the certificate has changed").await;
    let all = serde_json::Value::from(binary.skipped_lines.clone()).to_string();
    assert!(!all.contains("BEGIN") && !all.contains(good.key.lines().nth(1).unwrap()), "no key is in the log");
    binary.terminate();
    assert_eq!(binary.code().await, Some(0));
}
