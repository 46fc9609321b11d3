// SPDX-License-Identifier: Apache-2.0
//! Certificates are replaced while tokentap runs.

use tokentap::serve::connection::Phase;

use super::authority::{Authority, Client, borrowed, presented_certificate, swap};
use crate::support::client::{Connection, written};
use crate::support::manual_upstream::{ManualUpstream, soon};
use crate::support::proxy::Proxy;
use tokio_rustls::rustls::pki_types::CertificateDer;

const OK: &str = "tokentap_tls_reloads_total{port=\"data\",result=\"ok\"}";
const FAILED: &str = "tokentap_tls_reloads_total{port=\"data\",result=\"failed\"}";
const EXPIRY: &str = "tokentap_tls_certificate_expiry_timestamp_seconds{port=\"data\"}";

/// Waits until both ports present this certificate to new connections.
async fn becomes(client: &Client, proxy: &Proxy, wanted: &CertificateDer<'static>) {
    soon("the new certificate", async {
        for port in [proxy.data, proxy.control] {
            while client.presented_certificate(port).await != *wanted {}
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn swapped_kubernetes_secret_is_reloaded() {
    let authority = Authority::new();
    // as in the volume of a secret: the files are links into ..data, which is a link to a directory named after a timestamp
    let (first, second) = (authority.issue(2090), authority.issue(2091));
    for (folder, issued) in [("..1", &first), ("..2", &second)] {
        std::fs::create_dir(authority.path(folder)).unwrap();
        std::fs::write(authority.path(folder).join("tls.crt"), &issued.cert).unwrap();
        std::fs::write(authority.path(folder).join("tls.key"), &issued.key).unwrap();
    }
    let data = authority.path("..data");
    swap(&data, "..1".as_ref());
    for name in ["tls.crt", "tls.key"] {
        std::os::unix::fs::symlink(format!("..data/{name}"), authority.path(name)).unwrap();
    }
    let paths = ["tls.crt", "tls.key"].map(|name| authority.path(name).to_str().unwrap().to_owned());
    let flags = ["--tls-cert", &paths[0], "--tls-key", &paths[1]];
    let proxy = Proxy::start(ManualUpstream::start().await.addr, &flags).await;
    let client = authority.client();
    assert_eq!(client.presented_certificate(proxy.data).await, first.der);
    assert_eq!(client.metric(proxy.control, EXPIRY).await, 3_786_912_000.0, "the first of January 2090");
    let stream = client.connect(proxy.control).await;
    assert_eq!(presented_certificate(&stream), first.der);
    let mut running = Connection::over(stream);

    swap(&data, "..2".as_ref());
    std::fs::remove_dir_all(authority.path("..1")).unwrap();
    becomes(&client, &proxy, &second.der).await;
    assert_eq!((client.metric(proxy.control, OK).await, client.metric(proxy.control, FAILED).await), (1.0, 0.0));
    assert_eq!(client.metric(proxy.control, EXPIRY).await, 3_818_448_000.0, "the first of January 2091");
    running.send(&written(proxy.control, "GET", "/livez", &[], b"")).await;
    assert_eq!(running.answer().await.text(), "ok\n", "the open connection continues");
}

#[tokio::test(flavor = "multi_thread")]
async fn rewritten_certificate_files_are_reloaded() {
    let authority = Authority::new();
    let (flags, _) = authority.flags();
    let proxy = Proxy::start(ManualUpstream::start().await.addr, &borrowed(&flags)).await;
    let client = authority.client();
    let second = authority.issue(2099);
    authority.write("tls", &second);
    becomes(&client, &proxy, &second.der).await;
    client.metric_is(proxy.control, OK, 1.0).await;
    // and its expiry time is reported
    proxy.phase.send_replace(Phase::Draining);
    assert_eq!(soon("tokentap ends", proxy.task).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_pair_keeps_the_previous_one_and_is_counted_once() {
    let authority = Authority::new();
    let (flags, first) = authority.flags();
    let proxy = Proxy::start(ManualUpstream::start().await.addr, &borrowed(&flags)).await;
    let client = authority.client();
    let second = authority.issue(2099);
    let half = &second.cert[..second.cert.len() / 2];
    let mut failed = 0.0;
    for (name, content) in
        [("tls.crt", &*second.cert), ("tls.crt", half), ("tls.crt", ""), ("tls.key", "-----BEGIN PRIVATE KEY-----")]
    {
        std::fs::write(authority.path(name), content).unwrap();
        failed += 1.0;
        client.metric_is(proxy.control, FAILED, failed).await;
        assert_eq!(client.presented_certificate(proxy.data).await, first.der, "{name}: {content}");
    }
    std::fs::remove_file(authority.path("tls.key")).unwrap();
    client.metric_is(proxy.control, FAILED, failed + 1.0).await;
    assert_eq!(client.presented_certificate(proxy.control).await, first.der);
    // both files are valid again
    authority.write("tls", &second);
    becomes(&client, &proxy, &second.der).await;
    client.metric_is(proxy.control, OK, 1.0).await;
    assert_eq!(client.metric(proxy.control, FAILED).await, failed + 1.0, "each failure is counted once");
}
