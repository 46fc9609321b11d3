//! Clients of the services, generated from the `.proto` as anybody's are.

#![allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]

use std::net::SocketAddr;

use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;

include!("client/tokentap.v1.rs");

pub type Trajectories = trajectories_client::TrajectoriesClient<Channel>;
pub type Entropy = entropy_client::EntropyClient<Channel>;
pub type Generate = generate_client::GenerateClient<Channel>;

/// A connection that is open when this returns.
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
