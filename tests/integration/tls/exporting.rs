// SPDX-License-Identifier: Apache-2.0
//! `tokentap export` from a control port with TLS.

use super::authority::{Authority, borrowed};
use crate::support::binary::output;
use crate::support::engine;
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, Upstream};

#[tokio::test(flavor = "multi_thread")]
async fn export_reads_from_a_tls_control_port() {
    let authority = Authority::new();
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    let own = authority.flags().0;
    let proxy = Proxy::probed(upstream.addr, &[&borrowed(&own)[..], &["--control-token", "t"]].concat()).await;
    let asked = br#"{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":4}}"#;
    for session in ["one", "two"] {
        let path = format!("/sessions/{session}/generate");
        let reply = authority.client().request(proxy.data, "POST", &path, asked).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let url = format!("https://localhost:{}", proxy.control.port());
    let ca = authority.ca();
    let export = async |flags: &[&str]| {
        let fixed = ["export", "--format", "jsonl", "--out", "-", "--control-token", "t"];
        let done = output(&[&fixed, flags].concat()).await;
        (done.status.code(), String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap())
    };
    let (code, rows, stderr) = export(&["--control", &url, "--control-ca", &ca]).await;
    assert_eq!((code, rows.lines().count()), (Some(0), 2), "{stderr}");

    // a CA that did not sign it, a file that is no certificate, no CA, and a CA for plain HTTP
    let other = Authority::new().dir.keep();
    let foreign = other.join("ca.crt").to_str().unwrap().to_owned();
    let http = format!("http://{}", proxy.control);
    for (flags, code, words) in [
        (&["--control", &url, "--control-ca", &foreign][..], 1, "cannot connect to the tokentap at https://localhost"),
        (&["--control", &url, "--control-ca", &own[3]], 1, "--control-ca "),
        (&["--control", &url], 64, "--control-ca"),
        (&["--control", &http, "--control-ca", &ca], 64, "--control-ca"),
        (&["--control", &http], 1, "the connection failed to the tokentap at http://"),
    ] {
        let (exit, rows, stderr) = export(flags).await;
        assert_eq!((exit, rows.as_str()), (Some(code), ""), "{flags:?}: {stderr}");
        assert!(stderr.starts_with("tokentap: ") && stderr.contains(words), "{flags:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    std::fs::remove_dir_all(other).unwrap();
}
