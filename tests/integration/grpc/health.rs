// SPDX-License-Identifier: Apache-2.0
//! `grpc.health.v1` reports the state of `/readyz`.

use tokentap::serve::connection::Phase;
use tokio::net::TcpSocket;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;

use super::client::health;
use crate::support::client::get;
use crate::support::manual_upstream::{ManualUpstream, soon};
use crate::support::proxy::Proxy;

fn check_request(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_follows_readiness() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let proxy = Proxy::start(socket.local_addr().unwrap(), &[]).await;
    let mut client = health(proxy.control).await;
    let check = async |service: &str| {
        health(proxy.control).await.check(check_request(service)).await.unwrap().into_inner().status()
    };
    assert_eq!(get(proxy.control, "/readyz").await.status, 503);
    for service in ["", "tokentap.v1.Generate"] {
        assert_eq!(check(service).await, ServingStatus::NotServing, "{service:?} needs the engine");
    }
    assert_eq!(check("tokentap.v1.Trajectories").await, ServingStatus::Serving, "recorded sessions can be read");
    let unknown = client.check(check_request("some.Other")).await.expect_err("no such service");
    assert_eq!(unknown.code(), Code::NotFound);

    let mut watching = client.watch(check_request("")).await.unwrap().into_inner();
    let mut next_status = async || soon("the state is reported", watching.message()).await.unwrap().unwrap().status();
    assert_eq!(next_status().await, ServingStatus::NotServing);
    let _hand = ManualUpstream::on(socket.listen(16).unwrap());
    assert_eq!(next_status().await, ServingStatus::Serving, "as soon as the engine is reachable");
    assert_eq!(get(proxy.control, "/readyz").await.status, 200);
    assert_eq!(check("").await, ServingStatus::Serving);
    assert_eq!(
        health(proxy.data).await.check(check_request("")).await.unwrap().into_inner().status(),
        ServingStatus::Serving
    );

    proxy.phase.send_replace(Phase::Ending);
    let end = soon("a last status", watching.message()).await;
    let last = end.map(|reply| reply.map(|reply| reply.status()));
    assert!(matches!(last, Ok(Some(ServingStatus::NotServing)) | Err(_)), "{last:?}");
}
