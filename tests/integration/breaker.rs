//! Requests are answered at once while the upstream cannot be connected to, and reach it as soon as it is back.

use tokio::net::TcpSocket;

use crate::support::client::{get, post};
use crate::support::hand::{Hand, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::{Nature, Upstream, json_message};

const GENERATE: &[u8] = b"{\"text\":\"a\"}";

/// An address where nobody listens yet.
fn reserved() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_fail_fast_after_failures_in_a_row_and_pass_once_the_upstream_is_back() {
    let nobody = reserved();
    let addr = nobody.local_addr().unwrap();
    let proxy = Proxy::start(addr, &["--breaker-failures", "3"]).await;
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
                // on a slow machine a pause may be over with every question
                tried += 1.0;
            }
        };
        let answer = soon("one that is not tried", shed).await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{path}: {}", answer.text());
        assert!(answer.text().contains(&addr.to_string()), "{}", answer.text());
    }
    assert!(proxy.metric(shed).await >= 3.0);
    assert_eq!(proxy.metric(failures).await, before + tried, "the others were not tried");
    assert_eq!(get(proxy.control, "/livez").await.status, 200);

    let mut hand = Hand::on(nobody.listen(16).unwrap());
    // tokentap's own question finds it
    let back = async { while proxy.metric("tokentap_breaker_open").await != 0.0 {} };
    soon("it closes", back).await;
    let client = tokio::spawn(post(proxy.data, "/tokenize", GENERATE));
    hand.next().await.ok().await;
    assert_eq!(client.await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_answers_with_errors_is_there() {
    let upstream = Upstream::start(Nature::default(), |_| json_message(503, b"{}")).await;
    let proxy = Proxy::start(upstream.addr, &["--breaker-failures", "1"]).await;
    for _ in 0..10 {
        let answer = get(proxy.data, "/health").await;
        assert_eq!((answer.status, answer.text().as_str()), (503, "{}"), "its own");
    }
    assert_eq!(proxy.metric("tokentap_breaker_open").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn breaker_that_has_closed_opens_again_and_its_trial_calls_keep_it_open_or_close_it() {
    let nobody = reserved();
    let addr = nobody.local_addr().unwrap();
    let proxy = Proxy::start(addr, &["--breaker-failures", "2"]).await;
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

    let upstream = Upstream::on(nobody.listen(16).unwrap(), Nature::default(), |_| json_message(200, b"{}"));
    soon("a call reaches the upstream", async { while call().await.status != 200 {} }).await;
    for _ in 0..10 {
        assert_eq!(call().await.status, 200, "it is closed: none is shed");
    }
    assert_eq!(proxy.metric(open).await, 0.0);
    upstream.stop().await;
    // failures are counted anew, and open it again
    let shed = async { while call().await.status != 503 {} };
    soon("it is open again", shed).await;
    assert_eq!(proxy.metric(open).await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_breaker_failures_each_call_is_tried() {
    let nobody = reserved();
    let proxy = Proxy::start(nobody.local_addr().unwrap(), &["--breaker-failures", "0"]).await;
    for _ in 0..20 {
        assert_eq!(get(proxy.data, "/health").await.status, 502);
    }
    assert_eq!(proxy.metric("tokentap_breaker_open").await, 0.0);
    assert_eq!(proxy.metric("tokentap_shed_total{reason=\"breaker\"}").await, 0.0);
}
