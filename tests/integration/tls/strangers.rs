// SPDX-License-Identifier: Apache-2.0
//! Clients whose handshake fails or does not finish.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use super::authority::{Authority, borrowed};
use crate::support::client::{Connection, get, written};
use crate::support::manual_upstream::{ManualUpstream, soon};
use crate::support::proxy::Proxy;

fn failures(reason: &str) -> String {
    format!("tokentap_tls_handshake_failures_total{{port=\"data\",reason=\"{reason}\"}}")
}

async fn proxy(authority: &Authority, flags: &[&str]) -> Proxy {
    let own = authority.flags().0;
    Proxy::start(ManualUpstream::start().await.addr, &[&borrowed(&own), flags].concat()).await
}

/// The start of a TLS 1.3 handshake that does not continue.
const BEGINNING: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00";

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_handshake_times_out_and_frees_its_slot() {
    let authority = Authority::new();
    let proxy = proxy(&authority, &["--max-connections", "2", "limit:client-header-timeout", "1s"]).await;
    let client = authority.client();
    let mut silent = Connection::open(proxy.data).await;
    let mut slow = Connection::open(proxy.data).await;
    slow.send(BEGINNING).await;
    // all connection slots are taken; this client waits in the accept queue
    let reply = soon("a slot is free", client.request(proxy.data, "GET", "/flush_cache", b""));
    let (reply, ()) = tokio::join!(reply, async {
        silent.closed().await;
        slow.closed().await;
    });
    assert!(silent.seen().is_empty(), "it received nothing");
    assert_eq!(reply.status, 403, "a reply: this route is for control only");
    client.metric_is(proxy.control, &failures("timeout"), 2.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handshake_counts_towards_the_head_timeout() {
    let authority = Authority::new();
    let proxy = proxy(&authority, &["limit:client-header-timeout", "1s"]).await;
    let mut quiet = authority.client().open(proxy.data).await;
    quiet.closed().await;
    let mut slow = authority.client().open(proxy.data).await;
    slow.send(b"GET /health HTTP/1.1\r\nhost: a\r\n").await;
    slow.closed().await;
    assert!(slow.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_on_a_tls_port_gets_an_alert() {
    let authority = Authority::new();
    let proxy = proxy(&authority, &[]).await;
    let mut plain = Connection::open(proxy.data).await;
    plain.send(&written(proxy.data, "GET", "/health", &[], b"")).await;
    plain.closed().await;
    assert_eq!(plain.seen().first(), Some(&0x15), "an alert and no HTTP: {:?}", plain.seen());
    let client = authority.client();
    client.metric_is(proxy.control, &failures("not_tls"), 1.0).await;
    // like a TCP health check
    drop(Connection::open(proxy.data).await);
    client.metric_is(proxy.control, &failures("closed"), 1.0).await;
    // a client that trusts another CA
    assert!(Authority::new().client().try_connect(proxy.data).await.is_err());
    client.metric_is(proxy.control, &failures("refused_by_client"), 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn control_port_can_have_a_separate_certificate() {
    let authority = Authority::new();
    let other = authority.issue(2099);
    let [cert, key] = authority.write("control", &other);
    let flags = ["--control-tls-cert", &cert, "--control-tls-key", &key];
    let (both, shared) = authority.flags();
    let upstream = ManualUpstream::start().await.addr;
    let proxy = Proxy::start(upstream, &[&borrowed(&both), &flags[..]].concat()).await;
    let client = authority.client();
    assert_eq!(client.presented_certificate(proxy.data).await, shared.der);
    assert_eq!(client.presented_certificate(proxy.control).await, other.der);
    let proxy = Proxy::start(upstream, &flags).await;
    assert_eq!(client.presented_certificate(proxy.control).await, other.der);
    assert_eq!(get(proxy.data, "/flush_cache").await.status, 403, "the data port is plain");
}

/// Whether a client with these options gets a connection; `None` without openssl.
async fn openssl(addr: SocketAddr, options: &'static [&'static str]) -> Option<bool> {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-cipher", "ALL:@SECLEVEL=0", "-connect", &addr.to_string()]).args(options);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = tokio::task::spawn_blocking(move || command.output());
    Some(soon("openssl ends", done).await.unwrap().ok()?.status.success())
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_versions_before_1_2_are_rejected() {
    let authority = Authority::new();
    let proxy = proxy(&authority, &[]).await;
    let Some(taken) = openssl(proxy.data, &["-tls1_2"]).await else { return };
    assert!(taken, "openssl and tokentap agree on 1.2");
    assert_eq!(openssl(proxy.data, &["-tls1_3"]).await, Some(true));
    assert_eq!(openssl(proxy.data, &["-tls1_1"]).await, Some(false));
    authority.client().metric_is(proxy.control, &failures("incompatible"), 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn downgraded_handshake_is_refused() {
    let authority = Authority::new();
    let proxy = proxy(&authority, &[]).await;
    if openssl(proxy.data, &["-tls1_2"]).await.is_none() {
        return;
    }
    for options in [
        // TLS_FALLBACK_SCSV, which a client adds after a failed attempt with a higher version
        &["-tls1_2", "-fallback_scsv"][..],
        &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0"],
        &["-tls1_2", "-cipher", "AES128-GCM-SHA256:@SECLEVEL=0"],
        &["-tls1_2", "-cipher", "eNULL:aNULL:@SECLEVEL=0"],
        &["-alpn", "http/1.0"],
    ] {
        assert_eq!(openssl(proxy.data, options).await, Some(false), "{options:?}");
    }
}
