// SPDX-License-Identifier: Apache-2.0
//! The gRPC services of `proto/tokentap/v1/tokentap.proto`, on the same ports as HTTP.
//!
//! A call is decoded to the same types as the HTTP route of the same purpose, so limits, sessions, metrics and errors are the same. The
//! server owns the listener, the connections and HTTP/2. This module only serves `content-type: application/grpc`.

mod call_slots;
mod entropy;
mod generate;
mod health;
mod messages;
pub mod pb;
mod read_timeout;
mod reply_bodies;
mod services;
mod status;
mod trajectories;
mod watch;

use std::pin::Pin;

use futures_util::Stream;

pub(crate) use services::{Services, classify};
pub(crate) use status::{failed_status, into_response};

/// The replies of a server-streaming call.
type ReplyStream<T> = Pin<Box<dyn Stream<Item = Result<T, tonic::Status>> + Send>>;
