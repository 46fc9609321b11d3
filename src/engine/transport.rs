// SPDX-License-Identifier: Apache-2.0
//! Connections to the upstream: the HTTP client, the pool, the breaker, and bodies.
//!
//! [`client`] sends calls through a [`pool`] of connections. [`exchange`] writes a request and reads the head of its reply, and
//! [`reply_body`] the rest, both in the task of the caller.

mod breaker;
pub mod client;
mod connection;
mod exchange;
pub mod failure;
pub(crate) mod forwarded;
mod framing;
mod head;
pub mod headers;
pub(crate) mod pool;
pub(crate) mod reply_body;
pub mod sse;
#[cfg(test)]
mod tests;
mod tls;

/// The most headers of a reply, and of its trailers: as many as of a request.
const MAX_HEADERS: usize = 100;
