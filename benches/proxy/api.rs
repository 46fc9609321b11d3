// SPDX-License-Identifier: Apache-2.0
//! The APIs through which tokens are requested, and a client's connection for each.

use std::io::Result;

use crate::client::Connection;
use crate::grpc::GrpcConnection;

/// The API of a client's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `POST /generate`, which every target serves.
    Generate,
    /// `POST /v1/chat/completions`, which tokentap renders.
    Chat,
    /// `Generate` over gRPC, which tokentap serves.
    Grpc,
}

/// A connection that is kept between requests.
pub enum ApiConnection {
    Http(Connection),
    Grpc(GrpcConnection),
}

impl ApiConnection {
    pub async fn open(api: Api, port: u16) -> Result<Self> {
        Ok(match api {
            Api::Generate | Api::Chat => Self::Http(Connection::open(port).await?),
            Api::Grpc => Self::Grpc(GrpcConnection::open(port).await?),
        })
    }

    /// Sends a request and passes the pieces of the reply's body to `body` as they arrive; returns the status.
    pub async fn exchange(&mut self, request: &[u8], body: impl FnMut(&[u8])) -> Result<u16> {
        match self {
            Self::Http(connection) => connection.exchange(request, body).await,
            Self::Grpc(connection) => connection.exchange(request, body).await,
        }
    }

    /// A header of the last reply.
    pub fn header(&self, name: &str) -> Option<&str> {
        match self {
            Self::Http(connection) => connection.header(name),
            Self::Grpc(connection) => connection.header(name),
        }
    }
}
