// SPDX-License-Identifier: Apache-2.0
//! Access control of the gRPC services by port, token and origin.

use bytes::Bytes;
use http_body::Frame;
use http_body_util::StreamBody;
use tokentap::serve::grpc::pb::{GenerateRequest, ListRequest};
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use tower::{Service, ServiceExt};

use super::client::{Generate, Trajectories, health, reflection, trajectories};
use crate::support::manual_upstream::{ManualUpstream, soon};
use crate::support::proxy::Proxy;
use crate::support::upstream::message;

fn signed<T>(message: T, key: &str) -> Request<T> {
    let mut request = Request::new(message);
    if !key.is_empty() {
        request.metadata_mut().insert("authorization", key.parse().unwrap());
    }
    request
}

fn generation(json: &'static str) -> GenerateRequest {
    GenerateRequest { json: Bytes::from_static(json.as_bytes()), session: String::new() }
}

#[tokio::test(flavor = "multi_thread")]
async fn control_token_is_required_except_for_health() {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &["--control-token", "control"]).await;
    let mut client = trajectories(proxy.control).await;
    for wrong in ["", "Bearer ", "Bearer contro", "Bearer controll", "control", "Basic control"] {
        let status = client.list(signed(ListRequest::default(), wrong)).await.expect_err("no token");
        assert_eq!(status.code(), Code::Unauthenticated, "{wrong:?}");
        assert_eq!(status.metadata().get("tokentap-http-status").unwrap(), "401");
        assert!(status.message().contains("--control-token"), "{}", status.message());
    }
    client.list(signed(ListRequest::default(), "Bearer control")).await.expect("the token opens it");
    let mut generate = Generate::new(super::client::channel(proxy.control).await);
    let status = generate.generate(generation("{}")).await.expect_err("no token");
    assert_eq!(status.code(), Code::Unauthenticated);
    health(proxy.control).await.check(HealthCheckRequest::default()).await.expect("probes are open");
    let asked = tokio_stream::once(ServerReflectionRequest::default());
    let status = reflection(proxy.control).await.server_reflection_info(asked).await.expect_err("no token");
    assert_eq!(status.code(), Code::Unauthenticated);
}

#[tokio::test(flavor = "multi_thread")]
async fn control_token_is_not_forwarded_to_the_engine() {
    for (flags, expected) in [
        (&["--control-token", "control", "--upstream-admin-key", "admin"][..], None),
        (
            &["--control-token", "control", "--upstream-api-key", "own", "--upstream-admin-key", "admin"],
            Some("Bearer own"),
        ),
        (&[], Some("Bearer control")),
    ] {
        let mut upstream = ManualUpstream::start().await;
        let proxy = Proxy::probed(upstream.addr, flags).await;
        let mut client = Generate::new(super::client::channel(proxy.control).await);
        let asking = tokio::spawn(async move {
            client.generate(signed(generation(r#"{"text":"a"}"#), "Bearer control")).await.map(drop)
        });
        let call = upstream.next().await;
        assert_eq!(call.asked.path, "/generate", "agents' calls are served here too");
        assert_eq!(call.asked.header("authorization"), expected, "{flags:?}");
        call.reply(&message(200, &[("content-type", "application/json")], b"{}")).await;
        asking.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_hosts_and_origins_are_refused() {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &["--control-host", "trainer.example"]).await;
    let under = async |host: &str| -> Trajectories {
        let at = Endpoint::from_shared(format!("http://{}", proxy.control)).unwrap();
        let channel: Channel = at.origin(format!("http://{host}").parse().unwrap()).connect().await.unwrap();
        Trajectories::new(channel)
    };
    for (host, code) in [
        ("evil.example", Some(Code::PermissionDenied)),
        ("evil.example:80", Some(Code::PermissionDenied)),
        ("[::1].evil.example:1", Some(Code::InvalidArgument)),
        ("localhost:1", None),
        ("trainer.example", None),
    ] {
        let answer = under(host).await.list(ListRequest::default()).await;
        assert_eq!(answer.err().map(|status| status.code()), code, "{host}");
    }
    let mut request = Request::new(ListRequest::default());
    request.metadata_mut().insert("origin", "http://evil.example".parse().unwrap());
    let status = trajectories(proxy.control).await.list(request).await.expect_err("a foreign page");
    assert_eq!(status.code(), Code::PermissionDenied);
}

#[tokio::test(flavor = "multi_thread")]
async fn trajectories_are_not_on_the_data_port() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    let status = trajectories(proxy.data).await.list(ListRequest::default()).await.expect_err("not on the data port");
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("control port"), "{}", status.message());
    let check = HealthCheckRequest { service: "tokentap.v1.Trajectories".into() };
    let status = health(proxy.data).await.check(check.clone()).await.expect_err("not on the data port");
    assert_eq!(status.code(), Code::NotFound);
    health(proxy.control).await.check(check).await.expect("health is on the control port");
    let mut unknown = tonic::client::Grpc::new(super::client::channel(proxy.data).await);
    unknown.ready().await.unwrap();
    let codec: tonic_prost::ProstCodec<ListRequest, ListRequest> = tonic_prost::ProstCodec::default();
    let path = http::uri::PathAndQuery::from_static("/some.Other/Call");
    let status = unknown.unary(Request::new(ListRequest::default()), path, codec).await.expect_err("no such service");
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("some.Other"), "{}", status.message());
    assert!(!upstream.has_more(), "gRPC calls do not go upstream");
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_lists_the_services_of_its_port() {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    for port in [proxy.data, proxy.control] {
        let ask = |message| ServerReflectionRequest { host: String::new(), message_request: Some(message) };
        let asked = tokio_stream::iter([
            ask(MessageRequest::ListServices(String::new())),
            ask(MessageRequest::FileContainingSymbol("tokentap.v1.Generate".into())),
        ]);
        let mut replies = reflection(port).await.server_reflection_info(asked).await.unwrap().into_inner();
        let Some(MessageResponse::ListServicesResponse(list)) = replies.next().await.unwrap().unwrap().message_response
        else {
            panic!("expected a list of services")
        };
        let mut names: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
        names.sort_unstable();
        let mut here = vec![
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "tokentap.v1.Entropy",
            "tokentap.v1.Generate",
        ];
        if port == proxy.control {
            here.push("tokentap.v1.Trajectories");
        }
        assert_eq!(names, here, "the services of the port, each once");
        let Some(MessageResponse::FileDescriptorResponse(files)) =
            replies.next().await.unwrap().unwrap().message_response
        else {
            panic!("expected a file")
        };
        let found =
            files.file_descriptor_proto.iter().any(|file| memchr::memmem::find(file, b"GenerateReply").is_some());
        assert!(found, "the file is returned");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_message_ends_with_deadline_exceeded() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &["limit:client-body-timeout", "200ms"]).await;
    let frame = |bytes: &'static [u8]| Ok::<_, tonic::Status>(Frame::data(Bytes::from_static(bytes)));
    // 100 bytes are announced, 3 are sent
    let half = tokio_stream::once(frame(b"\0\0\0\0\x64abc")).chain(tokio_stream::pending());
    let call = http::Request::post("/tokentap.v1.Generate/Generate")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(tonic::body::Body::new(StreamBody::new(half)))
        .unwrap();
    let mut channel = super::client::channel(proxy.data).await;
    channel.ready().await.unwrap();
    let reply = soon("an answer", channel.call(call)).await.unwrap();
    let status = Status::from_header_map(reply.headers()).expect("the call is over");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    assert!(status.message().contains("paused"), "{status:?}");
    assert!(!upstream.has_more(), "nothing goes upstream");

    // a reflection call without requests
    let asked = tokio_stream::pending::<ServerReflectionRequest>();
    let mut replies = reflection(proxy.data).await.server_reflection_info(asked).await.unwrap().into_inner();
    assert!(soon("the call ends", replies.next()).await.is_none_or(|reply| reply.is_err()), "there was no request");
}
