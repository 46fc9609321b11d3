//! Long bodies take time to parse. Others are served meanwhile.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::client::{Connection, post, written};
use crate::support::engine::answer;
use crate::support::hand::soon;
use crate::support::proxy::Proxy;
use crate::support::upstream::{Nature, Upstream};

/// Bytes of a body that takes some hundred milliseconds to parse in a debug build.
const LONG: usize = 16 << 20;

/// Requests that show that others are served. A blocked worker answers at most a few between the steps of a long request.
const SERVED: usize = 20;

/// The data port of a tokentap that has one worker thread; it ends with the test's process.
async fn on_one_worker(upstream: SocketAddr, flags: &'static [&'static str]) -> SocketAddr {
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

/// Sends a long request and counts the short ones that are answered until it reaches the engine.
async fn served_meanwhile(bodies: Vec<Vec<u8>>) -> usize {
    let reached = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&reached);
    let upstream = Upstream::start(Nature::default(), move |asked| {
        if asked.body.len() > LONG / 2 {
            seen.store(true, Ordering::Release);
        }
        answer(asked)
    })
    .await;
    let data = on_one_worker(upstream.addr, &[]).await;
    let mut long = Vec::new();
    for body in bodies {
        let mut connection = Connection::open(data).await;
        connection.send(&written(data, "POST", "/generate", &[], &body)).await;
        long.push(connection);
    }
    let mut served = 0;
    while !reached.load(Ordering::Acquire) {
        assert_eq!(post(data, "/generate", br#"{"input_ids":[1,2,3]}"#).await.status, 200);
        served += 1;
    }
    for mut connection in long {
        assert_eq!(connection.answer().await.status, 200);
    }
    served
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_list_of_ids() {
    let ids = vec!["12345"; LONG / 6].join(",");
    let served = served_meanwhile(vec![format!("{{\"input_ids\":[{ids}]}}").into_bytes()]).await;
    assert!(served >= SERVED, "only {served} while a body of 16 MiB was parsed");
}
