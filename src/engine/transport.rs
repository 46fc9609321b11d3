//! Connections to the upstream: the HTTP client, the pool, the breaker, and bodies.

mod breaker;
pub mod client;
mod eof_check;
mod failure;
pub(crate) mod forwarded;
pub mod headers;
mod pool;
pub mod sse;
