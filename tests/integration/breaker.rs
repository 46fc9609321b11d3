// SPDX-License-Identifier: Apache-2.0
//! Requests fail fast while the upstream is unreachable, and reach it as soon as it is back.

use tokio::net::TcpSocket;

use crate::support::client::{get, post};
use crate::support::manual_upstream::{ManualUpstream, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, Upstream, json_message};

const GENERATE: &[u8] = b"{\"text\":\"a\"}";

/// A bound address without a listener.
fn reserved() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_fail_fast_after_consecutive_failures_and_pass_once_the_upstream_is_back() {
    let socket = reserved();
    let addr = socket.local_addr().unwrap();
    let proxy = Proxy::start(addr, &["limit:breaker-failures", "3"]).await;
    for _ in 0..3 {
        assert_eq!(get(proxy.data, "/health").await.status, 502, "this one was tried");
    }
    let shed = "tokentap_shed_total{reason=\"breaker\"}";
    let failures = "tokentap_upstream_errors_total{kind=\"connect\"}";
    assert_eq!((proxy.metric(shed).await, proxy.metric("tokentap_breaker_open").await), (0.0, 1.0));
    let before = proxy.metric(failures).await;
    let mut tried = 0.0;
    for (path, port) in [("/generate", proxy.data), ("/tokenize", proxy.data), ("/pause_generation", proxy.control)] {
        let shed = async {
            loop {
                let answer = post(port, path, GENERATE).await;
                if answer.status != 502 {
                    return answer;
                }
                // on a slow machine the breaker's pause may end before each request
                tried += 1.0;
            }
        };
        let answer = soon("a request that is not sent upstream", shed).await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{path}: {}", answer.text());
        assert!(answer.text().contains(&addr.to_string()), "{}", answer.text());
    }
    assert!(proxy.metric(shed).await >= 3.0);
    assert_eq!(proxy.metric(failures).await, before + tried, "the others were not tried");
    assert_eq!(get(proxy.control, "/livez").await.status, 200);

    let mut upstream = ManualUpstream::on(socket.listen(16).unwrap());
    // tokentap's own probe reaches it
    let back = async { while proxy.metric("tokentap_breaker_open").await != 0.0 {} };
    soon("it closes", back).await;
    let client = tokio::spawn(post(proxy.data, "/tokenize", GENERATE));
    upstream.next().await.ok().await;
    assert_eq!(client.await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_error_responses_do_not_open_the_breaker() {
    let upstream = Upstream::start(EngineProfile::default(), |_| json_message(503, b"{}")).await;
    let proxy = Proxy::start(upstream.addr, &["limit:breaker-failures", "1"]).await;
    for _ in 0..10 {
        let answer = get(proxy.data, "/health").await;
        assert_eq!((answer.status, answer.text().as_str()), (503, "{}"), "the upstream's own reply");
    }
    assert_eq!(proxy.metric("tokentap_breaker_open").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn breaker_closes_on_a_successful_trial_and_reopens_on_new_failures() {
    let socket = reserved();
    let addr = socket.local_addr().unwrap();
    let proxy = Proxy::start(addr, &["limit:breaker-failures", "2"]).await;
    let open = "tokentap_breaker_open";
    let failures = "tokentap_upstream_errors_total{kind=\"connect\"}";
    let call = || post(proxy.data, "/tokenize", GENERATE);
    for _ in 0..2 {
        assert_eq!(call().await.status, 502);
    }
    // half open: a trial that fails leaves it open
    let before = proxy.metric(failures).await;
    let trial = async { while call().await.status != 502 {} };
    soon("a trial call", trial).await;
    assert_eq!((proxy.metric(failures).await, proxy.metric(open).await), (before + 1.0, 1.0));

    let upstream = Upstream::on(socket.listen(16).unwrap(), EngineProfile::default(), |_| json_message(200, b"{}"));
    soon("a call reaches the upstream", async { while call().await.status != 200 {} }).await;
    for _ in 0..10 {
        assert_eq!(call().await.status, 200, "it is closed: none is shed");
    }
    assert_eq!(proxy.metric(open).await, 0.0);
    upstream.stop().await;
    // the failure count starts at zero again, and new failures reopen it
    let shed = async { while call().await.status != 503 {} };
    soon("it is open again", shed).await;
    assert_eq!(proxy.metric(open).await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn zero_breaker_failures_disables_the_breaker() {
    let socket = reserved();
    let proxy = Proxy::start(socket.local_addr().unwrap(), &["limit:breaker-failures", "0"]).await;
    for _ in 0..20 {
        assert_eq!(get(proxy.data, "/health").await.status, 502);
    }
    assert_eq!(proxy.metric("tokentap_breaker_open").await, 0.0);
    assert_eq!(proxy.metric("tokentap_shed_total{reason=\"breaker\"}").await, 0.0);
}
