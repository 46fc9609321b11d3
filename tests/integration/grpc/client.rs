// SPDX-License-Identifier: Apache-2.0
//! Clients of the services, generated from the `.proto` file.

#![allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]

use std::net::SocketAddr;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tower::{Service, ServiceExt};

include!("client/tokentap.v1.rs");

pub type Trajectories = trajectories_client::TrajectoriesClient<Channel>;
pub type Entropy = entropy_client::EntropyClient<Channel>;
pub type Generate = generate_client::GenerateClient<Channel>;

/// Opens a connection.
pub async fn channel(addr: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{addr}")).unwrap().connect().await.unwrap()
}

pub async fn trajectories(addr: SocketAddr) -> Trajectories {
    // a sample may be larger than the default of 4 MiB
    Trajectories::new(channel(addr).await).max_decoding_message_size(256 << 20)
}

pub async fn generate(addr: SocketAddr) -> Generate {
    Generate::new(channel(addr).await)
}

pub async fn entropy(addr: SocketAddr) -> Entropy {
    Entropy::new(channel(addr).await)
}

pub async fn health(addr: SocketAddr) -> HealthClient<Channel> {
    HealthClient::new(channel(addr).await)
}

pub async fn reflection(addr: SocketAddr) -> ServerReflectionClient<Channel> {
    ServerReflectionClient::new(channel(addr).await)
}

/// The answer to a call.
pub type Reply = JoinHandle<Result<http::Response<tonic::body::Body>, tonic::transport::Error>>;

/// A call whose bytes the test sends; its body ends when the sender is dropped.
pub async fn raw_call(addr: SocketAddr, path: &str) -> (UnboundedSender<Bytes>, Reply) {
    let (sender, mut pieces) = mpsc::unbounded_channel::<Bytes>();
    let pieces = stream::poll_fn(move |cx| pieces.poll_recv(cx));
    let body = StreamBody::new(pieces.map(|piece| Ok::<_, tonic::Status>(Frame::data(piece))));
    let call = http::Request::post(path).header("content-type", "application/grpc").header("te", "trailers");
    let call = call.body(tonic::body::Body::new(body)).unwrap();
    let mut channel = channel(addr).await;
    channel.ready().await.unwrap();
    (sender, tokio::spawn(channel.call(call)))
}

/// A message with its gRPC frame header.
pub fn encode_frame(message: &impl prost::Message) -> Bytes {
    let message = message.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap();
    Bytes::from([&[0][..], &length.to_be_bytes(), &message].concat())
}
