// SPDX-License-Identifier: Apache-2.0
//! One HTTP/2 connection for calls of `Generate` that reads replies without storing them, and the framing of their messages.

use std::io::{Error, Result};

use bytes::Bytes;
use http::{HeaderMap, Request, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use tokentap::serve::grpc::pb::{GenerateReply, GenerateRequest};
use tokio::net::TcpStream;

/// A connection.
pub struct GrpcConnection {
    sender: SendRequest<Full<Bytes>>,
    uri: Uri,
    headers: HeaderMap,
}

impl GrpcConnection {
    pub async fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(Error::other)?;
        // an error is a proxy that was ended
        tokio::spawn(async move { connection.await.ok() });
        let uri = format!("http://127.0.0.1:{port}/tokentap.v1.Generate/Generate").parse().map_err(Error::other)?;
        Ok(Self { sender, uri, headers: HeaderMap::new() })
    }

    /// Sends a framed request and passes the pieces of the framed replies to `body` as they arrive; returns the status of HTTP.
    ///
    /// # Errors
    /// Also when the call ends with another gRPC status than OK.
    pub async fn exchange(&mut self, request: &[u8], mut body: impl FnMut(&[u8])) -> Result<u16> {
        let call = Request::post(self.uri.clone()).header("content-type", "application/grpc").header("te", "trailers");
        let call = call.body(Full::new(Bytes::copy_from_slice(request))).map_err(Error::other)?;
        let (head, mut reply) = self.sender.send_request(call).await.map_err(Error::other)?.into_parts();
        self.headers = head.headers;
        // an error may have headers only
        let mut trailers = self.headers.clone();
        while let Some(frame) = reply.frame().await {
            match frame.map_err(Error::other)?.into_data() {
                Ok(data) => body(&data),
                Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
            }
        }
        match trailers.get("grpc-status") {
            Some(status) if status == "0" => Ok(head.status.as_u16()),
            _ => Err(Error::other(format!("the call failed: {trailers:?}"))),
        }
    }

    /// A header of the last reply.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// A request with this JSON, framed.
pub fn request(json: String) -> Vec<u8> {
    let message = GenerateRequest { json: json.into(), session: String::new() }.encode_to_vec();
    let mut framed = vec![0];
    framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
    framed.extend_from_slice(&message);
    framed
}

/// The JSON of each framed reply.
pub fn replies(mut framed: &[u8]) -> Vec<Bytes> {
    let mut replies = Vec::new();
    while let Some((prefix, rest)) = framed.split_first_chunk::<PREFIX>() {
        let [0, length @ ..] = *prefix else { panic!("a message is compressed") };
        let (message, rest) = rest.split_at(u32::from_be_bytes(length) as usize);
        replies.push(GenerateReply::decode(message).unwrap().json);
        framed = rest;
    }
    assert!(framed.is_empty(), "a message is cut off");
    replies
}
