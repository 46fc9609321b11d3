// SPDX-License-Identifier: Apache-2.0
//! Parsing a long body does not block other requests.

use std::net::SocketAddr;

use crate::support::client::{Connection, post, written};
use crate::support::engine::answer;
use crate::support::manual_upstream::soon;
use crate::support::proxy::Proxy;
use crate::support::upstream::{EngineProfile, Upstream};

/// Bytes of a body that takes some hundred milliseconds to parse in a debug build.
const LONG: usize = 16 << 20;

/// The number of answers that shows that others are served. A blocked worker answers only a few between the steps of a long request.
const SERVED: usize = 20;

/// The number of requests during which a worker reads the buffered bytes of a long one.
const READ: usize = 200;

/// Starts a tokentap with one worker thread and returns its data port; it ends with the test process.
async fn start_with_one_worker(upstream: SocketAddr, flags: &'static [&'static str]) -> SocketAddr {
    let (started, data) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let proxy = Proxy::probed(upstream, flags).await;
            started.send(proxy.data).unwrap();
            proxy.task.await.unwrap();
        });
    });
    soon("tokentap starts", data).await.unwrap()
}

/// Sends a long request that is rejected after parsing; returns the number of short requests that are answered between its last byte and
/// the rejection. Receiving and sending are outside that time: they yield to other tasks anyway.
async fn served_meanwhile(body: &[u8]) -> usize {
    let upstream = Upstream::start(EngineProfile::default(), answer).await;
    let data = start_with_one_worker(upstream.addr, &[]).await;
    let short = async || assert_eq!(post(data, "/generate", br#"{"input_ids":[1,2,3]}"#).await.status, 200);
    let mut long = Connection::open(data).await;
    let request = written(data, "POST", "/generate", &[], body);
    let (rest, last) = request.split_at(request.len() - 1);
    long.send(rest).await;
    for _ in 0..READ {
        short().await;
    }
    long.send(last).await;
    let refused = tokio::spawn(async move { long.answer().await });
    let mut served = 0;
    while !refused.is_finished() {
        short().await;
        served += 1;
    }
    let refused = refused.await.unwrap();
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("outside the vocabulary"), "{}", refused.text());
    served
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_list_of_ids_does_not_block_other_requests() {
    let ids = vec!["12345"; LONG / 6].join(",");
    let served = served_meanwhile(format!("{{\"input_ids\":[{ids},999999]}}").as_bytes()).await;
    assert!(served >= SERVED, "only {served} while a body of 16 MiB was parsed");
}
