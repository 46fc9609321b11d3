//! The gRPC edge: the services of `proto/tokentap/v1/tokentap.proto` on the ports that HTTP has.
//!
//! A call is decoded to what the route of the same purpose is decoded to, so that limits, sessions, metrics and refusals are those of
//! HTTP. The listener, the connections and HTTP/2 are the server's: here is only what answers `content-type: application/grpc`.

mod call_slots;
mod chunked_messages;
mod entropy;
mod generate;
mod health;
pub mod pb;
mod read_timeout;
mod sample;
mod services;
mod session;
mod status;
mod stream_shutdown;
mod trajectories;
mod watch;

use std::pin::Pin;

use futures_util::Stream;

pub use services::{Services, classify};
pub use status::{denied, failed_status, refused};

/// What a call is answered with that has many answers.
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, tonic::Status>> + Send>>;
